"""Time, budgets and messages of earlier rounds, in the tasks of an array and in its collecting job."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.races import driver_of
from helpers.toys import MARGINS, METRIC, event_of, plan_of

from trainables.errors import ConfigError
from tune_dml.planning.request import Resources, Session
from tune_dml.record.events import TrialStarted
from tune_dml.record.ledger import Ledger
from tune_dml.record.session import SessionIntent
from tune_dml.record.spending import hours_spent
from tune_dml.record.state import SweepState
from tune_dml.running.driver import Driver
from tune_dml.running.screen.progress import Progress
from tune_dml.running.slurm import rounds, task
from tune_dml.running.slurm.collecting import _count_losses, collect_array
from tune_dml.running.slurm.node import _has_progressed
from tune_dml.running.slurm.profile import Profile
from tune_dml.running.slurm.rounds import _write_round
from tune_dml.running.slurm.script import collect_script
from tune_dml.running.slurm.task import Round, TrialLog, _Budget
from tune_dml.running.trials.messages import request_of

HOUR = 3600.0


def test_hours_in_a_queue_cost_nothing_and_those_of_lost_attempts_count(tmp_path):
    """Three sessions with hours of queue between them: one cut off, one with a retried trial, one that died."""
    lines = [
        ("started", 0, "earlier"), ("session", 1), ("started", 1, "a"), ("started", 1, "b"), ("retry", 2, "b"),
        ("started", 3, "b"), ("ended", 4, "b"),
        ("session", 50), ("started", 50, "a"), ("paused", 51, "a"), ("started", 61, "c"),
    ]  # fmt: skip
    bodies = {"session": {"resources": {"workers": 2, "gpus_per_worker": 1.0}, "heard": {"a": 5 * HOUR}}}
    bodies |= {"ended": {"status": "finished"}, "paused": {"seconds": 1.0}}
    rows = [
        {"kind": kind, "time": hour * HOUR, "key": (*key, "")[0], "body": bodies.get(kind, {})}
        for kind, hour, *key in lines
    ]
    (tmp_path / "ledger.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Ledger(tmp_path) as ledger:
        ledger.report("c", {"step": 1, "time": 63 * HOUR})
    of_a, of_b, of_c = 4 + 1, 1 + 1, 2
    assert hours_spent(tmp_path, HOUR) == pytest.approx(2 * (of_a + of_b + of_c))
    assert hours_spent(tmp_path, HOUR, now=64 * HOUR) == pytest.approx(2 * (of_a + of_b + 3))


@pytest.fixture
def sweep(tmp_path):
    """A sweep whose array has two trials: the ledger, the state and the trials' logs."""
    plan = plan_of(MARGINS, seeds=1)
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "round.json").write_text("{}")
    keys = [trial.key for trial in plan.trials()][:2]
    with Ledger(tmp_path) as ledger:
        plan.save(tmp_path / "plan.json")
        ledger.write(event_of("session"))
        yield ledger, SweepState(tmp_path, plan), [TrialLog(tmp_path, key) for key in keys]


def began(at):
    return {"began": {"host": "n1", "time": at, "requeued": False}}


def ended(status="finished", at=None, **end):
    return {"ended": {"status": status, "metrics": {}, **end}, **({"time": at} if at else {})}


def row(step, at, name=METRIC):
    return {"rows": [{"step": step, "time": at, name: 0.5}]}


def tell(log, *messages):
    for message in messages:
        log.write(message)


def collect(sweep):
    ledger, state, logs = sweep
    found = {trial.key: trial for trial in collect_array(ledger, state, Resources())}
    return [found.get(log.path.parent.name) for log in logs]


def test_cut_and_killed_attempts_of_an_array_cost_their_time(sweep):
    ledger, state, (one, two) = sweep
    start = time.time() + HOUR
    tell(one, began(start), row(1, start + 600), {"cut": start + HOUR})
    tell(two, began(start), row(1, start + HOUR))  # and its task was killed
    cut, killed = collect(sweep)
    assert not cut.has_no_progress
    assert not killed.has_no_progress
    assert hours_spent(ledger.sweep, start) == pytest.approx(2.0)
    assert sum(trial.worker_seconds for trial in state.trial_states.values()) == pytest.approx(2 * HOUR)
    assert collect(sweep) == [None, None]  # nothing is moved twice
    tell(one, began(start + 5 * HOUR), ended(at=start + 5.5 * HOUR, seconds=5400.0))
    assert collect(sweep)[0].end.status == "finished"
    assert (state.trial(cut.key).attempts, state.trial(killed.key).attempts) == (2, 1)
    assert hours_spent(ledger.sweep, start) == pytest.approx(2.5)


