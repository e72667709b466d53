
// Filters, and the list of executions

const KINDS = new Map([
  ["masked", ["with masked tokens", (one) => one.masked]],
  ["mixed", ["several weight versions", (one) => one.weights.length > 1]],
  ["unused", ["group not delivered", (one) => one.unused]],
  ["eval", ["of an evaluation", (one) => one.dataset]],
  ["flat", ["group has equal rewards", (one) => mates(one).length > 1 && mates(one).every(({ reward }) => reward === mates(one)[0].reward)]],
]);
const FILTERS = ["search", "low", "high", "step", "failure", "fork", "kind"];
const options = (id, first, rows) => byId(id).replaceChildren(new Option(first, ""), ...rows.map(([value, text]) => new Option(visible(text), value)));
const fillFilters = () => {
  const some = (test) => executions.filter(test).length;
  const failures = counted(executions.filter((one) => one.failure).map((one) => [one.failure, 1]));
  const forks = counted(executions.flatMap((one) => Object.keys(one.forks).map((reason) => [reason, 1])));
  options("step", "all steps", steps.map((step) => [step, step]));
  options("failure", "failed or not", [["-", `not failed (${some((one) => !one.failure)})`], ["*", `failed (${some((one) => one.failure)})`],
    ...failures.map(([name, n]) => [name, `${name} (${n})`])]);
  options("fork", "forked or not", [["-", `one segment (${some((one) => one.segments <= 1)})`], ["*", `several segments (${some((one) => one.segments > 1)})`],
    ...forks.map(([name, n]) => [name, `fork: ${name} (${n})`])]);
  options("kind", "anything else", [...KINDS].map(([name, [words, test]]) => [name, `${words} (${some(test)})`]));
};
const wanted = () => {
  const value = (id) => byId(id).value, words = value("search").trim().toLowerCase();
  const low = value("low") === "" ? null : Number(value("low")), high = value("high") === "" ? null : Number(value("high"));
  const [step, failure, fork, kind] = ["step", "failure", "fork", "kind"].map(value);
  const fits = (one) => (!step || one.step === step)
    && (!failure || (failure === "-" ? !one.failure : failure === "*" ? one.failure : one.failure === failure))
    && (!fork || (fork === "-" ? one.segments <= 1 : fork === "*" ? one.segments > 1 : Object.hasOwn(one.forks, fork)))
    && (!kind || KINDS.get(kind)[1](one))
    && (low === null || (one.reward !== null && one.reward >= low - 1e-9))
    && (high === null || (one.reward !== null && one.reward <= high + 1e-9))
    && (!words || everything(one).includes(words));
  return ordered(executions.filter(fits), value("order"));
};
const ordered = (found, order) => {
  if (!order) return found;
  const rank = new Map([...groups.keys()].map((key, at) => [key, at]));
  const key = order.replace("-", ""), sign = order.startsWith("-") ? -1 : 1;
  const value = order === "group" ? (one) => rank.get(groupOf(one)) ?? Infinity
    : (one) => (one[key] === null ? sign * Infinity : one[key]);
  return [...found].sort((a, b) => sign * (value(a) - value(b)) || (order === "group" ? (b.reward ?? -Infinity) - (a.reward ?? -Infinity) : 0) || 0);
};

let listed = [];
const CHUNK = 100;
const rewardChip = (execution) => {
  const chip = make("span", "chip reward", short(execution.reward));
  chip.style.setProperty("--chip", rewardColour(execution.reward));
  return chip;
};
const entry = (execution) => {
  const marks = [
    execution.failure && make("span", "mark bad", execution.failure),
    execution.segments > 1 && make("span", "mark warn", plural(execution.segments, "segment")),
    execution.unused && make("span", "mark", execution.unused),
  ].filter(Boolean);
  const row = button("", "", () => select(execution));
  row.append(make("span", "top", "", rewardChip(execution), make("span", "name", titleOf(execution)), make("span", "soft", plural(execution.turns, "turn")), ...marks),
    make("span", "task", execution.gist));
  row.dataset.n = execution.n;
  if (execution === current) row.setAttribute("aria-current", "true");
  return make("li", "", "", row);
};
const more = new IntersectionObserver((seen) => { if (seen.some((one) => one.isIntersecting)) extend(); }, { root: null, rootMargin: "600px" });
const extend = () => {
  const list = byId("list"), from = list.querySelectorAll("button").length;
  const byGroup = byId("order").value === "group";
  for (const [at, execution] of listed.slice(from, from + CHUNK).entries()) {
    const before = listed[from + at - 1];
    if (byGroup && (!before || groupOf(before) !== groupOf(execution))) {
      const rewards = mates(execution).map(({ reward }) => reward).filter((reward) => reward !== null);
      list.append(make("li", "group", `${stepOf(execution)} · ${execution.dataset ? `${execution.dataset} · ` : ""}group ${execution.group ?? "–"}`, make("span", "", rewards.length ? `mean ${short(sum(rewards) / rewards.length)}` : "")));
    }
    list.append(entry(execution));
  }
  more.disconnect();
  if (list.querySelectorAll("button").length < listed.length) more.observe(list.lastElementChild);
};
const list = () => {
  listed = wanted();
  byId("list").replaceChildren();
  extend();
  byId("count").textContent = `${listed.length.toLocaleString("en")} of ${executions.length.toLocaleString("en")}`;
  byId("clear").hidden = FILTERS.every((id) => !byId(id).value);
};
const markCurrent = () => {
  for (const row of byId("list").querySelectorAll("[aria-current]")) row.removeAttribute("aria-current");
  if (!current) return;
  const at = listed.indexOf(current);
  while (at >= 0 && byId("list").querySelectorAll("button").length <= at) extend();
  const row = byId("list").querySelector(`[data-n="${current.n}"]`);
  row?.setAttribute("aria-current", "true");
  row?.scrollIntoView({ block: "nearest" });
};
// Apply the filters; an open execution that they leave out gives way to the first one that fits.
const filter = () => {
  list();
  if (!listed.length) byId("detail").replaceChildren(make("p", "", executions.length ? "Nothing fits the filters." : "Nothing was recorded."));
  else if (current && !listed.includes(current)) select(listed[0]);
  else draw();
};
