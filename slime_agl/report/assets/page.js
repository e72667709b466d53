
// What is shown: the run, an execution, or two of a group. The address tells, so that a view can be linked.

let current = null, other = null;
const address = () => (current ? `#${encodeURIComponent(current.name)}${other ? `~${encodeURIComponent(other.name)}` : ""}` : "#");
const draw = () => {
  if (!current) overview();
  else if (other) compare(current, other);
  else show(current);
};
const go = (one, two) => {
  current = one;
  other = two;
  draw();
  markCurrent();
  history.replaceState(null, "", address());
};
const select = (execution) => { go(execution, null); scrollTo(0, 0); };
const compareWith = (execution) => { go(current, execution); scrollTo(0, 0); };
const compareNext = () => {
  if (!current) return;
  const group = mates(current), at = group.indexOf(other ?? current);
  const next = [...group.slice(at + 1), ...group.slice(0, at)].find((one) => one !== current);
  if (next) compareWith(next);
};
const fromAddress = () => {
  const names = location.hash.slice(1).split("~").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  const [one, two] = names.map((name) => executions.find((execution) => execution.name === name) ?? null);
  current = one ?? (executions.length === 1 ? executions[0] : null);
  other = one && two && two !== one ? two : null;
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
  if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "c") return void compareNext();
  if (event.key === "Escape") return void go(other ? current : null, null);
  if (!["j", "k", "ArrowDown", "ArrowUp"].includes(event.key) || (event.key.startsWith("Arrow") && !event.target.closest("#list"))) return;
  const next = listed[listed.indexOf(current) + (["j", "ArrowDown"].includes(event.key) ? 1 : -1)];
  if (next) { event.preventDefault(); select(next); }
});
let typing = 0;
for (const id of ["search", "low", "high"]) byId(id).oninput = () => { clearTimeout(typing); typing = setTimeout(filter, 150); };
for (const id of ["step", "failure", "fork", "kind", "order"]) byId(id).onchange = filter;
byId("clear").onclick = () => { for (const id of FILTERS) byId(id).value = ""; filter(); };
byId("home").onclick = (event) => { event.preventDefault(); go(null, null); };
byId("theme").onclick = () => {
  const root = document.documentElement, dark = getComputedStyle(root).colorScheme === "dark" || (!root.style.colorScheme && matchMedia("(prefers-color-scheme: dark)").matches);
  root.style.colorScheme = dark ? "light" : "dark";
  root.style.setProperty("--weights", dark ? "78%" : "30%");
};
onhashchange = () => { fromAddress(); draw(); markCurrent(); };
sumsOf();
fillFilters();
fromAddress();
list();
draw();
markCurrent();
performance.mark("drawn");
