
// One execution

let columns = "both";
const choice = (name, given, chosen, onchoose) => {
  const box = make("span", "choice");
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", name);
  for (const [value, words] of given) {
    const input = Object.assign(make("input"), { type: "radio", name, value, checked: value === chosen });
    input.onchange = () => onchoose(value);
    box.append(make("label", "", "", input, make("span", "", words)));
  }
  return box;
};
const toolbar = (turns) => make("div", "toolbar", "",
  choice("columns", [["both", "conversation and tokens"], ["conversation", "conversation"], ["tokens", "tokens"]], columns, (value) => { columns = value; draw(); }),
  choice("colour", [["fate", "trained"], ["logprob", "logprob"], ["weights", "weights"]], colour, (value) => { colour = value; draw(); }),
  legend(turns));
const depthsOf = (turns) => {
  const first = new Set(), depths = [];
  turns.forEach((turn) => {
    const branch = turn.parent !== null && first.has(turn.parent) ? 1 : 0;
    if (turn.parent !== null) first.add(turn.parent);
    depths.push(turn.parent === null ? 0 : depths[turn.parent] + branch);
  });
  return depths;
};
const factsOf = (turn) => [turn.parent === null ? "begins" : `continues ${turn.parent}`, `${turn.glue.length.toLocaleString("en")} + ${plural(turn.ids.length, "token")}`,
  turn.cached ? `${turn.cached.toLocaleString("en")} cached` : "", turn.finish, `at ${turn.at.toFixed(2)} s for ${turn.seconds.toFixed(2)} s (engine ${turn.engine.toFixed(2)})`, turn.model].filter(Boolean);
const headOf = (turn, at) => {
  const head = make("h3", "", `turn ${at} `), swatch = make("i", "swatch");
  swatch.style.background = partColour(turn.home);
  head.prepend(swatch);
  head.append(creditOf(turn.credit), make("small", "", factsOf(turn).join(" · ")));
  if (turn.fork) head.append(make("em", "", `fork: ${turn.fork}`));
  if (turn.why) head.append(make("em", "", `untrained: ${turn.why}`));
  return head;
};
const turnOf = (body, at, depth) => {
  const turn = body.tree[at], box = make("section", `turn only-${columns}`), sides = make("div", "sides");
  box.id = `turn-${at}`;
  box.style.setProperty("--depth", Math.min(depth, 6));
  box.style.setProperty("--edge", partColour(turn.home));
  if (columns !== "tokens") sides.append(conversationOf(turn, body));
  if (columns !== "conversation") sides.append(tokensOf(turn));
  box.append(headOf(turn, at), sides);
  return box;
};
const emissionsOf = (body, after) => body.rewards.filter(([turns]) => turns === after).map(([, dimensions]) =>
  make("p", "emitted", "", "the agent gave the reward ", make("b", "", Object.entries(dimensions).map(([name, value]) => (name === "primary" ? short(value) : `${name} ${short(value)}`)).join(", "))));
const summary = (execution, body) => {
  const node = make("dl"), fact = (name, value) => node.append(make("div", "", "", make("dt", "", name), make("dd", "", value)));
  const masked = Object.entries(execution.untrained).map(([why, n]) => `${why}: ${n}`).join(", ");
  fact("turns, segments", `${execution.turns}, ${execution.segments}`);
  fact("tokens that train", execution.trained.toLocaleString("en"));
  fact("sampled but masked", `${execution.masked.toLocaleString("en")}${execution.masked ? ` (${masked})` : ""}`);
  fact("not sampled", execution.glue.toLocaleString("en"));
  fact("mean logprob", number(execution.logprob));
  fact("weights", execution.weights.join(", ") || "unnamed");
  fact("seconds, at the engine", `${execution.seconds.toFixed(2)}, ${execution.engine_seconds.toFixed(2)}`);
  fact("forks", Object.entries(execution.forks).map(([why, n]) => `${why} ×${n}`).join(", ") || "none");
  if (execution.dataset) fact("evaluation of", execution.dataset);
  if (execution.unused) fact("group not delivered", execution.unused);
  if (execution.retries) fact("joined retries", execution.retries);
  if (Object.keys(execution.blotted).length) fact("credentials blotted out", Object.entries(execution.blotted).map(([place, n]) => `${place} ×${n}`).join(", "));
  if (body.refused) fact("first refused request", body.refused);
  return node;
};
// The executions of the group as chips, best first; each opens, and compares.
const groupBar = (execution) => {
  const others = [...mates(execution)].sort((a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity));
  if (others.length < 2) return [];
  const bar = make("div", "groupbar", "", make("span", "soft", `group ${execution.group ?? "–"}, compare with`));
  for (const other of others) {
    const chip = button("chip reward", other.failure ? `${short(other.reward)} ✗` : short(other.reward),
      () => (other === execution ? null : compareWith(other)), other === execution ? "this execution" : `compare with ${other.name}${other.failure ? ` (${other.failure})` : ""}`);
    chip.style.setProperty("--chip", rewardColour(other.reward));
    if (other === execution) chip.setAttribute("aria-current", "true");
    bar.append(chip);
  }
  return [bar];
};
const spansOf = (body) => {
  if (!body.spans.length) return [];
  const lines = make("table", "spans");
  lines.append(make("tr", "", "", ...["at", "seconds", "name", "attributes"].map((name) => make("th", "", name))));
  for (const span of body.spans) {
    const attributes = Object.entries(span.attributes).map(([name, value]) => `${name}=${value}`).join("  ");
    lines.append(make("tr", "", "", ...[span.at.toFixed(2), span.seconds.toFixed(3), span.name, attributes].map((value) => make("td", "", value))));
  }
  return [folded("", plural(body.spans.length, "span"), lines)];
};
const goTo = (at) => {
  const box = byId(`turn-${at}`);
  box?.scrollIntoView({ block: "start" });
  box?.classList.add("here");
  setTimeout(() => box?.classList.remove("here"), 1200);
};
const show = (execution) => {
  forgetPending();
  const body = open(execution), turns = body.tree, depths = depthsOf(turns);
  const head = make("h2", "", "", rewardChip(execution), make("span", "", ` ${titleOf(execution)} `), make("small", "", execution.name));
  const parts = [head, ...groupBar(execution), taskOf(body), summary(execution, body)];
  if (execution.failure) parts.push(make("p", "failed", `failed: ${execution.failure}`), make("pre", "failed", body.error));
  if (turns.length > 1 || body.parts.length > 1) parts.push(make("div", "structure", "", treeOf(body, goTo), partsOf(body, goTo)));
  parts.push(toolbar(turns), ...emissionsOf(body, 0));
  turns.forEach((turn, at) => parts.push(turnOf(body, at, depths[at]), ...emissionsOf(body, at + 1)));
  parts.push(...spansOf(body));
  byId("detail").replaceChildren(...parts);
};
