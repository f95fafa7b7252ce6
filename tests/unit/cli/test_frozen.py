"""Scripts rely on the command line, and stored sweeps on the methods' knobs: both change only on purpose.

Frozen are flags, exit codes and schemas of JSON, and the defaults and rules of each method's knobs.

The records are `frozen.json`, `knobs.json` and `tune_dml/cli/json_schemas.json`. After an intended change:

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

from trainables.config import SECTIONS
from trainables.errors import ConfigError
from trainables.methods import parameters_of
from trainables.registries import methods_of
from tune_dml import cli
from tune_dml.cli import application
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.request import Request
from tune_dml.record.ledger import Ledger
from tune_dml.record.results import results_of
from tune_dml.sweep import Sweep
from tune_dml.tracking import Reconciliation, SyncReport, Tracker
from tune_dml.tracking.reconciler import Counts

FROZEN = Path(__file__).with_name("frozen.json")
KNOBS = Path(__file__).with_name("knobs.json")
QUICK = {"data.name": "digits", "training.steps": 4, "training.eval_every": 2}
SET = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
TYPES = {"str": "string", "int": "number", "float": "number", "bool": "boolean", "NoneType": "null", "list": "array"}
ANY = {"knobs", "value", "differences", "problems", "schema"}
NAMED = {"same_configuration", "refused", "expected", "counts", "verdicts", "checksums"}
EXITS = {
    "--help": 0,
    "version": 0,
    "status toy": 0,
    "train --set data.name=digits --set optim.name=sgd --set optim.lr=1e30 --set training.eval_every=4": 3,
    "": 2,
}
"""Those of refused commands are checked in `test_messages.py`."""
JSON = {
    "spaces": ["spaces"],
    "methods": ["methods"],
    "datasets": ["datasets"],
    "datasets verify": ["datasets", "verify", "digits"],
    "datasets prepare": ["datasets", "prepare", "digits"],
    "plan": ["plan", "sec_rho", "--dataset", "digits", "--seeds", "2"],
    "status": ["status", "toy"],
    "compare": ["compare", "toy", "sweeps/toy"],
    "compare --rank": ["compare", "toy", "sweeps/toy", "--rank"],
    "report": ["report", "toy", "--check", "complete"],
    "list": ["list"],
    "open": ["open", "toy", "--yes"],
    "sync": ["sync", "toy"],
    "export": ["export", "csv", "toy", "toy.csv"],
    "mv": ["mv", "toy", "moved"],
    "rm": ["rm", "moved", "--yes"],
    "train --show": ["train", *SET, "--show"],
    "train": ["train", *SET],
    "doctor": ["doctor"],
    "version": ["version"],
}
AS_REPORT = ("sweep", "resume", "extend", "confirm")
"""Verbs that end with a report."""
UPLOAD = {"bytes": 1, "files": 1, "kept_back": ["x"], "left_out": ["x"], "ceiling": "x"}
ELSEWHERE = {
    "init": {"file": "x", "next": "x", "notes": ["x"]},
    "logs": {"job": "x", "status": "x", "log": "x"},
    "cancel": {"job": "x", "status": "x"},
    "submit": {"job": "x", "sweep": "x", "new": True, "upload": UPLOAD},
    "rescore": {"sweep": "x", "trials": [{}], "without": 1, "mlflow_error": None},
    "reproduce": {"table": "x", "sweep": "x", "exit_code": 0, "rows": [{}], "files": ["x"]},
    "schema": {"schema": {}, "file": None},
    "skill": {"skill": "x", "file": None},
    "error": {"error": [{"rule": "x", "place": "x", "value": None, "remedy": "x", "fix": None}]},
}
"""What verbs print that need a cluster, pictures or embeddings; `conftest.command_line` compares it where tests run them."""
ON_TWO_KINDS = ("logs", "cancel", "submit")
"""Verbs whose keys differ between Ray's clusters and SLURM's."""
NULLABLE = ("seeds_to_decide", "mlflow", "protocol", "size", "shorter_side", "why_not", "race", "floors")
"""Keys that may be null, which the toy sweep does not show."""
SCHEMAS = Path(cli.__file__).with_name("json_schemas.json")


def flags() -> dict[str, Any]:
    """Verb -> its options as given to Typer, and its help."""
    app = application()
    groups = {"": app, **{f"{group.name} ": group.typer_instance for group in app.registered_groups}}
    return {
        before + command.name: {"help": inspect.getdoc(command.callback), "options": _options(command.callback)}
        for before, group in groups.items()
        for command in group.registered_commands
    }


def with_json() -> set[str]:
    """Return the verbs that take `--json`; a verb without a call above has a schema that allows anything."""
    return {name for name, command in flags().items() if "--json" in command["options"]}


def knobs() -> dict[str, Any]:
    """Return method -> its knobs, each with default and rule."""
    return {
        f"{kind} {name}": {knob.name: [knob.default, knob.rule] for knob in parameters_of(method)}
        for kind in (*SECTIONS["model"].chooses.values(), "loss", "regularizer", "optimizer", "lr_schedule")
        for name, method in methods_of(kind).items()
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
    """Return a type such as `int`, `Path`, `grid or tpe` or `list[str]`, without None."""
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if not parts:
        return annotation.__name__
    if get_origin(annotation) is Literal:
        return "|".join(parts)
    return f"list[{_kind(parts[0])}]" if get_origin(annotation) is list else _kind(parts[0])


def shape(value: Any, key: str = "") -> Any:
    """Return keys and types; keys that are settings, metrics or counts of a data set are merged into one."""
    if key in ANY:
        return "any"
    if isinstance(value, dict):
        inner = {name: shape(item, name) for name, item in value.items()}
        named = key in NAMED or any("." in name or "/" in name for name in value)
        return {"<name>": _one(inner.values())} if named and inner else inner
    if isinstance(value, list):
        return [_one([shape(item) for item in value])] if value else []
    return type(value).__name__


def _one(shapes: Collection[Any]) -> Any:
    """Merge several shapes: every key of any, and every type."""
    if shapes and all(isinstance(item, dict) for item in shapes):
        keys = dict.fromkeys(key for item in shapes for key in item)
        return {key: _one([item[key] for item in shapes if key in item]) for key in keys}
    lists = [item for item in shapes if isinstance(item, list)]
    if len(lists) == len(shapes):
        return max(lists, key=len, default=[])
    return " or ".join(sorted({item for item in shapes if isinstance(item, str)} | ({"list"} if lists else set())))


def schema_of(kind: Any, verb: str = "") -> dict[str, Any]:
    titled = {"title": f"tune-dml {verb} --json", "$schema": DIALECT} if verb else {}
    if isinstance(kind, dict):
        if "<name>" in kind:
            return {**titled, "type": "object", "additionalProperties": schema_of(kind["<name>"])}
        inner = {name: {} if name in NULLABLE else schema_of(item) for name, item in kind.items()}
        return {**titled, "type": "object", "properties": inner, "required": sorted(inner)}
    if isinstance(kind, list):
        return {**titled, "type": "array", **({"items": schema_of(kind[0])} if kind else {})}
    types = sorted({TYPES[word] for word in kind.split(" or ")}) if kind != "any" else ["null"]
    if "float" in kind.split(" or "):  # a number that is not finite is null
        types = sorted({*types, "null"})
    return {} if "null" in types and len(types) == 1 else {"type": types[0] if len(types) == 1 else types}


def schemas() -> dict[str, Any]:
    """Verb -> schema of its JSON, with the toy sweep in the working directory."""
    with (
        patch.object(Tracker, "attach", return_value=None),  # MLflow has separate tests
        patch.object(Tracker, "stop", return_value=SyncReport()),
        patch.object(Tracker, "reconcile", return_value=Reconciliation(("x",), (), Counts(1, 1, 1), None)),
    ):
        said = {name: run([*words, "--json"]) for name, words in JSON.items()}
    assert not [(name, text) for name, (code, text) in said.items() if code]
    found = {name: shape(json.loads(text)) for name, (_, text) in said.items()}
    found |= {name: shape(value) for name, value in ELSEWHERE.items()}
    every = {name: schema_of(kind, name) for name, kind in found.items()}
    every |= {name: {**every["report"], "title": f"tune-dml {name} --json"} for name in AS_REPORT}
    every |= {name: {"title": f"tune-dml {name} --json"} for name in with_json() - every.keys()}
    for name in ON_TWO_KINDS:
        every[name]["required"] = []
    return dict(sorted(every.items()))


def run(words: Sequence[str]) -> tuple[int, str]:
    result = CliRunner().invoke(application(), list(words))
    if isinstance(result.exception, ConfigError):
        return 1, result.stdout
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.exit_code, result.stdout


def make_toy(storage: Path, cache_dir: Path | None) -> None:
    """Write a sweep of two seeds with one failed trial."""
    checked = prepare(Request("sec_rho", dataset="digits", seeds=2, name="toy"), cache_dir=cache_dir, decode=False)
    folder = storage / "toy"
    folder.mkdir(parents=True)
    checked.plan.save(folder / "plan.json")
    with Ledger(folder) as book:
        for number, trial in enumerate(checked.plan.trials()):
            book.write(event_of("started", trial.key, host="here"))
            book.report(trial.key, {"step": 40, "train/loss": 1.0, "val/recall_at_1": 60.0 + number % 5 / 10})
            metrics = {"val/recall_at_1": 60.0 + number % 5 / 10, "train/loss": 1.0}
            ended = {"status": "finished", "reason": "", "metrics": metrics, "step": 40}
            failed = {"status": "failed", "reason": "it broke", "kind": "code", "metrics": {}}
            book.write(event_of("ended", trial.key, seconds=2.0, **(failed if number == 3 else ended)))


@pytest.fixture
def toy(cache_dir, monkeypatch):
    monkeypatch.setenv("TUNE_DML_CACHE", str(cache_dir))
    make_toy(Path("sweeps"), cache_dir)


def test_flags_types_defaults_and_help_are_frozen():
    assert flags() == json.loads(FROZEN.read_text())["flags"]


def test_knobs_of_methods_keep_their_defaults_and_rules():
    frozen, found = json.loads(KNOBS.read_text()), json.loads(json.dumps(knobs()))
    assert {name: found.get(name) for name in frozen} == frozen  # further methods may come


@pytest.mark.usefixtures("toy")
def test_schemas_of_json_are_frozen():
    assert schemas() == json.loads(SCHEMAS.read_text())


def test_each_verb_with_json_has_a_schema():
    assert with_json() <= json.loads(SCHEMAS.read_text()).keys()


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("line", EXITS)
def test_exit_codes_are_frozen(line):
    assert run(line.split())[0] == EXITS[line]


def test_the_exit_code_follows_the_end_of_a_sweep(toy):
    results = results_of(Path("sweeps/toy"))
    assert Sweep(results).exit_code == 3
    assert Sweep(results, interrupted=True).exit_code == 130


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make_toy(Path("sweeps"), None)
        FROZEN.write_text(json.dumps({"flags": flags()}, indent=1) + "\n")
        for file, found in ((KNOBS, knobs()), (SCHEMAS, schemas())):
            lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
            file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
