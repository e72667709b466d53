"""`slime-agl guide`: the guide's pages in the terminal."""

from __future__ import annotations

import sys

import click
from click.shell_completion import CompletionItem

from slime_agl.guide import pages


def _topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in pages.names() if name.startswith(incomplete)]


@click.command(short_help="Read the guide: agents, rewards, metrics, troubleshooting.")
@click.argument("topic", required=False, shell_complete=_topics)
@click.option("--search", metavar="WORDS", help="Print the lines that contain WORDS, of all pages or of TOPIC.")
def guide(topic: str | None, search: str | None) -> None:
    """Read the guide: how to write agents and rewards, what metrics mean, what to do when a run goes wrong.

    Without TOPIC, lists the pages. A page goes to a pager on a terminal, and to a pipe or file as Markdown. Exit
    status: 0, or 1 if --search finds nothing, or 2 if there is no such page.
    """
    if search is not None:
        _search(search, None if topic is None else pages.page(topic).name)
    elif topic is None:
        _list()
    elif sys.stdout.isatty():
        from slime_agl.cli.markdown import rendered  # keeps help and Tab completion fast

        click.echo_via_pager(rendered(pages.page(topic).text))
    else:
        click.echo(pages.page(topic).text, nl=False)


def _list() -> None:
    found = pages.pages()
    width = max(len(one.name) for one in found)
    for one in found:
        click.echo(f"{one.name:{width}}  {one.summary}")
    click.echo("\nslime-agl guide TOPIC shows a page, slime-agl guide --search WORDS finds lines in all of them")


def _search(words: str, topic: str | None) -> None:
    found = [line for line in pages.search(words) if topic in (None, line.page)]
    for line in found:
        click.echo(f"{line.page}:{line.number}: {line.text}")
    if not found:
        click.secho(f"no line of the guide contains {words!r}", err=True, fg="red")
        sys.exit(1)
