"""`tune-dml train`: train one trial without Ray, MLflow or a sweep, or repeat a stored one exactly."""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainables.errors import ConfigError, Problem, raise_if_any
from tune_dml.cli.options import Json, absolute, verb
from tune_dml.cli.screen import Lines, console_for, print_result, progress_bar, table
from tune_dml.space import Value

if TYPE_CHECKING:
    from rich.console import Console

    from trainables.config import TrialConfig
    from trainables.context import Row
    from tune_dml.record.events import TrialEnd

ORDER = 100
EXAMPLES = """
tune-dml train --set loss.name=triplet --set training.steps=50
tune-dml train 3f2a                                   # repeat a stored trial; `status SWEEP --trials` lists them
tune-dml train --protocol glyphs/triplet --show       # the settings alone
"""
BARE_SHOWS_HELP = True
_FLAGS = {"data.name": "--dataset", "data.root": "--data-root", "seed": "--seed"}
"""Settings with their own flags -> the flag."""


@verb
def train(
    trial: Annotated[str | None, typer.Argument(metavar="TRIAL", help="The id of a trial to run again.")] = None,
    *,
    settings: Mapping[str, Value],
    dataset: Annotated[
        str | None, typer.Option(help="Data set; by default the trial's or the protocol's, else glyphs.")
    ] = None,
    protocol: Annotated[str | None, typer.Option(help="Start from a protocol, such as glyphs/triplet.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; by default the trial's, else 0.")] = None,
    data_root: Path | None,
    threads: Annotated[int | None, typer.Option(min=1, help="Torch threads; by default the trial's, else 1.")] = None,
    storage: Path,
    cache_dir: Path | None,
    preview: Annotated[
        bool, typer.Option("--show", help="Print the resolved settings and their origins; do not train.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train one trial without Ray or MLflow: debug a setting, or repeat a stored trial exactly."""
    single = _single_trial(
        trial,
        settings=settings,
        flags={"data.name": dataset, "data.root": str(absolute(data_root)) if data_root else None, "seed": seed},
        protocol=protocol,
        threads=threads,
        storage=storage.absolute(),
        cache_dir=cache_dir,
    )
    if preview:
        settings, origins = single.config.settings(), single.origins
        rows = [(name, value, origins.get(name, "default")) for name, value in settings.items()]
        data = {name: {"value": value, "origin": origin} for name, value, origin in rows}
        print_result(data, [table("Resolved settings", ("setting", "value", "origin"), rows)], as_json)
        return
    with redirect_stdout(sys.stderr if as_json else sys.stdout):  # a method of the user's may print
        trained = run(single, console_for(as_json))
    print_result(trained.data(), trained.text(), as_json)
    raise typer.Exit(0 if trained.end.status == "finished" else 3)


@dataclass(frozen=True)
class SingleTrial:
    """One trial to run."""

    config: TrialConfig
    origins: Mapping[str, str]
    threads: int
    cache_dir: Path | None
    recorded: Mapping[str, float]  # metrics that the sweep recorded, if this repeats a stored trial
    pictures: Path  # folder for the trial's pictures; each configuration and seed has its own


@dataclass(frozen=True)
class TrainedTrial:
    """A trial that `train` has run."""

    end: TrialEnd
    recorded: Mapping[str, float]
    pictures: tuple[Path, ...] = ()  # stored pictures
    not_kept: str = ""  # why no pictures are stored

    @property
    def differences(self) -> dict[str, tuple[float, float]]:
        """Metrics that differ from the recorded ones in any digit: (now, recorded)."""
        both = {name: (value, self.recorded[name]) for name, value in self.end.metrics.items() if name in self.recorded}
        return {name: pair for name, pair in both.items() if len(set(pair)) > 1 and not all(map(math.isnan, pair))}

    def data(self) -> dict[str, object]:
        fields = {name: value for name, value in self.end.to_json().items() if name != "metrics"}
        data = {**fields, "metrics": dict(self.end.metrics)}
        if self.recorded:
            data |= {"reproduced": not self.differences, "differences": self.differences}
        return {**data, "pictures": [str(path) for path in self.pictures], "not_kept": self.not_kept}

    def text(self) -> Lines:
        if self.end.status != "finished":
            yield f"{self.end.status}: {self.end.reason}"
            if self.end.traceback and self.end.kind != "config":  # whose reason says all
                yield self.end.traceback
            return
        yield table("", ("metric", "value"), ((k, f"{v:.4f}") for k, v in self.end.metrics.items()), right=("value",))
        if self.recorded and not self.differences:
            yield "Reproduced: every metric equals the recorded one to the last digit."
        elif self.recorded:
            yield f"NOT reproduced: {len(self.differences)} metrics differ: {self.differences}"
        if self.pictures:
            yield f"Pictures: {self.pictures[0].parent} ({', '.join(path.name for path in self.pictures)})"
        if self.not_kept:
            yield f"Pictures: not kept ({self.not_kept})"
        yield "Test metrics are sealed; `tune-dml open SWEEP` opens those of a sweep, once."


def _single_trial(
    trial: str | None,
    *,
    settings: Mapping[str, Value],
    flags: Mapping[str, Value] | None = None,
    protocol: str | None = None,
    threads: int | None = None,
    storage: Path,
    cache_dir: Path | None = None,
) -> SingleTrial:
    """Resolve a stored trial or a protocol, and apply the given settings. Raise ConfigError for invalid settings."""
    from trainables.resolve import Layer, read_settings, resolve
    from tune_dml.catalogue import find_protocol
    from tune_dml.planning.arms.settings import trial_layers

    if trial is not None and protocol is not None:
        raise ConfigError(Problem("--protocol", "a stored trial has its own settings", protocol, "Leave it out."))
    flagged = {path: value for path, value in (flags or {}).items() if value is not None}
    own, sources = {**settings, **flagged}, {path: _FLAGS[path] for path in flagged}
    stored, stored_threads, metrics = ({}, 1, {}) if trial is None else _load_trial(trial, storage)
    start = None if protocol is None else find_protocol(protocol, "--protocol")
    layers = trial_layers(start, own) if trial is None else [Layer(f"trial {trial}", stored)]
    resolved = resolve(*layers, Layer("--set", own, sources))
    config = resolved.config
    recorded = metrics if metrics and config == read_settings(stored) else {}
    folder = storage.absolute() / "trained" / f"{config.digest()}-seed{config.seed}"
    return SingleTrial(config, resolved.origins, threads or stored_threads, cache_dir, recorded, folder)


def run(single: SingleTrial, console: Console) -> TrainedTrial:
    """Train a trial in this process and print its rows. Raise ConfigError for settings that do not fit the data."""
    import torch

    from trainables.context import EVIDENCE, TrialContext
    from trainables.tasks import task_of
    from tune_dml.planning.checks.data import training_data
    from tune_dml.planning.checks.dry_run import start_notes
    from tune_dml.planning.checks.gpus import visibility_problems
    from tune_dml.running.trials.trial import run_trial

    config = single.config
    task = task_of(config)
    raise_if_any(visibility_problems())
    with progress_bar(console, "decoding") as progress:
        dataset = training_data(config.settings(), single.cache_dir)
        further = task.further_datasets(single.cache_dir)
        raise_if_any([problem for item in (dataset, *further) for problem in item.check()])
        pictures = dataset.prepare(progress)
    raise_if_any(task.data_problems(pictures))
    for note in (*pictures.notes, *task.notes(pictures), *start_notes([config], None)):
        console.print(note)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory(prefix="tune-dml-") as folder:
        context = TrialContext(
            Path(folder), device, threads=single.threads, sink=partial(_show_row, console, task.headline)
        )
        end = run_trial(config.settings(), context, single.cache_dir)
        try:
            return TrainedTrial(end, single.recorded, _copy_pictures(Path(folder) / EVIDENCE, single.pictures))
        except OSError as error:  # report the metrics even without the pictures
            reason = f"{error.filename or single.pictures}: {error.strerror or error}"
            return TrainedTrial(end, single.recorded, not_kept=reason)


def _show_row(console: Console, headline: str, row: Row) -> None:
    """Print a row. A closed pipe or a full disk of the output does not end the trial."""
    judged = f"  {headline} {row[headline]:.2f}" if headline in row else ""
    with suppress(OSError, SystemExit):  # Rich exits if a pipe is closed
        console.print(f"step {row['step']:>6}  loss {row['train/loss']:.4f}{judged}")


def _copy_pictures(source: Path, folder: Path) -> tuple[Path, ...]:
    """Copy a trial's pictures to a folder; replace those of an earlier run."""
    if not source.is_dir():
        return ()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    return tuple(sorted(folder.iterdir()))


def _load_trial(trial: str, storage: Path) -> tuple[dict[str, Value], int, dict[str, float]]:
    """Return settings, threads and metrics of a stored trial, by its id or a unique prefix.

    Unreadable sweeps are skipped; `tune-dml list` names them.
    """
    from tune_dml.record.results import load_results
    from tune_dml.record.state import sweep_names

    matches = []
    for name in sweep_names(storage):
        with suppress(ConfigError, OSError):
            results = load_results(storage, name)
            matches += [(results, item) for item in (*results.trials, *results.confirmed) if item.key.startswith(trial)]
    if len({item.key for _, item in matches}) != 1:
        rule = "unknown trial" if not matches else "several stored trials have an id with this prefix"
        remedy = f"`tune-dml status SWEEP --trials` lists them (under {storage})."
        raise ConfigError(Problem("TRIAL", rule, trial, remedy))
    results, item = next(((r, i) for r, i in matches if i.status == "finished"), matches[0])
    if results.plan.space.program is not None:
        remedy = f"Run the program itself, with {item.cell.label} and seed {item.seed}."
        raise ConfigError(Problem("TRIAL", "a program trained this trial", trial, remedy))
    settings: dict[str, Value] = {**item.cell.settings, "seed": item.seed}
    if item.micro_batch is not None:
        settings["training.micro_batch"] = item.micro_batch
    return settings, results.resources.cpus_per_worker, dict(item.metrics)
