"""`slime-agl audit`: how a chat template treats tokens, before any GPU is booked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from slime_agl.cli.visible import json_line
from slime_agl.cli.waiting import waiting
from slime_agl.errors import ConfigError


def _object(_: click.Context, __: click.Parameter, text: str | None) -> dict[str, object]:
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise click.BadParameter(f"{error}; write a JSON object such as '{{\"enable_thinking\": false}}'") from error
    if not isinstance(value, dict):
        raise click.BadParameter(f"it is a {type(value).__name__}, not an object")
    return value


@click.command(short_help="Report how a chat template treats tokens.")
@click.option("--model", required=True, help="'smollm2', or what slime's --hf-checkpoint names.")
@click.option(
    "--chat-template",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Replacement template, as chat_template_path beside agl: in the file of --custom-config-path.",
)
@click.option("--kwargs", metavar="JSON", callback=_object, help="Template variables, as --apply-chat-template-kwargs.")
@click.option(
    "--history", type=click.Choice(["append", "template"]), default="append", show_default=True, help="As agl.history."
)
@click.option(
    "--stop-token-id", type=int, multiple=True, help="As one of slime's --rollout-stop-token-ids; repeatable."
)
@click.option("--tool-call-parser", metavar="NAME", help="As slime's --sglang-tool-call-parser.")
@click.option("--reasoning-parser", metavar="NAME", help="As slime's --sglang-reasoning-parser.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def audit(
    model: str,
    chat_template: Path | None,
    kwargs: dict[str, object],
    history: str,
    stop_token_id: tuple[int, ...],
    tool_call_parser: str | None,
    reasoning_parser: str | None,
    as_json: bool,
) -> None:
    """Report how a chat template treats tokens, for each kind of request.

    A turn's prompt extends the tokens of the turn before it, unless the request forks: then its history is encoded
    anew and becomes a further Sample, served and trained as well. Input that the template accepts but hides from the
    model is named. Exit status: 0 nothing forks or is hidden, 1 something forks or is hidden, 2 the template could not
    be tried.
    """
    with waiting("trying the template", quiet=as_json):
        # Imported late: transformers takes seconds, and `slime-agl --help` should not.
        from slime_agl.chat.parse.reply import ReplyParser
        from slime_agl.chat.proof.audit import audit as try_template
        from slime_agl.chat.proof.roundtrip import round_trips
        from slime_agl.chat.template.loader import load_tokenizer, stop_ids_of
        from slime_agl.chat.template.renderer import Renderer
        from slime_agl.cli.audit.view import AuditFindings, show

        path = _path(model)
        template = chat_template.read_text(encoding="utf-8") if chat_template else None
        stops = stop_ids_of(path) | set(stop_token_id)
        renderer = Renderer(load_tokenizer(path), chat_template=template, template_kwargs=kwargs, extra_stop_ids=stops)
        parser = ReplyParser(renderer, tool_call_parser=tool_call_parser, reasoning_parser=reasoning_parser)
        report, trips = try_template(renderer).report, round_trips(renderer, parser)
        found = AuditFindings(model=model, report=report, history=history, readers=parser.readers, trips=trips)
    if as_json:
        click.echo(json_line(found.as_dict(), indent=True), nl=False)
    else:
        show(found)
    sys.exit(1 if found.forks or found.report.hidden else 0)


def _path(model: str) -> str:
    from slime_agl.local.engine.smollm2 import NAME, resolve_model

    if model == NAME:
        return str(resolve_model(model))
    if not Path(model).exists():
        raise ConfigError(f"--model {model!r} does not exist; give a checkpoint directory, a .gguf file, or {NAME!r}")
    return model
