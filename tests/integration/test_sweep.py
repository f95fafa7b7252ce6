"""A sweep from Python, end to end: Ray Tune, Optuna, the ledger, MLflow, the table."""

import json
from pathlib import Path

import pytest
from helpers.stored_runs import StoredRuns
from helpers.toys import event_of
from mlflow.tracking import MlflowClient

import tune_dml
from trainables.errors import ConfigError
from tune_dml.planning.request import Resources
from tune_dml.record.ledger import Ledger
from tune_dml.record.state import SweepState


def runs_of(folder, name):
    """Trial runs of a sweep in the SQLite store of a folder."""
    return StoredRuns(f"sqlite:///{folder}/mlflow.db", name).children


class TestAGrid:
    @pytest.fixture(scope="class")
    def sweep(self, a_copy):
        return tune_dml.load_sweep("rho1", storage=a_copy / "sweeps"), a_copy

    @pytest.fixture(scope="class")
    def here(self, sweep, cache_dir):
        """Return the sweep's location as keywords for further commands."""
        _, folder = sweep
        store = f"sqlite:///{folder}/mlflow.db"
        return {"storage": folder / "sweeps", "tracking_uri": store, "cache_dir": cache_dir, "max_concurrent": 1}

    def test_every_cell_ran_once_per_seed(self, sweep):
        done, _ = sweep
        table = done.table()
        assert done.exit_code == 0
        assert len(table) == 12
        assert set(table["status"]) == {"finished"}
        assert [cell.label for cell in done.results.cells][:2] == ["no SEC", "rho=0.01"]
        assert not table.duplicated(["cell", "seed"]).any()
        assert table["val/recall_at_1"].between(0, 100).all()

    def test_mlflow_has_each_trial_once_with_true_end_states(self, sweep):
        done, folder = sweep
        runs = runs_of(folder, "rho1")
        assert len(runs) == 12
        assert {run.info.status for run in runs} == {"FINISHED"}
        one = runs[0]
        assert one.data.params["loss.name"] == "triplet"
        assert "val/recall_at_1" in one.data.metrics
        assert not [name for name in one.data.metrics if name.startswith("test/")]
        assert {row["run_id"] for _, row in done.table().iterrows()} == {run.info.run_id for run in runs}

    def test_every_trial_stored_evidence_locally_and_in_mlflow(self, sweep):
        done, folder = sweep
        client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
        for trial in done.results.trials:
            here = done.results.evidence(trial.key)
            assert here.step == trial.step
            there = client.list_artifacts(trial.run_id, "evidence")
            sizes = {file.name: file.stat().st_size for file in here.files}
            assert {Path(entry.path).name: entry.file_size for entry in there} == sizes
            assert set(sizes) == {"evidence.json", "sheet.jpg"}

    def test_a_second_run_repeats_no_trial(self, sweep, here):
        _, folder = sweep
        before = (folder / "sweeps/rho1/ledger.jsonl").read_text()
        again = tune_dml.resume_sweep("rho1", **here)
        after = (folder / "sweeps/rho1/ledger.jsonl").read_text()
        assert again.exit_code == 0
        assert [json.loads(line)["kind"] for line in after[len(before) :].splitlines()] == ["session"]
        assert len(runs_of(folder, "rho1")) == 12

    @pytest.mark.parametrize("verb", ["run", "resume", "extend"])
    def test_resources_that_a_cluster_never_has_are_refused_without_writing(self, sweep, here, monkeypatch, verb):
        import ray

        _, folder = sweep
        elsewhere = ray.get_runtime_context().gcs_address
        too_much = Resources(cpus_per_worker=999)
        monkeypatch.setattr(SweepState, "resources", too_much)
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        here = {**here, "address": elsewhere}
        call = {
            "run": lambda: tune_dml.run_sweep("sec_rho", dataset="digits", name="new", resources=too_much, **here),
            "resume": lambda: tune_dml.resume_sweep("rho1", retry_failed=True, **here),
            "extend": lambda: tune_dml.extend_sweep("rho1", seeds=[7], **here),
        }[verb]
        with pytest.raises(ConfigError, match="999 CPU"):
            call()
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before

    @pytest.mark.slow
    def test_failed_trials_run_again_only_with_retry_failed(self, sweep, here):
        done, folder = sweep
        key = done.results.trials[0].key
        with Ledger(folder / "sweeps/rho1") as ledger:
            ledger.write(event_of("ended", key, status="failed", reason="made up", metrics={}))
        assert tune_dml.resume_sweep("rho1", **here).results.count("failed") == 1
        again = tune_dml.resume_sweep("rho1", retry_failed=True, **here).results
        assert again.count("failed") == 0
        assert [trial.key for trial in again.trials if trial.attempts == 2] == [key]
        assert again.trials[0].metrics == done.results.trials[0].metrics

    @pytest.mark.slow
    def test_a_trial_out_of_memory_is_retried_with_a_micro_batch(self, sweep, here, cache_dir):
        from rich.console import Console

        from tune_dml.cli import train

        done, folder = sweep
        trial = done.results.trials[0]
        with Ledger(folder / "sweeps/rho1") as ledger:
            ledger.write(
                event_of("ended", trial.key, status="failed", kind="out_of_memory", reason="out of memory", metrics={})
            )
        with pytest.raises(ConfigError, match=r"^micro_batch: must be at least 1, but got 0\.$"):
            tune_dml.resume_sweep("rho1", retry_failed=True, micro_batch=0, **here)
        again = tune_dml.resume_sweep("rho1", retry_failed=True, micro_batch=7, **here).results
        assert {each.key: each.micro_batch for each in again.trials if each.micro_batch} == {trial.key: 7}
        assert again.trials[0].status == "finished"
        assert again.trials[0].metrics["val/recall_at_1"] == pytest.approx(trial.metrics["val/recall_at_1"], abs=2.0)
        (run,) = [run for run in runs_of(folder, "rho1") if run.data.tags["tune_dml.trial_key"].endswith(trial.key)]
        assert run.data.tags["tune_dml.micro_batch"] == "7"
        single = train._single_trial(trial.key, settings={}, storage=folder / "sweeps", cache_dir=cache_dir)
        assert single.config.training.micro_batch == 7
        assert train.run(single, Console(quiet=True)).differences == {}

    def test_another_plan_or_protocol_is_refused_without_writing(self, sweep, here, monkeypatch):
        _, folder = sweep
        before = {path: path.read_bytes() for path in (folder / "sweeps").rglob("*.json*")}
        with pytest.raises(ConfigError, match=r"the sweep rho1 exists already, with .*values of regularizer"):
            tune_dml.run_sweep("sec_eta", dataset="digits", name="rho1", **here)
        monkeypatch.setattr("tune_dml.planning.plan.PROTOCOL_VERSION", 99)
        with pytest.raises(ConfigError, match=r"began with protocol version .*; this program has version 99"):
            tune_dml.resume_sweep("rho1", **here)
        assert {path: path.read_bytes() for path in (folder / "sweeps").rglob("*.json*")} == before


def test_an_adaptive_search_runs_its_budget(two_sweeps):
    done = tune_dml.load_sweep("lr1", storage=two_sweeps / "sweeps")
    assert done.exit_code == 0, [trial.reason for trial in done.results.trials]
    assert not done.interrupted
    assert len(done.results.cells) == 4
    rates = {cell.knobs["optim.lr"] for cell in done.results.cells}
    assert len(rates) == 4
    assert all(1e-5 <= rate <= 1e-3 for rate in rates)
    assert len(done.results.trials) == 8
    assert all(trial.status == "finished" for trial in done.results.trials)
