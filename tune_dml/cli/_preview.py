"""The output of `tune-dml plan`: cells, finished trials, cost, disk space and power."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tune_dml.cli.screen import Lines, console_for, table
from tune_dml.text import duration, list_separator, one_line, shortened

if TYPE_CHECKING:
    from trainables.probe import Probe
    from tune_dml.planning.plan import Plan
    from tune_dml.stats.power import VerdictChances

_TRIAL_BYTES = 100_000  # maximum size of a trial's files without embeddings (docs/log.md, evidence of a trial)


@dataclass(frozen=True)
class Cost:
    """Cost of a trial, from a probe or from stored trials of the same data set and length."""

    seconds: float | None  # duration of a trial; None if unknown
    source: str
    concurrent: int
    probe: Probe | None = None  # what a few steps measured; None if the cost comes from stored trials


@dataclass(frozen=True)
class Power:
    """Statistical power of the planned seeds, from the noise of a stored sweep; in units of the noise if unknown."""

    noise: float | None
    detectable: float
    half_width: float
    source: str
    declared: int = 0  # number of declared contrasts, which share the error; 0 if all pairs of cells share it
    beyond_percent: bool = False  # whether `detectable` exceeds the largest possible difference of two percentages
    chances: tuple[VerdictChances, ...] = ()
    """Chance of each verdict, by true difference of one level; empty while the noise is unknown."""
    settings: int = 1  # number of settings over which each level is tuned
    seeds_for_margin: int | None = None  # seeds that detect a difference of the margin, if `beyond_percent`
    seeds: tuple[int | None, int | None] | None = None
    """Range of seeds that would decide; None while the noise is unknown. A bound above 1000 is None."""


@dataclass(frozen=True)
class Preview:
    """A plan with its cost and power."""

    plan: Plan
    notes: tuple[str, ...]
    done: int
    cost: Cost
    power: Power
    kept_bytes: int | None
    """Size of the embeddings or weights that each trial keeps; None before the pictures are decoded."""
    gpus: float  # GPUs of a trial
    free_bytes: int  # free space of the storage
    in_use: str = ""
    """Problem of a name that belongs to another plan, which `sweep` would refuse; empty if there is none."""

    @property
    def trials(self) -> int:
        """Number of trials, including those that a search proposes."""
        return (len(self.plan.cells) + self.plan.search.num_samples) * len(self.plan.seeds)

    @property
    def eta_seconds(self) -> float | None:
        """Wall time on this machine; None if unknown."""
        if self.cost.seconds is None or not self.cost.concurrent:
            return None
        return self.cost.seconds * (self.trials - self.done) / self.cost.concurrent

    @property
    def worker_hours(self) -> float | None:
        """Hours of the remaining trials with one worker each."""
        return None if self.cost.seconds is None else (self.trials - self.done) * self.cost.seconds / 3600

    @property
    def disk_bytes(self) -> int:
        """Size of all trials' files."""
        return self.trials * (_TRIAL_BYTES + (self.kept_bytes or 0))

    @property
    def checkpoint_bytes(self) -> int | None:
        """Peak size of checkpoints: two of each running or paused trial, and one that is being written."""
        if self.cost.probe is None:
            return None
        at_once = min(self.cost.concurrent, self.trials)
        stored = self.trials if self.plan.search.stopping else at_once
        return self.cost.probe.checkpoint_bytes * (2 * stored + at_once)

    def data(self) -> dict[str, object]:
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
            "memory_bytes": self.cost.probe.memory_bytes if self.cost.probe else None,
            "gpu_memory_bytes": self.cost.probe.gpu_bytes if self.cost.probe else 0,
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
            "notes": [*self.notes, *filter(None, [self.in_use])],
        }

    def text(self) -> Lines:
        from tune_dml.record.origin.commands import program

        plan = self.plan
        yield f"{plan.name}: {plan.space.title}, on {plan.dataset}"
        if plan.space.citation:
            yield _fit_line(str(plan.space.citation))
        yield _fit_line(self._cells_sentence(), "Cells:  ")
        yield f"Trials: {self.trials} ({len(plan.seeds)} paired seeds), {self.done} done already."
        yield self._cost_sentence()
        yield f"{self._disk_sentence()}{self._checkpoint_sentence()}"
        yield self._power_sentence()
        if self.power.seeds:
            low, high = ("more than 1000" if number is None else str(number) for number in self.power.seeds)
            seeds = " to ".join(dict.fromkeys((low, high)))
            tuned = f", with up to {self.power.settings} settings per level" if self.power.settings > 1 else ""
            yield f'Seeds:  {seeds} are needed for the verdict "does not matter"{tuned} ({high} with 80% assurance).'
        yield from (_fit_line(note, "Note:   ") for note in self.notes)
        run = self.in_use or f"Run it: {program()} sweep, with the same arguments."
        yield f"All cells, settings and notes: --all. {run}"

    def _cells_sentence(self) -> str:
        """Return the number and labels of the cells, and the number of cells that a search proposes."""
        cells, search = self.plan.cells, self.plan.search
        labels = [cell.label for cell in cells]
        listed = f"{len(cells)}: {list_separator(labels).join(labels)}" if cells else ""
        proposed = f"{search.num_samples} that {search.method} proposes" if search.num_samples else ""
        return " and ".join(filter(None, (listed, proposed)))

    def _cost_sentence(self) -> str:
        if self.eta_seconds is None:
            probe = "" if self.plan.space.program else " `--probe` times a few steps here."
            return f"Cost:   unknown; {self.cost.source}.{probe}"
        remaining = self.trials - self.done
        gpus = f" ({self.worker_hours * self.gpus:.2f} GPU-hours)" if self.worker_hours and self.gpus else ""
        seconds = self.cost.seconds or 0.0
        each = f"{seconds:.1f} s" if seconds < 10 else duration(seconds)
        sentence = (
            f"Cost:   {remaining} trials x {each} ({self.cost.source}) "
            f"= {self.worker_hours:.2f} worker hours{gpus}, "
            f"about {duration(self.eta_seconds)} with {self.cost.concurrent} at once."
        )
        if (measured := self.cost.probe) is None:
            return sentence
        gpu_memory = f" and {measured.gpu_bytes / 1e9:.2f} GB on the GPU" if measured.gpu_bytes else ""
        return f"{sentence} Memory: {measured.memory_bytes / 1e9:.2f} GB a trial{gpu_memory}."

    def _disk_sentence(self) -> str:
        sentence = f"Disk:   at most {self.disk_bytes / 1e6:.1f} MB in the storage"
        keep = str(self.plan.base_settings.get("evaluation.keep"))
        content = {"embeddings": "embeddings", "weights": "a network"}.get(keep, "what trials keep")
        if self.kept_bytes is None:
            return f"{sentence}, and {content}, whose size is known once the pictures are decoded."
        if self.kept_bytes:
            return f"{sentence}, including {content} of {self.kept_bytes / 1e6:.2f} MB a trial."
        return f"{sentence}, and the same in MLflow."

    def _checkpoint_sentence(self) -> str:
        if self.checkpoint_bytes is None:
            return ""
        sentence = f" Checkpoints take at most {self.checkpoint_bytes / 1e6:.1f} MB more while it runs"
        only = "only " if self.checkpoint_bytes + self.disk_bytes > self.free_bytes else ""
        return f"{sentence}; {only}{self.free_bytes / 1e9:.1f} GB are free there."

    def _power_sentence(self) -> str:
        is_known = self.power.noise is not None
        unit, same_unit = ("points", "points") if is_known else ("times a trial's noise", "times it")
        if len(self.plan.seeds) < 2:
            return "Power:  none with one seed."
        declared = self.power.declared
        scope = f"in each of {declared} declared comparisons" if declared else "between two cells"
        scope = "in the declared comparison" if declared == 1 else scope
        if self.power.beyond_percent:
            needed = self.power.seeds_for_margin
            return (
                f"Power:  too few seeds to detect any difference {scope} (80%); the smallest that matters, "
                f"{float(self.plan.margin):g} points, needs {needed or 'more than a thousand'} seeds ({self.power.source})."
            )
        return (
            f"Power:  detects {self.power.detectable:.2f} {unit} {scope} (80%), "
            f"intervals are +/- {self.power.half_width:.2f} {same_unit} ({self.power.source})."
        )

    def full_text(self) -> Lines:
        """Yield the text with every cell and setting."""
        plan, columns = self.plan, ("one level differs by", "matters", "does not matter", "undecided")
        if plan.space.arms:
            arms = (
                (arm.name, arm.protocol.name if arm.protocol else "", ", ".join(knob.path for knob in arm.knobs))
                for arm in plan.arms
            )
            yield table("Arms", ("arm", "protocol", "knobs"), arms)
        yield table("Cells", ("cell", "digest"), ((cell.label, cell.digest) for cell in plan.cells))
        rows = ((key, value, plan.origins.get(key, "")) for key, value in plan.base_settings.items())
        yield table("Shared settings", ("setting", "value", "origin"), rows)
        if self.power.chances:
            title = (
                f"Verdicts to expect with {len(plan.seeds)} seeds, if differences below {plan.margin:g} do not matter"
            )
            chances = (
                (f"{c.difference:g}", f"{c.matters:.0%}", f"{c.does_not_matter:.0%}", f"{c.undecided:.0%}")
                for c in self.power.chances
            )
            yield table(title, columns, chances, right=columns)
        yield from (f"Note:   {note}" for note in filter(None, (*self.notes, self.in_use)))
        yield from list(replace(self, notes=()).text())[:-1]


def _fit_line(text: str, title: str = "") -> str:
    """Return a text as one line, cut to the width of the screen."""
    return shortened(title + one_line(text), console_for(False).width)
