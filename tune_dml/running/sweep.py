"""Run, resume or extend a plan on Ray Tune.

All three run the trials that have no result in the ledger. An interrupted trial continues from its checkpoint. The
searcher is rebuilt from the ledger; Tune's own snapshots are not used (ADR 1).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ray import tune
from ray.tune import Callback, FailureConfig, RunConfig, TuneConfig, TuneError, Tuner
from ray.tune.search import ConcurrencyLimiter

from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.files import PATIENCE, retry_storage
from tune_dml.planning.checks.data import data_folders, known_digests
from tune_dml.record.origin.commands import command, interruption_message
from tune_dml.record.origin.several_jobs import continues_in_next_job
from tune_dml.record.results import Results
from tune_dml.record.state import SweepState, is_sweep
from tune_dml.running import ray_internals
from tune_dml.running.cluster import cluster
from tune_dml.running.cluster.placement import PlacementManager, trial_bundles
from tune_dml.running.cluster.versions import missing_data_problems, with_node_check
from tune_dml.running.driver import Driver
from tune_dml.running.failures import TRIAL_RETRIES
from tune_dml.running.process import resend_dropped_interrupts, sigterm_as_interrupt
from tune_dml.running.recorder import Recorder
from tune_dml.running.scheduler import GrowingConcurrency, NullReporter, TuneScheduler, silence_tune
from tune_dml.running.search.optuna_search import CellSearcher
from tune_dml.running.trials.limits import exhausted_budget
from tune_dml.running.trials.messages import TrialFunction
from tune_dml.running.trials.trial import TrialRuntime, engine

if TYPE_CHECKING:
    from tune_dml.tracking import SyncReport


_LAST_FETCHES = 20.0  # seconds that an interrupted session waits for the files of its finished trials


def execute(driver: Driver, connection: cluster.Connection) -> tuple[bool, SyncReport]:
    """Run the trials of a sweep, or of its confirmation, that have no result in the ledger.

    Return whether trials remain, and the report of the MLflow sync. Raise ConfigError if no trial can ever fit.
    """
    silence_tune()
    driver.record_session()
    state, confirmation = driver.state, driver.intent.confirmation
    recorder = Recorder(driver)
    proposals = recorder.proposals
    driver.tracker.start()
    with resend_dropped_interrupts(), _print_command_on_interrupt(driver):
        try:
            with driver.progress, _storage_errors_as_problem(state):
                recorder.files.resume(state)
                start = time.monotonic()
                if not proposals.is_finished:
                    _fit(recorder, connection)
                budget = exhausted_budget(driver.session, recorder.spending.spent, time.monotonic() - start)
                if budget and not proposals.is_finished:
                    driver.note(f"stopped after {budget}, resumable", of_session=True)
        finally:
            try:
                recorder.files.finish(state, PATIENCE if proposals.is_finished else _LAST_FETCHES)
            finally:
                report = driver.tracker.stop(interrupted=not proposals.is_finished)
    _raise_if_moved(state.folder)
    state.update()
    if proposals.is_finished or not continues_in_next_job():
        state.record_look(driver.intent.verb)
    has_trials_left = state.is_incomplete if confirmation is None else state.trials_left(confirmation) > 0
    return has_trials_left or not proposals.is_finished, report


@contextmanager
def _storage_errors_as_problem(state: SweepState) -> Iterator[None]:
    """Raise ConfigError for a storage error, such as one that outlasted its retries. Tune raises its text."""
    try:
        yield
    except TuneError as error:
        cause = error.__context__
        if not isinstance(cause, OSError) or isinstance(cause, ConnectionError) or cause.errno is None:
            raise
        _raise_if_moved(state.folder)
        rule = f"the sweep stopped because its storage failed ({cause.strerror})"
        remedy = f"Repair it, then continue with `{command(Results.of(state), 'resume')}`."
        raise ConfigError(Problem(str(cause.filename or state.folder), rule, None, remedy)) from error


def _raise_if_moved(folder: Path) -> None:
    """Raise ConfigError if a sweep's folder was moved or deleted. A report would create it again, as Tune does."""
    if is_sweep(folder):
        return
    shutil.rmtree(folder / "ray", ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()
    rule = "the sweep's folder was moved or deleted while it ran"
    raise ConfigError(
        Problem(str(folder), rule, None, "Continue a moved sweep with `tune-dml resume`, under its new name.")
    )


@contextmanager
def _print_command_on_interrupt(driver: Driver) -> Iterator[None]:
    """Print the command that continues the sweep if Ctrl-C interrupts the session; a moved sweep has another name."""
    try:
        yield
    except KeyboardInterrupt:
        _raise_if_moved(driver.state.folder)
        is_confirmation = driver.intent.confirmation is not None
        next_command = "the same command" if is_confirmation else command(Results.of(driver.state), "resume")
        driver.progress.note(interruption_message(next_command))
        raise


def _fit(recorder: Recorder, connection: cluster.Connection) -> None:
    driver = recorder.driver
    resources, session, progress, state = driver.resources, driver.session, driver.progress, driver.state
    address, _ = cluster.address_of(session.address)
    progress.waiting("starting Ray ..." if address is None else f"connecting to Ray at {address} ...")
    capacity = connection.capacity()
    with sigterm_as_interrupt(), ray_internals.out_of_memory_as_lost_process(), ExitStack() as stack:
        manager = partial(PlacementManager, may_reuse=lambda: not recorder.stall_failures)
        stack.enter_context(ray_internals.use_resource_manager(manager))
        stack.enter_context(ray_internals.reuse_idle_processes(inherit=not connection.has_others))
        stack.enter_context(ray_internals.without_usage_tags())
        stack.callback(ray_internals.remove_placement_groups, recorder.placement_groups)
        raise_if_any(cluster.capacity_problems(capacity, resources))
        fitting = capacity.trials_that_fit(resources)
        concurrent = min(fitting, session.max_concurrent or fitting)
        progress.slots = recorder.groups.slots = concurrent
        progress.waiting("starting the first trials ...")
        recorder.groups.may_share = resources.engine == "local" and recorder.proposals.plan.space.program is None
        searcher = ConcurrencyLimiter(CellSearcher(recorder.groups), max_concurrent=concurrent)
        fits = partial(cluster.trials_that_fit_now, capacity, resources, session.max_concurrent)
        growing = (
            GrowingConcurrency(searcher, fits, progress.grow) if connection.has_others else nullcontext(Callback())
        )
        # Under engine `train` the workers are placed after their trial has started, which may take half a minute.
        reports_waiting = connection.has_others and resources.engine != "train"
        trial = _trial_function(recorder, connection)
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


def _trial_function(recorder: Recorder, connection: cluster.Connection) -> TrialFunction:
    """Return the function that Tune runs for each trial. Raise ConfigError if a node lacks a picture folder."""
    driver, plan = recorder.driver, recorder.proposals.plan
    resources, session = driver.resources, driver.session
    digests = known_digests(plan, session.cache)
    folders = data_folders(plan, session.cache, digests) if connection.has_others else None
    runtime = TrialRuntime(
        driver.state.folder,
        recorder.storage,
        resources,
        session.cache,
        session.stall_limit or session.start_limit,
        digests,
        program=plan.space.program,
        metric=plan.metric,
        folders=folders,
        defers_test=driver.state.opened is None,
    )
    trial = engine(runtime)
    if folders is None:
        return trial
    raise_if_any(missing_data_problems(folders, resources))
    return with_node_check(trial, folders)
