"""The options that several verbs share, and how their text is read. Loads nothing heavy.

Options that belong together are fields of one frozen dataclass; `spread` lets a verb take it as a single parameter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, get_type_hints

import typer

from tune_dml.planning.session import DEFAULT_STORAGE, SessionOptions

if TYPE_CHECKING:
    from rich.console import Console

    from tune_dml.planning.plan import SearchMethod
    from tune_dml.planning.request import Resources


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Storage = Annotated[Path, typer.Option(help="Folder that keeps sweeps; on a cluster one that all nodes see.")]
SpaceArgument = Annotated[str, typer.Argument(metavar="SPACE|FILE.yaml", help="A search space, or a sweep file.")]
SweepArgument = Annotated[str, typer.Argument(metavar="SWEEP", help="A sweep's name.")]
DataRoot = Annotated[Path | None, typer.Option(help="Folder of the pictures, for data sets that need one.")]
DataSetArgument = Annotated[str, typer.Argument(metavar="NAME", help="A data set: `tune-dml datasets`.")]
Root = Annotated[
    Path | None, typer.Option("--root", "--data-root", help="Folder or archive of the data, as downloaded.")
]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; repeatable.")]
Cache = Annotated[Path | None, typer.Option("--cache-dir", help="Where decoded pictures are kept.")]
Address = Annotated[str | None, typer.Option(help="Ray cluster: auto, local, HOST:PORT or ray://HOST:PORT.")]
TrackingUri = Annotated[str | None, typer.Option(help="MLflow; MLFLOW_TRACKING_URI or ./mlflow.db by default.")]
Experiment = Annotated[str | None, typer.Option(help="MLflow experiment; the space's name by default.")]
Margin = Annotated[float | None, typer.Option(help="Differences below this do not matter (metric units).")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Folder to write to.")]


class Request(TypedDict):
    """What a sweep is about: the keywords that `run_sweep` and `request_for` share."""

    dataset: str | None
    data_root: Path | None
    seeds: int | tuple[int, ...] | None
    settings: dict[str, Any]
    search: SearchMethod | None
    num_samples: int | None
    name: str | None


@dataclass(frozen=True)
class Asked:
    """What a sweep is about, besides its space."""

    dataset: Annotated[str | None, typer.Option(help="Data set; the space's default otherwise.")] = None
    data_root: DataRoot = None
    seeds: Annotated[str | None, typer.Option(help="How many paired seeds (3), or which (0,1,7).")] = None
    settings: Set = None
    search: Annotated[
        Literal["grid", "tpe", "gp", "random"] | None, typer.Option("--search", help="How cells are chosen.")
    ] = None
    num_samples: Annotated[int | None, typer.Option(help="Cells that tpe, gp or random propose.")] = None
    name: Annotated[str | None, typer.Option(help="The sweep's name; the space's by default.")] = None

    def keywords(self) -> Request:
        """Read; raises ConfigError for text that is no seeds or settings."""
        return {
            "dataset": self.dataset,
            "data_root": absolute(self.data_root),
            "seeds": seeds_of(self.seeds),
            "settings": settings_of(self.settings),
            "search": self.search,
            "num_samples": self.num_samples,
            "name": self.name,
        }


@dataclass(frozen=True)
class WorkerFlags:
    """What a trial needs."""

    workers: Annotated[int, typer.Option(help="Workers (DDP) of each trial; more than one uses Ray Train.")] = 1
    cpus_per_worker: Annotated[int, typer.Option(help="CPUs, and torch threads, of each worker.")] = 1
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(help="GPUs of each worker: a share for small trials; 1 where there is a GPU."),
    ] = None

    def resources(self, engine: str | None = None) -> Resources:
        """One GPU a worker where this machine has any and nothing else is said."""
        from tune_dml.planning.request import Resources
        from tune_dml.running.cluster import local_capacity

        gpus = self.gpus_per_worker
        if gpus is None:
            gpus = 1.0 if local_capacity().total("GPU") else 0.0
        chosen = engine or ("local" if self.workers == 1 else "train")
        return Resources(self.workers, self.cpus_per_worker, gpus, chosen)


@dataclass(frozen=True)
class SessionFlags:
    """How a session runs: the flags of `tune_dml.planning.session.SessionOptions`."""

    storage: Storage = DEFAULT_STORAGE
    address: Address = None
    max_concurrent: Annotated[int | None, typer.Option(help="Trials at once; as many as fit by default.")] = None
    time_budget: Annotated[float | None, typer.Option(help="Seconds after which the sweep stops, resumable.")] = None
    tracking_uri: TrackingUri = None
    experiment: Experiment = None
    cache_dir: Cache = None

    def keywords(self, console: Console) -> SessionOptions:
        """As `run_sweep`, `resume_sweep` and `extend_sweep` take them."""
        return {
            "storage": self.storage,
            "address": self.address,
            "max_concurrent": self.max_concurrent,
            "time_budget": self.time_budget,
            "tracking_uri": self.tracking_uri,
            "experiment": self.experiment,
            "cache_dir": self.cache_dir,
            "console": console,
        }


@dataclass(frozen=True)
class Ending:
    """How a session's report is written and shown."""

    margin: Margin = None
    output: Output = None
    as_json: Json = False


def spread(verb: Callable[..., None]) -> Callable[..., None]:
    """Turn every parameter that is a dataclass of options into its fields, as Typer reads them, in their place."""
    signature, hints = inspect.signature(verb), get_type_hints(verb, include_extras=True)
    groups = {name: hints[name] for name in signature.parameters if is_dataclass(hints[name])}
    shown: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in groups:
            shown += _parameters(groups[name])
        else:
            shown.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))

    @wraps(verb)
    def gathered(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        verb(**given)

    gathered.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    gathered.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return gathered


def _parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(group)
    ]


def absolute(path: Path | None) -> Path | None:
    """Against the working directory and the home of whoever typed it (a shell leaves the ~ of --root=~/x alone)."""
    return path.expanduser().absolute() if path else None


def settings_of(pairs: list[str] | None) -> dict[str, Any]:
    """`KEY=VALUE` of --set; raises ConfigError for what does not read so."""
    from trainables.config import parse_value
    from trainables.errors import ConfigError, Problem

    settings: dict[str, Any] = {}
    problems = []
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            problems.append(Problem("--set", "must read KEY=VALUE", pair, "Example: --set loss.margin=0.2."))
        settings[key.strip()] = parse_value(value)
    if problems:
        raise ConfigError(problems)
    return settings


def values_of(pairs: list[str] | None) -> dict[str, list[Any]]:
    """`KEY=V,V` of --add."""
    from trainables.config import parse_value

    split = (pair.partition("=") for pair in pairs or [])
    return {key.strip(): [parse_value(part.strip()) for part in text.split(",")] for key, _, text in split}


def seeds_of(text: str | None) -> int | tuple[int, ...] | None:
    """A count, or a list of seeds; raises ConfigError for anything else."""
    from trainables.errors import ConfigError, Problem

    if text is None:
        return None
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()] or [-1]
    except ValueError:
        numbers = [-1]
    if min(numbers) < 0 or (len(numbers) == 1 and "," not in text and numbers[0] < 1):
        rule = "seeds are a count of at least 1, or whole numbers >= 0 with commas"
        raise ConfigError(Problem("--seeds", rule, text, "Example: --seeds 3, or --seeds 0,1,7."))
    return numbers[0] if len(numbers) == 1 and "," not in text else tuple(numbers)
