"""The next trial of Tune and its node, monitored processes, and losses that count as retries."""

import errno
import json
import logging
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import ray.cloudpickle
from helpers.races import driver_of
from helpers.toys import MARGINS, plan_of
from ray.air.execution.resources import placement_group as rays
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError

from tune_dml.planning.request import Session
from tune_dml.record.ledger import Ledger
from tune_dml.record.state import SweepState
from tune_dml.running import sweep
from tune_dml.running.cluster import placement
from tune_dml.running.cluster.placement import PlacementManager
from tune_dml.running.failures import stall_failure
from tune_dml.running.recorder import Recorder
from tune_dml.running.scheduler import TuneScheduler, silence_tune
from tune_dml.running.screen.progress import Progress
from tune_dml.running.trials.messages import Messages, as_text


class Trial(SimpleNamespace):
    PENDING, PAUSED, RUNNING = "PENDING", "PAUSED", "RUNNING"
    __hash__ = object.__hash__

    def __init__(self, status, process=None):
        super().__init__(status=status, temporary_state=SimpleNamespace(ray_actor=process))

    def is_finished(self):
        return self.status in {"TERMINATED", "ERROR"}


def controller_of(*trials, created=None):
    created = created or {}
    return SimpleNamespace(
        get_trials=lambda trials=list(trials): trials,
        get_live_trials=lambda trials={t for t in trials if t.status != "TERMINATED"}: trials,
        _stopped_trials={t for t in trials if t.status == "TERMINATED"},
        _failed_trials={t for t in trials if t.status == "ERROR"},
        _trials_to_cache=set(trials),
        update_max_pending_trials=lambda: None,
        _trial_to_actor={trial: id(trial) for trial in created},
        _actor_manager=SimpleNamespace(
            _live_actors_to_ray_actors_resources={id(trial): (process, None) for trial, process in created.items()}
        ),
    )


def test_ended_trials_are_released():
    ended, failed, runs = Trial("TERMINATED"), Trial("ERROR"), Trial("RUNNING", "p")
    controller = controller_of(ended, failed, runs)
    assert TuneScheduler(lambda *_: None).choose_trial_to_run(controller) is None
    assert controller.get_trials() == [runs]
    assert controller.get_live_trials() == {runs} == controller._trials_to_cache
    assert controller._stopped_trials == controller._failed_trials == set()


def test_a_process_that_was_sent_a_trial_is_tracked_before_its_reply():
    handed, born, waits = Trial("PENDING", "old"), Trial("PENDING"), Trial("PENDING")
    told = []
    controller = controller_of(handed, born, waits, created={handed: "old", born: "new"})
    chosen = TuneScheduler(lambda *process: told.append(process)).choose_trial_to_run(controller)
    assert chosen is waits  # an idle process is of no use to the others
    assert set(told) == {(handed, "old", False), (born, "new", True)}


def test_a_sweep_without_resources_reports_it_once_after_30_seconds():
    waits, said, now = Trial("PENDING"), [], [0.0]
    order = TuneScheduler(lambda *_: None, said.append, clock=lambda: now[0])
    without_room, with_room = controller_of(waits), controller_of(waits, created={waits: "p"})
    for second in (0, 29, 30, 60):
        now[0] = float(second)
        assert order.choose_trial_to_run(without_room) is waits
        assert len(said) == (second >= 30)
    for controller in (with_room, without_room, controller_of()):
        order.choose_trial_to_run(controller)
    assert said == ["resources: the present nodes have too few for a trial", ""]


@pytest.mark.parametrize(("message", "begun"), [({"ended": {}}, {"process"}), ({"ended": {}, "spent": True}, set())])
def test_a_broken_process_is_not_reused(message, begun):
    """Tune reuses running processes."""
    trial = Trial("RUNNING", "p")
    books = SimpleNamespace(_trial_to_actor={trial: "process"}, _started_actors={"process"})
    assert TuneScheduler(lambda *_: None).on_trial_result(books, trial, as_text(message)) == "STOP"
    assert books._started_actors == begun


def test_a_failed_snapshot_of_tune_is_ignored():
    """The disk of Ray's temporary files is full, but none of our files are there."""
    silence_tune()
    assert not logging.getLogger("ray.tune.tune").isEnabledFor(logging.ERROR)


