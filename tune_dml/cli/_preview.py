"""What `tune-dml plan` shows of a plan: cells, what is done, cost, room on the disk, power."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tune_dml.cli.screen import console_for, table
from tune_dml.text import between, counted, duration, one_line, shortened

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tune_dml.planning.plan import Plan
    from tune_dml.stats.assurance import VerdictChances

_TRIAL_BYTES = 100_000
"""What a trial leaves at most (docs/log.md, evidence of a trial), hits of 60,000 queries among it; embeddings come on top."""


@dataclass(frozen=True)
class Cost:
    """What a trial costs, by a probe, or by stored trials of the same data set and length."""

    seconds: float | None
    """Of one trial; None when there is nothing to go by."""
    source: str
    concurrent: int
    memory_bytes: int | None = None
    """The most that a trial's process holds; None where nothing was probed."""
    gpu_bytes: int = 0
    """The most that it holds on a GPU."""
    checkpoint_bytes: int | None = None
    """Of a checkpoint; None where nothing was probed."""


@dataclass(frozen=True)
class Power:
    """What the planned seeds can show, from the noise of a stored sweep; per unit of noise when there is none."""

    noise: float | None
    detectable: float
    half_width: float
    source: str
    declared: int = 0
    """Declared contrasts, which share the error; 0 where all pairs of cells do."""
    beyond_percent: bool = False
    """Whether `detectable` is more than two percentages can differ by."""
    chances: tuple[VerdictChances, ...] = ()
    """Of each verdict about the knob, when one of its levels truly differs; empty while the noise is not known."""
    settings: int = 1
    """Over which each level of that comparison is tuned."""
    seeds_for_margin: int | None = None
    """Seeds that detect a difference of the margin, where `detectable` is more than a percentage can differ by."""
    seeds: tuple[int | None, int | None] | None = None
    """Seeds that would decide; None at an end where no reasonable number would, altogether while the noise is not known."""


@dataclass(frozen=True)
class Preview:
    """A plan and what is known about its cost."""

    plan: Plan
    notes: tuple[str, ...]
    done: int
    cost: Cost
    power: Power
    kept_bytes: int | None = 0
    """What each trial keeps because it was asked to; None where that is not known before the pictures are decoded."""
    gpus: float = 0.0
    """GPUs of a trial."""
    free_bytes: int | None = None
    """What the storage has room for; None where it does not say."""

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

    @property
    def checkpoint_bytes(self) -> int | None:
        """The most that checkpoints take at once: two of each trial that is under way or paused, and one in writing."""
        if self.cost.checkpoint_bytes is None:
            return None
        at_once = min(self.cost.concurrent, self.trials)
        held = self.trials if self.plan.search.stopping else at_once
        return self.cost.checkpoint_bytes * (2 * held + at_once)

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
            "declared_comparisons": self.power.declared,
            "margin": plan.margin,
            "verdict_chances": [{**vars(chance), "undecided": chance.undecided} for chance in self.power.chances],
            "seeds_to_decide": self.power.seeds,
            "disk_bytes": self.disk_bytes,
            "kept_bytes": self.kept_bytes,
            "checkpoint_bytes": self.checkpoint_bytes,
            "free_bytes": self.free_bytes,
            "settings": {k: {"value": v, "origin": plan.origins.get(k, "")} for k, v in plan.base_settings.items()},
            "notes": list(self.notes),
        }

    def text(self) -> Iterable[RenderableType]:
        """Eight lines, and one for each note."""
        from tune_dml.record.commands import program

        plan = self.plan
        yield f"{plan.name}: {plan.space.title}, on {plan.dataset}"
        if plan.space.citation:
            yield _in_a_line(str(plan.space.citation))
        yield _in_a_line(self._cells(), "Cells:  ")
        yield f"Trials: {self.trials} ({len(plan.seeds)} paired seeds), {self.done} done already."
        yield self._cost_sentence()
        yield f"{self._disk_sentence()}{self._checkpoint_sentence()}"
        yield self._power_sentence()
        if self.power.seeds:
            fewest, most = ("more than 1000" if number is None else str(number) for number in self.power.seeds)
            seeds = " to ".join(dict.fromkeys((fewest, most)))
            tuned = f", each tuned over {self.power.settings} settings at most" if self.power.settings > 1 else ""
            yield f"Seeds:  {seeds} tell equal levels{tuned} from twice the margin ({most} with 80% assurance)."
        yield from (_in_a_line(note, "Note:   ") for note in self.notes)
        yield f"Cells, settings and notes in full: --all. Run it: {program()} sweep, with the same words."

    def _cells(self) -> str:
        """How many, which, and how many more a search proposes."""
        cells, search = self.plan.cells, self.plan.search
        labels = [cell.label for cell in cells]
        listed = f"{len(cells)}: {between(labels).join(labels)}" if cells else ""
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

    def _checkpoint_sentence(self) -> str:
        if self.checkpoint_bytes is None:
            return ""
        sentence = f" Checkpoints take {self.checkpoint_bytes / 1e6:.1f} MB more at most while it runs"
        if self.free_bytes is None:
            return f"{sentence}."
        few = "only " if self.checkpoint_bytes + self.disk_bytes > self.free_bytes else ""
        return f"{sentence}; {few}{self.free_bytes / 1e9:.1f} GB are free there."

    def _power_sentence(self) -> str:
        unit = "points" if self.power.noise is not None else "times a trial's noise"
        if len(self.plan.seeds) < 2:
            return "Power:  none with one seed."
        declared = self.power.declared
        what = f"in each of {counted(declared, 'declared comparison')}" if declared else "between two cells"
        if self.power.beyond_percent:
            needed = self.power.seeds_for_margin
            return (
                f"Power:  detects no difference that a percentage can have {what} (80%); one of the margin, "
                f"{float(self.plan.margin):g} points, takes {needed or 'more than a thousand'} seeds ({self.power.source})."
            )
        return (
            f"Power:  detects {self.power.detectable:.2f} {unit} {what} (80%), "
            f"intervals reach {self.power.half_width:.2f} to each side ({self.power.source})."
        )


@dataclass(frozen=True)
class FullPreview:
    """A preview with everything behind it."""

    preview: Preview

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


def _in_a_line(text: str, title: str = "") -> str:
    """Cut where the screen ends."""
    return shortened(title + one_line(text), console_for(False).width)


def _knobs(plan: Plan, arm: str) -> str:
    return ", ".join(knob.path for knob in plan.knobs_of(arm))


def _shares(chance: VerdictChances) -> tuple[float, float, float]:
    return chance.matters, chance.does_not_matter, chance.undecided


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)
