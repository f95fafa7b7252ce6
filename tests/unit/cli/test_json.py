"""JSON of the command line is strict, errors have a fix, and frequent verbs answer quickly."""

import dataclasses
import json
import math
import shlex
import sys
import threading
import time
from pathlib import Path

import pytest
from helpers.processes import printed_by
from helpers.toys import RHO, SETTINGS, Driver, bare_sweep, plan_of, write_sweep

from trainables.errors import Problem
from trainables.losses import LOSSES
from trainables.losses.triplet import TripletLoss
from tune_dml.cli._answers import _FILE, answer_of, headline_of
from tune_dml.cli._json import _fix_of, as_json
from tune_dml.cli.status import _wait_for_end
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.request import Request
from tune_dml.record.ledger import Ledger
from tune_dml.record.results import load_results
from tune_dml.record.state import read_state


def test_numbers_that_are_not_finite_are_null():
    value = {"a": [1.5, math.nan, (math.inf, -math.inf)], 2: {"b": math.nan}, "path": Path("x")}
    assert json.loads(as_json(value)) == {"a": [1.5, None, [None, None]], "2": {"b": None}, "path": "x"}


class PrintingLoss(TripletLoss):
    name = "printing"

    def solve(self, pairs):
        sys.stdout.write("printed by a loss\n")
        return super().solve(pairs)


