"""`tune-dml plan`: what a sweep would run, what is there already, what it costs and what it can show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainables.errors import ConfigError
from tune_dml.cli.options import Json, engine_of, verb
from tune_dml.cli.screen import console_for, show, table
from tune_dml.planning.request import Request, Resources, Session
from tune_dml.space import Domain, Grid
from tune_dml.text import counted, duration, one_line, shortened

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tune_dml.planning.plan import Plan
    from tune_dml.record.results import Results
    from tune_dml.stats.assurance import VerdictChances

ORDER = 30
EXAMPLES = """
tune-dml plan sec_rho                                 # cells, cost, power of a study
tune-dml plan mine.yaml --all                         # every setting, and where it comes from
tune-dml plan sec_eta --dataset cub200 --data-root /data/CUB_200_2011
"""
_TRIAL_BYTES = 100_000
"""What a trial leaves at most (docs/log.md, evidence of a trial), hits of 60,000 queries among it; embeddings come on top."""
_DIFFERENCES = (0.0, 1.0, 2.0, 4.0)
"""True differences that are looked at, in margins."""


@verb
def plan(
    request: Request,
    *,
    storage: Path,
    workers: int,
    cpus_per_worker: int,
    gpus_per_worker: float | None,
    cache_dir: Path | None,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Time a few steps of each kind of cell here: cost and memory without a sweep."),
    ] = False,
    whole: Annotated[
        bool,
        typer.Option("--all", help="Also every cell and setting, where it comes from, and the verdicts to expect."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Cells, what is done already, cost and power of a sweep; runs and changes nothing."""
    from tune_dml.running.shares import settled

    resources = settled(Resources(workers, cpus_per_worker, gpus_per_worker, engine_of(workers)), None)
    preview = _preview(request, resources, Session(storage, cache_dir=cache_dir), probe=probe)
    show(_FullPreview(preview) if whole else preview, as_json)


@dataclass(frozen=True)
class _Cost:
    """What a trial costs, by a probe, or by stored trials of the same data set and length."""

    seconds: float | None
    """Of one trial; None when there is nothing to go by."""
    source: str
    concurrent: int
    memory_bytes: int | None = None
    """The most that a trial's process holds; None where nothing was probed."""
    gpu_bytes: int = 0
    """The most that it holds on a GPU."""


@dataclass(frozen=True)
class _Power:
    """What the planned seeds can show, from the noise of a stored sweep; per unit of noise when there is none."""

    noise: float | None
    detectable: float
    half_width: float
    source: str
    chances: tuple[VerdictChances, ...] = ()
    """Of each verdict about the knob, when one of its levels truly differs; empty while the noise is not known."""
    seeds: tuple[int | None, int | None] | None = None
    """Seeds that would decide; None at an end where no reasonable number would, altogether while the noise is not known."""


