"""`tune-dml status`: show the trials of a sweep by cell and seed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainables.errors import ConfigError, Problem
from tune_dml.cli._answers import answer_of, state_of, why_no_answer
from tune_dml.cli._race import race_data, race_lines
from tune_dml.cli.options import Json, SweepArgument, verb
from tune_dml.cli.screen import Lines, number, print_result, table
from tune_dml.record.ledger import is_running
from tune_dml.text import counted

if TYPE_CHECKING:
    from tune_dml.planning.plan import Plan
    from tune_dml.record.results import Results, TrialResult
    from tune_dml.record.state import SweepState, TrialStatus

ORDER = 70
EXAMPLES = """
tune-dml status rho1
tune-dml status rho1 --wait                           # returns when it ends, with the answer
tune-dml status rho1 --trials                         # every trial with its id
"""
_POLL, _RESTART = 0.5, 5.0
"""Seconds between two checks of a sweep with --wait, and seconds that a lost driver may take to restart."""
_START = 60.0  # seconds that a sweep started in the background may take, with --wait, to store its plan
_SLURM_POLL = 5.0  # seconds between two requests to SLURM, which serves many users
_STATUSES: tuple[TrialStatus, ...] = ("finished", "running", "stopped", "diverged", "failed", "missing")


@verb
def status(
    sweep_name: SweepArgument,
    *,
    storage: Path,
    trials: Annotated[bool, typer.Option("--trials", help="Also list every trial with its id.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when the sweep ends; exit 0, 3 or 130 as the sweep does.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, help="With --wait: return after so many seconds, with exit 130 if it still runs."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the trials of a sweep by cell and seed: finished, running, failed with the reason, missing."""
    from tune_dml.record.results import Results
    from tune_dml.record.state import is_sweep, load_state

    if timeout is not None and not wait:
        rule, remedy = "limits the wait for the sweep's end, which was not requested", "Add --wait, or leave it out."
        raise ConfigError(Problem("--timeout", rule, timeout, remedy))
    folder, until = storage.absolute() / sweep_name, time.monotonic() + (math.inf if timeout is None else timeout)
    if wait and _waits_for_slurm(folder):
        _wait_until(lambda: not (_waits_for_slurm(folder) and _has_jobs(folder)), until, _SLURM_POLL)
    if _waits_for_slurm(folder):
        from tune_dml.cli._slurm import show_pending

        show_pending(folder, as_json)
        raise typer.Exit(130 if wait else 0)
    if wait:
        _wait_until(lambda: is_sweep(folder), min(until, time.monotonic() + _START))
    state = load_state(storage.absolute(), sweep_name)
    if wait:
        _wait_for_end(state.folder, until)
        state.update()
    results = Results.of(state)
    print_result(_data(results, state) if as_json else None, _text(results, state, trials), as_json)
    if wait:
        from tune_dml.sweep import Sweep

        raise typer.Exit(130 if results.is_incomplete else Sweep(results, state=state).exit_code)


def _waits_for_slurm(folder: Path) -> bool:
    """Return whether a sweep was submitted to SLURM and no job has written its plan."""
    from tune_dml.record.state import is_sweep

    return (folder / "slurm" / "submission.json").exists() and not is_sweep(folder)


def _has_jobs(folder: Path) -> bool:
    from tune_dml.running.slurm.jobs import open_jobs

    return (folder / "slurm").is_dir() and bool(open_jobs(folder))


def _wait_until(has_come: Callable[[], bool], until: float, poll: float = _POLL) -> None:
    """Wait for a condition, at most until a time of the monotonic clock."""
    while not has_come() and time.monotonic() < until:
        time.sleep(poll)


def _wait_for_end(folder: Path, until: float = math.inf) -> None:
    """Wait until no process runs a sweep, at most until a time of the monotonic clock."""
    from tune_dml.record.state import read_state

    idle_seconds = 0.0
    while time.monotonic() < until:
        if is_running(folder):
            idle_seconds = 0.0
        elif _has_jobs(folder):  # between two jobs, or while the tasks of an array run
            time.sleep(min(_SLURM_POLL, max(until - time.monotonic(), 0.0)))
        elif idle_seconds >= _RESTART or not read_state(folder).is_incomplete:
            return
        else:  # a driver that died may restart
            idle_seconds += _POLL
        time.sleep(min(_POLL, max(until - time.monotonic(), 0.0)))


