"""Run, resume, extend, confirm, open, rescore and report a sweep, and compare it with MLflow.

The command line calls these functions; `tune_dml.api` wraps them for Python, with plain keywords.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from trainables.bucket import bucket_problems
from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.option_names import option_place, option_problem, spell, values_from
from tune_dml.planning.checks.effects import added_cell_problems
from tune_dml.planning.checks.prepare import Check, DataProgress, prepare
from tune_dml.planning.continuation import confirmation_plan, continuation_problems, relocate_plan, with_arms_of_files
from tune_dml.planning.plan import Plan, name_problems
from tune_dml.planning.request import Racing, Request, Resources, Session, folder_problems
from tune_dml.planning.study import listed_seeds
from tune_dml.record.events import TrialReset
from tune_dml.record.fetching import fetch_remaining_files
from tune_dml.record.held_out.rescore import RescoredSweep, compute_metrics
from tune_dml.record.held_out.sealed import record_opening
from tune_dml.record.held_out.untested import UntestedHeads
from tune_dml.record.ledger import READ_ONLY, Ledger
from tune_dml.record.origin.provenance import secret_problems
from tune_dml.record.origin.several_jobs import ARRAY_GROUP
from tune_dml.record.results import Results
from tune_dml.record.session import SessionIntent, intent_to_resume, with_trial_files
from tune_dml.record.state import SweepState, load_state, look_at_sweep, packages_of, read_state
from tune_dml.running.cluster import cluster
from tune_dml.running.trials.gpu_sharing import measure_gpu_sharing, resolve_gpus, resources_of
from tune_dml.space import Value
from tune_dml.sweep import Sweep, colour_of_arm

if TYPE_CHECKING:
    from tune_dml.report import ReportFiles
    from tune_dml.running.driver import Driver
    from tune_dml.tracking import Reconciliation, Tracker


def run(
    request: Request,
    session: Session,
    racing: Racing,
    *,
    resources: Resources | None = None,
    console: Console | None = None,
    data_progress: DataProgress | None = None,
    other_checks: Sequence[Check] = (),
) -> Sweep:
    """Run a sweep to its end on Ray Tune and return it.

    A second call with the same name and plan runs only the missing trials. With `racing.until_decided`, blocks of seeds
    follow until every question is decided or a limit is reached. Raise ConfigError with every problem before any worker
    starts.
    """
    requested = resources or Resources()
    resolved = resolve_gpus(requested, session.address)
    preparation = prepare(
        request,
        cache_dir=session.cache,
        other_checks=[lambda: _session_problems(session, resolved), racing.problems, *other_checks],
        progress=data_progress,
        micro_batch=resolved.micro_batch,
    )
    resources = resources_of(preparation.plan, requested, resolved)
    raise_if_any(_program_problems(preparation.plan, session, resources))
    folder = session.sweeps / preparation.plan.name
    raise_if_any(name_problems(folder, preparation.plan))
    state = read_state(folder, preparation.plan)
    given_files, session = session.trial_files, with_trial_files(session, state)
    if given_files is None:  # the address of the sweep has not been checked yet
        raise_if_any(bucket_problems(session.trial_files))
    notes = preparation.notes + (measure_gpu_sharing(state.plan, resources, session) if state.trials_left(None) else ())
    race = None
    if racing.until_decided:
        from tune_dml.running.search.race import rule_of

        race = rule_of(state, racing)
    return _execute(state, resources, session, console, SessionIntent("sweep", notes, race=race))


def resume(
    name: str,
    session: Session,
    *,
    retry_failed: bool = False,
    micro_batch: int | None = None,
    data_root: str | Path | None = None,
    console: Console | None = None,
    other_checks: Sequence[Check] = (),
) -> Sweep:
    """Run the missing trials of a sweep, with the resources of its last session, and update MLflow.

    If the sweep is complete, continue its interrupted confirmation. `retry_failed` also repeats failed and diverged
    trials. A `data_root` is stored. Raise ConfigError if the sweep cannot continue.
    """
    state = _load_with_pictures(name, session, data_root)
    resources = resolve_gpus(state.resources, session.address)
    resources = resources if micro_batch is None else replace(resources, micro_batch=micro_batch)
    session = _continuing_session(state, session, resources, other_checks)
    if retry_failed:
        with Ledger(state.folder) as ledger:
            for key in (*state.trials, *state.confirmation_trials):
                if state.trial(key).status in {"failed", "diverged"}:
                    ledger.write(TrialReset(key=key))
        state.update()
    return _execute(state, resources, session, console, intent_to_resume(state))


def extend(
    name: str,
    session: Session,
    *,
    seeds: int | Sequence[int] = (),
    values: Mapping[str, Sequence[Value]] | None = None,
    num_samples: int = 0,
    arms: Sequence[str] = (),
    data_root: str | Path | None = None,
    console: Console | None = None,
    other_checks: Sequence[Check] = (),
) -> Sweep:
    """Add seeds, values of a listed knob, cells to propose, or arms to a sweep, and run the new trials.

    A `data_root` is stored. Raise ConfigError, and change nothing, if the sweep cannot be extended in this way or
    cannot be resumed.
    """
    state = _load_with_pictures(name, session, data_root)
    current, names = with_arms_of_files(state.plan, arms)
    with values_from("values", values or ()):
        listed = listed_seeds(seeds)
        total_or_more = seeds if isinstance(seeds, int) else listed
        plan = current.extend(seeds=total_or_more, values=values, num_samples=num_samples, arms=names)
    if plan.identity() == state.plan.identity():
        rule = "an extension must add a seed, a value, a sample or an arm that the sweep does not have"
        raise ConfigError(Problem("extend", rule, None, f"Example: {spell('seeds', len(plan.seeds) + 2)}."))
    if state.race is not None:
        rule = "a race plans its seeds itself, and compares the values with which it began"
        remedy = f"Start the sweep again with a larger {spell('max_seeds')}, or a new sweep under another name."
        raise ConfigError(Problem("extend", rule, None, remedy))
    raise_if_any(added_cell_problems(current, plan))
    cells = len(plan.cells) + plan.search.num_samples
    notes = [f"extended to {cells} cells and seeds {', '.join(map(str, plan.seeds))}"]
    for arm in plan.arms[len(current.arms) :]:
        notes.append(f"arm {arm.name} was added; it trains by {arm.protocol.name if arm.protocol else 'defaults'}")
    if confirmation_seeds := {trial.seed for trial in state.confirmation_trials.values()} & set(plan.seeds):
        rule = "seeds of the confirmation must not take part in the selection of the best cells"
        raise ConfigError(option_problem("seeds", rule, sorted(confirmation_seeds), "Choose other seeds."))
    resources = resolve_gpus(state.resources, session.address)
    look = look_at_sweep(state, "extend")
    state = read_state(state.folder, plan)
    session = _continuing_session(state, session, resources, other_checks)
    notes += measure_gpu_sharing(plan, resources, session)
    return _execute(state, resources, session, console, SessionIntent("extend", tuple(notes), look))


def confirm(name: str, session: Session, *, top: int = 3, seeds: int = 5, console: Console | None = None) -> Sweep:
    """Train a sweep's best cells and its baseline again, with seeds that had no part in their selection.

    A larger `seeds` extends an earlier confirmation. Raise ConfigError if no trial has finished, or the sweep cannot be
    resumed.
    """
    from tune_dml.report.analysis.cell import best_cells

    requested = [("top", top), ("seeds", seeds)]
    raise_if_any(Problem(option_place(name), "must be at least 1", number) for name, number in requested if number < 1)
    listed_seeds(seeds)
    state = load_state(session.sweeps, name)
    ranked = best_cells(Results.of(state))
    best = [cell for cell in ranked if not cell.baseline]
    baseline = next((cell for cell in [*ranked, *state.plan.cells] if cell.baseline), None)
    if not best:
        raise _no_best_cell(state, "confirmed")
    session = _continuing_session(state, session, state.resources)
    used_seeds = list(dict.fromkeys(trial.seed for trial in state.confirmation_trials.values()))
    confirmation = confirmation_plan(state.plan, baseline, best[:top], used_seeds, seeds)
    return _execute(state, state.resources, session, console, SessionIntent("confirm", confirmation=confirmation))


def open_test(
    name: str, session: Session, *, selection: str = "", progress: Callable[[int, int], None] | None = None
) -> Sweep:
    """Open the test metrics of a sweep, and push them to MLflow.

    A second call changes nothing. Raise ConfigError if no trial has finished, or the sweep is running.
    """
    state = load_state(session.sweeps, name)
    if state.opened and not UntestedHeads.of(state, session.cache).trials:  # an interrupted opening leaves heads
        return Sweep(Results.of(state))
    results = open_results(state, selection, session.cache, progress)
    return Sweep(results, tracking=_tracker(state, session).stop(interrupted=state.is_incomplete))


def rescore(name: str, session: Session, *, metrics: Sequence[str]) -> tuple[RescoredSweep, str | None]:
    """Compute metrics from stored embeddings (`evaluation.keep=embeddings`), without training again.

    Return the metrics, and the reason if they are not in MLflow. Raise ConfigError if a metric is unknown or no embeddings
    are stored.
    """
    state = load_state(session.sweeps, name)
    raise_if_any(folder_problems(option_place("sweep"), state.folder, READ_ONLY))
    fetch_remaining_files(state)
    rescored_sweep = compute_metrics(state, metrics)
    return rescored_sweep, _tracker(state, session).stop(interrupted=state.is_incomplete).error


@dataclass(frozen=True)
class Attachment:
    """A report attached to the sweep's run in MLflow."""

    ui_command: str
    refusal: str | None  # reason if the report could not be attached
    link: str  # web address of the sweep's cells; empty before the first sync


