"""The page of a run: whole, self-contained, and alive in a browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from slime_agl.errors import ConfigError
from slime_agl.record.run import Record, RecordedExecution
from slime_agl.record.said import Said
from slime_agl.report.page import render_page, write_page
from tests.report.made import END, made, run_of

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


class Reader(HTMLParser):
    """What a page would fetch or run, and the data that it holds, by element."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.handlers: list[str] = []
        self.tags: list[str] = []
        self.data: dict[str, str] = {}
        self._in = ""

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.sources += [given[name] for name in ("src", "href") if name in given]
        self.handlers += [name for name in given if name.startswith("on")]
        self._in = given.get("id", "") if given.get("type") == "application/json" else ""

    def handle_data(self, data):
        if self._in:
            self.data[self._in] = self.data.get(self._in, "") + data

    def handle_endtag(self, tag):
        self._in = ""


def read(page: str) -> tuple[Reader, dict]:
    """The page as parsed, and its data by element: `index`, `tokens`, and `x0`, `x1`, ... for each execution."""
    reader = Reader()
    reader.feed(page)
    return reader, {name: json.loads(text) for name, text in reader.data.items()}


def pairs_of(*executions: RecordedExecution) -> list[tuple[Record, RecordedExecution]]:
    record = run_of(*executions)
    return [(record, execution) for execution in record.executions]


def test_nothing_is_fetched():
    reader, _ = read(render_page(pairs_of(made()), title="run"))
    assert reader.sources == ["#"]


