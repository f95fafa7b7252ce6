"""The page of an atlas: a verdict for each knob of each loss on each data set."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tune_dml.planning.grouping import grouped
from tune_dml.record.atlas import METRIC, JudgedKnob
from tune_dml.report.drawing.charts import Whisker
from tune_dml.report.naming import MetricName, metric_name
from tune_dml.report.page import PageHead, write_page
from tune_dml.report.section import Section, Table, whisker_figure
from tune_dml.report.summary import Answer
from tune_dml.stats.atlas import ALPHA, Estimate
from tune_dml.text import counted, joined, value_text

_MAX_WHISKERS = 40  # maximum number of knobs in the figure; those with the largest gains are shown


def atlas_sentences(knobs: Sequence[JudgedKnob], margin: float) -> tuple[str, ...]:
    """Return the answer in sentences: how many knobs matter, and for which knobs tuning gains most."""
    metric = metric_name(f"val/{METRIC}")
    words = Counter(word for knob in knobs for word in knob.verdict.word.split(", "))
    losses, datasets = {knob.loss for knob in knobs}, {knob.dataset for knob in knobs}
    verbs = {
        "tunable": ("gains", "gain", "significantly by tuning"),
        "sensitive": ("has", "have", f"a value that costs significantly more than {metric.rough(margin)}"),
        "insensitive": ("does", "do", "not matter within the tested range"),
        "undecided": ("is", "are", "undecided"),
    }
    parts = [
        f"{words[word]} {singular if words[word] == 1 else plural} {what}"
        for word, (singular, plural, what) in verbs.items()
    ]
    loss_count = f"{len(losses)} {'loss' if len(losses) == 1 else 'losses'}"
    first = f"Of {counted(len(knobs), 'knob')} of {loss_count} on {joined(sorted(datasets))}, {', '.join(parts)}."
    best = sorted(knobs, key=lambda knob: -knob.verdict.tunability.low)[:3]
    gains = [
        f"{item.loss}'s {item.knob} ({item.dataset}): {value_text(item.verdict.values[item.verdict.best])} for "
        f"{value_text(item.verdict.default)} gains {metric.amount(gain.value)} ({metric.interval(gain.low, gain.high)})"
        for item in best
        if (gain := item.verdict.tunability).low > 0
    ]
    return (first, f"Most is gained by {'; '.join(gains)}.") if gains else (first,)


def atlas_data(knobs: Sequence[JudgedKnob], margin: float) -> dict[str, Any]:
    """Return the atlas as data for JSON."""
    rows = [
        {"dataset": item.dataset, "loss": item.loss, "knob": item.knob, "word": item.verdict.word,
         "best": item.verdict.values[item.verdict.best], **asdict(item.verdict)}
        for item in knobs
    ]  # fmt: skip
    transfers = [dict(zip(_TRANSFER, row, strict=True)) for row in _transfers(knobs)]
    answer = atlas_sentences(knobs, margin)
    return {"metric": METRIC, "margin": margin, "answer": answer, "knobs": rows, "transfer": transfers}


def write_atlas(knobs: Sequence[JudgedKnob], margin: float, folder: Path) -> tuple[Path, Path]:
    """Write `atlas.html` and `atlas.json` into a folder, which is created if missing."""
    sentences = atlas_sentences(knobs, margin)
    facts = (
        ("Knobs", str(len(knobs))),
        ("Smallest difference that matters", f"{margin:g} {'point' if margin == 1 else 'points'}"),
        ("Error", f"{ALPHA:.0%} over the whole page"),
    )
    footer = "Each value is compared with the default of its loss by paired seeds. docs/atlas.md explains the columns."
    answer, title = Answer(sentences, facts=facts), "Which knobs of which losses matter?"
    sections = [_gains(knobs), _verdicts(knobs)]
    sections += [_transfer_section(knobs)] if len({item.dataset for item in knobs}) > 1 else []
    head = PageHead("Atlas", "Atlas of knobs", title, answer, footer)
    return write_page(folder, "atlas", head, sections, atlas_data(knobs, margin))


def _gains(knobs: Sequence[JudgedKnob]) -> Section:
    metric = metric_name(f"val/{METRIC}")
    several = len({item.dataset for item in knobs}) > 1
    ranked = sorted(knobs, key=lambda item: -item.verdict.tunability.value)[:_MAX_WHISKERS]
    items = [
        Whisker(
            f"{item.loss} {item.knob}" + (f" ({item.dataset})" if several else ""),
            item.verdict.tunability.value, max(item.verdict.tunability.low, 0.0), item.verdict.tunability.high,
            colour="mean" if item.verdict.tunability.low > 0 else "base", tip=item.verdict.word,
        )
        for item in ranked
        if math.isfinite(item.verdict.tunability.high)
    ]  # fmt: skip
    caption = (
        f"The {len(items)} largest gains of the best value over the default; intervals hold for the whole page at once. "
        "Grey: not significant."
    )
    figure = whisker_figure("gains", items, f"gain in {metric.label}", "What tuning each knob gains.", caption)
    return Section("gains", "What does tuning gain?", "Gains", (figure,))


def _estimate_cells(metric: MetricName, estimate: Estimate) -> tuple[float, str]:
    ends = metric.interval(*metric.change_ends(max(estimate.low, 0.0), estimate.high))
    return round(estimate.value, 2) + 0.0, ends or "-"  # no -0.0


def _verdicts(knobs: Sequence[JudgedKnob]) -> Section:
    metric = metric_name(f"val/{METRIC}")
    rows = [
        (item.dataset, item.loss, item.knob, item.verdict.word, item.verdict.default,
         item.verdict.values[item.verdict.best],
         *_estimate_cells(metric, item.verdict.tunability), *_estimate_cells(metric, item.verdict.mistunability),
         " to ".join(map(value_text, item.verdict.tolerated)),
         " to ".join(map(value_text, item.verdict.perhaps_tolerated)))
        for item in knobs
    ]  # fmt: skip
    columns = (
        "data", "loss", "knob", "verdict", "default", "best", "gain", "interval", "loss of worst", "interval of worst",
        "tolerated", "perhaps tolerated",
    )  # fmt: skip
    caption = "Best and worst value against the default, and the range that stays within the margin."
    table = Table("verdicts", caption, columns, rows, searchable=True)
    return Section("verdicts", "What does each knob do?", "Verdicts", (table,))


_TRANSFER = ("loss", "knob", "from", "to", "value", "effect", "low", "high")


def _transfers(knobs: Sequence[JudgedKnob]) -> list[tuple[str, str, str, str, float, float, float, float]]:
    """Return the effects of each data set's best value on the other data sets, against the default there."""
    rows = []
    for (loss, knob), group in grouped(knobs, lambda item: (item.loss, item.knob)).items():
        for source in group:
            value = source.verdict.values[source.verdict.best]
            for target in group:
                if target is source or value not in target.verdict.values:
                    continue
                effect = target.verdict.effects[target.verdict.values.index(value)]
                rows.append((loss, knob, source.dataset, target.dataset, value, effect.value, effect.low, effect.high))
    return rows


def _transfer_section(knobs: Sequence[JudgedKnob]) -> Section:
    rows = [
        [round(item, 4) if isinstance(item, float) and math.isfinite(item) else str(item) for item in row]
        for row in _transfers(knobs)
    ]
    caption = "The best value on one data set, tried on another: its effect against the default there."
    table = Table("transfer", caption, _TRANSFER, rows, searchable=True)
    return Section("transfer", "Does the best value transfer?", "Transfer", (table,))
