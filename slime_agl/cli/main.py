"""The command `slime-agl`."""

from __future__ import annotations

import copy
import os
import sys

import click

from slime_agl import __version__
from slime_agl.cli.audit.command import audit
from slime_agl.cli.check.command import check
from slime_agl.cli.demo.command import demo
from slime_agl.cli.doctor.command import doctor
from slime_agl.cli.engine import engine
from slime_agl.cli.export import export
from slime_agl.cli.guide import guide
from slime_agl.cli.inspect.command import inspect
from slime_agl.cli.rerun.command import rerun
from slime_agl.cli.tasks.command import tasks
from slime_agl.cli.train_demo.command import train_demo
from slime_agl.cli.visible import echo, make_log_visible
from slime_agl.errors import SlimeAglError

LOCAL_EXTRA = "the local engine and the demos need: pip install -e '.[local]', in the clone of slime_agl"
INTERRUPTED = 130  # as shells report a program ended by Ctrl-C


class _Commands(click.Group):
    """Ends user errors with one line and status 2, and Ctrl-C with status 130, never with a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except SlimeAglError as error:
            echo(f"slime-agl: {error.boundary}: {error}", fg="red")
            sys.exit(2)
        except ModuleNotFoundError as error:
            # A missing extra; a package missing in an agent's module is a ConfigError.
            missing = (error.name or str(error)).partition(".")[0]
            if missing == "slime_agl":
                raise
            echo(f"slime-agl: {missing} is not installed; {LOCAL_EXTRA}", fg="red")
            sys.exit(2)
        except KeyboardInterrupt:
            click.echo("\nstopped", err=True)
            sys.exit(INTERRUPTED)


def _renamed(command: click.Command) -> click.Command:
    """Copy a command, hidden, for its former name; kept for one version."""
    alias = copy.copy(command)
    alias.hidden = True
    return alias


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="slime-agl")
def main() -> None:
    """Train unmodified agents with slime, without losing a token."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    make_log_visible()


main.add_command(check)
main.add_command(audit)
main.add_command(demo)
main.add_command(doctor)
main.add_command(engine)
main.add_command(export)
main.add_command(guide)
main.add_command(inspect)
main.add_command(rerun)
main.add_command(_renamed(rerun), "replay")
main.add_command(tasks)
main.add_command(train_demo)


if __name__ == "__main__":
    main(prog_name="slime-agl")
