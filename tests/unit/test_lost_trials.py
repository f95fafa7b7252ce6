"""Which losses of a trial count against its retries, as the recorder tells Ray Tune."""

import json
from types import SimpleNamespace

import pytest
import ray.cloudpickle
from helpers.toys import plan_of
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError

from tune_dml.planning.request import Resources, Session
from tune_dml.record.ledger import Ledger
from tune_dml.record.state import SweepState
from tune_dml.running.recorder import Recorder
from tune_dml.running.screen.progress import Progress
from tune_dml.space import Grid, Knob

KILLED = "The actor is dead because its worker process has died."
TAKEN = "The actor died because its node has died.\n\tthe actor's node was terminated expectedly: received SIGTERM"


def error_of(words):
    return ActorDiedError(cause=ActorDiedErrorContext(error_message=words, actor_id=bytes(16)))


@pytest.mark.parametrize(("losses", "counted"), [([KILLED, KILLED], 2), ([TAKEN] * 5, 0), ([TAKEN, KILLED, TAKEN], 1)])
def test_a_node_that_is_taken_away_with_notice_is_not_counted(tmp_path, losses, counted):
    state = SweepState(tmp_path, plan_of(Knob("loss.margin", Grid((0.1, 1.0)))))
    key = state.plan.trials()[0].key
    error = tmp_path / "error.pkl"
    trial = SimpleNamespace(
        config={"key": key, "label": "margin=0.1", "seed": 0},
        run_metadata=SimpleNamespace(num_failures=0),
        pickled_error_file=str(error),
    )
    with Ledger(tmp_path) as ledger:
        shown = Progress(state)
        recorder = Recorder(ledger, state, shown, None, state.plan, resources=Resources(), session=Session())
        for loss in losses:
            error.write_bytes(ray.cloudpickle.dumps(error_of(loss)))
            trial.run_metadata.num_failures += 1  # by Tune, before it tells
            recorder.on_trial_recover(0, [], trial)
            assert trial.run_metadata.num_failures == recorder.lost[key]
    assert recorder.lost[key] == counted
    state.update()
    assert ("its node was taken away" in " ".join(state.notes)) == (TAKEN in losses)


class Process:
    """Of a trial."""


@pytest.mark.parametrize(("host", "said"), [("10.0.0.7", " on 10.0.0.7: gone"), ("10.0.0.1", ": gone"), ("", ": gone")])
def test_what_a_trial_meets_on_another_node_is_said_with_that_node(tmp_path, monkeypatch, host, said):
    """Of twenty that share a folder one may not have it."""
    state = SweepState(tmp_path, plan_of(Knob("loss.margin", Grid((0.1, 1.0)))))
    trial = SimpleNamespace(config={"key": state.plan.trials()[0].key, "label": "margin=0.1", "seed": 0})
    process = Process()
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.1")
    tracker = SimpleNamespace(notify=lambda: None)
    with Ledger(tmp_path) as ledger:
        recorder = Recorder(
            ledger, state, Progress(state), tracker, state.plan, resources=Resources(), session=Session()
        )
        recorder.processes[trial.config["key"]] = process
        if host:
            recorder.hosts[process] = host
        recorder.on_trial_result(0, [], trial, {"message": json.dumps({"note": "gone"})})
    state.update()
    assert list(state.notes) == [f"margin=0.1 seed 0{said}"]