def test_what_a_method_prints_is_no_part_of_the_json(command_line, cache_dir, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(LOSSES.data, "printing", PrintingLoss)
    monkeypatch.chdir(tmp_path)
    settings = {"loss.name": "printing", "training.steps": 2, "training.eval_every": 1}
    flags = [f"--set={name}={value}" for name, value in settings.items()]
    code, out, err = command_line("train", "--dataset", "digits", "--cache-dir", cache_dir, *flags, "--json")
    assert (code, json.loads(out)["status"], "printed by a loss" in err) == (0, "finished", True)
    prepare(Request("sec_rho", dataset="digits", seeds=1, settings=settings), cache_dir=cache_dir)  # of a sweep
    out, err = capsys.readouterr()
    assert (out, "printed by a loss" in err) == ("", True)


@pytest.mark.parametrize(
    ("words", "problem", "fix"),
    [
        ("plan sec_roh --json", ("space", "unknown search space", "sec_roh", "Did you mean 'sec_rho'?"), "plan sec_rho --json"),
        ("plan s --set loss.magrin=1", ("loss.magrin (--set)", "unknown setting", None, "Did you mean 'loss.margin'?"),
         "plan s --set loss.margin=1"),
        ("rm toy", ("--yes", "needs confirmation", None, "Add --yes."), "rm toy --yes"),
        ("sweep s --seeds 0", ("--seeds", "at least one", 0, "Use --seeds 3."), "sweep s --seeds 3"),
        ("sweep s --seeds=0 -o x", ("--seeds", "at least one", 0, "Use --seeds 3."), "sweep s -o x --seeds 3"),
        ("confirm s", ("SWEEP", "none", None, "Run it first: `tune-dml resume s`."), "resume s"),
        ("sweep s --set a.b=1 --set=t.s=2 --set t.s=3", ("--stopping", "short", None, "Use --set t.s=400, or leave it out."),
         "sweep s --set a.b=1 --set t.s=400"),
        ("sweep s", ("--margin", "is missing", None, "Use --margin 0.01."), "sweep s --margin 0.01"),
        ("sweep s", ("--data-root", "needs its folder", None, "Pass --data-root DIR."), None),
        ("sweep s", ("x", "is wrong", None, "Leave it out."), None),
        ("plan s --lr 0.1 -o x", ("--lr", "no", None, "Did you mean '--set optim.lr=X'?"), "plan s --set optim.lr=0.1 -o x"),
        ("plan s --lr=0.1", ("--lr", "no such", None, "Did you mean '--set optim.lr=X'?"), "plan s --set optim.lr=0.1"),
        ("plan s --lr", ("--lr", "no such", None, "Did you mean '--set optim.lr=X'?"), None),
        ("sweep s --dry-run", ("--dry-run", "no such", None, "Did you mean 'tune-dml plan'?"), None),
        ("resume s", ("SWEEP", "unknown", "s", "No sweep is stored there; start one with `tune-dml sweep SPACE`."), None),
    ],
)  # fmt: skip
def test_a_fix_is_a_runnable_command(words, problem, fix):
    found = _fix_of(Problem(*problem), shlex.split(words))
    assert found == (fix and f"tune-dml {fix}")


def test_errors_are_objects(command_line):
    code, out, _ = command_line("plan", "sec_rho", "--dataset", "glyfs", "--seeds", "x", "--json")
    assert code == 1
    (error,) = json.loads(out)["error"]
    assert error["place"] == "--seeds"
    code, out, _ = command_line("plan", "sec_rho", "--dataset", "glyfs", "--json")
    (error,) = json.loads(out)["error"]
    assert error["rule"] == "unknown data set"
    assert error["fix"] == "tune-dml plan sec_rho --dataset glyphs --json"


@pytest.mark.parametrize(
    ("words", "place", "fix"),
    [
        ("plan sec_rho --sede 3", "--sede", "plan sec_rho --seeds 3"),
        ("plan sec_rho --sed 3", "--sed", "plan sec_rho --seeds 3"),
        ("plan sec_rho --search tep", "--search", "plan sec_rho --search tpe"),
        ("plan", "SPACE|FILE.yaml", None),
        ("sttaus toy", "VERB", "status toy"),
        ("datasets verfy digits", "VERB", "datasets verify digits"),
        ("--nonsense", "--nonsense", None),
        ("export wandb rho1 x", "optuna|csv|parquet", None),
        ("confirm rho1 --top one", "--top", None),
        ("mv rho1", "NEW", None),
    ],
)
def test_usage_errors_are_objects(command_line, words, place, fix):
    code, out, err = command_line(*words.split(), "--json")
    assert code == 2
    (error,) = json.loads(out)["error"]
    assert (error["place"], error["fix"]) == (place, fix and f"tune-dml {fix} --json")
    assert error["rule"]
    assert err.startswith("Usage: tune-dml")


def test_a_sweep_with_failures_prints_strict_json(tmp_path, command_line, new_database):
    new_database(".")
    failures = dict.fromkeys((("rho=0.01", seed) for seed in range(3)), ("diverged", "loss is nan"))
    failures["rho=0.1", 0] = ("failed", "x")
    write_sweep(tmp_path / "toy", failures=failures, missing=[("rho=0.5", 1)])
    for words in (["status", "toy"], ["report", "toy", "-o", tmp_path / "out"], ["list"]):
        code, _, _ = command_line(*words, "--storage", tmp_path, "--json")  # the fixture checks each against its schema
        assert code in {0, 3, 130}


def test_numbers_of_a_sweep_name_their_metric_and_its_unit(tmp_path, command_line, new_database):
    """A mean of 62.5 may be a percentage or a loss, and better if low."""
    new_database(".")
    for name in ("toy", "other"):
        bare_sweep(tmp_path / name)
    written = tmp_path / "out"
    lines = (["report", "toy", "-o", written], ["compare", "toy", "other"], ["status", "toy"])
    seen = [json.loads(command_line(*words, "--storage", tmp_path, "--json")[1])["metric"] for words in lines]
    metric = {"key": "val/recall_at_1", "label": "validation R@1 [%]", "goal": "maximize"}
    assert seen == [metric, metric, {"key": "val/recall_at_1", "goal": "maximize"}]
    assert json.loads((written / "verdicts.json").read_text())["metric"] == metric


def test_status_of_a_killed_sweep_has_interrupted_trials_and_the_resume_command(tmp_path, command_line):
    driver = Driver(tmp_path / "toy", plan_of(RHO, name="toy", overrides=SETTINGS))
    driver.session()
    driver.started(driver.trials[0])
    with Ledger(tmp_path / "toy"):
        running = json.loads(command_line("status", "toy", "--storage", tmp_path, "--json")[1])
    assert (running["counts"]["running"], running["next"]) == (1, [])
    killed = json.loads(command_line("status", "toy", "--storage", tmp_path, "--json")[1])
    assert killed["counts"]["interrupted"] == 1
    assert [trial["status"] for trial in killed["trials"]].count("interrupted") == 1
    assert [line.split()[:3] for line in killed["next"]] == [["tune-dml", "resume", "toy"]]


class TestWaiting:
    def test_a_finished_sweep_returns_at_once_with_its_answer(self, tmp_path, command_line):
        bare_sweep(tmp_path / "toy")
        read_state(tmp_path / "toy").record_look("report")
        code, out, _ = command_line("status", "toy", "--storage", tmp_path, "--wait", "--json")
        assert code == 0
        assert json.loads(out)["state"] == "complete"
        assert any("rho" in sentence for sentence in json.loads(out)["answer"])

    def test_a_sweep_that_was_just_started_may_store_its_plan_later(self, tmp_path, command_line):
        assert command_line("status", "toy", "--storage", tmp_path, "--wait", "--timeout", "0.1")[0] == 1
        starting = threading.Timer(0.6, write_sweep, [tmp_path / "new" / "toy"])
        renamed = threading.Timer(0.0, lambda: (starting.join(), (tmp_path / "new" / "toy").rename(tmp_path / "toy")))
        starting.start(), renamed.start()
        assert command_line("status", "toy", "--storage", tmp_path, "--wait", "--json")[0] == 0
        renamed.join()

    def test_status_wait_returns_at_the_end_of_the_sweep_or_of_the_timeout(self, tmp_path):
        driver = Driver(tmp_path / "toy", plan_of(RHO, name="toy", overrides=SETTINGS))
        driver.session()
        with Ledger(tmp_path / "toy"):
            began = time.monotonic()
            _wait_for_end(tmp_path / "toy", began + 0.6)
            assert time.monotonic() - began >= 0.6
        for trial in driver.trials:
            driver.started(trial)
            driver.ended(trial, metrics={"val/recall_at_1": 50.0})
        began = time.monotonic()
        _wait_for_end(tmp_path / "toy")
        assert time.monotonic() - began < 4


HEAVY = ("scipy.stats", "scipy.optimize", "pandas", "ray", "mlflow", "optuna", "matplotlib")


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    folder = tmp_path_factory.mktemp("storage")
    write_sweep(folder / "toy")
    read_state(folder / "toy").record_look("sweep")
    return folder


@pytest.mark.parametrize(
    ("lines", "heavy"),
    [
        ([["list"], ["status", "toy"], ["status", "toy", "--json"]], (*HEAVY, "torch", "numpy")),
        ([["show", "toy"], ["show", "toy", "--json"]], HEAVY),
        pytest.param([["plan", "sec_rho"]], HEAVY, marks=pytest.mark.slow),
    ],
)
def test_frequent_verbs_load_no_heavy_package(storage, lines, heavy):
    results = load_results(storage, "toy")
    assert headline_of(results)
    assert answer_of(results)
    code = "import sys\nfrom tune_dml.cli import main\n"
    for words in lines:
        code += f"sys.argv = {['tune-dml', *words, '--storage', str(storage)]!r}\n"
        code += "try: main()\nexcept SystemExit as end: assert not end.code\n"
    code += f"loaded = {set(heavy)!r} & set(sys.modules)\nassert not loaded, loaded"
    assert printed_by(code)


def test_an_answer_is_computed_again_when_the_ledger_grows_or_its_file_is_damaged(storage):
    results, path = load_results(storage, "toy"), storage / "toy" / _FILE
    answer = answer_of(results)
    stored = json.loads(path.read_text())
    other = dataclasses.replace(answer, sentences=["another answer"])
    stored["answer"] = dataclasses.asdict(other)
    path.write_text(json.dumps(stored))
    assert answer_of(results) == other
    for damaged in ("[", "[" * 100_000, "5", "[]", "{}", json.dumps({**stored, "answer": 5})):
        path.write_text(damaged)
        assert answer_of(results) == answer
    path.write_text(json.dumps(stored))
    with (storage / "toy" / "ledger.jsonl").open("a") as ledger:
        ledger.write("\n")
    assert answer_of(results) == answer
