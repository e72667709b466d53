"""The page of a run: whole, self-contained, and alive in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from slime_agl.record.run import Record, RecordedExecution
from slime_agl.report.page import render_page
from tests.report.made import END, made, run_of

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.script = ""
        self._in_data = False

    def handle_starttag(self, tag, attrs):
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        self._in_data = ("id", "data") in attrs

    def handle_data(self, data):
        if self._in_data:
            self.script += data
            self._in_data = False


def read(page: str) -> tuple[Reader, dict]:
    reader = Reader()
    reader.feed(page)
    return reader, json.loads(reader.script)


def pairs_of(*executions: RecordedExecution) -> list[tuple[Record, RecordedExecution]]:
    record = run_of(*executions)
    return [(record, execution) for execution in record.executions]


def test_nothing_is_fetched():
    reader, _ = read(render_page(pairs_of(made()), title="run"))
    assert reader.sources == []


def test_a_browser_is_told_to_fetch_nothing_and_to_show_text_as_it_stands():
    page = render_page(pairs_of(made(blotted={"task": 1})), title="run")
    assert "Content-Security-Policy\" content=\"default-src 'none'" in page
    assert "node.textContent = visible(text)" in page and "innerHTML" not in page
    assert read(page)[1]["executions"][0]["blotted"] == {"task": 1}


def test_what_agents_say_cannot_leave_its_place():
    evil = "</script><script>alert(1)</script><!--"
    page = render_page(pairs_of(made(task={"prompt": evil}, error=evil, failure="agent_error")), title=evil)
    reader, data = read(page)
    assert json.loads(data["executions"][0]["task"]) == {"prompt": evil}
    assert data["executions"][0]["error"] == evil
    assert page.count("<script") == 2


def test_five_hundred_executions_stay_small():
    executions = [made(rollout_id=f"ro-{n}", output=200) for n in range(500)]
    page = render_page(pairs_of(*executions), title="run")
    assert sum(entry["sampled"] for entry in read(page)[1]["executions"]) == 100_000
    assert len(page) < 4_000_000


DRIVE = """
<script>
const box = document.querySelector("#detail");
const click = (node) => node.click();
const seen = { sums: document.querySelector("#sums").textContent, charts: document.querySelectorAll("figure").length };
seen.text = [...box.querySelectorAll(".tokens")].map((node) => node.textContent);
seen.trained = box.querySelectorAll(".t").length;
seen.masked = box.querySelectorAll(".m").length;
seen.glue = box.querySelectorAll(".g").length;
const first = box.querySelector(".t");
first.dispatchEvent(new MouseEvent("mousemove", { bubbles: true }));
seen.tip = document.querySelector("#tip").textContent;
click(box.querySelector("input[value=logprob]"));
seen.heat = new Set([...box.querySelectorAll(".tokens span")].map((node) => node.style.background)).size;
click(box.querySelector("input[value=weights]"));
seen.legend = document.querySelector(".legend").textContent;
document.querySelector("#kind").value = "failed";
document.querySelector("#kind").onchange();
seen.failed = document.querySelectorAll("#list li").length;
seen.error = document.querySelector("pre.failed").textContent;
document.querySelector("#kind").value = "";
document.querySelector("#search").value = "nowhere to be found";
list();
seen.none = box.textContent;
document.querySelector("#search").value = "LÖWE";
list();
seen.found = document.querySelectorAll("#list li").length;
document.title = JSON.stringify(seen);
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_draws_filters_and_explains(tmp_path: Path):
    page = render_page(
        pairs_of(
            made(rollout_id="ro-1", output=3, masked_turns=1, versions=("1", "2")),
            made(rollout_id="ro-2", failure="agent_error", error="Traceback: the tool broke", task="of a Löwe"),
        ),
        title="run",
    )
    file = tmp_path / "page.html"
    file.write_text(page.replace("</body>", DRIVE + "</body>"), encoding="utf-8")
    dom = subprocess.run(
        [
            BROWSER,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=2000",
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout
    title = re.search(r"<title>(.*?)</title>", dom, re.S)
    assert title is not None, dom[-2000:]
    seen = json.loads(title[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert seen["sums"].startswith("2 executions in 1 file · 3 tokens train, ")
    assert seen["charts"] == 7
    assert seen["text"] == ["ask tok0tok1" + END, "ask tok0tok1" + END]
    assert (seen["trained"], seen["masked"], seen["glue"]) == (3, 3, 2)
    assert seen["tip"].startswith("trains · id 1 · logprob -0.5000 (p 0.607) · weights 1")
    assert seen["heat"] >= 3
    assert seen["legend"] == "12"
    assert (seen["failed"], seen["error"]) == (1, "Traceback: the tool broke")
    assert seen["none"] == "Nothing fits the filters."
    assert seen["found"] == 1
