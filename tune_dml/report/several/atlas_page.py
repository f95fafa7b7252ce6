"""The page of an atlas: a verdict for each knob of each loss on each data set."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tune_dml.record.atlas import METRIC, JudgedKnob
from tune_dml.report.drawing.charts import Whisker
from tune_dml.report.naming import MetricName, metric_name
from tune_dml.report.page import page_of, write_page
from tune_dml.report.section import Section, Table, TableCell, text_cell, value_cell
from tune_dml.report.several.page import interval_figure, sweeps_head
from tune_dml.stats.atlas import ALPHA, Estimate
from tune_dml.text import counted, joined, json_value, value_text

_DRAWN = 40


def atlas_sentences(knobs: Sequence[JudgedKnob], margin: float) -> tuple[str, ...]:
    """Return the answer: how many knobs matter, and which gain most by tuning."""
    metric = metric_name(f"val/{METRIC}")
    words = Counter(word for one in knobs for word in one.verdict.word.split(", "))
    losses, datasets = {one.loss for one in knobs}, {one.dataset for one in knobs}
    verbs = {
        "tunable": ("gains", "gain", "significantly by tuning"),
        "sensitive": ("has", "have", f"a value that costs significantly more than {metric.rough(margin)}"),
        "insensitive": ("does", "do", "not matter within the tested range"),
        "undecided": ("is", "are", "undecided"),
    }
    parts = [f"{words[word]} {one if words[word] == 1 else many} {what}" for word, (one, many, what) in verbs.items()]
    of = counted(len(losses), "loss") if len(losses) == 1 else f"{len(losses)} losses"
    first = f"Of {counted(len(knobs), 'knob')} of {of} on {joined(sorted(datasets))}, {', '.join(parts)}."
    best = sorted(knobs, key=lambda one: -one.verdict.tunability.low)[:3]
    gains = [
        f"{one.loss}'s {one.knob} ({one.dataset}): {value_text(one.verdict.values[one.verdict.best])} for "
        f"{value_text(one.verdict.default)} gains {_amount(metric, one.verdict.tunability)}"
        for one in best
        if one.verdict.tunability.low > 0
    ]
    return (first, f"Most is gained by {'; '.join(gains)}.") if gains else (first,)


def _amount(metric: MetricName, one: Estimate) -> str:
    return f"{metric.amount(one.value)} ({metric.interval(one.low, one.high)})"


def atlas_data(knobs: Sequence[JudgedKnob], margin: float) -> dict[str, Any]:
    """Return the atlas as data for JSON."""
    rows = [
        {
            "dataset": one.dataset,
            "loss": one.loss,
            "knob": one.knob,
            "word": one.verdict.word,
            "best": one.verdict.values[one.verdict.best],
            **asdict(one.verdict),
        }
        for one in knobs
    ]
    transfers = [dict(zip(_TRANSFER, row, strict=True)) for row in _transfers(knobs)]
    data: dict[str, Any] = json_value(
        {
            "metric": METRIC,
            "margin": margin,
            "answer": list(atlas_sentences(knobs, margin)),
            "knobs": rows,
            "transfer": transfers,
        }
    )
    return data


def write_atlas(knobs: Sequence[JudgedKnob], margin: float, folder: Path) -> tuple[Path, Path]:
    """Write `atlas.html` and `atlas.json` into a folder, which is created if missing."""
    sentences = atlas_sentences(knobs, margin)
    facts = (
        ("Knobs", str(len(knobs))),
        ("Smallest difference that matters", f"{margin:g} {'point' if margin == 1 else 'points'}"),
        ("Error", f"{ALPHA:.0%} over the whole page"),
    )
    footer = "Each value is compared with the default of its loss by paired seeds. docs/atlas.md explains the columns."
    head = sweeps_head(
        ("Atlas", "Atlas of knobs", "Which knobs of which losses matter?"), (sentences, facts), footer, "atlas.json"
    )
    sections = [_gains(knobs), _verdicts(knobs)]
    sections += [_transfer_section(knobs)] if len({one.dataset for one in knobs}) > 1 else []
    return write_page(folder, "atlas", page_of(head, sections), atlas_data(knobs, margin))


def _gains(knobs: Sequence[JudgedKnob]) -> Section:
    metric = metric_name(f"val/{METRIC}")
    several = len({one.dataset for one in knobs}) > 1
    ranked = sorted(knobs, key=lambda one: -one.verdict.tunability.value)[:_DRAWN]
    items = [
        Whisker(
            f"{one.loss} {one.knob}" + (f" ({one.dataset})" if several else ""),
            one.verdict.tunability.value, max(one.verdict.tunability.low, 0.0), one.verdict.tunability.high,
            colour="mean" if one.verdict.tunability.low > 0 else "base", tip=one.verdict.word,
        )
        for one in ranked
        if math.isfinite(one.verdict.tunability.high)
    ]  # fmt: skip
    caption = (
        f"Gain of the best value over the default, the largest {len(items)}; intervals hold for the whole page at once. "
        "Grey: not significant."
    )
    texts = "What tuning each knob gains.", caption
    return Section(
        "gains", "What does tuning gain?", "Gains", (interval_figure("gains", items, f"gain in {metric.label}", texts),)
    )


def _interval(metric: MetricName, one: Estimate) -> tuple[TableCell, TableCell]:
    ends = metric.interval(*metric.change_ends(max(one.low, 0.0), one.high))
    return value_cell(round(one.value, 2)), text_cell(ends or "-")


def _verdicts(knobs: Sequence[JudgedKnob]) -> Section:
    metric = metric_name(f"val/{METRIC}")
    rows = tuple(
        (
            text_cell(one.dataset), text_cell(one.loss), text_cell(one.knob), text_cell(one.verdict.word),
            value_cell(one.verdict.default), value_cell(one.verdict.values[one.verdict.best]),
            *_interval(metric, one.verdict.tunability), *_interval(metric, one.verdict.mistunability),
            text_cell(" to ".join(map(value_text, one.verdict.tolerated))),
            text_cell(" to ".join(map(value_text, one.verdict.perhaps_tolerated))),
        )
        for one in knobs
    )  # fmt: skip
    columns = (
        "data", "loss", "knob", "verdict", "default", "best", "gain", "interval", "loss of worst", "interval of worst",
        "tolerated", "perhaps tolerated",
    )  # fmt: skip
    caption = "Best and worst value against the default, and the range that stays within the margin."
    return Section(
        "verdicts", "What does each knob do?", "Verdicts", (Table("verdicts", caption, columns, rows, searchable=True),)
    )


_TRANSFER = ("loss", "knob", "from", "to", "value", "effect", "low", "high")


def _transfers(knobs: Sequence[JudgedKnob]) -> list[tuple[str, str, str, str, float, float, float, float]]:
    """Return what the best value of one data set does on another, against the default there."""
    by_knob: dict[tuple[str, str], list[JudgedKnob]] = {}
    for one in knobs:
        by_knob.setdefault((one.loss, one.knob), []).append(one)
    rows = []
    for (loss, knob), group in by_knob.items():
        for source in group:
            value = source.verdict.values[source.verdict.best]
            for target in group:
                if target is source or value not in target.verdict.values:
                    continue
                effect = target.verdict.effects[target.verdict.values.index(value)]
                rows.append((loss, knob, source.dataset, target.dataset, value, effect.value, effect.low, effect.high))
    return rows


def _transfer_section(knobs: Sequence[JudgedKnob]) -> Section:
    rows = tuple(
        tuple(
            value_cell(round(item, 4)) if isinstance(item, float) and math.isfinite(item) else text_cell(str(item))
            for item in row
        )
        for row in _transfers(knobs)
    )
    caption = "The best value on one data set, tried on another: its effect against the default there."
    return Section(
        "transfer",
        "Does the best value transfer?",
        "Transfer",
        (Table("transfer", caption, _TRANSFER, rows, searchable=True),),
    )
