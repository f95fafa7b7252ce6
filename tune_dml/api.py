"""Run, resume, extend, load and report sweeps from Python.

    sweep = tune_dml.run_sweep("sec_rho", dataset="glyphs", seeds=3)
    tune_dml.write_report(sweep, "report")

All input errors are raised together as one `ConfigError` before any worker starts. Each names its argument.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar, get_type_hints

from rich.console import Console

from trainables.errors import nearest, raise_if_any
from tune_dml import operations
from tune_dml.planning.checks.prepare import DataProgress
from tune_dml.planning.files.keywords import keyword_problems
from tune_dml.planning.request import (
    Racing,
    Request,
    RequestedSearch,
    Resources,
    Session,
    Stopping,
    Vary,
    folder_problems,
)
from tune_dml.record.held_out.rescore import RescoredSweep
from tune_dml.record.results import Results
from tune_dml.record.state import load_state, read_state
from tune_dml.space import Space, Value
from tune_dml.sweep import Sweep
from tune_dml.text import python_numbers

if TYPE_CHECKING:
    from tune_dml.report import ReportFiles

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _check_arguments(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function: raise ConfigError for arguments of a wrong type, and suggest a name for unknown keywords.

    Numbers and arrays of numpy and torch become Python's numbers and lists.
    """
    signature = inspect.signature(function)
    keywords = [name for name, parameter in signature.parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]

    @functools.wraps(function)
    def checked_function(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if unknown := [key for key in kwargs if key not in signature.parameters]:
            remedy = nearest(unknown[0], list(signature.parameters), what="keyword")
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {unknown[0]!r}. {remedy}")
        hints = get_type_hints(function, localns={"ReportFiles": object})  # imported only when a report is written
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            remedy = f". Write {keywords[0]}=... and the like." if "positional" in str(error) else ""
            raise TypeError(f"{function.__name__}(): {error}{remedy}") from None
        plain = {name: value for name, value in bound.arguments.items() if not is_dataclass(value)}
        bound.arguments |= {name: python_numbers(value) for name, value in plain.items()}
        raise_if_any(keyword_problems(hints, bound.arguments))
        return function(*bound.args, **bound.kwargs)

    return checked_function


@_check_arguments
def run_sweep(
    space: str | Path | Space,
    *,
    dataset: str | None = None,
    data_root: str | Path | None = None,
    seeds: int | Sequence[int] | None = None,
    settings: Mapping[str, Value] | None = None,
    search: RequestedSearch | None = None,
    num_samples: int | None = None,
    name: str | None = None,
    margin: float | None = None,
    arms: Sequence[str] | None = None,
    protocol: str | None = None,
    tune: Mapping[str, Sequence[Value]] | None = None,
    stopping: Stopping | None = None,
    vary: Vary | None = None,
    until_decided: bool = False,
    max_seeds: int | None = None,
    budget: float | None = None,
    resources: Resources | None = None,
    storage: str | Path = Session.storage,
    address: str | None = None,
    max_concurrent: int | None = None,
    time_budget: float | None = None,
    gpu_hours: float | None = None,
    stall_limit: float | None = None,
    start_limit: float | None = None,
    trial_files: str | None = None,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    cache_dir: str | Path | None = None,
    console: Console | None = None,
    data_progress: DataProgress | None = None,
) -> Sweep:
    """Run a sweep on Ray Tune until it ends, and return it.

    A second call with the same name and plan runs only the trials that are missing.

    Args:
        space: Name of a search space, path of a sweep file, or a `Space`.
        dataset: Data set; the space's default otherwise.
        data_root: Folder or table (.csv, .tsv, .parquet) of the pictures, for data sets that read one.
        seeds: Number of paired seeds, or a list of seeds; 3 by default.
        settings: Settings to override, by dotted name: `{"training.steps": 300}`.
        search: Method that chooses cells; `grid` by default. `bayes` means `gp`.
        num_samples: Number of cells to propose, for every search but `grid`.
        name: Name of the sweep; by default made from its space and its data set.
        margin: Smallest difference that matters, in units of the metric.
        arms: Arms of the space to compare; all by default.
        protocol: Protocol of every arm; by default the one that a paper prints for the arm's loss.
        tune: Settings to tune in every arm, each with its values. An empty list tries three values around the default.
        stopping: Rule that stops weak cells early.
        vary: The only source of randomness that seeds change; all by default.
        until_decided: Add seeds to undecided cells until every question is answered.
        max_seeds: With `until_decided`: maximum number of seeds of a cell.
        budget: With `until_decided`: maximum GPU-hours (worker-hours without GPUs) of all trials.
        resources: Workers, CPUs and GPUs of a trial.
        storage: Folder that stores sweeps; on a cluster all nodes must see it.
        address: Ray cluster: `auto`, `local`, `HOST:PORT` or `ray://HOST:PORT`.
        max_concurrent: Maximum number of concurrent trials.
        time_budget: Seconds after which the sweep stops; it can be resumed.
        gpu_hours: GPU-hours (worker-hours without GPUs) after which the sweep stops; it can be resumed.
        stall_limit: Seconds without a training step after which a trial restarts from its checkpoint.
        start_limit: The same limit before a trial's first step.
        trial_files: Object storage for files and checkpoints of trials, such as `s3://bucket/prefix`.
        tracking_uri: MLflow store; by default `MLFLOW_TRACKING_URI`, the sweep's last store, or ./mlflow.db.
        experiment: MLflow experiment; the space's name by default.
        cache_dir: Folder for decoded pictures.
        console: Rich console that shows the progress; none by default.
        data_progress: Called with (done, total) while pictures are decoded.

    Raises:
        ConfigError: The request is wrong. Lists every problem; no worker has started.

    Example:
        >>> sweep = run_sweep("sec_rho", dataset="glyphs", seeds=3)  # doctest: +SKIP
        >>> sweep.best()  # doctest: +SKIP

        Errors name the argument, and the nearest valid name:

        >>> run_sweep("sec_rho", dataset="glyfs")
        Traceback (most recent call last):
        trainables.errors.ConfigError: dataset: unknown data set 'glyfs'. Did you mean 'glyphs'?
    """
    return operations.run(
        Request(
            space, dataset, data_root, seeds, settings, search, num_samples, name, margin, arms, protocol, tune,
            stopping, vary,
        ),
        Session(
            storage, address, max_concurrent, time_budget, gpu_hours, stall_limit, start_limit,
            trial_files=trial_files, tracking_uri=tracking_uri, experiment=experiment, cache_dir=cache_dir,
        ),
        Racing(until_decided, max_seeds, budget),
        resources=resources,
        console=console,
        data_progress=data_progress,
    )  # fmt: skip


@_check_arguments
def resume_sweep(
    name: str,
    *,
    retry_failed: bool = False,
    micro_batch: int | None = None,
    data_root: str | Path | None = None,
    storage: str | Path = Session.storage,
    address: str | None = None,
    max_concurrent: int | None = None,
    time_budget: float | None = None,
    gpu_hours: float | None = None,
    stall_limit: float | None = None,
    start_limit: float | None = None,
    trial_files: str | None = None,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    cache_dir: str | Path | None = None,
    console: Console | None = None,
) -> Sweep:
    """Run the missing trials of a stored sweep, with the resources of its last session, and update MLflow.

    Finished trials are kept. Interrupted trials continue from their checkpoints.

    Args:
        retry_failed: Also run failed and diverged trials again.
        micro_batch: Pictures that a worker processes at once; unchanged by default.
        data_root: New folder or table of the pictures, if they were moved. It is stored with the sweep.
        storage, address, ...: As for `run_sweep`.

    Raises:
        ConfigError: The sweep is unknown or running, its data have changed, or the cluster is too small.
            Nothing stored has changed.
    """
    session = Session(
        storage, address, max_concurrent, time_budget, gpu_hours, stall_limit, start_limit,
        trial_files=trial_files, tracking_uri=tracking_uri, experiment=experiment, cache_dir=cache_dir,
    )  # fmt: skip
    return operations.resume(
        name, session, retry_failed=retry_failed, micro_batch=micro_batch, data_root=data_root, console=console
    )


@_check_arguments
def extend_sweep(
    name: str,
    *,
    seeds: int | Sequence[int] = (),
    values: Mapping[str, Sequence[Value]] | None = None,
    num_samples: int = 0,
    arms: Sequence[str] = (),
    data_root: str | Path | None = None,
    storage: str | Path = Session.storage,
    address: str | None = None,
    max_concurrent: int | None = None,
    time_budget: float | None = None,
    gpu_hours: float | None = None,
    stall_limit: float | None = None,
    start_limit: float | None = None,
    trial_files: str | None = None,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    cache_dir: str | Path | None = None,
    console: Console | None = None,
) -> Sweep:
    """Add seeds, knob values, proposed cells or arms to a stored sweep, and run the new trials.

    Args:
        seeds: Number of seeds in all, or a list of seeds to add.
        values: Values to add, by knob: `{"regularizer.rho": [0.3]}`.
        num_samples: Number of further cells to propose, for every search but `grid`.
        arms: Arms of the space that the sweep does not have, or sweep files that declare further arms.
        data_root: New folder or table of the pictures, if they were moved. It is stored with the sweep.
        storage, address, ...: As for `run_sweep`.

    Raises:
        ConfigError: The sweep cannot be extended in this way, or cannot be resumed. Nothing stored has changed.
    """
    session = Session(
        storage, address, max_concurrent, time_budget, gpu_hours, stall_limit, start_limit,
        trial_files=trial_files, tracking_uri=tracking_uri, experiment=experiment, cache_dir=cache_dir,
    )  # fmt: skip
    return operations.extend(
        name, session, seeds=seeds, values=values, num_samples=num_samples, arms=arms, data_root=data_root,
        console=console,
    )  # fmt: skip


@_check_arguments
def confirm_sweep(
    name: str,
    *,
    top: int = 3,
    seeds: int = 5,
    storage: str | Path = Session.storage,
    address: str | None = None,
    max_concurrent: int | None = None,
    time_budget: float | None = None,
    gpu_hours: float | None = None,
    stall_limit: float | None = None,
    start_limit: float | None = None,
    trial_files: str | None = None,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    cache_dir: str | Path | None = None,
    console: Console | None = None,
) -> Sweep:
    """Train the best cells and the baseline again, with fresh seeds that had no part in their selection.

    These trials are in no selection, curve or verdict. A larger `seeds` extends an earlier confirmation.

    Args:
        top: Number of best cells, by validation.
        seeds: Number of fresh seeds of each cell, earlier ones included.
        storage, address, ...: As for `run_sweep`.

    Raises:
        ConfigError: No trial has finished, or the sweep cannot be resumed.
    """
    session = Session(
        storage, address, max_concurrent, time_budget, gpu_hours, stall_limit, start_limit,
        trial_files=trial_files, tracking_uri=tracking_uri, experiment=experiment, cache_dir=cache_dir,
    )  # fmt: skip
    return operations.confirm(name, session, top=top, seeds=seeds, console=console)


@_check_arguments
def open_sweep(
    name: str,
    *,
    selection: str = "",
    storage: str | Path = Session.storage,
    tracking_uri: str | None = None,
    experiment: str | None = None,
) -> Sweep:
    """Open the test metrics of a sweep, and write them to MLflow.

    The user, the time and the cell that validation selects are recorded. A second call changes nothing.

    Args:
        selection: The purpose of the selection, which is recorded.
        storage, tracking_uri, experiment: As for `run_sweep`.

    Raises:
        ConfigError: No trial has finished, or the sweep is running.
    """
    session = Session(storage, tracking_uri=tracking_uri, experiment=experiment)
    return operations.open_test(name, session, selection=selection)


@_check_arguments
def rescore_sweep(
    name: str,
    *,
    metrics: Sequence[str],
    storage: str | Path = Session.storage,
    tracking_uri: str | None = None,
    experiment: str | None = None,
) -> tuple[RescoredSweep, str | None]:
    """Compute further metrics from stored embeddings (`evaluation.keep=embeddings`), without training.

    Validation metrics go to the ledger, tables and MLflow; test metrics stay sealed.

    Args:
        metrics: Retrieval metrics by their logged names, such as `recall_at_10`.
        storage, tracking_uri, experiment: As for `run_sweep`.

    Returns:
        The new metrics, and the reason if they are not in MLflow (None if they are).

    Raises:
        ConfigError: A metric is unknown, or no embeddings were stored.
    """
    session = Session(storage, tracking_uri=tracking_uri, experiment=experiment)
    return operations.rescore(name, session, metrics=metrics)


@_check_arguments
def load_sweep(name: str, *, storage: str | Path = Session.storage) -> Sweep:
    """Load a stored sweep.

    Raises:
        ConfigError: There is no sweep of this name.

    Example:
        >>> load_sweep("rho1", storage="no/such/folder")
        Traceback (most recent call last):
        trainables.errors.ConfigError: ...
    """
    state = load_state(Path(storage).absolute(), name)
    return Sweep(Results.of(state), interrupted=state.is_incomplete, state=state)


@_check_arguments
def write_report(
    sweep: Sweep,
    path: str | Path,
    *,
    margin: float | None = None,
    paper_sd: float | None = None,
    unseal_test: bool = False,
    forms: Sequence[Literal["pdf", "png"]] = (),
) -> ReportFiles:
    """Write the sensitivity report (HTML, CSV, LaTeX, JSON) of a sweep into a folder, and record the look.

    Args:
        sweep: Result of `run_sweep` or `load_sweep`.
        path: Folder to write to, created if it is missing.
        margin: Smallest difference that matters; the planned one by default.
        paper_sd: Standard deviation between runs of the papers' numbers; that of our runs by default.
        unseal_test: First open the test metrics, as `open_sweep` does. The next sync writes them to MLflow.
        forms: Formats of the figures in addition to SVG.
    """
    raise_if_any(folder_problems("path", path))
    state = read_state(sweep.folder)
    if unseal_test and not state.opened:
        operations.open_results(state)
    return operations.write_report(state, Path(path), margin, paper_sd, forms)
