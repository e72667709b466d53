"use strict";
const byId = (id) => document.getElementById(id);
const parse = (id) => JSON.parse(byId(id).textContent);
// Bidirectional controls would reorder the displayed text.
const visible = (text) => String(text).replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`);
const make = (tag, className, text, ...children) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined && text !== "") node.textContent = visible(text);
  node.append(...children);
  return node;
};
const button = (className, text, onclick, title = "") => {
  const node = make("button", className, text);
  Object.assign(node, { type: "button", onclick, title: visible(title) });
  return node;
};
const SVG = "http://www.w3.org/2000/svg";
const shape = (tag, attributes, title) => {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (title) node.append(Object.assign(document.createElementNS(SVG, "title"), { textContent: visible(title) }));
  return node;
};
const unpack = (text, Type) => {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Type(bytes.buffer);
};
const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
const number = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const short = (value) => (value === null || value === undefined ? "–" : String(Number(value.toFixed(3))));
const signed = (value) => (value > 0 ? `+${short(value)}` : short(value));
const sum = (values) => values.reduce((a, b) => a + b, 0);
const counted = (values) => {
  const counts = new Map();
  for (const [value, n] of values) counts.set(value, (counts.get(value) ?? 0) + n);
  return [...counts].sort((a, b) => b[1] - a[1]);
};

// All executions in figures; `n` is the place of an execution's own data.
const executions = parse("index").map((execution, n) => ({ ...execution, n }));
const steps = [...new Set(executions.map((execution) => execution.step))];
// step-000012 is step 12.
const stepOf = (execution) => execution.step.replace(/-0*(?=\d)/, " ");
const titleOf = (execution) => `${stepOf(execution)} · #${execution.index ?? "–"}`;
const groups = new Map();
const groupOf = (execution) => `${execution.step}\n${execution.dataset}\n${execution.group}`;
for (const execution of executions) {
  if (execution.group === null) continue;
  if (!groups.has(groupOf(execution))) groups.set(groupOf(execution), []);
  groups.get(groupOf(execution)).push(execution);
}
const mates = (execution) => groups.get(groupOf(execution)) ?? [execution];
const rewardRange = executions.reduce(([low, high], { reward }) => (reward === null ? [low, high] : [Math.min(low, reward), Math.max(high, reward)]), [Infinity, -Infinity]);

// An execution's own data, parsed when it is first looked at.
const opened = new Map();
const open = (execution) => {
  if (!opened.has(execution)) {
    const body = parse(`x${execution.n}`);
    // home: the segment that a turn trains in, null where nothing of it trains.
    const trains = (part) => part !== null && !body.parts[part].removed;
    body.tree = body.tree.map((turn) => ({
      ...turn, home: trains(turn.part) ? turn.part : null,
      glue: unpack(turn.glue, Int32Array), ids: unpack(turn.ids, Int32Array),
      logprobs: unpack(turn.logprobs, Float32Array), trained: unpack(turn.trained, Uint8Array),
    }));
    opened.set(execution, body);
  }
  return opened.get(execution);
};

let table = null;
const encoder = new TextEncoder();
const tokenId = (place) => (table ??= parse("tokens"))[place][0];
// Texts of tokens: a character split over several belongs to the last.
const texts = (places) => {
  table ??= parse("tokens");
  const decoder = new TextDecoder();
  const out = Array.from(places, (place) => {
    const text = table[place][1];
    return decoder.decode(typeof text === "string" ? encoder.encode(text) : Uint8Array.from(text), { stream: true });
  });
  const rest = decoder.decode();
  if (out.length) out[out.length - 1] += rest;
  return out;
};
const everything = (execution) => {
  if (execution.everything === undefined) {
    const body = open(execution);
    const parts = body.tree.flatMap((turn) => [texts(turn.glue).join(""), texts(turn.ids).join("")]);
    execution.everything = [execution.name, body.task, body.error, ...parts].join("\n").toLowerCase();
  }
  return execution.everything;
};

// Colours: of a reward between the lowest and highest of the run, of a segment, of weights.
const rewardColour = (reward) => {
  if (reward === null) return "var(--line)";
  const [low, high] = rewardRange;
  const share = high === low ? 100 : Math.round((100 * (reward - low)) / (high - low));
  return `color-mix(in oklab, var(--best) ${share}%, var(--worst))`;
};
const partColour = (part) => (part === null || part === undefined ? "var(--masked)" : `hsl(${(212 + part * 137.5) % 360} 46% var(--part))`);
const heat = (logprob) => `color-mix(in oklab, var(--unlikely) ${Math.min(100, Math.round(-logprob * 25))}%, var(--trained))`;
const hue = (version) => `hsl(${(sum([...version].map((letter, i) => letter.charCodeAt(0) * (i + 7))) * 47) % 360} 55% var(--weights))`;
