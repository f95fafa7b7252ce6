"""Run, resume or extend a plan on Ray Tune.

All three run the trials that have no result in the ledger. An interrupted trial continues from its checkpoint. The
searcher is rebuilt from the ledger; Tune's own snapshots are not used (ADR 1).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from ray import tune
from ray.tune import Callback, FailureConfig, RunConfig, TuneConfig, Tuner
from ray.tune.search import ConcurrencyLimiter

from trainables.errors import raise_if_any
from trainables.files import PATIENCE, retry_storage
from tune_dml.planning.checks.data import data_folders, floors_of, known_digests
from tune_dml.planning.request import Resources, Session
from tune_dml.record.contradictions import describe_edited_code
from tune_dml.record.events import ConfirmationStarted, Note, RaceStarted, SessionStarted
from tune_dml.record.judging.looks import record_look
from tune_dml.record.ledger import Ledger
from tune_dml.record.origin import provenance
from tune_dml.record.origin.commands import cluster_of_this_job, command, interruption_message
from tune_dml.record.origin.several_jobs import continues_in_next_job
from tune_dml.record.results import Results
from tune_dml.record.session import SessionIntent, last_row_time
from tune_dml.record.state import SweepState
from tune_dml.running.cluster import cluster
from tune_dml.running.cluster.placement import PlacementManager, trial_bundles
from tune_dml.running.cluster.versions import missing_data_problems, with_node_check
from tune_dml.running.failures import TRIAL_RETRIES
from tune_dml.running.limits import exhausted_budget
from tune_dml.running.process import resend_dropped_interrupts, sigterm_as_interrupt
from tune_dml.running.ray_internals import (
    out_of_memory_as_lost_process,
    remove_placement_groups,
    reuse_idle_processes,
    use_resource_manager,
    without_usage_tags,
)
from tune_dml.running.recorder import Recorder
from tune_dml.running.scheduler import GrowingConcurrency, NullReporter, TuneScheduler, silence_tune
from tune_dml.running.search.optuna_search import CellSearcher
from tune_dml.running.trials.messages import TrialFunction
from tune_dml.running.trials.trial import TrialRuntime, engine
from tune_dml.text import counted

if TYPE_CHECKING:
    from tune_dml.running.screen.progress import Progress
    from tune_dml.tracking.tracker import SyncReport, Tracker


_LAST_FETCHES = 20.0  # seconds that an interrupted session waits for the files of its finished trials


def execute(
    state: SweepState,
    resources: Resources,
    session: Session,
    intent: SessionIntent,
    *,
    ledger: Ledger,
    connection: cluster.Connection,
    progress: Progress,
    tracker: Tracker,
) -> tuple[bool, SyncReport]:
    """Run the trials of a sweep, or of its confirmation, that have no result in the ledger.

    Return whether trials remain, and the report of the MLflow sync. Raise ConfigError if no trial can ever fit.
    """
    silence_tune()
    record_session(ledger, state, resources, session, intent)
    confirmation = intent.confirmation
    plan = confirmation or state.plan
    recorder = Recorder(ledger, state, progress, tracker, plan, resources=resources, session=session)
    proposals = recorder.proposals
    tracker.start()
    with resend_dropped_interrupts(), _print_command_on_interrupt(state, intent, progress):
        try:
            with progress:
                recorder.files.resume(state)
                start = time.monotonic()
                if not proposals.is_finished:
                    _fit(state, recorder, connection, resources, session)
                budget = exhausted_budget(session, recorder.spending.spent, time.monotonic() - start)
                if budget and not proposals.is_finished:
                    recorder.note(f"stopped after {budget}, resumable", of_session=True)
        finally:
            try:
                recorder.files.finish(state, PATIENCE if proposals.is_finished else _LAST_FETCHES)
            finally:
                report = tracker.stop(interrupted=not proposals.is_finished)
    state.update()
    if proposals.is_finished or not continues_in_next_job():
        state.record_look(intent.verb)
    has_trials_left = state.is_incomplete
    if confirmation is not None:
        has_trials_left = any(state.trial(trial.key).ended is None for trial in confirmation.trials())
    return has_trials_left or not proposals.is_finished, report


@contextmanager
def _print_command_on_interrupt(state: SweepState, intent: SessionIntent, progress: Progress) -> Iterator[None]:
    """Print the command that continues the sweep if Ctrl-C interrupts the session."""
    try:
        yield
    except KeyboardInterrupt:
        is_confirmation = intent.confirmation is not None
        next_command = "the same command" if is_confirmation else command(Results.of(state), "resume")
        progress.note(interruption_message(next_command))
        raise


def record_session(
    ledger: Ledger, state: SweepState, resources: Resources, session: Session, intent: SessionIntent
) -> None:
    """Write the session's events, before any trial runs."""
    machine = provenance.collect()
    lost_notes = [] if state.sessions else list(state.notes)  # notes about a lost ledger
    record_look(state.folder, intent.look)
    (state.folder / "trials").mkdir(exist_ok=True)  # a later session that misses it knows that the storage is missing
    confirmation = intent.confirmation
    if confirmation is None:
        state.stored_plan.save(state.folder / "plan.json")
    elif {trial.key for trial in confirmation.trials()} - state.confirmation_trials.keys():
        digests = tuple(cell.digest for cell in confirmation.cells)
        ledger.write(ConfirmationStarted(cells=digests, seeds=confirmation.seeds))
    state.update()
    started = SessionStarted(
        provenance=machine,
        resources=resources,
        heard=last_row_time(state),
        trial_files=session.trial_files,
        submitted_to=cluster_of_this_job(),
        floors={} if state.sessions else floors_of(state.plan, session.cache),
    )
    ledger.write(started)
    for text in (*lost_notes, *describe_edited_code(state), *intent.notes):
        ledger.write(Note(text=text))
    if intent.race is not None and (state.race is None or state.race.rule != intent.race):
        ledger.write(RaceStarted(rule=intent.race))
    state.update()