def _data(results: Results, state: SweepState) -> dict[str, object]:
    from tune_dml.record.origin.commands import with_program

    plan, answer, folder = results.plan, answer_of(results), results.folder
    running = is_running(folder)
    shown_status = {} if running else {"running": "interrupted"}  # a trial of a driver that has ended
    trials = [
        {
            "trial": trial.key,
            "cell": trial.cell.label,
            "seed": trial.seed,
            "status": shown_status.get(trial.status, trial.status),
            "reason": trial.reason,
            "attempts": trial.attempts,
            "seconds": trial.seconds,
            "metric": trial.metrics.get(plan.metric),
            "run_id": trial.run_id,
        }
        for trial in results.trials
    ]
    return {
        "sweep": results.name,
        "dataset": plan.dataset,
        "metric": {"key": plan.metric, "goal": plan.space.goal},  # the label would load the report's packages
        "state": state_of(results),
        "waits_for": _waits_for(results),
        "counts": {shown_status.get(status, status): results.count(status) for status in _STATUSES},
        "answer": answer.sentences if answer else [],
        "next": [] if running or _has_jobs(folder) else (answer and answer.commands) or [_next_action(results)[1]],
        "unjudged": with_program(why_no_answer(results)),
        "notes": list(results.notes),
        "race": race_data(results),
        "trial_files": state.trial_files,
        "unfetched": len(state.unfetched_keys),
        "trials": trials,
    }


def _text(results: Results, state: SweepState, list_trials: bool) -> Lines:
    from tune_dml.cli._status_table import status_table
    from tune_dml.record.origin.commands import command, stop_instruction

    running = is_running(results.folder)
    yield status_table(results)
    if list_trials:
        columns = ("trial", "cell", "seed", "status", results.plan.metric, "seconds", "MLflow run", "reason")
        yield table("", columns, (_row(trial, results.plan) for trial in results.trials))
    yield from results.notes
    yield from race_lines(results)
    jobs: list[str] = []
    if (results.folder / "slurm").is_dir():
        from tune_dml.cli._slurm import jobs_line

        jobs = jobs_line(results.folder)
    yield from jobs
    answer = answer_of(results)
    answer_lines = [*answer.lines(running=running)] if answer else [*filter(None, [why_no_answer(results)])]
    yield from ["", *answer_lines] if answer_lines else []
    if state.unfetched_keys and not running:
        fetch = f"Fetch them: {command(results, 'resume')}"
        yield f"{len(state.unfetched_keys)} ended trials still have files at {state.trial_files}. {fetch}"
    summary, next_command = _next_action(results)
    if running:
        if waits_for := _waits_for(results):
            yield f"It waits for {waits_for}."
        yield f"{summary}; it is running. Ask again, or stop it with {stop_instruction(results)}: it can be resumed."
    elif jobs:
        yield f"{summary}; SLURM runs it. Ask again, or stop it with tune-dml cancel slurm {results.name}."
    elif f"Next:    {next_command}" not in answer_lines:
        yield f"{summary}: {next_command}"


def _next_action(results: Results) -> tuple[str, str]:
    """Return a summary of the remaining work, and the command that does it."""
    from tune_dml.record.origin.commands import command, retry_arguments

    resume = command(results, "resume")
    remaining, confirming = results.count("running") + results.count("missing"), results.confirmation_left
    failed = sum(trial.status in {"failed", "diverged"} for trial in (*results.trials, *results.confirmed))
    if is_running(results.folder):
        return f"{counted(remaining + confirming, 'trial')} to go", ""
    if remaining:
        return f"{counted(remaining, 'trial')} to go", resume
    if results.is_incomplete:
        return "The race continues", resume
    if confirming:
        return f"{counted(confirming, 'trial')} of the confirmation to go", resume
    if failed:
        retry = command(results, "resume", retry_arguments(results))
        return f"{counted(failed, 'trial')} failed or diverged; to try again", retry
    return "Complete; to write its report", command(results, "report")


def _waits_for(results: Results) -> str:
    """Return why the running driver waits, such as earlier sweeps on its cluster; empty if it does not wait."""
    return results.waits_for if is_running(results.folder) else ""


def _row(trial: TrialResult, plan: Plan) -> tuple[object, ...]:
    seconds = f"{trial.seconds:.0f}" if trial.seconds else ""
    metric_text = number(trial.metrics.get(plan.metric), of_program=plan.space.program is not None)
    return trial.key, trial.cell.label, trial.seed, trial.status, metric_text, seconds, trial.run_id, trial.reason