def test_an_attempt_cut_off_without_a_new_evaluation_is_fruitless(sweep):
    _, _, (one, two) = sweep
    for name, log in (("train/loss", one), (METRIC, two)):
        tell(log, began(10.0), row(1, 11.0, name), {"cut": 12.0})
    assert [trial.has_no_progress for trial in collect(sweep)] == [True, False]
    for step, log in ((2, one), (1, two)):  # a program without a checkpoint reports its first step again
        tell(log, began(20.0), row(step, 21.0), {"cut": 22.0})
    assert [trial.has_no_progress for trial in collect(sweep)] == [False, True]


def test_a_job_has_progressed_if_a_trial_was_evaluated(sweep):
    ledger, _, (one, two) = sweep
    now = time.time()
    rows = {"step": 1, "time": now - 100, METRIC: 0.5}, {"step": 2, "time": now, "train/loss": 1.0}
    ledger.report(one.path.parent.name, *rows)
    assert not _has_progressed(ledger.sweep, now - 50)
    ledger.report(two.path.parent.name, {"step": 1, "time": now, METRIC: 0.5})
    assert _has_progressed(ledger.sweep, now - 50)


def test_a_failed_trial_that_is_reset_runs_again_in_the_next_array(sweep):
    ledger, state, (one, two) = sweep
    tell(one, began(10.0), ended("failed", reason="out of memory"))
    tell(two, *map(began, (10.0, 20.0, 30.0)))
    failed, lost = collect(sweep)
    assert (failed.end.reason, lost.end.kind) == ("out of memory", "infrastructure")
    for trial in (failed, lost):
        ledger.write(event_of("reset", trial.key))
    state.update()
    assert not one.has_ended
    two.write(began(40.0))
    assert collect(sweep)[1].end is None  # lost once since then
    assert state.trial(failed.key).end is None
    tell(one, began(50.0), ended())
    assert collect(sweep)[0].end.status == "finished"


def test_results_after_a_cancelled_array_are_kept(sweep):
    ledger, state, (one, _) = sweep
    tell(one, began(10.0), ended())
    ledger.write(TrialStarted(key=one.path.parent.name))
    ledger.write(event_of("ended", one.path.parent.name, status="diverged", metrics={}))
    state.update()
    assert collect(sweep) == [None, None]
    assert state.trial(one.path.parent.name).end.status == "diverged"
    assert one.new_messages() == []


@pytest.mark.parametrize(
    ("seconds", "until", "is_exhausted"),
    [(None, None, False), (250.0, None, False), (150.0, None, True), (None, 1e12, False), (None, 1.0, True)],
)
def test_tasks_of_an_array_share_the_rest_of_a_budget(sweep, seconds, until, is_exhausted):
    ledger, _, (one, two) = sweep
    now = time.time()
    tell(one, began(1.0), {"cut": 1e6}, {"collected": 1e6}, began(now - 100))
    tell(two, began(now - 500), ended(at=now - 400))
    tell(two, began(now - 300), {"note": "a broken connection", "time": now - 300, "lost": True})  # it costs no more
    groups = tuple(({"key": log.path.parent.name},) for log in (one, two))
    round_ = Round(groups, "", 1, None, None, {}, "", until=until, seconds=seconds)
    assert _Budget(ledger.sweep, round_).is_exhausted() is is_exhausted


@pytest.mark.parametrize("at", ["is_exhausted", "start_timer"])
def test_a_signal_between_two_trials_ends_a_task_cleanly(sweep, monkeypatch, at):
    """Formerly it gave a traceback, and after the start of a trial an attempt that counted as lost."""
    ledger, _, (one, two) = sweep
    keys = [log.path.parent.name for log in (one, two)]
    round_ = Round((tuple({"key": key} for key in keys),), "", 1, None, None, {}, "")
    (ledger.sweep / "slurm" / "round.json").write_text(json.dumps(round_.to_json()))
    monkeypatch.setattr(task, "_train", lambda folder, request, round_, log, budget: log.write(ended("stopped")))
    monkeypatch.setattr(task.signal, "signal", lambda number, handler: None)
    calls = iter([False, True])

    def told(budget):
        if next(calls):
            raise task._TaskInterrupted
        return False

    monkeypatch.setattr(_Budget, at, told)
    assert task.run_task(ledger.sweep, 0) == 130
    assert (one.has_ended, two.has_ended) == (True, False)
    assert _count_losses(two.read()) == 0


