
// The conversation as people read it

const LONG = 1600;
// A long text shows its beginning; the rest follows on request.
const prose = (className, text) => {
  text = typeof text === "string" ? text : JSON.stringify(text, null, 1) ?? "";
  if (text.length <= LONG * 1.25) return make("div", className, text);
  const box = make("div", className, text.slice(0, LONG)), rest = text.slice(LONG);
  const all = button("link", ` … ${plural(rest.length, "more character")}`, () => { all.remove(); box.append(visible(rest)); });
  box.append(all);
  return box;
};
const contentOf = (content) => {
  if (content === null || content === undefined || content === "") return [];
  if (!Array.isArray(content)) return [prose("prose", content)];
  return content.map((part) => {
    if (typeof part?.text === "string") return prose("prose", part.text);
    return prose("prose odd", part?.type === "image_url" ? "[image]" : part);
  });
};
const argumentsOf = (given) => {
  let value = given;
  if (typeof given === "string") {
    try { value = JSON.parse(given); } catch { return prose("code", given); }
  }
  if (value && typeof value === "object" && !Array.isArray(value)) {
    const box = make("div", "arguments");
    for (const [name, one] of Object.entries(value)) box.append(make("span", "argument", name), prose("code", one));
    return box;
  }
  return prose("code", value);
};
const taskOf = (body) => make("div", "task box", "", argumentsOf(body.task));
const callOf = (call) => {
  const target = call?.function ?? call ?? {};
  return make("div", "call", "", make("span", "callname", `${target.name ?? "call"}`), argumentsOf(target.arguments ?? target.input ?? {}));
};
const folded = (className, title, ...inside) => {
  const box = make("details", className, "", make("summary", "", title));
  box.append(...inside);
  return box;
};
const messageOf = (message, sampled = false) => {
  const role = typeof message?.role === "string" ? message.role : "message";
  const known = ["system", "developer", "user", "assistant", "tool"].includes(role) ? role : "other";
  const box = make("div", `message ${known}${sampled ? " sampled" : ""}`), whose = typeof message?.name === "string" ? ` ${message.name}` : "";
  box.append(make("span", "role", `${role}${whose}`));
  if (message?.reasoning_content) box.append(folded("reasoning", "reasoning", prose("prose", message.reasoning_content)));
  const content = contentOf(message?.content);
  if (known === "system" && sum(content.map((node) => node.textContent.length)) > 400) box.append(folded("", `${plural(sum(content.map((node) => node.textContent.length)), "character")}`, ...content));
  else box.append(...content);
  for (const call of Array.isArray(message?.tool_calls) ? message.tool_calls : []) box.append(callOf(call));
  if (box.childElementCount === 1) box.append(make("div", "prose odd", sampled ? "(empty)" : "(no text)"));
  return box;
};
const toolsOf = (tools) => {
  if (!Array.isArray(tools) || !tools.length) return [];
  const names = tools.map((tool) => tool?.function?.name ?? tool?.name ?? "tool");
  return [folded("tools", `${plural(tools.length, "tool")} offered: ${names.slice(0, 6).join(", ")}${names.length > 6 ? ", …" : ""}`,
    ...tools.map((tool) => make("div", "call", "", make("span", "callname", `${tool?.function?.name ?? tool?.name ?? "tool"}`), prose("prose", tool?.function?.description ?? ""), argumentsOf(tool?.function?.parameters?.properties ?? {}))))];
};
// offered: the tools of the turn it continues, which are not shown again.
const conversationOf = (turn, body) => {
  const box = make("div", "conversation");
  if (!turn.said) {
    const shown = (places) => texts(places).join("");
    box.append(make("div", "message other", "", make("span", "role", "as rendered"), prose("prose", shown(turn.glue))),
      make("div", "message assistant sampled", "", make("span", "role", "answer"), prose("prose", shown(turn.ids))));
    return box;
  }
  const [added, reply, tools] = turn.said, before = turn.parent === null ? null : body.tree[turn.parent].said?.[2] ?? null;
  if (tools !== null && tools !== before) box.append(...toolsOf(body.tools[tools]));
  box.append(...added.map((message) => messageOf(message)), messageOf({ role: "assistant", ...reply }, true));
  return box;
};
