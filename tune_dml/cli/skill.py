"""`tune-dml skill`: print a SKILL.md that teaches a coding agent this command line."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

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
LOOP = """\
tune-dml plan sec_rho --dataset glyphs --seeds 3 --json      # cells, cost, power, and what is wrong; runs nothing
tune-dml sweep sec_rho --dataset glyphs --seeds 3 --name rho1 --json    # run it in the background
tune-dml status rho1 --wait --timeout 540 --json             # returns when it ends; call it again on exit code 130
tune-dml report rho1 --check complete --json                 # `answer`, `verdicts`, `next`; exit code 3 unless complete
tune-dml confirm rho1 --top 1 --seeds 5 --json               # the winner on fresh seeds
tune-dml open rho1 --selection "table 2" --yes --json        # test figures, once, after the choice is made
"""
"""The worked loop; tests parse each line."""
_HEAD = """\
---
name: tune-dml
description: Run and judge hyperparameter and loss comparisons for metric learning, or of any training script, with
  paired seeds and tested verdicts. Use it to find out whether a knob or a method matters, to compare losses, to
  reproduce a paper's curve, or to explain, resume and report a sweep.
---

# tune-dml

A sweep trains cells (points of a search space) under paired seeds. Its report says which differences are real. Each
command takes `--json` and then prints one JSON object (strict: no NaN) on standard output; progress goes to standard
error.

## The loop

```bash
"""
_RULES = """
## Rules

- Take statements from `answer`, `verdicts` and `findings`. A difference of two means is no result: "undecided" and
  "cannot yet be told apart" mean that more seeds are needed, and `next` has the command that is worth its cost.
- Do not add seeds until a difference appears. Use `sweep ... --until-decided`, which accounts for repeated looks.
- Validation chooses. `test/...` figures are sealed; `open` is recorded and comes last.
- A sweep that was cut off, killed or lost its machine continues with `tune-dml resume NAME`; nothing runs twice.
- `status NAME --json` has each failed trial's `reason`. After the cause is removed: `resume NAME --retry-failed`.
- Settings are dotted: `--set loss.margin=0.2`. `tune-dml show NAME` explains a space, a loss, a setting or a trial.
- Your own pictures: `tune-dml init FOLDER`, then `sweep FOLDER.yaml`. Your own training script: a sweep file with
  `program: train.py`, `metric`, `parameters` and `margin`; the script calls `tune_dml.log(step=..., **{"val/x": ...})`.
- `compare A B` compares sweeps; `report --from-csv FILE --margin X` judges results of other programs.

## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| 1 | the input is wrong, or Ray cannot start or be reached; no trial was started |
| 2 | wrong usage of the command line |
| 3 | finished, with failed or diverged trials; a `--check` is not met; MLflow differs after `sync` |
| 130 | interrupted or not complete; `resume` continues |

Codes 1 and 2 print `{"error": [{"rule", "place", "value", "remedy", "fix"}]}`; `fix` is a whole command, or null.
`compare`, `datasets verify`, `doctor` and `list` print their own keys with code 1 where they found what is wrong.
"""


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
    closing = "`tune-dml VERB --help` has all options; `tune-dml schema VERB` prints the schema of a verb's JSON."
    return f"{_HEAD}{LOOP}```\n{_RULES}\n## Verbs\n\n{table}\n\n{closing}\n"


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
