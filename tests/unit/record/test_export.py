"""A sweep for other programs: an Optuna study with every trial, tables, and refused exports."""

import errno
import math
import os
from dataclasses import replace

import optuna
import pandas as pd
import pytest
from helpers.toys import METRIC, seal, write_sweep

from trainables.errors import ConfigError
from tune_dml.cli.export import _write_table
from tune_dml.record.imported import ImportRequest, read_optuna
from tune_dml.record.study import study_of
from tune_dml.sweep import Sweep

FAILURES = {("rho=0.5", 1): ("failed", "out of memory"), ("rho=0.01", 2): ("diverged", "the loss is nan")}
FAILURES |= {("rho=1", 1): ("stopped", "behind at step 44")}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "toy"
    found = write_sweep(folder, failures=FAILURES, missing=[("rho=0.9", 0)])
    seal(folder, found.trials[1].key, {"test/recall_at_1": 12.25})
    return found


def test_a_study_has_seeds_states_and_intermediate_values(results, tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    study_of(results, url)
    study = optuna.load_study(study_name=results.name, storage=url)
    begun = [trial for trial in results.trials if trial.status != "missing"]
    assert len(study.trials) == len(begun) == len(results.trials) - 1
    assert study.direction.name == "MAXIMIZE"
    assert study.metric_names == [METRIC]
    for ours, theirs in zip(begun, study.trials, strict=True):
        assert theirs.user_attrs["seed"] == ours.seed
        assert theirs.state.name == {"finished": "COMPLETE", "stopped": "PRUNED"}.get(ours.status, "FAIL")
        assert theirs.params.get("regularizer.rho") == ours.cell.knobs.get("regularizer.rho")
        if ours.status == "finished":
            assert theirs.value == ours.metrics[METRIC]
        rows = {row["step"]: row[METRIC] for row in results.history(ours.key) if METRIC in row}
        assert theirs.intermediate_values == rows
    failed = [trial.user_attrs["reason"] for trial in study.trials if trial.state.name == "FAIL"]
    assert sorted(failed) == ["out of memory", "the loss is nan"]
    rho = study.trials[-1].distributions["regularizer.rho"]
    assert (rho.low, rho.high, rho.log) == (0.01, 1.0, True)


def test_a_sealed_figure_is_in_no_export(results, tmp_path, output_of):
    study_of(results, f"sqlite:///{tmp_path}/x.db")
    for form, to in (("csv", "x.csv"), ("parquet", "x.parquet")):
        output_of("export", form, "toy", tmp_path / to, "--storage", results.folder.parent, "--json")
    assert not [name for name in pd.read_csv(tmp_path / "x.csv") if name.startswith("test/")]
    attributes = {name for trial in study_of(results).trials for name in trial.user_attrs}
    assert not [name for name in attributes if name.startswith("test/")]
    assert b"12.25" not in (tmp_path / "x.csv").read_bytes()


def test_tables_have_a_row_for_each_trial(results, tmp_path, command_line):
    command_line("export", "parquet", "toy", tmp_path / "new" / "x.parquet", "--storage", results.folder.parent)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "new" / "x.parquet"), results.table(), check_dtype=False)


def _with_knobs(results, *knobs):
    """Return the results with the first trials only, one for each mapping of knobs."""
    trials = zip(results.trials, knobs, strict=False)
    return replace(results, trials=tuple(replace(trial, cell=replace(trial.cell, knobs=own)) for trial, own in trials))


def test_whole_numbers_that_some_arms_lack_stay_whole(results, tmp_path):
    some = _with_knobs(results, {"k": 8, "n": 2**70, "x": None, "lr": 1}, {"lr": 0.5}, {"k": 2**60 + 1, "lr": 2})
    table = some.table()
    assert [str(table[name].dtype) for name in ("k", "n", "lr")] == ["Int64", "object", "float64"]
    assert table["k"].dropna().tolist() == [8, 2**60 + 1]
    assert _write_table(some, "csv", tmp_path / "x.csv") == 3
    assert pd.read_csv(tmp_path / "x.csv", dtype=str)["k"].fillna("").tolist() == ["8", "", str(2**60 + 1)]


def test_parquet_has_values_of_several_types_as_text(results, tmp_path):
    some = _with_knobs(results, {"k": 8, "n": 2**70}, {"k": "auto"}, {"k": True}, {"k": None})
    _write_table(some, "parquet", tmp_path / "x.parquet")
    read = pd.read_parquet(tmp_path / "x.parquet")
    assert read["k"].fillna("-").tolist() == ["8", "auto", "True", "-"]
    assert read["n"].fillna("-").tolist() == [str(2**70), "-", "-", "-"]


def test_a_parameter_named_like_a_column_keeps_both(results):
    trial = results.trials[0]
    cell = replace(trial.cell, knobs={"status": 3, "trial": 4})
    metrics = {"seconds": 9.0}
    (row,) = replace(results, trials=(replace(trial, cell=cell, metrics=metrics),)).table().to_dict("records")
    assert (row["status"], row["trial"], row["seconds"]) == (trial.status, trial.key, trial.seconds)
    assert (row["own.status"], row["own.trial"], row["own.seconds"]) == (3, 4, 9.0)


def test_python_exports_a_study(results):
    study = Sweep(results).study()
    assert study.best_trial.value == max(trial.metrics.get(METRIC, 0.0) for trial in results.trials)


def test_a_result_that_is_not_a_number_is_a_failed_trial(results):
    first = next(trial for trial in results.trials if trial.status == "finished")
    nan = replace(first, metrics={**first.metrics, METRIC: math.nan})
    (trial,) = study_of(replace(results, trials=(nan,))).trials  # Optuna refuses NaN as a value
    assert trial.state.name == "FAIL"


def test_a_running_trial_has_not_started_in_1970(results):
    running = replace(results.trials[0], status="running", ended=0.0)
    (trial,) = study_of(replace(results, trials=(running,))).trials
    assert trial.state.name == "RUNNING"
    assert trial.datetime_start.year > 1970


def test_existing_files_are_not_overwritten(results, tmp_path, output_of):
    url = f"sqlite:///{tmp_path}/x.db"
    study_of(results, url)
    with pytest.raises(ConfigError, match="has a study toy already"):
        study_of(results, url)
    with pytest.raises(ConfigError, match="must be a storage of Optuna"):
        study_of(results, "nonsense")
    (tmp_path / "x.csv").touch()
    refused = output_of("export", "csv", "toy", tmp_path / "x.csv", "--storage", results.folder.parent, code=1)
    assert "the file exists already" in refused


def test_a_full_disk_is_reported_and_leaves_no_partial_table(results, tmp_path, output_of, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for form in ("csv", "parquet"):
        to = tmp_path / form
        refused = output_of("export", form, "toy", to, "--storage", results.folder.parent, code=1)
        assert refused == f"{to}: {os.strerror(errno.ENOSPC)}\n"
        assert not list(tmp_path.iterdir())
    monkeypatch.setattr(optuna.study.Study, "add_trials", full)
    refused = output_of("export", "optuna", "toy", f"sqlite:///{to}", "--storage", results.folder.parent, code=1)
    assert "the study could not be written completely ([Errno 28] No space left" in refused


def test_the_study_can_be_imported_again(results, tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    study_of(results, url)
    rows = read_optuna(url, None, ImportRequest("again", margin=1.0)).rows
    finished = [trial.metrics[METRIC] for trial in results.trials if trial.status == "finished"]
    assert [row.metrics.get(METRIC) for row in rows if row.metrics] == finished
