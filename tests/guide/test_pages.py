"""The pages of the guide, and the command that shows them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

import slime_agl.cli.guide as command
from slime_agl.cli.main import main
from slime_agl.cli.markdown import rendered
from slime_agl.guide import pages
from tests.guide.documents import blocks

ROOT = Path(__file__).parents[2]
# A page that the order names but that this checkout may lack would be a broken promise; there is none.
ALL = pages.names()


def invoke(*words: str, **options):
    return CliRunner().invoke(main, ["guide", *words], **options)


@pytest.mark.parametrize("name", ALL)
def test_a_page_has_a_title_a_sentence_and_no_line_too_long_to_read(name: str) -> None:
    page = pages.page(name)
    assert page.text.startswith(f"# {page.title}\n\n")
    assert 20 < len(page.summary) <= 110, page.summary
    assert page.text.endswith("\n") and "\t" not in page.text
    prose = [line for line in page.text.splitlines() if not line.startswith(("|", "    ", "#", "```"))]
    assert max(map(len, prose)) <= 140


def test_every_page_has_its_place_in_the_order() -> None:
    assert set(ALL) <= set(pages.ORDER)
    assert set(pages.ORDER) - set(ALL) <= {"trainer"}


def test_the_list_has_one_line_for_each_page() -> None:
    shown = invoke()
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    assert [line.split()[0] for line in lines[: len(ALL)]] == ALL
    assert all(pages.page(line.split()[0]).summary in line for line in lines[: len(ALL)])


@pytest.mark.parametrize("name", ALL)
def test_a_page_goes_to_a_pipe_as_it_is(name: str) -> None:
    shown = invoke(name.upper())
    assert (shown.exit_code, shown.output) == (0, pages.page(name).text)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_terminal_of_any_width_shows_every_letter_of_a_page(name: str, width: int) -> None:
    text = pages.page(name).text
    shown, whole = (plain(rendered(text, one)) for one in (width, 3000))
    assert max(map(len, shown.splitlines())) <= width
    # Where a table has no room for its columns, its rows have their titles with them.
    titles = "".join(re.findall(r"(?m)^(\|.*)\n\|[ -]*-", text))
    assert letters(whole) - letters(shown) <= letters(titles)
    assert pages.page(name).title in shown and "```" not in shown and "<!--" not in shown


def test_a_narrow_terminal_shows_the_rows_of_a_wide_table_one_by_one() -> None:
    text = (
        "| name | what | why |\n|---|---|---|\n| `--a-long-flag-name` | something | because of it |\n| `b` | | none |\n"
    )
    lines = [line.rstrip() for line in plain(rendered(text, 30)).splitlines() if line.strip()]
    assert lines == ["--a-long-flag-name", "    what: something", "    why: because of it", "b", "    why: none"]
    assert "what:" not in plain(rendered(text, 60))


def test_a_long_command_stays_one_that_can_be_copied() -> None:
    text = "```bash\nslime-agl inspect RUN --html run.html   # the conversations, to be read\n```\n"
    lines = [line.strip() for line in plain(rendered(text, 34)).splitlines() if line.strip()]
    assert lines == ["# the conversations, to be", "# read", "slime-agl inspect RUN --html \\", "run.html"]
    assert "# the" in plain(rendered(text, 80)).splitlines()[-1]
    assert not any(line.endswith(" ") for line in rendered(text, 80).splitlines())


def test_a_terminal_of_100_columns_breaks_no_line_of_code() -> None:
    for block in blocks("bash", "yaml", "python", "text", ""):
        if block.path.parent == pages.FOLDER:
            assert max(map(len, block.text.splitlines())) <= 96, block


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m|\x1b\]8;[^\x1b]*\x1b\\", "", text)


def letters(text: str) -> Counter[str]:
    return Counter(letter for letter in text if letter.isalnum())


def test_a_page_goes_to_a_pager_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    paged: list[str] = []
    monkeypatch.setattr(command.click, "echo_via_pager", paged.append)
    monkeypatch.setattr(command, "sys", _Terminal())
    monkeypatch.setenv("COLUMNS", "90")
    assert invoke("metrics").exit_code == 0
    assert paged == [rendered(pages.page("metrics").text, 90)] and "\x1b[" in paged[0]


class _Terminal:
    """Stands in for `sys`."""

    class stdout:
        @staticmethod
        def isatty() -> bool:
            return True

    exit = staticmethod(sys.exit)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("metric", "Did you mean 'metrics'?"),
        ("ppo", "It is a heading in: methods"),
        ("zebra", "Its pages: agents,"),
    ],
)
def test_an_unknown_topic_is_answered_with_what_is_near(asked: str, told: str) -> None:
    shown = invoke(asked)
    assert shown.exit_code == 2
    assert f"no page {asked!r}" in shown.output and told in shown.output


def test_a_name_is_no_path() -> None:
    with pytest.raises(pages.NoPage, match="no page"):
        pages.page("../guide/agents")


def test_a_search_names_page_and_line() -> None:
    shown = invoke("--search", "DANGLING_reward_links")
    assert shown.exit_code == 0
    (line,) = shown.output.splitlines()
    name, number, text = line.split(":", 2)
    assert pages.page(name).text.splitlines()[int(number) - 1].strip() == text.strip()
    assert name == "metrics"


def test_a_search_may_be_of_one_page() -> None:
    everywhere = invoke("--search", "agl.record_dir").output.splitlines()
    one = invoke("troubleshooting", "--search", "agl.record_dir").output.splitlines()
    assert one == [line for line in everywhere if line.startswith("troubleshooting:")]
    assert 0 < len(one) < len(everywhere)


def test_a_search_that_finds_nothing_says_so() -> None:
    shown = invoke("--search", "zebra crossing")
    assert shown.exit_code == 1 and "'zebra crossing'" in shown.output


def test_a_line_of_a_search_knows_its_section() -> None:
    found = next(iter(pages.search("`new_conversation`")))
    assert (found.page, found.heading) == ("samples", "Why something forked")


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted(pages.FOLDER.glob("*.md"))], ids=lambda path: path.stem.lower()
)
def test_references_to_pages_lead_somewhere(path: Path) -> None:
    named = set(re.findall(r"`slime-agl guide ([a-z]+)`", path.read_text(encoding="utf-8")))
    assert named - set(pages.ORDER) == set()


def test_the_pages_are_in_a_wheel() -> None:
    code = "import setuptools; setuptools.setup = lambda **said: print(said['package_data']); import setup"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "'slime_agl.guide': ['*.md']" in done.stdout
