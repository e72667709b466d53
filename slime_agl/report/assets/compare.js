
// Two executions of a group, side by side

const shared = (a, b) => {
  const most = Math.min(a.length, b.length);
  let at = 0;
  while (at < most && a[at] === b[at]) at++;
  return at;
};
const equal = (a, b) => a.length === b.length && shared(a, b) === a.length;
// The first turn, and place in it, where two executions part.
const parting = (one, two) => {
  for (let at = 0; at < Math.min(one.length, two.length); at++) {
    if (!equal(one[at].glue, two[at].glue)) return { at, where: "what was shown" };
    if (!equal(one[at].ids, two[at].ids)) return { at, where: `token ${shared(one[at].ids, two[at].ids)} of the answer` };
  }
  if (one.length !== two.length) return { at: Math.min(one.length, two.length), where: "only one goes on" };
  return null;
};
const FACTS = [
  ["reward", (one) => short(one.reward)], ["failure", (one) => one.failure || "none"], ["turns", (one) => one.turns], ["segments", (one) => one.segments],
  ["tokens that train", (one) => one.trained.toLocaleString("en")], ["masked", (one) => one.masked.toLocaleString("en")], ["mean logprob", (one) => number(one.logprob)],
  ["weights", (one) => one.weights.join(", ") || "unnamed"], ["seconds", (one) => one.seconds.toFixed(2)], ["at the engine", (one) => one.engine_seconds.toFixed(2)],
];
const advantagesOf = (body) => [...new Set(body.parts.map((part) => part.credit?.[2]).filter((value) => value !== null && value !== undefined).map(signed))].join(", ") || "–";
const cell = (body, at, other) => {
  const turn = body.tree[at], box = make("div", "cell");
  if (!turn) return make("div", "cell soft", "(ended)");
  const swatch = make("i", "swatch");
  swatch.style.background = partColour(turn.home);
  box.append(make("h3", "", "", swatch, `turn ${at} `, creditOf(turn.credit), make("small", "", factsOf(turn).slice(1, 4).join(" · "))));
  if (columns !== "tokens") box.append(conversationOf(turn, body));
  if (columns !== "conversation") {
    const tokens = make("div", "tokens");
    glueOf(turn, tokens);
    outputOf(turn, tokens, other && equal(turn.glue, other.glue) ? shared(turn.ids, other.ids) : 0);
    box.append(tokens);
  }
  return box;
};
const compare = (left, right) => {
  forgetPending();
  const pair = [left, right], bodies = pair.map(open), [one, two] = bodies.map((body) => body.tree), part = parting(one, two);
  const lines = make("table", "facts");
  lines.append(make("tr", "", "", make("th"), ...pair.map((execution) => make("th", "", "", rewardChip(execution), button("link", ` ${titleOf(execution)}`, () => select(execution), execution.name)))));
  for (const [name, value] of [...FACTS.slice(0, 1), ["advantage", (_, at) => advantagesOf(bodies[at])], ...FACTS.slice(1)]) {
    const told = pair.map(value);
    lines.append(make("tr", told[0] === told[1] ? "" : "differs", "", make("td", "", name), ...told.map((text) => make("td", "", text))));
  }
  const verdict = part === null ? "Both are the same, token by token." : `They part at turn ${part.at}: ${part.where}.`;
  const jump = part === null ? [] : [button("link", "go there", () => goTo(part.at))];
  const parts = [make("h2", "", "Two executions of a group"), make("p", "verdict", `${verdict} `, ...jump), lines];
  if (bodies[0].task !== bodies[1].task) parts.push(make("p", "soft", "Their tasks differ."));
  else parts.push(taskOf(bodies[0]));
  for (const [at, execution] of pair.entries()) if (execution.failure) parts.push(make("p", "failed", `${at ? "right" : "left"} failed: ${execution.failure}`), make("pre", "failed", bodies[at].error));
  parts.push(toolbar([...one, ...two]));
  for (let at = 0; at < Math.max(one.length, two.length); at++) {
    const row = make("section", `pair ${part && at === part.at ? "parting" : ""}`), same = one[at] && two[at] && equal(one[at].glue, two[at].glue) && equal(one[at].ids, two[at].ids);
    row.id = `turn-${at}`;
    if (same) row.append(folded("alike", `turn ${at}: the same in both, ${plural(one[at].ids.length, "sampled token")}`, cell(bodies[0], at, two[at])));
    else {
      const sides = [[...emissionsOf(bodies[0], at), cell(bodies[0], at, two[at])], [...emissionsOf(bodies[1], at), cell(bodies[1], at, one[at])]];
      row.append(make("div", "sides", "", ...sides.map((nodes) => make("div", "", "", ...nodes))));
    }
    parts.push(row);
  }
  const ends = bodies.map((body, at) => make("div", "", "", ...emissionsOf(body, pair[at].turns)));
  parts.push(make("section", "pair", "", make("div", "sides", "", ...ends)));
  byId("detail").replaceChildren(...parts);
};
