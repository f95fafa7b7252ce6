"""Scripts rely on the command line: its flags, its exit codes and the shapes of its JSON change only on purpose.

What it is now stands in `frozen.json`. After a change that is meant:

    python tests/unit/cli/test_frozen.py
"""

import inspect
import json
import os
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from unittest.mock import patch

import pytest
from helpers.toys import event_of
from typer.testing import CliRunner

from trainables.errors import ConfigError
from tune_dml.cli import application
from tune_dml.planning.checks import prepare
from tune_dml.planning.request import Request
from tune_dml.record.ledger import Ledger
from tune_dml.record.results import results_of
from tune_dml.sweep import Sweep
from tune_dml.tracking import Tracker

FROZEN = Path(__file__).with_name("frozen.json")
QUICK = {"data.name": "digits", "training.steps": 4, "training.eval_every": 2}
SET = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
ANY = {"knobs", "value", "differences", "problems"}
NAMED = {"expected", "counts", "verdicts", "checksums"}
EXITS = {
    "--help": 0,
    "version": 0,
    "status toy": 0,
    "train --set data.name=digits --set optim.name=sgd --set optim.lr=1e30 --set training.eval_every=4": 3,
    "status nothing": 1,
    "plan sec_roh": 1,
    "sweep sec_rho --seeds 0": 1,
    "resume nothing": 1,
    "extend toy": 1,
    "confirm nothing": 1,
    "confirm toy --top 0": 1,
    "confirm toy --seeds 0": 1,
    "open nothing": 1,
    "datasets verify glyhps": 1,
    "": 2,
    "sweep": 2,
    "sweep sec_rho --nonsense": 2,
    "sweep sec_rho --search best": 2,
    "train --seed x": 2,
    "nothing": 2,
}
JSON = {
    "spaces": ["spaces"],
    "methods": ["methods"],
    "datasets": ["datasets"],
    "datasets verify": ["datasets", "verify", "digits"],
    "datasets prepare": ["datasets", "prepare", "digits"],
    "plan": ["plan", "sec_rho", "--dataset", "digits", "--seeds", "2"],
    "status": ["status", "toy"],
    "compare": ["compare", "toy", "toy"],
    "report, sweep, resume, extend": ["report", "toy", "--check", "complete"],
    "train --show": ["train", *SET, "--show"],
    "train": ["train", *SET],
    "doctor": ["doctor"],
    "version": ["version"],
}


def flags() -> dict[str, Any]:
    """Verb -> its options as they are handed to Typer, and what its help says."""
    app = application()
    groups = {"": app, **{f"{group.name} ": group.typer_instance for group in app.registered_groups}}
    return {
        before + command.name: {"help": inspect.getdoc(command.callback), "options": _options(command.callback)}
        for before, group in groups.items()
        for command in group.registered_commands
    }


def _options(verb: Callable[..., None]) -> dict[str, Any]:
    options = {}
    for parameter in inspect.signature(verb).parameters.values():
        kind, info = get_args(parameter.annotation)
        flags = [word for word in (info.default, *(info.param_decls or ())) if isinstance(word, str)]
        described = {"type": _kind(kind), "help": info.help, "metavar": info.metavar}
        if parameter.default is not inspect.Parameter.empty:
            described["default"] = None if parameter.default is None else str(parameter.default)
        options[" ".join(flags) or parameter.name] = {
            key: value for key, value in described.items() if key == "default" or value
        }
    return options


def _kind(annotation: Any) -> str:
    """`int`, `Path`, `grid|tpe`, `list[str]`; a missing value is its default's affair."""
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if not parts:
        return annotation.__name__
    if get_origin(annotation) is Literal:
        return "|".join(parts)
    return f"list[{_kind(parts[0])}]" if get_origin(annotation) is list else _kind(parts[0])


def shape(value: Any, key: str = "") -> Any:
    """Keys and types; where keys are settings, metrics or what a data set counts, they stand as one."""
    if key in ANY:
        return "any"
    if isinstance(value, dict):
        inner = {name: shape(item, name) for name, item in value.items()}
        named = key in NAMED or any("." in name or "/" in name for name in value)
        return {"<name>": _one(inner.values())} if named and inner else inner
    if isinstance(value, list):
        return [_one([shape(item) for item in value])] if value else []
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def _one(shapes: Collection[Any]) -> Any:
    """What several shapes have in common: every key of any, and every type."""
    if shapes and all(isinstance(item, dict) for item in shapes):
        keys = dict.fromkeys(key for item in shapes for key in item)
        return {key: _one([item[key] for item in shapes if key in item]) for key in keys}
    lists = [item for item in shapes if isinstance(item, list)]
    if len(lists) == len(shapes):
        return max(lists, key=len, default=[])
    return " or ".join(sorted({item for item in shapes if isinstance(item, str)} | ({"list"} if lists else set())))


def run(words: Sequence[str]) -> tuple[int, str]:
    """Exit code and standard output, as `main` ends it."""
    result = CliRunner().invoke(application(), list(words))
    if isinstance(result.exception, ConfigError):
        return 1, result.stdout
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.exit_code, result.stdout


def make_toy(storage: Path, cache_dir: Path | None) -> None:
    """A sweep of two seeds as the platform stores it, of which one trial failed."""
    checked = prepare(Request("sec_rho", dataset="digits", seeds=2, name="toy"), cache_dir=cache_dir, decode=False)
    folder = storage / "toy"
    folder.mkdir(parents=True)
    checked.plan.save(folder / "plan.json")
    with Ledger(folder) as book:
        for number, trial in enumerate(checked.plan.trials()):
            book.write(event_of("started", trial.key, host="here"))
            book.report(trial.key, {"step": 40, "train/loss": 1.0, "val/recall_at_1": 60.0 + number % 5})
            metrics = {"val/recall_at_1": 60.0 + number % 5, "train/loss": 1.0}
            ended = {"status": "finished", "reason": "", "metrics": metrics, "step": 40}
            failed = {"status": "failed", "reason": "it broke", "kind": "code", "metrics": {}}
            book.write(event_of("ended", trial.key, seconds=2.0, **(failed if number == 3 else ended)))


def shapes() -> dict[str, Any]:
    """Verb -> exit code and shape of its JSON, where the toy sweep lies in the working directory."""
    with patch.object(Tracker, "attach", return_value=None):  # MLflow has tests of its own
        ended = {name: run([*words, "--json"]) for name, words in JSON.items()}
    return {name: {"exit": code, "json": shape(json.loads(text))} for name, (code, text) in ended.items()}


@pytest.fixture
def toy(cache_dir, monkeypatch):
    monkeypatch.setenv("TUNE_DML_CACHE", str(cache_dir))
    make_toy(Path("sweeps"), cache_dir)


def test_flags_types_defaults_and_words():
    assert flags() == json.loads(FROZEN.read_text())["flags"]


@pytest.mark.usefixtures("toy")
def test_shapes_of_json():
    assert shapes() == json.loads(FROZEN.read_text())["json"]


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("line", EXITS)
def test_exit_codes(line):
    assert run(line.split())[0] == EXITS[line]


def test_a_sweeps_end_is_its_exit_code(toy):
    results = results_of(Path("sweeps/toy"))
    assert Sweep(results).exit_code == 3
    assert Sweep(results, interrupted=True).exit_code == 130


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_toy(Path("sweeps"), None)
        FROZEN.write_text(json.dumps({"flags": flags(), "json": shapes()}, indent=1) + "\n")
