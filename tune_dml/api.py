"""The platform from Python: run, resume, extend, load and report a sweep; what the command line calls.

sweep = tune_dml.run_sweep("sec_rho", dataset="glyphs", seeds=3)
sweep.table()                                   # one row per trial
tune_dml.write_report(sweep, "report")

`run`, `resume` and `extend` take what is asked for as dataclasses; `run_sweep`, `resume_sweep` and `extend_sweep` are the
same functions with their fields as keywords.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from trainables.errors import ConfigError, Problem, raise_if_any
from tune_dml.planning.checks import Check, DataProgress, continuation_problems, name_problems, prepare
from tune_dml.planning.request import MAX_SEEDS, Racing, Request, Resources, Session
from tune_dml.planning.spread import spread
from tune_dml.record.ledger import Ledger
from tune_dml.record.looks import Look, look_at, record_look
from tune_dml.record.race import RaceRule
from tune_dml.record.results import Results, load_results
from tune_dml.record.state import SweepState, load_state, read_state
from tune_dml.space import Value

if TYPE_CHECKING:
    import pandas as pd

    from tune_dml.report import ReportFiles
    from tune_dml.tracking import SyncReport, Tracker


@dataclass(frozen=True)
class Sweep:
    """A sweep and how its last session ended."""

    results: Results
    interrupted: bool = False
    tracking: SyncReport | None = None
    """What MLflow has; None when the sweep was only loaded."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.results.name

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return self.results.folder

    @property
    def exit_code(self) -> int:
        """0 done, 3 finished with failed or diverged trials, 130 interrupted and resumable."""
        if self.interrupted:
            return 130
        return 3 if self.results.count("failed") + self.results.count("diverged") else 0

    def table(self) -> pd.DataFrame:
        """One row per trial; see `Results.table`."""
        return self.results.table()


def run(
    request: Request,
    session: Session,
    racing: Racing,
    *,
    resources: Annotated[Resources | None, "Workers, CPUs and GPUs of a trial."] = None,
    console: Annotated[Console | None, "Where progress is shown; nowhere by default."] = None,
    data_progress: Annotated[DataProgress | None, "Told of decoding as (done, total)."] = None,
    other_checks: Annotated[Sequence[Check], "Further checks, whose problems are shown with the others."] = (),
) -> Sweep:
    """Run a sweep to its end on Ray Tune and return it.

    Running a finished or interrupted sweep again under the same name and plan runs only what is missing. With
    `until_decided` seeds are added in blocks: cells that are settled stop, the others go on until the questions are
    answered at the margin, or a limit is reached; a sweep that ran without it can go on so. Raises ConfigError with
    everything that is wrong with the request, before any worker starts.
    """
    resources = resources or Resources()
    checked = prepare(
        request,
        cache_dir=session.cache,
        other_checks=[lambda: _session_problems(session, resources), racing.problems, *other_checks],
        progress=data_progress,
    )
    folder = session.sweeps / checked.plan.name
    raise_if_any(name_problems(folder, checked.plan))
    state = SweepState(folder, checked.plan)
    state.update()
    rule = _race_rule(state, racing)
    return _execute(state, resources, session, console, verb="sweep", notes=checked.notes, rule=rule)


def resume(
    name: str,
    session: Session,
    *,
    retry_failed: Annotated[bool, "Also run failed and diverged trials again."] = False,
    console: Annotated[Console | None, "Where progress is shown; nowhere by default."] = None,
    other_checks: Annotated[Sequence[Check], "Further checks, whose problems are shown with the others."] = (),
) -> Sweep:
    """Run what a sweep still lacks, with the resources it was started with, and bring MLflow up to date.

    Finished trials are not rerun; interrupted ones continue from their checkpoint; with `retry_failed`, failed and
    diverged ones are tried again. Raises ConfigError when there is no such sweep, its data have changed, it does not fit
    on the cluster, or it is running; nothing stored is changed then.
    """
    state = load_state(session.sweeps, name)
    raise_if_any(_continuation_problems(state, session, other_checks))
    if retry_failed:
        with Ledger(state.folder) as ledger:
            for key in state.trials:
                if state.trial(key).status in {"failed", "diverged"}:
                    ledger.append("reset", key)
    return _execute(state, state.resources, session, console, verb="resume")


def extend(
    name: str,
    session: Session,
    *,
    seeds: Annotated[Sequence[int], "Seeds to add."] = (),
    values: Annotated[Mapping[str, Sequence[Value]] | None, "Values to add to a listed knob."] = None,
    num_samples: Annotated[int, "Further cells to propose, for every search but grid."] = 0,
    console: Annotated[Console | None, "Where progress is shown; nowhere by default."] = None,
    other_checks: Annotated[Sequence[Check], "Further checks, whose problems are shown with the others."] = (),
) -> Sweep:
    """Add seeds, values of a listed knob, or cells to propose to a sweep, and run what is new.

    Raises ConfigError when the sweep cannot be extended so, and for what `resume_sweep` raises it; nothing stored is
    changed then.
    """
    state = load_state(session.sweeps, name)
    plan = state.plan.extended(seeds=seeds, values=values, num_samples=num_samples)
    if plan.identity() == state.plan.identity():
        rule = "an extension must add a seed, a value or a sample that the sweep does not have"
        raise ConfigError(Problem("extend", rule, None, "Example: --seeds 5 or --add regularizer.rho=0.001."))
    if state.race is not None:
        rule = "a race plans its seeds itself and compares the values it began with"
        remedy = "Raise --max-seeds of `tune-dml sweep ... --until-decided`, or start a new sweep under another --name."
        raise ConfigError(Problem("extend", rule, None, remedy))
    note = f"extended to {len(plan.cells)} planned cells and seeds {', '.join(map(str, plan.seeds))}"
    look = look_at(state, "extend")
    state.replan(plan)
    raise_if_any(_continuation_problems(state, session, other_checks))
    return _execute(state, state.resources, session, console, verb="extend", notes=(note,), look=look)


