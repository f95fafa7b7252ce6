"""Which trial Tune begins next, which processes are watched, and which trials are let go."""

import logging
from types import SimpleNamespace

import pytest

from tune_dml.running.scheduler import TuneScheduler, silence_tune
from tune_dml.running.trials.messages import as_text


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


def test_trials_that_have_ended_are_let_go_everywhere():
    ended, failed, runs = Trial("TERMINATED"), Trial("ERROR"), Trial("RUNNING", "p")
    controller = controller_of(ended, failed, runs)
    assert TuneScheduler(lambda *_: None).choose_trial_to_run(controller) is None
    assert controller.get_trials() == [runs]
    assert controller.get_live_trials() == {runs} == controller._trials_to_cache
    assert not controller._stopped_trials
    assert not controller._failed_trials


def test_a_process_that_is_asked_to_take_a_trial_is_known_before_it_answers():
    handed, born, waits = Trial("PENDING", "old"), Trial("PENDING"), Trial("PENDING")
    told = []
    controller = controller_of(handed, born, waits, created={handed: "old", born: "new"})
    chosen = TuneScheduler(lambda *process: told.append(process)).choose_trial_to_run(controller)
    assert chosen is waits  # an idle process is of no use to the others
    assert set(told) == {(handed, "old", False), (born, "new", True)}


def test_a_sweep_without_room_says_so_after_half_a_minute_and_once():
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
def test_a_process_that_can_train_no_more_is_not_handed_on(message, begun):
    """Tune hands on what has begun."""
    trial = Trial("RUNNING", "p")
    books = SimpleNamespace(_trial_to_actor={trial: "process"}, _started_actors={"process"})
    assert TuneScheduler(lambda *_: None).on_trial_result(books, trial, as_text(message)) == "STOP"
    assert books._started_actors == begun


def test_a_snapshot_of_tune_s_that_fails_is_nobody_s_concern():
    """The disk of Ray's temporary files is full: nothing of ours lies there."""
    silence_tune()
    assert not logging.getLogger("ray.tune.tune").isEnabledFor(logging.ERROR)