KILLED = "The actor is dead because its worker process has died."
TAKEN = "The actor died because its node has died.\n\tthe actor's node was terminated expectedly: received SIGTERM"


def error_of(words):
    return ActorDiedError(cause=ActorDiedErrorContext(error_message=words, actor_id=bytes(16)))


@pytest.fixture
def recorder(tmp_path):
    state = SweepState(tmp_path, plan_of(MARGINS))
    with Ledger(tmp_path) as ledger:
        yield Recorder(driver_of(state, ledger, Progress(state), SimpleNamespace(notify=lambda: None)))


def trial_of(recorder, **fields):
    return SimpleNamespace(
        config={"key": recorder.driver.state.plan.trials()[0].key, "label": "m=1", "seed": 0}, **fields
    )


@pytest.mark.parametrize(("losses", "counted"), [([KILLED, KILLED], 2), ([TAKEN] * 5, 0), ([TAKEN, KILLED, TAKEN], 1)])
def test_a_preempted_node_does_not_count_as_a_failure(tmp_path, recorder, losses, counted):
    state, error = recorder.driver.state, tmp_path / "error.pkl"
    trial = trial_of(recorder, run_metadata=SimpleNamespace(num_failures=0), pickled_error_file=str(error))
    for loss in losses:
        error.write_bytes(ray.cloudpickle.dumps(error_of(loss)))
        trial.run_metadata.num_failures += 1  # by Tune, before its callback
        recorder.on_trial_recover(0, [], trial)
        assert trial.run_metadata.num_failures == recorder.losses[trial.config["key"]]
    assert recorder.losses[trial.config["key"]] == counted
    state.update()
    assert ("its node was taken away" in " ".join(state.notes)) == (TAKEN in losses)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (error_of(KILLED), "m=1 seed 0: its process was lost; retrying"),
        (
            OSError(errno.EROFS, "Read-only file system", "/data/x"),
            "m=1 seed 0: [Errno 30] Read-only file system: '/da",
        ),
        (
            OSError(errno.ESTALE, "the folder is gone, as of a file system that is no longer mounted"),
            "the folder is gone",
        ),
    ],
)
def test_a_retry_names_the_error_that_a_living_process_raised(tmp_path, recorder, error, said):
    """A storage that failed for ten minutes was reported as a lost process, or as an error of the code."""
    (tmp_path / "error.pkl").write_bytes(ray.cloudpickle.dumps(error))
    count = SimpleNamespace(num_failures=0)
    recorder.on_trial_recover(
        0, [], trial_of(recorder, run_metadata=count, pickled_error_file=str(tmp_path / "error.pkl"))
    )
    recorder.driver.state.update()
    assert said in " ".join(recorder.driver.state.notes)


def test_a_parameter_of_a_program_may_be_named_as_our_number_of_steps(recorder):
    """Its text ended the sweep with a traceback."""
    recorder.hosts = SimpleNamespace(host_of=lambda process: "n1")
    trial = trial_of(recorder, temporary_state=SimpleNamespace(ray_actor=None))
    recorder._begin(trial, {**trial.config, "settings": json.dumps({"training.steps": "short"})})
    recorder.driver.state.update()
    assert recorder.driver.state.trial(trial.config["key"]).status == "running"


def test_after_a_stalled_trial_failed_placement_groups_are_reused_again(recorder):
    trial = trial_of(recorder)
    recorder.stall_failures[trial.config["key"]] = stall_failure(10)
    recorder.on_trial_error(0, [], trial)
    recorder.driver.state.update()
    assert recorder.driver.state.trial(trial.config["key"]).end.kind == "stalled"
    assert not recorder.stall_failures


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({}, None), ({"start_limit": 20.0}, 20.0), ({"start_limit": 20.0, "stall_limit": 60.0}, 60.0)],
)
def test_a_limit_on_the_start_makes_trials_report_their_first_step(recorder, monkeypatch, limits, expected):
    """Without --stall-limit the first message was the first row, so that a working trial counted as stalled."""
    monkeypatch.setattr(sweep, "engine", lambda runtime: runtime)
    recorder.driver = replace(recorder.driver, session=Session(**limits))
    runtime = sweep._trial_function(recorder, SimpleNamespace(has_others=False))
    assert runtime.stall_limit == expected
    messages = Messages(lambda message: None, runtime.stall_limit)
    assert messages.needs_sign(0.0) is (expected is not None)


