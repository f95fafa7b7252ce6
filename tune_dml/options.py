"""The options that several verbs of the command line share, and how their text is read. Loads nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from tune_dml.trial import Resources

__all__ = [
    "Address",
    "Cache",
    "DataRoot",
    "DataSetArgument",
    "Dataset",
    "Experiment",
    "Json",
    "Margin",
    "MaxConcurrent",
    "Name",
    "NumSamples",
    "Output",
    "Root",
    "SearchOption",
    "Seeds",
    "Set",
    "SpaceArgument",
    "Storage",
    "SweepArgument",
    "TimeBudget",
    "TrackingUri",
    "resources_of",
    "seeds_of",
    "settings_of",
    "values_of",
]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Storage = Annotated[Path, typer.Option(help="Folder that keeps sweeps; on a cluster one that all nodes see.")]
SpaceArgument = Annotated[
    str, typer.Argument(metavar="SPACE|FILE.yaml", help="A search space, or a sweep file.")
]
SweepArgument = Annotated[str, typer.Argument(metavar="SWEEP", help="A sweep's name.")]
Dataset = Annotated[str | None, typer.Option(help="Data set; the space's default otherwise.")]
DataRoot = Annotated[Path | None, typer.Option(help="Folder of the pictures, for data sets that need one.")]
DataSetArgument = Annotated[str, typer.Argument(metavar="NAME", help="A data set: `tune-dml datasets`.")]
Root = Annotated[
    Path | None, typer.Option("--root", "--data-root", help="Folder or archive of the data, as downloaded.")
]
Seeds = Annotated[str | None, typer.Option(help="How many paired seeds (3), or which (0,1,7).")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; repeatable.")
]
SearchOption = Annotated[
    Literal["grid", "tpe", "gp", "random"] | None, typer.Option("--search", help="How cells are chosen.")
]
NumSamples = Annotated[int | None, typer.Option(help="Cells that tpe, gp or random propose.")]
Name = Annotated[str | None, typer.Option(help="The sweep's name; the space's by default.")]
Cache = Annotated[Path | None, typer.Option("--cache-dir", help="Where decoded pictures are kept.")]
Address = Annotated[str | None, typer.Option(help="Ray cluster: auto, local, HOST:PORT or ray://HOST:PORT.")]
MaxConcurrent = Annotated[int | None, typer.Option(help="Trials at once; as many as fit by default.")]
TimeBudget = Annotated[float | None, typer.Option(help="Seconds after which the sweep stops, resumable.")]
TrackingUri = Annotated[
    str | None, typer.Option(help="MLflow; MLFLOW_TRACKING_URI or ./mlflow.db by default.")
]
Experiment = Annotated[str | None, typer.Option(help="MLflow experiment; the space's name by default.")]
Margin = Annotated[float | None, typer.Option(help="Differences below this do not matter (metric units).")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Folder to write to.")]


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


def resources_of(workers: int, cpus: int, gpus: float | None, engine: str | None) -> Resources:
    """What a trial needs; one GPU a worker where this machine has any and nothing else is said."""
    from tune_dml.cluster import local_capacity
    from tune_dml.trial import Resources

    if gpus is None:
        gpus = 1.0 if local_capacity().total("GPU") else 0.0
    return Resources(workers, cpus, gpus, engine or ("local" if workers == 1 else "train"))
