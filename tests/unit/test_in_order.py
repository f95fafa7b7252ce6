"""Which trial Tune begins next, which processes are watched, and which trials are let go."""

import logging
from types import SimpleNamespace

import pytest

from tune_dml.running.in_order import InOrder, silence_tune
from tune_dml.running.messages import as_text
from tune_dml.running.turn import Allowance


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
        _trial_to_actor={trial: id(trial) for trial in created},
        _actor_manager=SimpleNamespace(
            _live_actors_to_ray_actors_resources={id(trial): (process, None) for trial, process in created.items()}
        ),
    )


def test_trials_that_have_ended_are_let_go_everywhere():
    ended, failed, runs = Trial("TERMINATED"), Trial("ERROR"), Trial("RUNNING", "p")
    controller = controller_of(ended, failed, runs)
    assert InOrder(lambda *_: None).choose_trial_to_run(controller) is None
    assert controller.get_trials() == [runs]
    assert controller.get_live_trials() == {runs} == controller._trials_to_cache
    assert not controller._stopped_trials
    assert not controller._failed_trials


def test_a_process_that_is_asked_to_take_a_trial_is_known_before_it_answers():
    handed, born, waits = Trial("PENDING", "old"), Trial("PENDING"), Trial("PENDING")
    told = []
    controller = controller_of(handed, born, waits, created={handed: "old", born: "new"})
    chosen = InOrder(lambda *process: told.append(process)).choose_trial_to_run(controller)
    assert chosen is waits  # an idle process is of no use to the others
    assert set(told) == {(handed, "old", False), (born, "new", True)}


class Held(SimpleNamespace):
    """A turn that allows so many trials, and keeps what it was told."""

    most, places_late = 4, False

    def allowed(self, **told):
        self.told = told
        return self.answer


def cluster_of(running, asking):
    """A controller's books: trials that have a place, trials that ask for one."""
    books = controller_of(*running, *asking)
    books._trial_to_actor = {trial: id(trial) for trial in (*running, *asking)}
    books._actor_to_trial = {id(trial): trial for trial in (*running, *asking)}
    books._pending_trials_list, books.calls = [], []
    books._actor_manager = SimpleNamespace(
        _live_actors_to_ray_actors_resources={id(trial): ("process", None) for trial in running},
        remove_actor=lambda tracked: books.calls.append("request taken back"),
    )
    books._unstage_trial_with_resources = lambda trial: None
    books._cleanup_cached_actors = lambda force_all: books.calls.append("idle processes go")
    books.update_max_pending_trials = books.calls.append
    return books


@pytest.mark.parametrize(
    ("answer", "begins", "calls"),
    [
        (Allowance(None), True, [4]),
        (Allowance(0, held=True), False, ["request taken back"] * 2 + ["idle processes go", -1]),
        (Allowance(1, held=True), False, ["request taken back", "idle processes go", 1]),
        (Allowance(2), True, [2]),
    ],
)
def test_where_another_sweep_goes_before_what_has_no_place_steps_back(answer, begins, calls):
    running, asking = [Trial("RUNNING", "p")], [Trial("PENDING"), Trial("PENDING")]
    books, turn = cluster_of(running, asking), Held(answer=answer)
    chosen = InOrder(lambda *_: None, turn).choose_trial_to_run(books)
    assert (chosen in asking) == begins
    assert books.calls == calls
    assert turn.told == {"placed": 1, "waiting": 2, "begun": 0}
    assert len(books._pending_trials_list) == calls.count("request taken back")  # from which Tune begins them later


def test_a_trial_of_several_workers_has_room_once_it_says_so():
    running = [Trial("RUNNING", type("Process", (), {})()) for _ in range(2)]
    books, turn = cluster_of(running, []), Held(answer=Allowance(3), places_late=True)
    order = InOrder(lambda *_: None, turn)
    order.choose_trial_to_run(books)
    assert turn.told == {"placed": 0, "waiting": 2, "begun": 2}
    assert order.on_trial_result(books, running[0], as_text({"placed": True})) == "CONTINUE"
    order.choose_trial_to_run(books)
    assert turn.told == {"placed": 1, "waiting": 1, "begun": 1}


@pytest.mark.parametrize(("message", "begun"), [({"ended": {}}, {"process"}), ({"ended": {}, "spent": True}, set())])
def test_a_process_that_can_train_no_more_is_not_handed_on(message, begun):
    """Tune hands on what has begun."""
    trial = Trial("RUNNING", "p")
    books = SimpleNamespace(_trial_to_actor={trial: "process"}, _started_actors={"process"})
    assert InOrder(lambda *_: None).on_trial_result(books, trial, as_text(message)) == "STOP"
    assert books._started_actors == begun


def test_a_snapshot_of_tune_s_that_fails_is_nobody_s_concern():
    """The disk of Ray's temporary files is full: nothing of ours lies there."""
    silence_tune()
    assert not logging.getLogger("ray.tune.tune").isEnabledFor(logging.ERROR)
