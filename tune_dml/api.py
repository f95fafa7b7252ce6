"""The platform from Python: run, resume, load and report a sweep; what the command line calls.

sweep = tune_dml.run_sweep("sec_rho", dataset="glyphs", seeds=3)
sweep.table()                                   # one row per trial
tune_dml.write_report(sweep, "report")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.errors import ConfigError, Problem, raise_if_any
from tune_dml import cluster, ledger
from tune_dml.plan import Plan, SearchMethod
from tune_dml.preflight import DataProgress, Prepared, Request, prepare, request_for
from tune_dml.results import Results, load_results, results_of
from tune_dml.space import Space, Value
from tune_dml.trial import Resources

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from tune_dml.report import ReportFiles
    from tune_dml.tracking import SyncReport

__all__ = [
    "DEFAULT_STORAGE",
    "Sweep",
    "extend_sweep",
    "load_sweep",
    "resume_sweep",
    "run_sweep",
    "write_report",
]

DEFAULT_STORAGE = Path("sweeps")


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


@dataclass(frozen=True)
class Session:
    """How a session runs; None where the environment or a default decides."""

    address: str | None
    max_concurrent: int | None
    time_budget: float | None
    tracking_uri: str | None
    experiment: str | None
    cache_dir: str | Path | None
    console: Console | None


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
    storage: str | Path = DEFAULT_STORAGE,
    resources: Resources | None = None,
    address: str | None = None,
    max_concurrent: int | None = None,
    time_budget: float | None = None,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    cache_dir: str | Path | None = None,
    console: Console | None = None,
    data_progress: DataProgress | None = None,
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
        storage: the folder that keeps sweeps; on a cluster one that all nodes see.
        resources: workers, CPUs and GPUs of a trial.
        address: of a Ray cluster; RAY_ADDRESS, or this machine, by default.
        max_concurrent: trials at once; by default as many as fit.
        time_budget: seconds after which the sweep stops, resumable.
        tracking_uri: MLflow's; MLFLOW_TRACKING_URI, or SQLite in the working directory, by default.
        experiment: MLflow's experiment; MLFLOW_EXPERIMENT_NAME, or the space's name, by default.
        cache_dir: where decoded pictures are kept.
        console: where progress is shown; nowhere by default.
        data_progress: told of decoding as (done, total).

    Raises:
        ConfigError: everything that is wrong with the request, before any worker starts.
    """
    from tune_dml import tracking

    resources = resources or Resources()
    storage = Path(storage).absolute()
    request = request_for(
        space,
        dataset=dataset,
        data_root=Path(data_root).absolute() if data_root else None,
        seeds=seeds,
        settings=settings,
        method=search,
        num_samples=num_samples,
        name=name,
        cache_dir=Path(cache_dir).absolute() if cache_dir else None,
    )
    where = cluster.address_of(address)
    uri, _ = tracking.tracking_uri(tracking_uri)
    prepared = prepare(
        request,
        resources=resources,
        address=where,
        other_checks=[lambda: tracking.check(uri), lambda: _limit_problems(max_concurrent, time_budget)],
        progress=data_progress,
    )
    raise_if_any(_clashes(storage / prepared.plan.name, prepared.plan))
    session = Session(address, max_concurrent, time_budget, tracking_uri, experiment, cache_dir, console)
    return _execute(storage / prepared.plan.name, prepared, resources, session)


def resume_sweep(
    name: str,
    *,
    storage: str | Path = DEFAULT_STORAGE,
    address: str | None = None,
    max_concurrent: int | None = None,
    time_budget: float | None = None,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    cache_dir: str | Path | None = None,
    retry_failed: bool = False,
    console: Console | None = None,
) -> Sweep:
    """Run what a sweep still lacks, with the resources it was started with, and bring MLflow up to date.

    Finished trials are not rerun; interrupted ones continue from their checkpoint; with `retry_failed`, failed and
    diverged ones are tried again. Raises ConfigError when there is no such sweep, its data have changed, or it is running.
    """
    results = load_results(Path(storage).absolute(), name)
    if retry_failed:
        with ledger.Ledger(results.folder) as book:
            for trial in results.trials:
                if trial.status in {"failed", "diverged"}:
                    book.append("reset", trial.key)
    session = Session(address, max_concurrent, time_budget, tracking_uri, experiment, cache_dir, console)
    return _continue(results.folder, results.plan, (), session)


