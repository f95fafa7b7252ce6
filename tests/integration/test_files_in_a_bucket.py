"""A sweep with files in object storage gives the results of the same sweep with a folder."""

import os
import re
from pathlib import Path

import pytest
from helpers.bucket import Store
from helpers.sweeps import table
from helpers.toys import event_of
from mlflow.tracking import MlflowClient

import tune_dml
from trainables import files
from trainables.errors import ConfigError
from trainables.trial_files import files_at
from tune_dml.record.held_out.sealed import sealed_metrics
from tune_dml.record.ledger import Ledger, read_events, trial_folder
from tune_dml.record.state import read_state

pytestmark = pytest.mark.slow

QUICK = {"training.steps": 10, "training.eval_every": 5}


@pytest.fixture(scope="module")
def served():
    with Store() as store:
        yield store


@pytest.fixture(scope="module")
def swept(served, ray_session, tmp_path_factory, cache_dir, new_database):
    """Return the sweep, the requests it sent, and its location as keywords for further commands."""
    place = tmp_path_factory.mktemp("away")
    here = {"storage": place / "sweeps", "tracking_uri": new_database(place), "cache_dir": cache_dir}
    done = tune_dml.run_sweep(
        "sec_rho",
        dataset="digits",
        seeds=1,
        name="rho1",
        settings=QUICK,
        trial_files=served.address,
        max_concurrent=1,  # one process to start
        **here,
    )
    return done, list(served.requests), here


def files_of(sweep, key):
    """Name -> (bytes, mode) of a trial's files."""
    folder = trial_folder(sweep, key)
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != "history.jsonl"]
    return {path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mode & 0o777) for path in found}


def test_table_and_files_equal_those_of_a_sweep_in_a_folder(swept, two_sweeps):
    done, _, _ = swept
    one_seed = [row for row in table(two_sweeps / "sweeps/rho1") if row[1] == 0]
    assert table(done.folder) == one_seed
    for trial in done.results.trials:
        here, there = files_of(done.folder, trial.key), files_of(two_sweeps / "sweeps/rho1", trial.key)
        assert here.keys() == there.keys() >= {"sealed.json", "hits_val.npz", "evidence/evidence.json"}
        assert here == there
        client = MlflowClient(f"sqlite:///{done.folder.parent.parent}/mlflow.db")
        assert len(client.list_artifacts(trial.run_id, "evidence")) == 2


def test_the_bucket_is_empty_and_the_ledger_records_it(swept, served):
    done, _, _ = swept
    assert [name for name, size in served.objects().items() if size] == []
    kinds = [event.kind for event in read_events(done.folder)]
    assert kinds.count("fetched") == kinds.count("ended") == 6
    state = read_state(done.folder)
    assert re.fullmatch(rf"s3://{served.bucket}/some/place/rho1-[0-9a-f]{{8}}\?.*", state.trial_files)
    assert not any(trial.has_remote_files for trial in state.trial_states.values())


def test_a_trial_sends_a_bounded_number_of_requests(swept):
    """One put per checkpoint and result file, two requests to fetch each result, a dozen to list and delete."""
    done, requests, _ = swept
    key = done.results.trials[0].key
    one = [(verb, name, size) for verb, name, size in requests if key in name]
    put = {name.rpartition("/")[2]: size for verb, name, size in one if verb == "PUT" and size}
    left = {name.rpartition("/")[2] for name in files_of(done.folder, key)}
    assert put.keys() == left | {"checkpoint.pt", "checkpoint.2.pt"}
    got = [name for verb, name, _ in one if verb == "GET" and "?" not in name]
    assert {name.rpartition("/")[2] for name in got} == left
    assert len(one) <= len(put) + 2 * len(left) + 12


def test_opening_contacts_no_bucket_if_all_files_are_local(swept, served):
    before = len(served.requests)
    _, _, here = swept
    opened = tune_dml.open_sweep("rho1", storage=here["storage"], tracking_uri=here["tracking_uri"])
    assert "test/recall_at_1" in opened.table()
    assert len(served.requests) == before


