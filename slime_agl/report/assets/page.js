"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
// Bidirectional controls would reorder the displayed text.
const visible = (text) => String(text).replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`);
const make = (tag, className, text) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = visible(text);
  return node;
};
const unpack = (text, Type) => {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Type(bytes.buffer);
};
const encoder = new TextEncoder();
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const number = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const sum = (values) => values.reduce((a, b) => a + b, 0);

// Texts: a character split over several tokens belongs to the last.
const texts = (places) => {
  const decoder = new TextDecoder();
  const out = Array.from(places, (place) => {
    const text = data.tokens[place][1];
    return decoder.decode(typeof text === "string" ? encoder.encode(text) : Uint8Array.from(text), { stream: true });
  });
  const rest = decoder.decode();
  if (out.length) out[out.length - 1] += rest;
  return out;
};

const opened = new Map();
const open = (execution) => {
  if (!opened.has(execution)) {
    opened.set(execution, execution.tree.map((turn) => ({
      ...turn,
      glue: unpack(turn.glue, Int32Array), ids: unpack(turn.ids, Int32Array),
      logprobs: unpack(turn.logprobs, Float32Array), trained: unpack(turn.trained, Uint8Array),
    })));
  }
  return opened.get(execution);
};
const said = (execution) => {
  if (execution.said === undefined) {
    const parts = open(execution).flatMap((turn) => [texts(turn.glue).join(""), texts(turn.ids).join("")]);
    execution.said = [execution.name, execution.task, execution.error, ...parts].join("\n").toLowerCase();
  }
  return execution.said;
};

// Summarise a task: its texts.
const gist = (task) => {
  try {
    const value = JSON.parse(task);
    if (value && typeof value === "object") return Object.values(value).filter((part) => typeof part === "string").join(" · ") || task;
  } catch { /* a task may be any text */ }
  return task;
};

// The batch

const SVG = "http://www.w3.org/2000/svg";
const shape = (tag, attributes, title) => {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (title) node.append(Object.assign(document.createElementNS(SVG, "title"), { textContent: title }));
  return node;
};
const figure = (caption, figureOf, svg) => {
  const node = make("figure"), head = make("figcaption", "", caption);
  head.append(make("b", "", figureOf));
  node.append(head, svg);
  byId("charts").append(node);
};
const WIDTH = 148, HEIGHT = 62;
const canvas = () => shape("svg", { width: WIDTH, height: HEIGHT + 14, role: "img" });
const histogram = (caption, values, digits) => {
  values = values.filter((value) => value !== null);
  if (!values.length) return;
  const low = Math.min(...values), high = Math.max(...values), svg = canvas();
  const whole = digits === 0 && high - low < 19;
  const count = low === high ? 1 : whole ? high - low + 1 : 19;
  const bins = Array(count).fill(0), span = (high - low) / count || 1;
  const place = (value) => Math.min(count - 1, whole ? value - low : Math.floor((value - low) / span));
  for (const value of values) bins[place(value)]++;
  const tallest = Math.max(...bins), width = WIDTH / Math.max(count, 4);
  bins.forEach((n, i) => {
    const height = n ? Math.max(2, (n / tallest) * HEIGHT) : 0;
    const from = whole ? low + i : low + i * span, to = whole || count === 1 ? "" : ` to ${number(from + span, digits)}`;
    svg.append(shape("rect", { class: "bar", x: i * width + 1, y: HEIGHT - height, width: width - 2, height }, `${number(from, digits)}${to}: ${n}`));
  });
  svg.append(Object.assign(shape("text", { x: 0, y: HEIGHT + 12 }), { textContent: number(low, digits) }));
  svg.append(Object.assign(shape("text", { x: WIDTH, y: HEIGHT + 12, "text-anchor": "end" }), { textContent: number(high, digits) }));
  figure(caption, `mean ${number(sum(values) / values.length, Math.max(digits, 1))}`, svg);
};
const steps = [...new Set(data.executions.map((execution) => execution.step))];
const timeline = () => {
  const scored = data.executions.filter((execution) => execution.reward !== null);
  if (!scored.length) return;
  const rewards = scored.map((execution) => execution.reward), svg = canvas();
  const low = Math.min(...rewards), high = Math.max(...rewards);
  const y = (value) => HEIGHT - (high === low ? 0.5 : (value - low) / (high - low)) * (HEIGHT - 6) - 3;
  const x = (step) => (steps.length === 1 ? WIDTH / 2 : (step / (steps.length - 1)) * (WIDTH - 8) + 4);
  const means = steps.map((step, at) => {
    const mine = scored.filter((execution) => execution.step === step);
    for (const execution of mine) {
      svg.append(shape("circle", { class: "dot", cx: x(at), cy: y(execution.reward), r: 2.5 }, `${step}: ${number(execution.reward)}`));
    }
    return mine.length ? `${x(at)},${y(sum(mine.map((execution) => execution.reward)) / mine.length)}` : null;
  }).filter(Boolean);
  svg.append(shape("polyline", { class: "mean", points: means.join(" ") }));
  svg.append(Object.assign(shape("text", { x: 0, y: HEIGHT + 12 }), { textContent: steps[0] }));
  if (steps.length > 1) svg.append(Object.assign(shape("text", { x: WIDTH, y: HEIGHT + 12, "text-anchor": "end" }), { textContent: steps.at(-1) }));
  figure("reward a step", `${number(low, 2)} to ${number(high, 2)}`, svg);
};
const overview = () => {
  const all = data.executions, column = (name) => all.map((execution) => execution[name]);
  const failed = all.filter((execution) => execution.failure).length;
  byId("sums").textContent = `${all.length} executions in ${steps.length} ${steps.length === 1 ? "file" : "files"} · `
    + `${sum(column("trained")).toLocaleString("en")} tokens train, ${sum(column("masked")).toLocaleString("en")} do not · ${failed} failed`;
  timeline();
  histogram("reward", column("reward"), 2);
  histogram("turns", column("turns"), 0);
  histogram("segments", column("segments"), 0);
  histogram("trained", column("trained"), 0);
  histogram("logprob", column("logprob"), 2);
  histogram("seconds", column("seconds"), 1);
};

// The list

const KINDS = {
  failed: (execution) => execution.failure, forked: (execution) => execution.segments > 1,
  masked: (execution) => execution.masked, mixed: (execution) => execution.weights.length > 1,
};
let current = null;
const wanted = () => {
  const step = byId("step").value, kind = byId("kind").value, words = byId("search").value.trim().toLowerCase();
  let found = data.executions.filter((execution) => (!step || execution.step === step) && (!kind || KINDS[kind](execution))
    && (!words || said(execution).includes(words)));
  const order = byId("order").value, key = order.replace("-", ""), sign = order.startsWith("-") ? -1 : 1;
  if (order) {
    const value = (execution) => (execution[key] === null ? sign * Infinity : execution[key]);
    found = [...found].sort((a, b) => sign * (value(a) - value(b)) || 0);
  }
  return found;
};
const entry = (execution) => {
  const item = make("li"), button = make("button"), top = make("div", "top");
  button.type = "button";
  top.append(make("span", "", `${execution.step} · ${execution.index ?? "–"}`));
  const reward = make("span", `reward${execution.failure ? " failed" : ""}`, execution.failure || number(execution.reward));
  top.append(reward);
  button.append(top, make("div", "task", `${plural(execution.turns, "turn")}, ${plural(execution.segments, "segment")} · ${gist(execution.task)}`));
  button.onclick = () => show(execution);
  if (execution === current) button.setAttribute("aria-current", "true");
  execution.button = button;
  item.append(button);
  return item;
};
const list = () => {
  const found = wanted();
  byId("list").replaceChildren(...found.map(entry));
  byId("count").textContent = `${found.length} of ${data.executions.length}`;
  if (!found.includes(current)) show(found[0] ?? null);
  else show(current);
};

// One execution

const heat = (logprob) => `color-mix(in srgb, var(--unlikely) ${Math.min(100, Math.round(-logprob * 25))}%, var(--trained))`;
const hue = (version) => `hsl(${(sum([...version].map((letter, i) => letter.charCodeAt(0) * (i + 7))) * 47) % 360} 55% var(--weights))`;
let colour = "fate";
const depthsOf = (turns) => {
  const first = new Map(), depths = [];
  turns.forEach((turn, i) => {
    const base = turn.parent === null ? 0 : depths[turn.parent];
    const branch = turn.parent !== null && first.has(turn.parent) ? 1 : 0;
    if (turn.parent !== null && !branch) first.set(turn.parent, i);
    depths.push(base + branch);
  });
  return depths;
};
const token = (text, className, facts) => {
  const node = make("span", className, text.replace(/\n/g, "↵\n"));
  node.dataset.tip = facts;
  return node;
};
const tokensOf = (turn) => {
  const box = make("div", "tokens");
  texts(turn.glue).forEach((text, i) => box.append(token(text, "g", `glue · id ${data.tokens[turn.glue[i]][0]}`)));
  const versions = turn.weights.flatMap(([version, count]) => Array(count).fill(version));
  texts(turn.ids).forEach((text, i) => {
    const trained = turn.trained[i], logprob = turn.logprobs[i];
    const facts = `${trained ? "trains" : `masked${turn.why ? `: ${turn.why}` : ""}`} · id ${data.tokens[turn.ids[i]][0]} · logprob ${logprob.toFixed(4)}`
      + ` (p ${Math.exp(logprob).toFixed(3)})${versions[i] ? ` · weights ${versions[i]}` : ""}`;
    const node = token(text, colour === "fate" ? (trained ? "o t" : "o m") : "o", facts);
    if (colour === "logprob") node.style.background = heat(logprob);
    if (colour === "weights" && versions[i]) node.style.background = hue(versions[i]);
    box.append(node);
  });
  return box;
};
const legend = (turns) => {
  const node = make("div", "legend"), sample = (text, background) => {
    const item = make("span", "", text);
    if (background) item.style.background = background;
    node.append(item);
  };
  if (colour === "fate") { sample("trains", "var(--trained)"); sample("masked", "var(--masked)"); node.append(make("i", "", "plain: glue")); }
  if (colour === "logprob") for (const value of [0, -1, -2, -4]) sample(`${value}`, heat(value));
  if (colour === "weights") for (const version of new Set(turns.flatMap((turn) => turn.weights.map(([name]) => name)))) sample(version || "unnamed", version && hue(version));
  return node;
};
const turnOf = (turn, index, depth) => {
  const box = make("section", "turn"), head = make("h3", "", `turn ${index} `);
  box.style.setProperty("--depth", depth);
  const facts = [turn.parent === null ? "new" : `continues ${turn.parent}`, `${turn.glue.length} + ${turn.ids.length} tokens`,
    turn.cached ? `${turn.cached} cached` : "", turn.finish, `at ${turn.at.toFixed(2)} s for ${turn.seconds.toFixed(2)} s`, turn.model];
  head.append(make("small", "", facts.filter(Boolean).join(" · ")));
  if (turn.fork) head.append(make("em", "", ` fork: ${turn.fork}`));
  if (turn.why) head.append(make("em", "", ` untrained: ${turn.why}`));
  box.append(head, tokensOf(turn));
  return box;
};
const facts = (execution) => {
  const node = make("dl"), fact = (name, value) => {
    const box = make("div");
    box.append(make("dt", "", name), make("dd", "", value));
    node.append(box);
  };
  fact("reward", number(execution.reward));
  fact("turns, segments", `${execution.turns}, ${execution.segments}`);
  fact("tokens that train", execution.trained);
  fact("sampled but masked", `${execution.masked}${execution.masked ? ` (${Object.entries(execution.untrained).map(([why, n]) => `${why}: ${n}`).join(", ")})` : ""}`);
  fact("glue", execution.glue);
  fact("mean logprob", number(execution.logprob));
  fact("weights", execution.weights.join(", ") || "unnamed");
  fact("seconds, at the engine", `${execution.seconds.toFixed(2)}, ${execution.engine_seconds.toFixed(2)}`);
  if (Object.keys(execution.blotted).length) fact("credentials blotted out", Object.entries(execution.blotted).map(([place, n]) => `${place} ×${n}`).join(", "));
  fact("forks", Object.entries(execution.forks).map(([why, n]) => `${why} ×${n}`).join(", ") || "none");
  fact("group, index", `${execution.group ?? "–"}, ${execution.index ?? "–"}`);
  for (const [after, dimensions] of execution.rewards) {
    fact(`reward after ${plural(after, "turn")}`, Object.entries(dimensions).map(([name, value]) => `${name} ${Number(value.toFixed(4))}`).join(", "));
  }
  return node;
};
const spansOf = (execution) => {
  const box = make("details"), table = make("table"), head = make("tr");
  box.append(make("summary", "", `${execution.spans.length} spans`));
  for (const name of ["at", "seconds", "name", "attributes"]) head.append(make("th", "", name));
  table.append(head);
  for (const span of execution.spans) {
    const line = make("tr"), attributes = Object.entries(span.attributes).map(([name, value]) => `${name}=${value}`).join("  ");
    for (const value of [span.at.toFixed(2), span.seconds.toFixed(3), span.name, attributes]) line.append(make("td", "", value));
    table.append(line);
  }
  box.append(table);
  return box;
};
const colours = (turns) => {
  const bar = make("div", "colours");
  for (const [value, words] of [["fate", "trained or masked"], ["logprob", "logprob"], ["weights", "weight version"]]) {
    const label = make("label"), input = make("input");
    Object.assign(input, { type: "radio", name: "colour", value, checked: value === colour });
    input.onchange = () => { colour = value; show(current); };
    label.append(input, ` ${words}`);
    bar.append(label);
  }
  bar.append(legend(turns));
  return bar;
};
const show = (execution) => {
  current?.button?.removeAttribute("aria-current");
  current = execution;
  const detail = byId("detail");
  if (!execution) return void detail.replaceChildren(make("p", "", data.executions.length ? "Nothing fits the filters." : "Nothing was recorded."));
  execution.button?.setAttribute("aria-current", "true");
  const turns = open(execution), depths = depthsOf(turns);
  detail.replaceChildren(make("h2", "", `${execution.step} · ${execution.name}`), facts(execution), make("pre", "", execution.task));
  if (execution.failure) detail.append(make("p", "failed", `failed: ${execution.failure}`), make("pre", "failed", execution.error));
  detail.append(colours(turns), ...turns.map((turn, i) => turnOf(turn, i, depths[i])));
  if (execution.spans.length) detail.append(spansOf(execution));
  location.replace(`#${encodeURIComponent(execution.name)}`);
};

const tip = byId("tip");
document.addEventListener("mousemove", (event) => {
  const facts = event.target.dataset?.tip;
  tip.hidden = !facts;
  if (!facts) return;
  tip.textContent = facts;
  tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${event.clientY + 16}px`;
});
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select") || !["j", "k", "ArrowDown", "ArrowUp"].includes(event.key)) return;
  const buttons = [...byId("list").querySelectorAll("button")];
  const at = buttons.findIndex((button) => button.hasAttribute("aria-current"));
  const next = buttons[at + (["j", "ArrowDown"].includes(event.key) ? 1 : -1)];
  if (next) { event.preventDefault(); next.click(); next.scrollIntoView({ block: "nearest" }); }
});
byId("step").append(new Option("all steps", ""), ...steps.map((step) => new Option(step, step)));
let typing = 0;
byId("search").oninput = () => { clearTimeout(typing); typing = setTimeout(list, 150); };
for (const id of ["step", "kind", "order"]) byId(id).onchange = list;
overview();
current = data.executions.find((execution) => `#${encodeURIComponent(execution.name)}` === location.hash) ?? data.executions[0] ?? null;
list();