class Process:
    """The process of a trial."""


@pytest.mark.parametrize(("host", "said"), [("10.0.0.7", " on 10.0.0.7: gone"), ("10.0.0.1", ": gone"), ("", ": gone")])
def test_errors_on_another_node_name_that_node(recorder, monkeypatch, host, said):
    """One of twenty nodes with a shared folder may not have it mounted."""
    trial, process = trial_of(recorder), Process()
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.1")
    recorder.processes[trial.config["key"]] = process
    if host:
        recorder.hosts[process] = host
    recorder.on_trial_result(0, [], trial, {"message": json.dumps({"note": "gone"})})
    recorder.driver.state.update()
    assert list(recorder.driver.state.notes) == [f"m=1 seed 0{said}"]


@dataclass(eq=False)
class FakePlacementGroup:
    state: str | None = "CREATED"

    def ready(self):
        return self


@dataclass(eq=False)
class ResourceRequest:
    made: list = field(default_factory=list)

    def to_placement_group(self):
        self.made.append(FakePlacementGroup())
        return self.made[-1]


@pytest.fixture
def given_back(monkeypatch):
    rooms = []
    monkeypatch.setattr(rays, "remove_placement_group", rooms.append)
    monkeypatch.setattr(rays.ray.util, "remove_placement_group", rooms.append)
    monkeypatch.setattr(rays.ray, "wait", lambda futures, **how: (futures, []))
    monkeypatch.setattr(rays.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(placement, "placement_group_table", lambda room: {"state": room.state} if room.state else {})
    return rooms


def acquired(manager, wish):
    manager.request_resources(wish)
    manager.update_state()
    return manager.acquire_resources(wish)


def freed(manager, wish):
    """Return resources that were acquired and given back."""
    manager.free_resources(left := acquired(manager, wish))
    return left


def test_resources_of_a_lost_process_are_reused_at_once(given_back):
    manager, wish = PlacementManager(), ResourceRequest()
    first = freed(manager, wish)
    manager.request_resources(wish)
    assert manager.get_resource_futures() == []
    assert manager.acquire_resources(wish).placement_group is first.placement_group
    assert (len(wish.made), given_back) == (1, [])


def test_unclaimed_placement_groups_are_removed_before_the_next_wait(given_back):
    manager, wish = PlacementManager(), ResourceRequest()
    kept, left = acquired(manager, wish), freed(manager, wish)
    manager.get_resource_futures()
    assert given_back == [left.placement_group]
    assert acquired(manager, wish).placement_group not in {kept.placement_group, left.placement_group}


@pytest.mark.parametrize("state", ["RESCHEDULING", "REMOVED", None])
def test_the_placement_group_of_a_lost_node_is_replaced(given_back, state):
    manager, wish = PlacementManager(), ResourceRequest()
    lost = freed(manager, wish)
    lost.placement_group.state = state
    manager.request_resources(wish)
    manager.get_resource_futures()
    assert (len(wish.made), given_back) == (2, [lost.placement_group])


def test_the_placement_group_of_a_hanging_process_is_removed_at_once(given_back):
    """Ray ends such a process only with its placement group."""
    manager, wish = PlacementManager(may_reuse=lambda: False), ResourceRequest()
    for _ in range(2):
        left = freed(manager, wish)
        assert given_back[-1] is left.placement_group
        manager.clear()


def test_other_resources_get_a_new_placement_group(given_back):
    manager, wish, other = PlacementManager(), ResourceRequest(), ResourceRequest()
    left = freed(manager, wish)
    manager.request_resources(other)
    manager.get_resource_futures()
    assert (len(other.made), given_back) == (1, [left.placement_group])


def test_requests_can_be_cancelled_and_clear_removes_the_rest(given_back):
    manager, wish = PlacementManager(), ResourceRequest()
    first = freed(manager, wish)
    manager.request_resources(wish)
    manager.cancel_resource_request(wish)
    assert given_back == [first.placement_group]
    second = freed(manager, wish)
    manager.clear()
    assert given_back == [first.placement_group, second.placement_group]
    assert manager.get_resource_futures() == []