@dataclass(frozen=True)
class _Preview:
    """A plan and what is known about its cost."""

    plan: Plan
    notes: tuple[str, ...]
    done: int
    cost: _Cost
    power: _Power
    kept_bytes: int | None = 0
    """What each trial keeps because it was asked to; None where that is not known before the pictures are decoded."""
    gpus: float = 0.0
    """GPUs of a trial."""

    @property
    def trials(self) -> int:
        """How many trials the sweep has, proposed ones included."""
        return (len(self.plan.cells) + self.plan.search.num_samples) * len(self.plan.seeds)

    @property
    def eta_seconds(self) -> float | None:
        """Wall time on this machine."""
        if self.cost.seconds is None or not self.cost.concurrent:
            return None
        return self.cost.seconds * (self.trials - self.done) / self.cost.concurrent

    @property
    def worker_hours(self) -> float | None:
        """Of the trials that are left, as if each had one worker."""
        return None if self.cost.seconds is None else (self.trials - self.done) * self.cost.seconds / 3600

    @property
    def disk_bytes(self) -> int:
        """What all trials leave in the storage."""
        return self.trials * (_TRIAL_BYTES + (self.kept_bytes or 0))

    def data(self) -> dict[str, Any]:
        """Everything as JSON."""
        plan = self.plan
        return {
            "sweep": plan.name,
            "space": plan.space.name,
            "dataset": plan.dataset,
            "metric": plan.metric,
            "search": vars(plan.search),
            "seeds": list(plan.seeds),
            "arms": [{"name": arm.name, "protocol": arm.protocol.name if arm.protocol else None} for arm in plan.arms],
            "cells": [
                {"label": c.label, "arm": c.arm or None, "knobs": dict(c.knobs), "digest": c.digest} for c in plan.cells
            ],
            "trials": self.trials,
            "done": self.done,
            "seconds_per_trial": self.cost.seconds,
            "eta_seconds": self.eta_seconds,
            "cost_source": self.cost.source,
            "gpu_hours": None if self.worker_hours is None else self.worker_hours * self.gpus,
            "memory_bytes": self.cost.memory_bytes,
            "gpu_memory_bytes": self.cost.gpu_bytes,
            "noise": self.power.noise,
            "detectable_difference": self.power.detectable,
            "interval_half_width": self.power.half_width,
            "power_source": self.power.source,
            "margin": plan.margin,
            "verdict_chances": [{**vars(chance), "undecided": chance.undecided} for chance in self.power.chances],
            "seeds_to_decide": self.power.seeds,
            "disk_bytes": self.disk_bytes,
            "kept_bytes": self.kept_bytes,
            "settings": {k: {"value": v, "origin": plan.origins.get(k, "")} for k, v in plan.base_settings.items()},
            "notes": list(self.notes),
        }

    def text(self) -> Iterable[RenderableType]:
        """Eight lines, and one for each note."""
        plan = self.plan
        yield f"{plan.name}: {plan.space.title}, on {plan.dataset}"
        if plan.space.citation:
            yield _in_a_line(str(plan.space.citation))
        yield _in_a_line(f"Cells:  {self._cells()}")
        yield f"Trials: {self.trials} ({len(plan.seeds)} paired seeds), {self.done} done already."
        yield self._cost_sentence()
        yield self._disk_sentence()
        yield self._power_sentence()
        if self.power.seeds:
            fewest, most = ("more than 1000" if number is None else str(number) for number in self.power.seeds)
            seeds = " to ".join(dict.fromkeys((fewest, most)))
            yield f"Seeds:  {seeds} tell equal levels from twice the margin ({most} with 80% assurance)."
        yield from (_in_a_line(f"Note:   {note}") for note in self.notes)
        yield "Cells, settings and notes in full: --all. Run it: tune-dml sweep, with the same words."

    def _cells(self) -> str:
        """How many, which, and how many more a search proposes."""
        cells, search = self.plan.cells, self.plan.search
        listed = f"{len(cells)}: {', '.join(cell.label for cell in cells)}" if cells else ""
        proposed = f"{search.num_samples} that {search.method} proposes" if search.num_samples else ""
        return " and ".join(filter(None, (listed, proposed)))

    def _cost_sentence(self) -> str:
        if self.eta_seconds is None:
            return f"Cost:   unknown; {self.cost.source}. `--probe` times a few steps here."
        left = self.trials - self.done
        gpus = f" ({self.worker_hours * self.gpus:.2f} GPU-hours)" if self.worker_hours and self.gpus else ""
        sentence = (
            f"Cost:   {left} trials x {_seconds(self.cost.seconds or 0.0)} ({self.cost.source}) "
            f"= {self.worker_hours:.2f} worker hours{gpus}, "
            f"about {duration(self.eta_seconds)} with {self.cost.concurrent} at once."
        )
        if self.cost.memory_bytes is None:
            return sentence
        beside = f" and {self.cost.gpu_bytes / 1e9:.2f} GB on the GPU" if self.cost.gpu_bytes else ""
        return f"{sentence} Memory: {self.cost.memory_bytes / 1e9:.2f} GB a trial{beside}."

    def _disk_sentence(self) -> str:
        sentence = f"Disk:   at most {self.disk_bytes / 1e6:.1f} MB in the storage"
        asked = str(self.plan.base_settings.get("evaluation.keep"))
        kept = {"embeddings": "embeddings", "weights": "a network"}.get(asked, "what trials keep")
        if self.kept_bytes is None:
            return f"{sentence}, and {kept} of a size that is known once the pictures are decoded."
        if self.kept_bytes:
            return f"{sentence}, {kept} of {self.kept_bytes / 1e6:.2f} MB a trial among it."
        return f"{sentence}, and as much in MLflow."

    def _power_sentence(self) -> str:
        unit = "points" if self.power.noise is not None else "times a trial's noise"
        if len(self.plan.seeds) < 2:
            return "Power:  none with one seed."
        return (
            f"Power:  detects {self.power.detectable:.2f} {unit} between two cells (80%), "
            f"intervals reach {self.power.half_width:.2f} to each side ({self.power.source})."
        )


