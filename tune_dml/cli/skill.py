"""`tune-dml skill`: print a SKILL.md that teaches a coding agent this command line."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Annotated, Any

import typer

from trainables.errors import ConfigError, Problem
from tune_dml.cli._json import as_json as strict_json
from tune_dml.cli._json import schemas
from tune_dml.cli.options import Json, absolute, verb

ORDER = 145
EXAMPLES = """
tune-dml skill                                        # prints it
tune-dml skill --install                              # writes .agents/skills/tune-dml/SKILL.md
tune-dml skill --install -o ~/.claude/skills          # folder of another agent
"""
_SKILLS = Path(".agents/skills")
_TEXT = Path(__file__).with_name("skill.md")
LOOP = """\
tune-dml plan sec_rho --dataset glyphs --seeds 3 --json      # cells, cost, power, and what is wrong; runs nothing
tune-dml sweep sec_rho --dataset glyphs --seeds 3 --name rho1 --json    # run it in the background
tune-dml status rho1 --wait --timeout 540 --json             # returns when it ends; call it again on exit code 130
tune-dml report rho1 --check complete --json                 # `answer`, `verdicts`, `next`; exit code 3 unless complete
tune-dml confirm rho1 --top 1 --seeds 5 --json               # the winner on fresh seeds
tune-dml open rho1 --selection "table 2" --yes --json        # test figures, once, after the choice is made
"""
"""The worked loop; tests parse each line."""


@verb
def skill(
    *,
    install: Annotated[
        bool, typer.Option("--install", help="Write it to the folder that agents read, instead of printing it.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help=f"With --install: folder of skills; {_SKILLS} by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print a SKILL.md for coding agents: the loop, the verbs, exit codes and JSON, generated from this command line."""
    if output is not None and not install:
        raise ConfigError(Problem("-o", "names where --install writes", str(output), "Add --install, or leave it out."))
    text = _skill_text()
    if not install:
        typer.echo(strict_json({"skill": text, "file": None}) if as_json else text, nl=as_json)
        return
    path = (absolute(output) or Path.cwd() / _SKILLS) / "tune-dml" / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    typer.echo(strict_json({"skill": text, "file": str(path)}) if as_json else f"Wrote {path}.")


def _skill_text() -> str:
    rows = [f"| `{name}` | {first} | {keys} |" for name, first, keys in _verbs()]
    table = "\n".join(["| verb | what it does | keys of its JSON |", "|---|---|---|", *rows])
    return Template(_TEXT.read_text(encoding="utf-8")).substitute(loop=LOOP, verbs=table)


def _verbs() -> Iterator[tuple[str, str, str]]:
    """Yield each verb, the first sentence of its help, and the keys of its JSON."""
    from tune_dml.cli import application

    by_verb, app = schemas(), application()
    commands: list[tuple[str, Any]] = [(str(command.name), command.callback) for command in app.registered_commands]
    for group in app.registered_groups:
        subcommands = group.typer_instance
        assert subcommands is not None and subcommands.registered_callback is not None  # noqa: S101, PT018
        commands.append((str(group.name), subcommands.registered_callback.callback))
        commands += [(f"{group.name} {command.name}", command.callback) for command in subcommands.registered_commands]
    for name, function in commands:
        text = " ".join((inspect.getdoc(function) or "").split())
        yield name, re.split(r"(?<=[a-z\d)])[.;:] ", text)[0].rstrip("."), _keys(by_verb.get(name, {}))


def _keys(schema: dict[str, Any]) -> str:
    """Return the keys of an object, or of a list's items."""
    is_list = schema.get("type") == "array"
    item_schema = schema.get("items", {}) if is_list else schema
    keys = ", ".join(f"`{key}`" for key in item_schema.get("properties", {}))
    return f"a list of {keys}" if is_list and keys else keys
