
// The run as a whole

const chart = (caption, figureOf, svg) => make("figure", "", "", make("figcaption", "", caption, make("b", "", figureOf)), svg);
const WIDTH = 220, HEIGHT = 84;
const canvas = () => shape("svg", { viewBox: `0 -2 ${WIDTH} ${HEIGHT + 16}`, role: "img" });
const label = (svg, x, text, anchor = "start") => svg.append(Object.assign(shape("text", { x, y: HEIGHT + 12, "text-anchor": anchor }), { textContent: visible(text) }));
const histogram = (caption, values, digits, onpick) => {
  values = values.filter((value) => value !== null);
  if (!values.length) return [];
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b)), svg = canvas();
  const whole = digits === 0 && high - low < 19;
  const count = low === high ? 1 : whole ? high - low + 1 : 19;
  const bins = Array(count).fill(0), span = (high - low) / count || 1;
  const place = (value) => Math.min(count - 1, whole ? value - low : Math.floor((value - low) / span));
  for (const value of values) bins[place(value)]++;
  const tallest = Math.max(...bins), width = WIDTH / Math.max(count, 4);
  bins.forEach((n, i) => {
    const height = n ? Math.max(2, (n / tallest) * HEIGHT) : 0;
    const from = whole ? low + i : low + i * span, end = whole ? from : from + span;
    const to = whole || count === 1 ? "" : ` to ${number(end, digits)}`;
    const bar = shape("rect", { class: onpick ? "bar pick" : "bar", x: i * width + 1, y: HEIGHT - height, width: width - 2, height, rx: 1.5 }, `${number(from, digits)}${to}: ${n}${onpick ? "; click to filter" : ""}`);
    if (onpick) bar.onclick = () => onpick(from, i === count - 1 ? high : end);
    svg.append(bar);
  });
  label(svg, 0, number(low, digits));
  if (high !== low) label(svg, Math.min(WIDTH, count * width), number(high, digits), "end");
  return [chart(caption, `mean ${number(sum(values) / values.length, Math.max(digits, 1))}`, svg)];
};
const timeline = () => {
  const scored = executions.filter((execution) => execution.reward !== null);
  if (!scored.length || steps.length < 2) return [];
  const [low, high] = rewardRange, svg = canvas();
  const y = (value) => HEIGHT - (high === low ? 0.5 : (value - low) / (high - low)) * (HEIGHT - 6) - 3;
  const x = (step) => (step / (steps.length - 1)) * (WIDTH - 8) + 4;
  const byStep = new Map(steps.map((step) => [step, []]));
  for (const execution of scored) byStep.get(execution.step).push(execution.reward);
  const evaluated = new Set(executions.filter(({ dataset }) => dataset).map(({ step }) => step));
  const means = [[], []];
  steps.forEach((step, at) => {
    const rewards = byStep.get(step), apart = evaluated.has(step);
    for (const [reward, n] of counted(rewards.map((reward) => [reward, 1]))) {
      svg.append(shape("circle", { class: apart ? "dot apart" : "dot", cx: x(at), cy: y(reward), r: Math.min(6, 1.5 + Math.sqrt(n)) }, `${step}: ${number(reward)} ×${n}`));
    }
    if (rewards.length) means[Number(apart)].push([x(at), y(sum(rewards) / rewards.length)]);
  });
  means.forEach((points, apart) => {
    if (points.length > 1) svg.append(shape("polyline", { class: apart ? "mean apart" : "mean", points: points.join(" ") }));
    for (const [cx, cy] of points) svg.append(shape("circle", { class: apart ? "middle apart" : "middle", cx, cy, r: 2.5 }));
  });
  label(svg, 0, steps[0]);
  label(svg, WIDTH, steps.at(-1), "end");
  const names = means[0].length && means[1].length ? "reward; evaluations dashed" : "reward per step";
  return [chart(names, `${number(low, 2)} to ${number(high, 2)}`, svg)];
};
const tally = (caption, rows, onpick) => {
  if (!rows.length) return [];
  const list = make("table", "tally");
  for (const [name, n] of rows.slice(0, 12)) {
    const named = onpick ? button("link", name, () => onpick(name), `show only these`) : document.createTextNode(visible(name));
    list.append(make("tr", "", "", make("td", "", "", named), make("td", "n", n.toLocaleString("en"))));
  }
  return [make("figure", "", "", make("figcaption", "", caption), list)];
};
const sumsOf = () => {
  const column = (name) => executions.map((execution) => execution[name]);
  const failed = executions.filter((execution) => execution.failure).length;
  byId("sums").textContent = `${plural(executions.length, "execution")} in ${plural(steps.length, "step")} · `
    + `${sum(column("trained")).toLocaleString("en")} tokens train, ${sum(column("masked")).toLocaleString("en")} do not · ${failed} failed`;
};
const overview = () => {
  const column = (name) => executions.map((execution) => execution[name]);
  const pick = (id) => (value) => { byId(id).value = value; filter(); };
  const several = [...groups.values()].filter((group) => group.length > 1 && group.some(({ reward }) => reward !== null));
  const flat = several.filter((group) => new Set(group.map(({ reward }) => reward)).size === 1).length;
  const charts = make("section", "charts", "",
    ...timeline(),
    ...histogram("reward", column("reward"), 2, (from, to) => { byId("low").value = from; byId("high").value = to; filter(); }),
    ...histogram("turns", column("turns"), 0),
    ...histogram("segments", column("segments"), 0),
    ...histogram("tokens that train", column("trained"), 0),
    ...histogram("mean logprob", column("logprob"), 2),
    ...histogram("seconds", column("seconds"), 1),
    ...tally("failures", counted(executions.filter((one) => one.failure).map((one) => [one.failure, 1])), pick("failure")),
    ...tally("forks, by reason", counted(executions.flatMap((one) => Object.entries(one.forks))), pick("fork")),
    ...tally("sampled tokens that do not train", counted(executions.flatMap((one) => Object.entries(one.untrained)))),
  );
  const note = several.length ? `${plural(several.length, "group")} of several executions; ${flat} of them with equal rewards, which teach nothing.` : "";
  byId("detail").replaceChildren(make("h2", "", "The run"), ...(note ? [make("p", "soft", note)] : []), charts,
    ...(executions.length ? [] : [make("p", "", "Nothing was recorded.")]),
    make("p", "soft", "Choose an execution on the left; j and k step through the list, c compares with the next execution of its group."));
};
