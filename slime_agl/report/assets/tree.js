
// Segments as a tree of turns

const lanesOf = (turns) => {
  const lanes = [], depths = [], continued = new Set();
  let free = 0;
  turns.forEach((turn, at) => {
    const follows = turn.parent !== null && !continued.has(turn.parent);
    depths.push(turn.parent === null ? 0 : depths[turn.parent] + 1);
    lanes.push(follows ? lanes[turn.parent] : free++);
    if (follows) continued.add(turn.parent);
  });
  return { lanes, depths, count: free };
};
const treeOf = (body, onpick) => {
  const { lanes, depths, count } = lanesOf(body.tree), deepest = depths.reduce((a, b) => Math.max(a, b), 0);
  const wide = deepest < 40 ? 30 : deepest < 120 ? 18 : 11, high = count < 30 ? 26 : 16, radius = Math.min(wide, high) / 2 - 2;
  const x = (at) => depths[at] * wide + wide / 2 + 2, y = (at) => lanes[at] * high + high / 2 + 2;
  const width = (deepest + 1) * wide + 6, height = count * high + 6;
  const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, class: "tree", role: "img", "aria-label": "turns as a tree" });
  body.tree.forEach((turn, at) => {
    if (turn.parent === null) return;
    const from = turn.parent, bend = lanes[from] === lanes[at] ? "" : ` C ${x(from) + wide / 2} ${y(from)} ${x(at) - wide / 2 - 4} ${y(at)}`;
    svg.append(shape("path", { class: turn.fork ? "edge fork" : "edge", d: `M ${x(from)} ${y(from)}${bend || " L"} ${x(at)} ${y(at)}` }));
  });
  body.tree.forEach((turn, at) => {
    const facts = [`turn ${at}`, turn.parent === null ? "begins a conversation" : `continues ${turn.parent}`, turn.fork && `fork: ${turn.fork}`,
      turn.home === null ? `untrained${turn.why ? `: ${turn.why}` : ""}` : `trains in segment ${turn.home}`, turn.model].filter(Boolean).join(" · ");
    const node = shape("g", { class: "node", transform: `translate(${x(at)} ${y(at)})`, tabindex: 0 }, facts);
    node.append(shape("circle", { r: Math.max(2, radius), style: turn.home === null ? "fill: var(--panel); stroke: var(--soft); stroke-dasharray: 2 2" : `fill: ${partColour(turn.home)}; stroke: none` }));
    if (radius >= 8) node.append(Object.assign(shape("text", { y: 3.5, "text-anchor": "middle" }), { textContent: at }));
    node.onclick = () => onpick(at);
    node.onkeydown = (event) => { if (event.key === "Enter") onpick(at); };
    svg.append(node);
  });
  return make("div", "treebox", "", svg);
};
const creditOf = (credit, words = false) => {
  const box = make("span", "credit");
  if (!credit) return box;
  const [value, earned, advantage] = credit;
  const pill = (name, text, sign) => {
    const one = make("span", `pill ${sign > 0 ? "up" : sign < 0 ? "down" : ""}`, "", make("small", "", `${name} `), visible(text));
    box.append(one);
  };
  if (earned !== null) pill("earned", signed(earned), earned);
  if (value !== null) pill(earned === null ? "reward" : "return", short(value), 0);
  if (advantage !== null) pill("advantage", signed(advantage), advantage);
  return box;
};
const range = (indices) => {
  const runs = [];
  for (const at of indices) {
    if (runs.length && runs.at(-1)[1] === at - 1) runs.at(-1)[1] = at;
    else runs.push([at, at]);
  }
  return runs.map(([a, b]) => (a === b ? a : `${a}–${b}`)).join(", ");
};
const partsOf = (body, onpick) => {
  const list = make("table", "parts");
  list.append(make("tr", "", "", ...["segment", "turns", "turns that train", "tokens", "status", "credit"].map((name) => make("th", "", name))));
  body.parts.forEach((part, at) => {
    const swatch = make("i", "swatch");
    swatch.style.background = part.removed ? "var(--masked)" : partColour(at);
    const name = make("td", "", "", swatch, button("link", `${at}`, () => onpick(part.trained[0]), "go to its first trained turn"));
    list.append(make("tr", "", "", name, make("td", "", range(part.turns)), make("td", "", part.removed ? "–" : range(part.trained)), make("td", "", part.tokens.toLocaleString("en")),
      make("td", "", part.removed ? `${part.status || "no Sample"}, does not train` : part.status), make("td", "", "", creditOf(part.credit))));
  });
  return make("div", "partsbox", "", list);
};
