"""The platform from Python: run, resume, load and report a sweep; what the command line calls.

sweep = tune_dml.run_sweep("sec_rho", dataset="glyphs", seeds=3)
sweep.table()                                   # one row per trial
tune_dml.write_report(sweep, "report")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from trainables.config import PROTOCOL_VERSION
from trainables.errors import ConfigError, Problem, raise_if_any
from tune_dml.planning.checks import DataProgress, Request, prepare, request_for, resource_problems
from tune_dml.planning.plan import Plan, SearchMethod
from tune_dml.planning.request import Resources
from tune_dml.planning.session import DEFAULT_STORAGE, Session, SessionOptions
from tune_dml.record.ledger import Ledger
from tune_dml.record.results import Results, load_results
from tune_dml.record.state import SweepState, load_state
from tune_dml.space import Space, Value

if TYPE_CHECKING:
    import pandas as pd

    from tune_dml.report import ReportFiles
    from tune_dml.tracking.tracker import SyncReport


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


def run_sweep(
    space: str | Path | Space,
    *,
    dataset: str | None = None,
    data_root: str | Path | None = None,
    seeds: int | Sequence[int] | None = None,
    settings: Mapping[str, Value] | None = None,
    search: SearchMethod | None = None,
    num_samples: int | None = None,
    name: str | None = None,
    resources: Resources | None = None,
    data_progress: DataProgress | None = None,
    **options: Unpack[SessionOptions],
) -> Sweep:
    """Run a sweep to its end on Ray Tune and return it.

    Running a finished or interrupted sweep again under the same name and plan runs only what is missing.

    Args:
        space: a search space's name, a sweep file (.yaml), or a Space.
        dataset: a data set's name; the space's default otherwise.
        data_root: the folder of the pictures, for data sets that need one.
        seeds: how many paired seeds (0, 1, ...), or which.
        settings: dotted settings that override the protocol's and the space's (`{"training.steps": 100}`).
        search: grid (exact), or tpe, gp, random with `num_samples` cells.
        num_samples: cells that an adaptive search proposes.
        name: the sweep's name; the space's by default.
        resources: workers, CPUs and GPUs of a trial.
        data_progress: told of decoding as (done, total).
        **options: where and how it runs; see `SessionOptions`.

    Raises:
        ConfigError: everything that is wrong with the request, before any worker starts.
    """
    session = Session(**options)
    resources = resources or Resources()
    request = request_for(
        space,
        dataset=dataset,
        data_root=Path(data_root).absolute() if data_root else None,
        seeds=seeds,
        settings=settings,
        search=search,
        num_samples=num_samples,
        name=name,
        cache_dir=session.cache,
    )
    prepared = prepare(
        request,
        resources=resources,
        address=session.place,
        other_checks=[session.problems],
        progress=data_progress,
    )
    folder = session.sweeps / prepared.plan.name
    raise_if_any(_clashes(folder, prepared.plan))
    return _execute(SweepState(folder, prepared.plan), prepared.notes, resources, session)


def resume_sweep(name: str, *, retry_failed: bool = False, **options: Unpack[SessionOptions]) -> Sweep:
    """Run what a sweep still lacks, with the resources it was started with, and bring MLflow up to date.

    Finished trials are not rerun; interrupted ones continue from their checkpoint; with `retry_failed`, failed and
    diverged ones are tried again. The options are those of `SessionOptions`. Raises ConfigError when there is no such
    sweep, its data have changed, it does not fit on the cluster, or it is running; nothing stored is changed then.
    """
    session = Session(**options)
    state = load_state(session.sweeps, name)
    again = [key for key in state.trials if state.trial(key).status in {"failed", "diverged"}]
    return _continue(state, session, reset=again if retry_failed else [])


def extend_sweep(
    name: str,
    *,
    seeds: Sequence[int] = (),
    values: Mapping[str, Sequence[Value]] | None = None,
    num_samples: int = 0,
    **options: Unpack[SessionOptions],
) -> Sweep:
    """Add seeds, values of a listed knob, or cells to propose to a sweep, and run what is new.

    The options are those of `SessionOptions`. Raises ConfigError when the sweep cannot be extended so, and for what
    `resume_sweep` raises it; nothing stored is changed then.
    """
    session = Session(**options)
    state = load_state(session.sweeps, name)
    plan = state.plan.extended(seeds=seeds, values=values, num_samples=num_samples)
    if plan.identity() == state.plan.identity():
        rule = "an extension must add a seed, a value or a sample that the sweep does not have"
        raise ConfigError(Problem("extend", rule, None, "Example: --seeds 5 or --add regularizer.rho=0.001."))
    said = f"extended to {len(plan.cells)} planned cells and seeds {', '.join(map(str, plan.seeds))}"
    state.replan(plan)
    return _continue(state, session, notes=(said,))


def _continue(state: SweepState, session: Session, *, notes: tuple[str, ...] = (), reset: Sequence[str] = ()) -> Sweep:
    """Run what the ledger lacks of a plan, with the resources of the last session, after the same checks as a new one."""
    plan, resources = state.plan, state.resources
    root = plan.base_settings.get("data.root")
    request = Request(
        plan.space, plan.dataset, Path(str(root)) if root else None, name=plan.name, cache_dir=session.cache
    )
    raise_if_any(
        [
            *session.problems(),
            *resource_problems(resources, session.place),
            *_version_problems(plan),
            *_data_problems(plan, request),
        ]
    )
    if reset:
        with Ledger(state.folder) as ledger:
            for key in reset:
                ledger.append("reset", key)
    return _execute(state, notes, resources, session)


def load_sweep(name: str, *, storage: str | Path = DEFAULT_STORAGE) -> Sweep:
    """A sweep as it stands on disk; raises ConfigError when there is none of that name."""
    results = load_results(Path(storage).absolute(), name)
    return Sweep(results, interrupted=results.count("missing") + results.count("running") > 0)


def write_report(
    sweep: Sweep, path: str | Path, *, margin: float | None = None, unseal_test: bool = False
) -> ReportFiles:
    """Write the sensitivity report (HTML, CSV, LaTeX, JSON) of a sweep into a folder.

    Args:
        sweep: from `run_sweep` or `load_sweep`.
        path: the folder, made if missing.
        margin: differences below this do not matter; the space's by default.
        unseal_test: open the test metrics; recorded in the sweep's ledger.
    """
    from tune_dml import report

    return report.write_report(sweep.results, Path(path), margin=margin, unseal_test=unseal_test)


def _execute(state: SweepState, notes: tuple[str, ...], resources: Resources, session: Session) -> Sweep:
    from tune_dml import tracking
    from tune_dml.record import provenance
    from tune_dml.running import sweep
    from tune_dml.running.progress import Progress

    state.update()
    plan, progress = state.plan, Progress(state, session.console)
    address, _ = session.place
    finish = sweep.execute(
        state,
        sweep.Execution(resources, address, session.max_concurrent, session.time_budget, session.cache),
        progress=progress,
        tracker=tracking.Tracker(state, session.uri, session.experiment_of(plan), say=progress.note),
        provenance=provenance.collect(),
        notes=notes,
    )
    return Sweep(finish.results, finish.interrupted, finish.tracking)


def _clashes(folder: Path, plan: Plan) -> list[Problem]:
    """A name in use by another plan; the same plan again is a resume."""
    path = folder / "plan.json"
    if not path.exists() or Plan.load(path).identity() == plan.identity():
        return []
    rule = f"the name belongs to a sweep with another plan, kept in {folder}"
    remedy = f"Choose another --name, or continue that one with `tune-dml resume {plan.name}`."
    return [Problem("--name", rule, plan.name, remedy)]


def _version_problems(plan: Plan) -> list[Problem]:
    """Trials of two protocol versions would look like replicates and be none."""
    if plan.protocol_version == PROTOCOL_VERSION:
        return []
    rule = f"the sweep was begun by protocol version {plan.protocol_version}; this program trains by {PROTOCOL_VERSION}"
    remedy = "Start a new sweep under another --name; its report can still be written."
    return [Problem("protocol version", rule, plan.protocol_version, remedy)]


def _data_problems(plan: Plan, request: Request) -> list[Problem]:
    """Resuming on other data would mix two studies."""
    from tune_dml.planning.checks import data_digest, datasets_of

    try:
        datasets = datasets_of(plan, request)
        raise_if_any(problem for dataset in datasets for problem in dataset.check())
        digest = data_digest(*datasets)
    except ConfigError as error:
        return list(error.problems)
    if digest == plan.data_digest:
        return []
    rule = "the data must be those the sweep began with; their content has changed"
    return [Problem("data", rule, digest[:12], "Restore them, or start a new sweep under another --name.")]
