
// The tokens beside it

let colour = "fate";
const GLUE = 600, DRAWN = 4000;
const tokenNode = (text, className, facts) => {
  const node = make("span", className, text.replace(/\n/g, "↵\n"));
  node.dataset.tip = facts;
  return node;
};
const glueOf = (turn, box) => {
  const spoken = texts(turn.glue), node = (at) => tokenNode(spoken[at], "g", `not sampled · id ${tokenId(turn.glue[at])}`);
  const nodes = (from, to) => Array.from({ length: to - from }, (_, i) => node(from + i));
  if (spoken.length <= GLUE) return void box.append(...nodes(0, spoken.length));
  const from = GLUE / 2, to = spoken.length - GLUE / 2;
  const all = button("link", ` … ${plural(to - from, "token")} … `, () => all.replaceWith(...nodes(from, to)));
  box.append(...nodes(0, from), all, ...nodes(to, spoken.length));
};
// same: number of leading output tokens that a compared turn shares.
const outputOf = (turn, box, same = 0) => {
  const spoken = texts(turn.ids), versions = turn.weights.flatMap(([version, count]) => Array(count).fill(version));
  const node = (at) => {
    const trained = turn.trained[at], logprob = turn.logprobs[at], version = versions[at];
    const facts = `${trained ? "trains" : `masked${turn.why ? `: ${turn.why}` : ""}`} · id ${tokenId(turn.ids[at])} · logprob ${logprob.toFixed(4)}`
      + ` (p ${Math.exp(logprob).toFixed(3)})${version ? ` · weights ${version}` : ""}`;
    const one = tokenNode(spoken[at], `o${colour === "fate" ? (trained ? " t" : " m") : ""}${at < same ? " same" : ""}`, facts);
    if (colour === "logprob") one.style.background = heat(logprob);
    if (colour === "weights" && version) one.style.background = hue(version);
    return one;
  };
  const draw = (from) => {
    const to = Math.min(from + DRAWN, spoken.length);
    for (let at = from; at < to; at++) box.append(node(at));
    if (to < spoken.length) {
      const rest = button("link", ` … ${plural(spoken.length - to, "more token")}`, () => { rest.remove(); draw(to); });
      box.append(rest);
    }
  };
  draw(0);
};
// Tokens are drawn when they come near the window: an execution may have a hundred thousand.
const EAGER = 6000;
const pending = new Map();
const near = new IntersectionObserver((seen) => {
  for (const one of seen) {
    if (!one.isIntersecting) continue;
    near.unobserve(one.target);
    pending.get(one.target)?.();
    pending.delete(one.target);
  }
}, { rootMargin: "800px" });
let budget = EAGER;
const forgetPending = () => { near.disconnect(); pending.clear(); budget = EAGER; };
const tokensOf = (turn) => {
  const box = make("div", "tokens"), fill = () => { box.style.minHeight = ""; glueOf(turn, box); outputOf(turn, box); };
  const size = Math.min(turn.glue.length, GLUE) + Math.min(turn.ids.length, DRAWN);
  if (size <= budget) {
    budget -= size;
    fill();
  } else {
    box.style.minHeight = `${Math.ceil(size / 14) * 1.5}em`;
    pending.set(box, fill);
    near.observe(box);
  }
  return box;
};
const legend = (turns) => {
  const node = make("div", "legend"), sample = (text, background) => {
    const item = make("span", "", text);
    if (background) item.style.background = background;
    node.append(item);
  };
  if (colour === "fate") { sample("trains", "var(--trained)"); sample("masked", "var(--masked)"); node.append(make("i", "", "plain: not sampled")); }
  if (colour === "logprob") for (const value of [0, -1, -2, -4]) sample(`${value}`, heat(value));
  if (colour === "weights") for (const version of new Set(turns.flatMap((turn) => turn.weights.map(([name]) => name)))) sample(version || "unnamed", version && hue(version));
  return node;
};
