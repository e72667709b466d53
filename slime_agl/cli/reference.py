"""The help of every command, as README.md shows it."""

from __future__ import annotations

import click

WIDTH = 100


def reference(group: click.Group) -> str:
    """Markdown: what `--help` prints of the group, and below it, folded, of each of its commands.

    Always the same for the same commands: WIDTH columns wide and without colour, whatever the terminal.
    """
    root = click.Context(group, info_name="slime-agl", terminal_width=WIDTH, color=False, **group.context_settings)
    parts = [_block(root)]
    for name in group.list_commands(root):
        command = group.get_command(root, name)
        if command is None or command.hidden:
            continue
        title = f"<details><summary><code>{root.info_name} {name} --help</code></summary>"
        parts.append(f"{title}\n\n{_block(click.Context(command, parent=root, info_name=name))}\n</details>\n")
    return "\n".join(parts)


def _block(ctx: click.Context) -> str:
    return f"```\n{ctx.command.get_help(ctx)}\n```\n"