def publish_report(
    sweep: Sweep,
    session: Session,
    path: Path,
    *,
    margin: float | None = None,
    paper_sd: float | None = None,
    forms: Sequence[Literal["pdf", "png"]] = (),
) -> tuple[ReportFiles, Callable[[], Attachment]]:
    """Write the report of a sweep that was run or loaded.

    Return it, and a function that attaches it to the sweep's run in MLflow. This takes minutes for a large sweep that
    the store does not have. The function returns errors of the store, and does not raise them.
    """
    assert sweep.state is not None  # noqa: S101 - it was run or loaded
    tracker = _tracker(sweep.state, session)
    files = write_report(sweep.state, path, margin, paper_sd, forms)

    def attach() -> Attachment:
        refusal = tracker.attach(files.folder, files.paths, files.summary.judgement)
        return Attachment(tracker.ui_command(), refusal, tracker.link())

    return files, attach


def write_report(
    state: SweepState,
    folder: Path,
    margin: float | None,
    paper_sd: float | None,
    forms: Sequence[Literal["pdf", "png"]],
) -> ReportFiles:
    """Write the report of a sweep's present state, and record the look."""
    from tune_dml import report

    state.record_look("report")
    return report.write_report(Results.of(state), folder, margin=margin, paper_sd=paper_sd, forms=forms)


