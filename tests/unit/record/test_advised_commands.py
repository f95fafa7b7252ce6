"""Suggested commands include the locations that their sweep needs."""

import platform
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.toys import MARGINS, Driver, bare_sweep, plan_of

from trainables.errors import Problem
from tune_dml.record.origin.commands import (
    cluster_of_this_job,
    command,
    retry_arguments,
    stop_instruction,
    with_program,
    with_storage,
)
from tune_dml.record.results import results_of


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return bare_sweep(tmp_path_factory.mktemp("shared") / "toy", means={0.1: 70.0})


def typed(results, *argv):
    return replace(results, provenance={"argv": list(argv)})


SERVER = "--tracking-uri http://here:5000"
OWN = "/app/tune_dml/cli/__main__.py sweep sec_rho --storage elsewhere --tracking-uri=http://here:5000 --cache-dir '/my cache'"


@pytest.mark.parametrize(
    ("argv", "verb", "expected"),
    [
        ("/venv/bin/tune-dml sweep sec_rho --seeds 3", "extend", "extend toy --seeds 5"),
        (OWN, "extend", f"extend toy --seeds 5 --storage HERE {SERVER} --cache-dir '/my cache'"),
        (OWN, "report", f"report toy --storage HERE {SERVER}"),
        (OWN, "status", "status toy --storage HERE"),
        ("train.py", "status", "status toy --storage HERE"),
        ("tune-dml sweep sec_rho --tracking-uri http://***@here", "report", "report toy --tracking-uri http://here"),
        ("tune-dml sweep sec_rho --tracking-uri postgresql://***@here/mlflow", "report", "report toy"),
    ],
)
def test_typed_locations_are_repeated_if_the_verb_accepts_them_without_secrets(results, argv, verb, expected):
    found = command(typed(results, *shlex.split(argv)), verb, "--seeds 5" if verb == "extend" else "")
    assert found == f"tune-dml {expected}".replace("HERE", str(results.folder.parent))


def test_commands_from_python_leave_out_the_default_storage(results):
    python = replace(typed(results, "train.py"), folder=Path("/data/sweeps/toy"))
    assert command(python, "resume") == "tune-dml resume toy"


@pytest.mark.parametrize(
    "now",
    [{"--tracking-uri": "http://there:5000", "--experiment": None}, {"--tracking-uri": "http://me:secret@there:5000"}],
)
def test_flags_typed_now_override_those_of_the_first_session(results, now):
    here = typed(results, "tune-dml", "sweep", "sec_rho", *SERVER.split(), "--experiment", "mine")
    assert command(here, "sync", options=now) == "tune-dml sync toy --tracking-uri http://there:5000 --experiment mine"


def test_flags_of_a_later_session_override_those_of_the_first(tmp_path):
    """A sweep that has moved to another store, or another cluster."""
    driver = Driver(tmp_path / "toy", plan_of(MARGINS))
    for verb, address in (("sweep", "old:6379"), ("resume", "new:6379"), ("confirm", "")):
        words = ["tune-dml", verb, "toy", "--experiment=mine", *(["--address", address] if address else [])]
        driver.event("session", provenance={"argv": words}, resources={})
    later = results_of(driver.folder)
    assert command(later, "resume").endswith("resume toy --experiment mine --address new:6379")


def test_commands_of_a_job_on_a_cluster_begin_with_submit(results, monkeypatch):
    """Their reader is on another machine."""
    monkeypatch.setenv("TUNE_DML_SUBMITTED_TO", "'my cluster.yaml' --working-dir own")
    there = typed(results, "/app/tune_dml/cli/__main__.py", "sweep", "sec_rho", "--max-concurrent", "4")
    again = "tune-dml submit 'my cluster.yaml' --working-dir own -- resume toy --max-concurrent 4"
    assert command(there, "resume") == again
    cancel = "`tune-dml cancel 'my cluster.yaml' toy`"
    refusal = f"Go on with that one: `tune-dml resume toy`, or {cancel}."
    told = with_program(refusal)
    assert told == refusal.replace("`tune-dml resume", "`tune-dml submit 'my cluster.yaml' --working-dir own -- resume")
    assert with_program(told) == told
    monkeypatch.delenv("TUNE_DML_SUBMITTED_TO")
    assert with_program(refusal) == refusal


