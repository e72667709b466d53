"""The help of every command, for the guide."""

from __future__ import annotations

import click

WIDTH = 94  # which a terminal of 100 columns shows unbroken in the guide


def reference(group: click.Group) -> str:
    """Return Markdown: the `--help` of the group, followed by a section with that of each command.

    Independent of the terminal: WIDTH columns, no colour.
    """
    root = click.Context(group, info_name="slime-agl", terminal_width=WIDTH, color=False, **group.context_settings)
    parts = [_block(root)]
    for name in group.list_commands(root):
        command = group.get_command(root, name)
        if command is None or command.hidden:
            continue
        parts.append(f"## slime-agl {name}\n\n{_block(click.Context(command, parent=root, info_name=name))}")
    return "\n".join(parts)


def _block(ctx: click.Context) -> str:
    return f"```\n{ctx.command.get_help(ctx)}\n```\n"