def _fit(
    state: SweepState, recorder: Recorder, connection: cluster.Connection, resources: Resources, session: Session
) -> None:
    progress, address = recorder.progress, cluster.address_of(session.address)[0]
    progress.waiting("starting Ray ..." if address is None else f"connecting to Ray at {address} ...")
    capacity = connection.capacity()
    with sigterm_as_interrupt(), out_of_memory_as_lost_process(), ExitStack() as stack:
        manager = partial(PlacementManager, may_reuse=lambda: not recorder.stall_failures)
        stack.enter_context(use_resource_manager(manager))
        stack.enter_context(reuse_idle_processes(inherit=not connection.has_others))
        stack.enter_context(without_usage_tags())
        stack.callback(remove_placement_groups, recorder.placement_groups)
        concurrent = cluster.count_fitting_trials(capacity, resources)
        concurrent = min(concurrent, session.max_concurrent or concurrent)
        progress.slots = concurrent
        progress.waiting("starting the first trials ...")
        recorder.groups.slots = concurrent
        recorder.groups.may_share = resources.engine == "local" and recorder.proposals.plan.space.program is None
        searcher = ConcurrencyLimiter(CellSearcher(recorder.groups), max_concurrent=concurrent)
        fits = partial(cluster.trials_that_fit_now, capacity, resources, session.max_concurrent)
        growing = _grow_concurrency(searcher, progress, fits) if connection.has_others else nullcontext(Callback())
        # Under engine `train` the workers are placed after their trial has started, which may take half a minute.
        reports_waiting = connection.has_others and resources.engine != "train"
        trial = _trial_function(recorder, connection, resources, session, state.opened is None)
        tuner = partial(
            Tuner,
            tune.with_resources(trial, trial_bundles(capacity, resources)),
            tune_config=TuneConfig(
                search_alg=searcher,
                scheduler=TuneScheduler(recorder.on_process, recorder.wait if reports_waiting else None),
                num_samples=-1,
                time_budget_s=session.time_budget,
                reuse_actors=True,
                trial_name_creator=lambda trial: str(trial.config["key"]),
                trial_dirname_creator=lambda trial: str(trial.config["key"]),
            ),
            run_config=RunConfig(
                name="tune",
                storage_path=str((state.folder / "ray").resolve()),
                callbacks=[recorder, stack.enter_context(growing), NullReporter()],
                stop=recorder.spending,
                failure_config=FailureConfig(max_failures=TRIAL_RETRIES),
                verbose=0,
            ),
        )
        retry_storage(tuner, state.folder / "ray", progress.note).fit()  # it writes a file
    connection.end()
    shutil.rmtree(state.folder / "ray", ignore_errors=True)  # only Tune's own records


def _grow_concurrency(searcher: ConcurrencyLimiter, progress: Progress, fits: Callable[[], int]) -> GrowingConcurrency:
    def report_growth(trials: int) -> None:
        progress.slots = trials
        progress.note(f"nodes have joined: {counted(trials, 'trial')} at once")

    return GrowingConcurrency(searcher, fits, report_growth)


def _trial_function(
    recorder: Recorder, connection: cluster.Connection, resources: Resources, session: Session, defers_test: bool
) -> TrialFunction:
    """Return the function that Tune runs for each trial. Raise ConfigError if a node lacks a picture folder."""
    plan, folder = recorder.proposals.plan, recorder.ledger.sweep
    digests = known_digests(plan, session.cache)
    folders = data_folders(plan, session.cache, digests) if connection.has_others else None
    trial = engine(
        TrialRuntime(
            folder,
            recorder.storage,
            resources,
            session.cache,
            session.stall_limit,
            digests,
            plan.space.program,
            plan.metric,
            folders,
            defers_test,
        )
    )
    if folders is None:
        return trial
    raise_if_any(missing_data_problems(folders, resources))
    return with_node_check(trial, folders)