def test_the_stop_command_names_the_cluster_of_the_sweep(tmp_path, monkeypatch):
    """A job of one cluster may show a sweep of another cluster, or one started by hand."""
    driver = Driver(tmp_path / "toy", plan_of(MARGINS))
    driver.event("session", provenance={"host": "desk"}, resources={}, submitted_to="my cluster.yaml")
    monkeypatch.setenv("TUNE_DML_SUBMITTED_TO", "http://other:8265")
    assert stop_instruction(results_of(driver.folder)) == "`tune-dml cancel 'my cluster.yaml' toy`"
    driver.event("session", provenance={"host": "desk"}, resources={}, submitted_to=None)
    assert stop_instruction(results_of(driver.folder)) == "Ctrl-C where it runs, on desk"
    driver.event("session", provenance={"host": platform.node()}, resources={})
    assert stop_instruction(results_of(driver.folder)) == "Ctrl-C where it runs"


def test_a_session_records_its_cluster(monkeypatch):
    assert cluster_of_this_job() is None
    monkeypatch.setenv("TUNE_DML_SUBMITTED_TO", "'my cluster.yaml' --working-dir own")
    assert cluster_of_this_job() == "my cluster.yaml"
    monkeypatch.setenv("TUNE_DML_SUBMITTED_TO", "http://me:secret@head:8265")
    assert cluster_of_this_job() == "http://***@head:8265"


@pytest.mark.parametrize(
    ("frozen", "micro_batch", "kind", "advised"),
    [
        (True, None, "out_of_memory", "--retry-failed --micro-batch 30"),
        (True, 30, "out_of_memory", "--retry-failed --micro-batch 15"),
        (True, 1, "out_of_memory", "--retry-failed"),
        (False, None, "out_of_memory", "--retry-failed"),
        (True, None, "bug", "--retry-failed"),
    ],
)
def test_trials_out_of_memory_are_retried_with_a_micro_batch(tmp_path, frozen, micro_batch, kind, advised):
    """Not if batch statistics of a micro-batch would change the numbers."""
    settings = {"model.freeze_bn": frozen, "batch.batch_size": 60}
    made = bare_sweep(tmp_path / "toy", means={0.1: 70.0, 0.5: 69.0}, cell_settings=settings)
    driver = Driver(made.folder, made.plan)
    driver.event("started", driver.trials[0].key, host="", micro_batch=micro_batch)
    driver.ended(driver.trials[0], "failed", kind=kind)
    assert retry_arguments(results_of(made.folder)) == advised


def test_a_sweep_of_the_default_storage_that_is_read_from_elsewhere_names_its_folder(results, monkeypatch):
    begun = typed(results, "tune-dml", "sweep", "x")
    assert command(begun, "report") == "tune-dml report toy"
    for given in (["--storage", "../x"], ["--storage=../x"]):
        monkeypatch.setattr("sys.argv", ["/bin/tune-dml", "show", "toy", *given])
        assert command(begun, "report") == f"tune-dml report toy --storage {results.folder.parent}"


@pytest.mark.parametrize("given", [["--storage", "my dir"], ["--storage=my dir"]])
def test_advised_commands_look_in_the_storage_of_the_command_line(given):
    more = (
        "Use --name x, or `tune-dml resume toy`, `tune-dml list`, `tune-dml show a --storage b` or `tune-dml compare`."
    )
    problem = Problem("--name", "it exists", None, more)
    assert with_storage(problem, ["resume", "toy"]) == problem
    told = with_storage(problem, ["resume", "toy", *given]).remedy
    assert "`tune-dml resume toy --storage 'my dir'`, `tune-dml list --storage 'my dir'`, `" in told
    assert "`tune-dml show a --storage b` or `tune-dml compare`" in told