def test_a_browser_is_told_to_fetch_nothing_and_to_show_text_as_it_stands():
    page = render_page(pairs_of(made(blotted={"task": 1})), title="run")
    assert "Content-Security-Policy\" content=\"default-src 'none'" in page
    assert "node.textContent = visible(text)" in page
    assert all(word not in page for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("))
    assert read(page)[1]["index"][0]["blotted"] == {"task": 1}


EVIL = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>"


def evil_execution() -> RecordedExecution:
    """Hostile text in every place that an agent, a model or a tool can fill."""
    call = {"id": EVIL, "type": "function", "function": {"name": EVIL, "arguments": json.dumps({EVIL: EVIL})}}
    said = Said(
        [{"role": EVIL, "name": EVIL, "content": EVIL}, {"role": "user", "content": [{"text": EVIL}, {EVIL: EVIL}]}],
        {"content": EVIL, "reasoning_content": EVIL, "tool_calls": [call, EVIL, None]},
        [
            {
                "type": "function",
                "function": {"name": EVIL, "description": EVIL, "parameters": {"properties": {EVIL: 1}}},
            }
        ],
    )
    span = {"name": EVIL, "at": 0.0, "seconds": 0.0, "attributes": {EVIL: EVIL}}
    return made(
        rollout_id=EVIL,
        task={"prompt": EVIL},
        error=EVIL,
        failure=EVIL,
        refused=EVIL,
        unused=EVIL,
        dataset=EVIL,
        spans=(span,),
        rewards=((0, {EVIL: 1.0}),),
        versions=(EVIL,),
        said={0: said},
        blotted={EVIL: 1},
    )


def test_what_agents_say_cannot_leave_its_place():
    page = render_page(pairs_of(evil_execution()), title=EVIL)
    reader, data = read(page)
    assert json.loads(data["x0"]["task"]) == {"prompt": EVIL}
    assert data["x0"]["error"] == EVIL and data["x0"]["tree"][0]["said"][1]["content"] == EVIL
    assert page.count("<script") == 4 and reader.tags.count("script") == 4
    assert reader.handlers == ["onsubmit"] and "img" not in reader.tags


def test_five_hundred_executions_stay_small():
    executions = [made(rollout_id=f"ro-{n}", output=200) for n in range(500)]
    page = render_page(pairs_of(*executions), title="run")
    data = read(page)[1]
    assert sum(entry["sampled"] for entry in data["index"]) == 100_000
    assert len(page) < 4_000_000
    # What a page parses to open: its index, which does not grow with the tokens.
    assert len(json.dumps(data["index"])) < 500 * 1000


def test_a_turn_shows_its_messages_and_equal_tools_once():
    tools = [{"type": "function", "function": {"name": "look"}}]
    said = {n: Said([{"role": "user", "content": f"ask {n}"}], {"content": "hi"}, list(tools)) for n in range(2)}
    body = read(render_page(pairs_of(made(masked_turns=1, said=said)), title="run"))[1]["x0"]
    assert body["tools"] == [tools]
    assert [turn["said"] for turn in body["tree"]] == [
        [[{"role": "user", "content": f"ask {n}"}], {"content": "hi"}, 0] for n in range(2)
    ]


DRIVE = """
<script>
const box = document.querySelector("#detail");
const click = (node) => node.click();
const set = (id, value) => { byId(id).value = value; byId(id).onchange?.(); filter(); };
const rows = () => document.querySelectorAll("#list button").length;
const spoken = (selector) => [...box.querySelectorAll(selector)].map((node) => node.textContent);
const seen = { sums: byId("sums").textContent, charts: document.querySelectorAll("figure").length };
click(document.querySelector("#list button"));
seen.text = spoken(".tokens");
seen.said = spoken(".message");
seen.trained = box.querySelectorAll(".t").length;
seen.masked = box.querySelectorAll(".m").length;
seen.glue = box.querySelectorAll(".g").length;
box.querySelector(".t").dispatchEvent(new MouseEvent("mousemove", { bubbles: true }));
seen.tip = byId("tip").textContent;
seen.credit = spoken(".turn .pill");
seen.emitted = spoken(".emitted");
seen.nodes = box.querySelectorAll(".tree .node").length;
seen.parts = spoken(".parts tr:nth-child(2) td").slice(1, 4);
click(box.querySelector("input[value=logprob]"));
seen.heat = new Set([...box.querySelectorAll(".tokens span")].map((node) => node.style.background)).size;
click(box.querySelector("input[value=weights]"));
seen.legend = document.querySelector(".legend").textContent;
click(box.querySelector("input[value=conversation]"));
seen.folded = box.querySelectorAll(".tokens").length;
click(box.querySelector("input[value=both]"));
compareNext();
seen.verdict = box.querySelector(".verdict").textContent;
seen.facts = spoken(".facts tr:nth-child(2) td");
seen.address = location.hash;
set("failure", "agent_error");
seen.failed = rows();
seen.error = document.querySelector("pre.failed").textContent;
set("failure", "");
set("fork", "compaction");
seen.forked = rows();
set("fork", "");
set("low", "0.5");
seen.rewarded = rows();
set("low", "");
set("search", "nowhere to be found");
seen.none = box.textContent;
set("search", "L\u00d6WE");
seen.found = rows();
document.title = JSON.stringify(seen);
</script>
"""


def drive(page: str, script: str, tmp_path: Path) -> dict:
    """Open a page in a browser, run a script at its end, and return what that left as the title."""
    file = tmp_path / "page.html"
    file.write_text(page.replace("</body>", script + "</body>"), encoding="utf-8")
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom"]
    command = [BROWSER, *flags, profile, file.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    title = re.search(r"<title>(.*?)</title>", dom, re.S)
    assert title is not None, dom[-2000:]
    return json.loads(html.unescape(title[1]))


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_draws_filters_compares_and_explains(tmp_path: Path):
    said = {0: Said([{"role": "user", "content": "say it"}], {"role": "assistant", "content": "tok0 tok1"})}
    page = render_page(
        pairs_of(
            made(
                rollout_id="ro-1",
                output=3,
                masked_turns=1,
                versions=("1", "2"),
                said=said,
                rewards=((1, {"primary": 1}),),
            ),
            made(rollout_id="ro-2", failure="agent_error", error="Traceback: the tool broke", task="of a Löwe"),
            made(rollout_id="ro-3", output=4, reward=0.0, fork="compaction"),
        ),
        title="run",
    )
    seen = drive(page, DRIVE, tmp_path)
    assert seen["sums"].startswith("3 executions in 1 step · 7 tokens train, 6 do not")
    assert seen["charts"] == 9  # six histograms, failures, forks, what does not train
    assert seen["text"] == ["ask tok0tok1" + END, "ask tok0tok1" + END]
    assert seen["said"] == ["usersay it", "assistanttok0 tok1", "as renderedask ", "answertok0tok1" + END]
    assert (seen["trained"], seen["masked"], seen["glue"]) == (3, 3, 2)
    assert seen["tip"].startswith("trains · id 1 · logprob -0.5000 (p 0.607) · weights 1")
    assert seen["credit"] == ["reward 1", "reward 1"] and seen["emitted"] == ["the agent gave the reward 1"]
    assert (seen["nodes"], seen["parts"]) == (2, ["0–1", "0–1", "6"])
    assert seen["heat"] >= 3
    assert seen["legend"] == "12"
    assert seen["folded"] == 0
    assert seen["verdict"].startswith("They part at turn 1: only one goes on.")
    assert seen["facts"] == ["reward", "1", "–"]
    assert seen["address"] == "#ro-1~ro-2"
    assert (seen["failed"], seen["error"]) == (1, "Traceback: the tool broke")
    assert (seen["forked"], seen["rewarded"]) == (1, 1)
    assert seen["none"] == "Nothing fits the filters."
    assert seen["found"] == 1


HOSTILE = """
<script>
let alerts = 0;
window.alert = () => { alerts += 1; };
select(executions[0]);
for (const fold of document.querySelectorAll("details")) fold.open = true;
setTimeout(() => {
  const tags = document.querySelectorAll("main img, main script, main iframe").length;
  const shown = document.querySelector("#detail").textContent.includes("onerror");
  document.title = JSON.stringify({ alerts, tags, shown });
}, 300);
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_runs_nothing_of_what_agents_say(tmp_path: Path):
    page = render_page(pairs_of(evil_execution()), title=EVIL)
    assert drive(page, HOSTILE, tmp_path) == {"alerts": 0, "tags": 0, "shown": True}


def test_the_page_is_written_where_asked_or_the_error_names_the_place(tmp_path: Path):
    write_page(tmp_path / "new" / "page.html", pairs_of(made()), title="run")
    assert (tmp_path / "new" / "page.html").stat().st_size > 10_000
    with pytest.raises(ConfigError, match="cannot be written"):
        write_page(tmp_path / "new", pairs_of(made()), title="run")