@dataclass(frozen=True)
class _FullPreview:
    """A preview with everything behind it."""

    preview: _Preview

    def data(self) -> dict[str, Any]:
        """The same as the preview's."""
        return self.preview.data()

    def text(self) -> Iterable[RenderableType]:
        """Cells, shared settings with their origins, notes, verdicts to expect, then the eight lines."""
        preview, plan = self.preview, self.preview.plan
        if plan.space.arms:
            arms = ((arm.name, arm.protocol.name if arm.protocol else "", _knobs(plan, arm.name)) for arm in plan.arms)
            yield table("Arms", ("arm", "protocol", "knobs"), arms)
        yield table("Cells", ("cell", "digest"), ((cell.label, cell.digest) for cell in plan.cells))
        rows = ((key, value, plan.origins.get(key, "")) for key, value in plan.base_settings.items())
        yield table("Shared settings", ("setting", "value", "origin"), rows)
        if preview.power.chances:
            title = f"Verdicts to expect with {len(plan.seeds)} seeds and a margin of {plan.margin:g}"
            columns = ("one level differs by", "matters", "does not matter", "undecided")
            chances = ((f"{c.difference:g}", *map(_percent, _shares(c))) for c in preview.power.chances)
            yield table(title, columns, chances, right=columns)
        yield from (f"Note:   {note}" for note in preview.notes)
        yield from list(replace(preview, notes=()).text())[:-1]


def _in_a_line(text: str) -> str:
    """Cut where the screen ends."""
    return shortened(one_line(text), console_for(False).width)


def _knobs(plan: Plan, arm: str) -> str:
    return ", ".join(knob.path for knob in plan.knobs_of(arm))


def _shares(chance: VerdictChances) -> tuple[float, float, float]:
    return chance.matters, chance.does_not_matter, chance.undecided


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _preview(request: Request, resources: Resources, session: Session, *, probe: bool = False) -> _Preview:
    """Check a request and look up its cost; decodes nothing and runs nothing, but a few steps of each kind of cell to `probe`.

    Raises ConfigError with every problem.
    """
    from tune_dml.planning.checks import prepare
    from tune_dml.running.cluster import address_of, capacity_at, resource_problems

    there = address_of(session.address)
    needs = [lambda: resource_problems(resources, there)]
    checked = prepare(request, cache_dir=session.cache, other_checks=needs, decode=probe)
    concurrent = capacity_at(*there).trials_that_fit(resources)
    plan = checked.plan
    stored = [results for path in sorted(session.sweeps.glob("*/plan.json")) if (results := _readable(path.parent))]
    same = next((item for item in stored if item.name == plan.name and item.plan.identity() == plan.identity()), None)
    done = same.count("finished") if same else 0
    cost = _probed(plan, resources, session, concurrent) if probe else None
    cost, power = cost or _cost(plan, stored, concurrent), _power(plan, stored)
    return _Preview(plan, checked.notes, done, cost, power, checked.kept_bytes, resources.gpus)