def extend_sweep(
    name: str,
    *,
    seeds: Sequence[int] = (),
    values: Mapping[str, Sequence[Value]] | None = None,
    num_samples: int = 0,
    storage: str | Path = DEFAULT_STORAGE,
    address: str | None = None,
    max_concurrent: int | None = None,
    time_budget: float | None = None,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    cache_dir: str | Path | None = None,
    console: Console | None = None,
) -> Sweep:
    """Add seeds, values of a listed knob, or cells to propose to a sweep, and run what is new.

    Raises ConfigError when the sweep cannot be extended so; nothing stored is changed then.
    """
    results = load_results(Path(storage).absolute(), name)
    plan = results.plan.extended(seeds=seeds, values=values, num_samples=num_samples)
    if plan.identity() == results.plan.identity():
        rule = "an extension must add a seed, a value or a sample that the sweep does not have"
        raise ConfigError(Problem("extend", rule, None, "Example: --seeds 5 or --add regularizer.rho=0.001."))
    said = f"extended to {len(plan.cells)} planned cells and seeds {', '.join(map(str, plan.seeds))}"
    session = Session(address, max_concurrent, time_budget, tracking_uri, experiment, cache_dir, console)
    return _continue(results.folder, plan, (said,), session)


def _continue(folder: Path, plan: Plan, notes: tuple[str, ...], session: Session) -> Sweep:
    """Run what the ledger lacks of a plan, with the resources of the last session, after the same checks as a new one."""
    from tune_dml import tracking

    resources = _last_resources(folder)
    where = cluster.address_of(session.address)
    uri, _ = tracking.tracking_uri(session.tracking_uri)
    root = plan.base_settings.get("data.root")
    cache = Path(session.cache_dir).absolute() if session.cache_dir else None
    request = Request(
        plan.space, plan.dataset, Path(str(root)) if root else None, name=plan.name, cache_dir=cache
    )
    raise_if_any(
        [
            *tracking.check(uri),
            *_limit_problems(session.max_concurrent, session.time_budget),
            *cluster.address_problems(*where),
            *_data_problems(plan, request),
        ]
    )
    return _execute(folder, Prepared(plan, notes), resources, session)


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

    if unseal_test:
        with ledger.Ledger(sweep.folder) as book:
            book.append("note", text="test metrics were opened for a report")
    return report.write_report(sweep.results, Path(path), margin=margin, unseal_test=unseal_test)


def _execute(folder: Path, prepared: Prepared, resources: Resources, session: Session) -> Sweep:
    from tune_dml import provenance, sweep, tracking
    from tune_dml.progress import Progress

    plan = prepared.plan
    uri, _ = tracking.tracking_uri(session.tracking_uri)
    experiment = tracking.experiment_name(session.experiment, plan)
    earlier = results_of(folder) if (folder / "plan.json").exists() else None
    progress = Progress(plan, session.console, done=earlier)
    finish = sweep.execute(
        folder,
        plan,
        sweep.Execution(
            resources,
            cluster.address_of(session.address)[0],
            session.max_concurrent,
            session.time_budget,
            Path(session.cache_dir).absolute() if session.cache_dir else None,
        ),
        progress=progress,
        tracker=tracking.Tracker(folder, plan, uri, experiment, say=progress.note),
        provenance=provenance.collect(),
        notes=prepared.notes,
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


def _data_problems(plan: Plan, request: Request) -> list[Problem]:
    """Resuming on other data would mix two studies."""
    from tune_dml.preflight import data_digest, datasets_of

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


def _limit_problems(max_concurrent: int | None, time_budget: float | None) -> list[Problem]:
    problems = []
    if max_concurrent is not None and max_concurrent < 1:
        problems.append(Problem("--max-concurrent", "must be at least 1", max_concurrent))
    if time_budget is not None and time_budget <= 0:
        problems.append(Problem("--time-budget", "must be more than 0 seconds", time_budget))
    return problems


def _last_resources(folder: Path) -> Resources:
    sessions = [event.body for event in ledger.read_events(folder) if event.kind == "session"]
    return Resources(**sessions[-1]["resources"]) if sessions else Resources()