def test_files_of_a_killed_driver_are_fetched_before_opening(swept, served, monkeypatch, command_line):
    """The last event is a trial's end; sealed files are in the bucket, among unrelated files."""
    done, _, here = swept
    state = read_state(done.folder)
    key = next(iter(state.trials))
    sealed = trial_folder(done.folder, key) / "sealed.json"
    left = files_at(state.trial_files.replace("?", f"/{key}?"))
    content = sealed.read_bytes()
    for name in ("sealed.json", "checkpoint.pt", "history.jsonl", "other.bin", "evidence/x.jpg"):
        left.put(name, content if name == "sealed.json" else b"elsewhere")
    sealed.unlink()
    history = (trial_folder(done.folder, key) / "history.jsonl").read_bytes()
    with Ledger(done.folder) as ledger:
        ended = next(event for event in read_events(done.folder) if event.kind == "ended" and event.key == key)
        ledger.write(event_of("started", key, host="h", away=True))
        ledger.write(ended)
    _, said, _ = command_line("status", "rho1", "--storage", here["storage"])
    assert "1 ended trials still have files at s3://" in " ".join(said.split())
    served.stop()
    monkeypatch.setattr(files, "PATIENCE", 0.0)
    try:
        with pytest.raises(ConfigError, match="must be fetched from object storage first"):
            tune_dml.rescore_sweep("rho1", metrics=["recall_at_3"], storage=here["storage"])
    finally:
        served.start()
    assert not sealed.exists()
    with pytest.raises(ConfigError, match="embeddings"):
        tune_dml.rescore_sweep("rho1", metrics=["recall_at_3"], storage=here["storage"])
    assert sealed.read_bytes() == content
    assert sealed.stat().st_mode & 0o777 == 0o600
    assert (trial_folder(done.folder, key) / "evidence/x.jpg").read_bytes() == b"elsewhere"
    assert (trial_folder(done.folder, key) / "history.jsonl").read_bytes() == history
    assert not {"checkpoint.pt", "other.bin"} & files_of(done.folder, key).keys()
    assert sealed_metrics(done.folder, read_state(done.folder).trial(key))
    assert [name for name, size in served.objects().items() if size] == []


def test_a_sweep_resumes_only_with_the_bucket_of_its_files(swept, served):
    """A trial runs when the driver dies; then the sweep is extended without naming the bucket."""
    done, _, here = swept
    state = read_state(done.folder)
    with Ledger(done.folder) as ledger:
        ledger.write(event_of("started", next(iter(state.trials)), host="h", away=True))
    elsewhere = f"s3://{served.bucket}/other?endpoint_override={served.endpoint}"
    with pytest.raises(ConfigError, match="trials continue from their files at s3://"):
        tune_dml.resume_sweep("rho1", trial_files=elsewhere, **here)
    more = tune_dml.extend_sweep("rho1", values={"regularizer.rho": [0.7]}, max_concurrent=1, **here)
    assert more.results.count("finished") == 7
    assert read_state(done.folder).trial_files == state.trial_files
    assert [name for name, size in served.objects().items() if size] == []


def test_a_missing_bucket_is_refused_before_anything_is_written(refused, served):
    missing = f"s3://no-such-bucket/x?endpoint_override={served.endpoint}"
    refused(["--trial-files", missing], "--trial-files: the bucket must exist")
    refused(["--trial-files", "gs://bucket/x", "--stall-limit", "1"], "--stall-limit: must be at least 10 seconds")
    assert not [name for name in served.objects() if "other" in name]
    assert os.listdir(Path.cwd()) == []


def test_a_sweep_that_is_removed_leaves_nothing_in_the_bucket(swept, served, command_line):
    """The sweep was interrupted during a trial."""
    done, _, here = swept
    state = read_state(done.folder)
    key = next(iter(state.trials))
    files_at(state.trial_files.replace("?", f"/{key}?")).put("checkpoint.pt", b"half a trial")
    with Ledger(done.folder) as ledger:
        ledger.write(event_of("started", key, host="h", away=True))
    code, _, _ = command_line("rm", "rho1", "--yes", "--storage", here["storage"])
    assert code == 0
    assert not done.folder.exists()
    assert [name for name, size in served.objects().items() if size] == []