def sync(name: str, session: Session) -> Reconciliation:
    """Compare runs, parameters, metrics and points in MLflow with a sweep's ledger; push differences; compare again.

    Raise ConfigError if the sweep is unknown, or another process runs it.
    """
    from tune_dml.report import judged

    state = load_state(session.sweeps, name)
    with Ledger(state.folder):
        return _tracker(state, session).reconcile(judged(Results.of(state)))


def open_results(
    state: SweepState,
    selection: str = "",
    cache_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Results:
    """Record the opening of the test metrics for the cell that validation selects, and evaluate stored heads."""
    from tune_dml.report.analysis.cell import best_cells

    raise_if_any(folder_problems(option_place("sweep"), state.folder, READ_ONLY))
    fetch_remaining_files(state)
    state.update()
    best = best_cells(Results.of(state))
    if not best:
        raise _no_best_cell(state, "selected by validation")
    heads = UntestedHeads.of(state, cache_dir)
    record_opening(state, best[0].label, selection)
    heads.evaluate(progress)
    return Results.of(state)


def _load_with_pictures(name: str, session: Session, data_root: str | Path | None) -> SweepState:
    """Load a sweep, with its pictures in another folder if one is given."""
    state = load_state(session.sweeps, name)
    return state if data_root is None else read_state(state.folder, relocate_plan(state.stored_plan, data_root))


def _no_best_cell(state: SweepState, purpose: str) -> ConfigError:
    rule = f"only a cell that has finished a trial, without diverging, can be {purpose}"
    advice = "Run it first: `tune-dml resume" if state.is_incomplete else "None has: `tune-dml status"
    return ConfigError(option_problem("sweep", rule, state.plan.name, f"{advice} {state.plan.name}`."))


def _execute(
    state: SweepState, resources: Resources, session: Session, console: Console | None, intent: SessionIntent
) -> Sweep:
    """Run a session under the sweep's lock, while Ray starts. Raise ConfigError if another process has the lock."""
    from tune_dml.running.process import relaxed_gc
    from tune_dml.running.slurm.collecting import collect_array
    from tune_dml.running.slurm.jobs import raise_if_jobs_are_open

    def driver(ledger: Ledger) -> Driver:
        from tune_dml.running.driver import Driver
        from tune_dml.running.screen.progress import Progress

        progress = Progress(state, console, plan=intent.confirmation)
        tracker = _tracker(state, session, say=progress.note)
        return Driver(state, resources, session, intent, ledger, progress, tracker)

    if group := int(os.environ.get(ARRAY_GROUP, "0")):  # a job of a SLURM array collects its trials, then prepares more
        from tune_dml.running.slurm.rounds import execute_round

        with Ledger(state.folder) as ledger:
            interrupted, tracking = execute_round(driver(ledger), group)
    else:
        raise_if_jobs_are_open(state.folder)
        address, _ = cluster.address_of(session.address)
        with relaxed_gc(), Ledger(state.folder) as ledger, cluster.Connection(address, resources) as connection:
            collect_array(ledger, state, resources)  # results of a cancelled array
            if trials := state.trials_left(intent.confirmation):
                connection.begin(min(trials, session.max_concurrent or trials))
            from tune_dml.running import sweep

            interrupted, tracking = sweep.execute(driver(ledger), connection)
    return Sweep(Results.of(state), interrupted, tracking, intent.confirmation is not None, state)


def _tracker(state: SweepState, session: Session, say: Callable[[str], None] | None = None) -> Tracker:
    from tune_dml import tracking

    session = tracking.with_last_store(session, state.folder)
    uri, _ = tracking.tracking_uri(session.tracking_uri, session.sweeps)
    experiment = tracking.experiment_name(session.experiment, state.plan)
    return tracking.Tracker(state, uri, experiment, say=say, colour_of=colour_of_arm)


def _session_problems(session: Session, resources: Resources) -> list[Problem]:
    from tune_dml import tracking

    uri, _ = tracking.tracking_uri(session.tracking_uri, session.sweeps)
    problems = cluster.resource_problems(resources, cluster.address_of(session.address))
    return [*problems, *tracking.store_problems(uri), *session.problems()]


def _program_problems(plan: Plan, session: Session, resources: Resources) -> list[Problem]:
    """Return problems for options that a program's trials do not support, and for a secret in its command."""
    if plan.space.program is None:
        return []
    problems = secret_problems(plan.space.program.text)
    if resources.engine == "train":
        rule = "a program's trial is one process; it may start its own workers, such as with torchrun"
        problems.append(option_problem("workers", rule, resources.workers, f"Use {spell('workers', 1)}."))
    if session.trial_files is not None:
        rule = "a program keeps its checkpoints in a folder"
        problems.append(option_problem("trial_files", rule, session.trial_files, "Leave it out."))
    return problems


def _continuing_session(
    state: SweepState, session: Session, resources: Resources, other_checks: Sequence[Check] = ()
) -> Session:
    """Return the session with the sweep's MLflow store and trial files, or raise ConfigError with every problem."""
    from tune_dml.tracking import with_last_store

    session = with_last_store(with_trial_files(session, state), state.folder)
    problems = [*_session_problems(session, resources), *(problem for check in other_checks for problem in check())]
    problems += continuation_problems(state.plan, session.cache, resources.micro_batch, packages_of(state))
    raise_if_any(problems)
    return session
