"""What was run, on what, at what cost, and what failed?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tune_dml.record.results import TrialStatus
from tune_dml.report.measured import Measured
from tune_dml.space import Grid, Knob, Value
from tune_dml.text import duration, value_text

STATUSES: tuple[TrialStatus, ...] = ("finished", "diverged", "failed", "running", "missing")


@dataclass(frozen=True)
class Failure:
    """One trial without a result."""

    label: str
    seed: int
    status: str
    reason: str
    attempts: int
    key: str
    run_id: str


@dataclass(frozen=True)
class Conduct:
    """The facts of the sweep."""

    facts: tuple[tuple[str, str], ...]
    counts: tuple[tuple[str, int], ...]
    """Status -> number of trials, those that occur."""
    sentence: str
    failures: tuple[Failure, ...]
    notes: tuple[str, ...]
    """What was said aloud while it ran, then the space's own remarks."""
    settings: tuple[tuple[str, str, str], ...]
    """(setting, value, origin) shared by all cells."""
    provenance: tuple[tuple[str, str], ...]
    seconds: float
    """Training time of all attempts of all trials."""
    attempts: int
    cost: tuple[tuple[str, int, float, float], ...]
    """(cell, trials with a time, mean seconds of a trial, seconds in all)."""


def extract(measured: Measured) -> Conduct:
    """Collect the facts."""
    results = measured.results
    plan, space = results.plan, results.plan.space
    counts = tuple((status, count) for status in STATUSES if (count := results.count(status)))
    failures = tuple(
        Failure(cell.label, t.seed, t.status, why.partition(": ")[2] or why, t.attempts, t.key, t.run_id)
        for cell in measured.cells
        for t, why in cell.failures
    )
    return Conduct(
        _facts(measured),
        counts,
        _sentence(measured, dict(counts)),
        failures,
        results.notes + space.notes,
        tuple((key, short_any(value), plan.origins.get(key, "")) for key, value in plan.base_settings.items()),
        tuple(_flat(results.provenance)),
        sum(trial.seconds for trial in results.trials),
        sum(trial.attempts for trial in results.trials),
        tuple(_cost(measured)),
    )


def _facts(measured: Measured) -> tuple[tuple[str, str], ...]:
    plan = measured.results.plan
    space, settings = plan.space, plan.base_settings
    protocol = space.protocol_for(plan.dataset)
    search = plan.search.method
    facts = [
        ("Question", space.question),
        ("Space", f"{space.name}: {space.title}"),
        ("Source", str(space.citation) if space.citation else ""),
        ("Knobs", "; ".join(_domain(knob) for knob in space.knobs)),
        ("Baseline", space.baseline.label if space.baseline else ""),
        ("Data set", f"{plan.dataset} (content {plan.data_digest[:12]})"),
        ("Network", _network(settings)),
        ("Protocol", f"{protocol.name}. {protocol.note}" if protocol else ""),
        ("Judged by", f"{measured.metric.label}; {_selection(settings)}"),
        ("Margin", measured.metric.amount(measured.margin)),
        ("Search", search if search == "grid" else f"{search}, {plan.search.num_samples} cells proposed"),
        ("Seeds", f"{', '.join(map(str, plan.seeds))} (paired: a seed is the same in every cell)"),
    ]
    return tuple((name, text) for name, text in facts if text)


def _domain(knob: Knob) -> str:
    origin = {"paper": "values of the paper", "ours": "values of ours", "user": "values of the user"}[knob.origin]
    if isinstance(knob.domain, Grid):
        return f"{knob.label} in {{{', '.join(map(value_text, knob.domain.values))}}} ({origin})"
    return f"{knob.label} in [{value_text(knob.domain.low)}, {value_text(knob.domain.high)}], {knob.domain.scale} ({origin})"


def _network(settings: Mapping[str, Value]) -> str:
    backbone, size = settings.get("model.backbone"), settings.get("model.embedding_dim")
    return f"{backbone}, embeddings of size {size}" if backbone else ""


def _selection(settings: Mapping[str, Value]) -> str:
    if settings.get("data.split") == "paper_test_selection":
        return "selected on the TEST classes, as the papers did: no figure here is an unbiased estimate"
    which = {"last": "the last evaluation", "best_validation": "the evaluation best on validation"}
    return which.get(str(settings.get("evaluation.epoch")), "the evaluation that counts")


def _sentence(measured: Measured, counts: Mapping[str, int]) -> str:
    results = measured.results
    done, every = counts.get("finished", 0), len(results.trials)
    seconds = sum(trial.seconds for trial in results.trials)
    text = (
        f"{done} of {every} trials finished ({len(measured.cells)} cells x {len(measured.seeds)} seeds), "
        f"{duration(seconds)} of training in all."
    )
    lost = [f"{counts[status]} {status}" for status in ("diverged", "failed") if counts.get(status)]
    odd = sum(trial.status == "finished" for cell in measured.cells for trial, _ in cell.failures)
    lost += [f"{odd} finished without the metric"] if odd else []
    waiting = counts.get("running", 0) + counts.get("missing", 0)
    if lost:
        text += f" {' and '.join(lost)}: listed below and drawn in the figures."
    if waiting:
        plural = "1 trial is" if waiting == 1 else f"{waiting} trials are"
        text += f" The sweep is not complete: {plural} still to come, and the verdicts are provisional."
    return text


def _cost(measured: Measured) -> list[tuple[str, int, float, float]]:
    rows = []
    for cell in measured.cells:
        seconds = [trial.seconds for trial in cell.trials if trial.seconds > 0]
        rows.append((cell.label, len(seconds), sum(seconds) / len(seconds) if seconds else 0.0, sum(seconds)))
    return rows


def short_any(value: object) -> str:
    """A setting's value."""
    if isinstance(value, float | int | str | bool) or value is None:
        return value_text(value)
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _flat(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested provenance as dotted rows; long texts (a diff) are cut, their digest is a row of its own."""
    rows: list[tuple[str, str]] = []
    for key, value in record.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{key}.")
            continue
        text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        rows.append((f"{prefix}{key}", text if len(text) <= 300 else f"{text[:300]} ... ({len(text)} characters)"))
    return rows
