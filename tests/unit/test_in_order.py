"""Which trial Tune begins next, which processes are watched, and which trials are let go."""

from types import SimpleNamespace

from tune_dml.running.in_order import InOrder


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
    controller = controller_of(handed, born, waits, created={born: "new"})
    chosen = InOrder(lambda *process: told.append(process)).choose_trial_to_run(controller)
    assert chosen in {handed, born, waits}
    assert set(told) == {(handed, "old", False), (born, "new", True)}