def _readable(folder: Path) -> Results | None:
    """A sweep's results; None of one whose plan cannot be read, which is said to whoever asks for that sweep."""
    from tune_dml.record.results import results_of

    try:
        return results_of(folder)
    except ConfigError:
        return None


def _probed(plan: Plan, resources: Resources, session: Session, concurrent: int) -> _Cost | None:
    """Measured here and now with one worker; None where a search has yet to propose every cell."""
    from tune_dml.running.probe import probe_plan

    probed = probe_plan(plan, resources, session.cache)
    if probed is None:
        return None
    source = f"probed: a few steps of {counted(probed.shapes, 'kind')} of cells with one worker"
    return _Cost(probed.seconds, source, concurrent, probed.memory_bytes, probed.gpu_bytes)


def _alike(plan: Plan, results: Results) -> bool:
    keys = ("training.steps", "training.epochs", "batch.batch_size", "model.backbone", "model.embedding_dim")
    other = results.plan
    return other.dataset == plan.dataset and all(
        other.base_settings.get(key) == plan.base_settings.get(key) for key in keys
    )


def _cost(plan: Plan, stored: list[Results], concurrent: int) -> _Cost:
    for results in stored:
        seconds = [trial.seconds for trial in results.trials if trial.status == "finished"]
        if seconds and _alike(plan, results):
            return _Cost(sum(seconds) / len(seconds), f"measured in {results.name}", concurrent)
    return _Cost(None, "no stored sweep has the same data set, batch, network and length", concurrent)


def _power(plan: Plan, stored: list[Results]) -> _Power:
    from tune_dml.stats.assurance import seeds_range, verdict_chances
    from tune_dml.stats.looks import level_left
    from tune_dml.stats.power import detectable_difference, half_width

    seeds, cells = len(plan.seeds), max(len(plan.cells) + plan.search.num_samples, 2)
    alike = (item for item in stored if _alike(plan, item) and item.plan.metric == plan.metric)
    noise, df, source = next(filter(None, map(_noise, alike)), (None, 0, "not known yet"))
    unit, level = 1.0 if noise is None else noise, level_left([seeds], planned=seeds)
    power = _Power(
        noise,
        detectable_difference(seeds=seeds, sd=unit, cells=cells, alpha=level),
        half_width(seeds=seeds, sd=unit, cells=cells, alpha=level),
        source,
    )
    if noise is None or seeds < 2:
        return power
    levels, margin = _levels(plan), float(plan.margin)
    level /= max(1, len(_questions(plan)))  # the knobs share the error, as in the report
    chances = tuple(
        verdict_chances(levels=levels, seeds=seeds, sd=noise, margin=margin, difference=margins * margin, alpha=level)
        for margins in _DIFFERENCES
    )
    return replace(
        power, chances=chances, seeds=seeds_range(margin=margin, sd=noise, df=df, levels=levels, alpha=level)
    )


def _levels(plan: Plan) -> int:
    """Values of the knob that has most of them; a range is tried at as many as are proposed; arms are compared too."""
    values = [len(d.values) if isinstance(d, Grid) else plan.search.num_samples for d in _questions(plan)]
    return max(2, len(plan.arms) if plan.space.arms else 0, *values)


def _questions(plan: Plan) -> list[Domain]:
    """The domain of each knob of each arm that the report asks about."""
    arms = [plan.space.arm(arm.name) for arm in plan.main_arms]
    return [knob.domain for arm in arms for knob in plan.space.scientific_of(arm)]


def _noise(results: Results) -> tuple[float, int, str] | None:
    """The noise of one trial after removing the seed's effect, its degrees of freedom, and where it is from."""
    from tune_dml.report import seed_table
    from tune_dml.stats.noise import typical_noise

    known = typical_noise(seed_table(results).noise)
    return None if known is None else (*known, f"noise {known[0]:.2f} measured in {results.name}")


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)