@pytest.mark.parametrize("cache_dir", [None, "/fast/cache"])
def test_tasks_decode_pictures_into_the_cache_of_the_session(sweep, monkeypatch, cache_dir):
    """Formerly `None` became a folder of that name in the working directory."""
    ledger, state, _ = sweep
    (trial, *_), seen = state.plan.trials(), []
    session = Session(cache_dir=cache_dir)
    driver = Driver(state, Resources(), session, SessionIntent("sweep"), ledger, None, None)
    monkeypatch.setattr("tune_dml.running.slurm.rounds.known_digests", lambda plan, cache: {})
    _write_round(driver, ((request_of(trial),),), 0.0, 0.0)
    trains = "tune_dml.running.trials.trial.run_request"
    monkeypatch.setattr(trains, lambda request, runtime, post: seen.append(runtime.cache_dir))
    (request,) = Round.read(ledger.sweep).groups[0]
    task._train(ledger.sweep, request, Round.read(ledger.sweep), TrialLog(ledger.sweep, trial.key), None)
    assert seen == [session.cache]


def test_an_array_without_a_started_trial_is_not_repeated(sweep, monkeypatch):
    """Where the nodes lack the environment, arrays followed each other without end."""
    ledger, state, (one, _) = sweep
    driver = driver_of(state, ledger, Progress(state), SimpleNamespace(notify=lambda: None))
    monkeypatch.setattr(rounds, "known_digests", lambda plan, cache: {})
    monkeypatch.setattr(rounds, "read_submission", lambda folder: SimpleNamespace(tasks=1))

    def writes_round(submitted):
        monkeypatch.setenv("TUNE_DML_BUDGET_FROM", str(submitted))
        (ledger.sweep / "slurm" / "array").unlink(missing_ok=True)
        rounds._collect_and_prepare(driver, 1)
        return (ledger.sweep / "slurm" / "array").exists()

    assert [writes_round(submitted) for submitted in (1.0, 1.0, 2.0)] == [True, False, True]
    state.update()
    assert "no task of the last array started a trial; its logs are in" in " ".join(state.notes)
    tell(one, began(10.0), row(1, 11.0))
    assert writes_round(2.0)


def test_the_session_counts_the_budget_of_an_array(tmp_path, monkeypatch):
    from tune_dml.cli._supervisor import _remaining_budgets

    (tmp_path / "ledger.jsonl").write_text("")
    given = {"gpu_hours": 2.0, "time_budget": 10.0}
    assert _remaining_budgets(given, tmp_path, 1.0, 6.0) == {"--time-budget": 5.0, "--gpu-hours": 2.0}
    monkeypatch.setenv("TUNE_DML_ARRAY_GROUP", "1")
    assert _remaining_budgets(given, tmp_path, 1.0, None) == {}


def test_a_sweep_with_open_jobs_is_refused(tmp_path, monkeypatch):
    from tune_dml.running.slurm import jobs

    monkeypatch.setattr(jobs, "open_jobs", lambda folder: [jobs.SlurmJob("7_", "RUNNING", "None", 12)])
    with pytest.raises(ConfigError, match=r"array 7: 12 tasks running.*tune-dml cancel slurm toy"):
        jobs.raise_if_jobs_are_open(tmp_path / "toy")


def test_trials_of_an_array_take_a_gpu_though_the_collecting_job_has_none(monkeypatch):
    from tune_dml.running.cluster.cluster import resource_problems
    from tune_dml.running.trials.gpu_sharing import resolve_gpus

    monkeypatch.setattr("tune_dml.running.cluster.cluster.visible_gpus", lambda: 0)
    monkeypatch.setattr("tune_dml.running.cluster.cluster._has_ray", lambda: False)  # a Ray of another test
    assert resolve_gpus(Resources(), None).gpus_per_worker == 0
    assert resource_problems(Resources(gpus_per_worker=1.0))
    monkeypatch.setenv("TUNE_DML_TASK_GPUS", "4")
    assert resolve_gpus(Resources(), None).gpus_per_worker == 1
    assert resource_problems(Resources(gpus_per_worker=1.0)) == []


def test_the_job_that_collects_an_array_may_wait_in_another_queue():
    text = collect_script(Profile(partition="gpu", collect=("--partition=cpu", "--time=10")), "eta1", Path("/s/eta1"))
    lines = [line for line in text.splitlines() if "partition" in line]  # SLURM takes the last one
    assert lines == ["#SBATCH --partition=gpu", "#SBATCH --partition=cpu"]