run_sweep: Callable[..., Sweep] = spread(run, name="run_sweep")
resume_sweep: Callable[..., Sweep] = spread(resume, name="resume_sweep")
extend_sweep: Callable[..., Sweep] = spread(extend, name="extend_sweep")


def load_sweep(name: str, *, storage: str | Path = Session.storage) -> Sweep:
    """A sweep as it stands on disk; raises ConfigError when there is none of that name."""
    results = load_results(Path(storage).absolute(), name)
    return Sweep(results, interrupted=results.incomplete)


def write_report(
    sweep: Sweep, path: str | Path, *, margin: float | None = None, unseal_test: bool = False
) -> ReportFiles:
    """Write the sensitivity report (HTML, CSV, LaTeX, JSON) of a sweep into a folder. The look is recorded with the sweep.

    Args:
        sweep: from `run_sweep` or `load_sweep`.
        path: the folder, made if missing.
        margin: differences below this do not matter; the planned one by default.
        unseal_test: open the test metrics; recorded in the sweep's ledger.
    """
    from tune_dml import report

    state = read_state(sweep.folder)
    record_look(sweep.folder, look_at(state, "report"))
    state.update()
    looked = replace(sweep.results, looks=tuple(state.looks))
    return report.write_report(looked, Path(path), margin=margin, unseal_test=unseal_test)


@dataclass(frozen=True)
class Attachment:
    """A report beside the sweep's run in MLflow."""

    ui_command: str
    """What shows it."""
    refusal: str | None
    """Why it is not there; None when it is."""


def attach_report(sweep: Sweep, files: ReportFiles, session: Session) -> Attachment:
    """Put a written report beside the sweep's run in MLflow; never raises for trouble with the store."""
    tracker = _tracker(read_state(sweep.folder), session)
    return Attachment(refusal=tracker.attach([files.folder], "report"), ui_command=tracker.ui_command())


def _execute(
    state: SweepState,
    resources: Resources,
    session: Session,
    console: Console | None,
    *,
    verb: str,
    notes: tuple[str, ...] = (),
    look: Look | None = None,
    rule: RaceRule | None = None,
) -> Sweep:
    from tune_dml.record import provenance
    from tune_dml.running import cluster, sweep
    from tune_dml.running.progress import Progress

    state.update()
    progress = Progress(state, console)
    address, _ = cluster.address_of(session.address)
    finish = sweep.execute(
        state,
        sweep.Execution(resources, address, session.max_concurrent, session.time_budget, session.cache),
        progress=progress,
        tracker=_tracker(state, session, say=progress.note),
        provenance=provenance.collect(),
        purpose=sweep.Purpose(verb, notes, look, rule),
    )
    return Sweep(finish.results, finish.interrupted, finish.tracking)


def _race_rule(state: SweepState, racing: Racing) -> RaceRule | None:
    """The rule of the race that is asked for, if any; raises ConfigError where the sweep cannot be raced so."""
    if not racing.until_decided:
        return None
    from tune_dml.running.race import race_problems

    begun = state.race.rule.margin if state.race else state.plan.margin
    rule = RaceRule(state.plan.stated_margin or begun, racing.max_seeds or MAX_SEEDS, racing.budget)
    raise_if_any(race_problems(state, rule))
    return rule


def _tracker(state: SweepState, session: Session, say: Callable[[str], None] | None = None) -> Tracker:
    from tune_dml import tracking

    uri, _ = tracking.tracking_uri(session.tracking_uri)
    return tracking.Tracker(state, uri, tracking.experiment_name(session.experiment, state.plan), say=say)


def _session_problems(session: Session, resources: Resources) -> list[Problem]:
    """What a trial and the session's limits ask for, of the cluster and of MLflow."""
    from tune_dml import tracking
    from tune_dml.running import cluster

    uri, _ = tracking.tracking_uri(session.tracking_uri)
    needs = cluster.resource_problems(resources, cluster.address_of(session.address))
    return [*needs, *tracking.check(uri), *session.problems()]


def _continuation_problems(state: SweepState, session: Session, other_checks: Sequence[Check]) -> list[Problem]:
    """Everything that keeps a stored sweep's plan from going on."""
    needs = [*_session_problems(session, state.resources), *(problem for check in other_checks for problem in check())]
    return [*needs, *continuation_problems(state.plan, session.cache)]
