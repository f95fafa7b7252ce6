"""A study as one page and as JSON, from the parts of the sweep's page."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tune_dml.report.drawing.charts import Whisker, whiskers
from tune_dml.report.page import PageHead, page_of, write_page
from tune_dml.report.questions.sensitivity import knob_headline
from tune_dml.report.section import Block, Figure, Section, Table, Text, delta_cell, text_cell, value_cell
from tune_dml.report.study.findings import StudyAnalysis, Transfer, Tuning, TuningGain
from tune_dml.report.summary import Answer
from tune_dml.text import duration

SCHEMA = "tune_dml.study/1"


def study_data(study: StudyAnalysis) -> dict[str, Any]:
    """Everything as JSON; null where a number does not exist."""
    body = {
        "schema": SCHEMA,
        "sweeps": [
            {"name": s.results.name, "dataset": s.results.plan.dataset, "margin": s.margin} for s in study.sweeps
        ],
        "sentences": list(study_sentences(study)),
        "tuning": [asdict(item) for item in study.tunings],
        "transfer": [asdict(item) for item in study.transfers],
    }
    plain_body: dict[str, Any] = _finite(body)
    return plain_body


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def study_sentences(study: StudyAnalysis) -> tuple[str, ...]:
    """Each sweep's verdict, then what carries over, then what tuning gains."""
    lines = list(_verdicts(study, named=True))
    lines += [_carried(study, item) for item in study.transfers]
    return (*lines, *(_gained(study, item) for item in study.tunings))


def _verdicts(study: StudyAnalysis, *, named: bool) -> tuple[str, ...]:
    """Each sweep's verdict on each of its knobs, by the sweep's name if so wanted."""
    said = [(s.results.name, sentence) for s in study.sweeps for k in s.knobs if (sentence := knob_headline(s, k))]
    return tuple(f"{name}: {sentence}" if named else sentence for name, sentence in said)


def _carried(study: StudyAnalysis, item: Transfer) -> str:
    metric = study.sweeps[0].metric
    where = f"From {item.first} to {item.second}"
    if item.refusal:
        return f"{where}, nothing can be said of the order of {item.knob}: {item.refusal}."
    order = f"the order of {item.knob} agrees with tau {item.tau:+.2f} (certain: {item.low:+.2f} to {item.high:+.2f})"
    lost = item.lost
    if lost is None or not math.isfinite(lost.estimate):
        return f"{where}, {order}."
    worth = f"tuning there gains {metric.signed(lost.estimate)} {metric.unit}".strip()
    return f"{where}, {order}; {worth} ({_ends(study, lost)}) over {item.carried}, which is best in {item.first}."


def _gained(study: StudyAnalysis, item: Tuning) -> str:
    metric, blind = study.sweeps[0].metric, item.mistunability
    parts = []
    if item.tunability is not None and math.isfinite(item.tunability.estimate):
        gain = f"{metric.signed(item.tunability.estimate)} {metric.unit}".strip()
        parts.append(f"tuning {item.knob} gains {gain} ({_ends(study, item.tunability)}) over {item.default}")
    if math.isfinite(blind.estimate):
        loss = f"{metric.number(blind.estimate)} {metric.unit}".strip()
        parts.append(f"a value of {item.knob} picked blindly loses {loss} ({_ends(study, blind)})")
    if not parts:
        parts = [f"what tuning {item.knob} gains cannot be said with one seed"]
    near = f"{item.tolerant} of {item.values} values have a mean within the margin of the best"
    return f"{item.sweep}: {'; '.join(parts)}; {near}."


def _ends(study: StudyAnalysis, gain: TuningGain) -> str:
    metric = study.sweeps[0].metric
    return f"{metric.signed(gain.low)} to {metric.signed(gain.high)}" if math.isfinite(gain.low) else "no interval"


def write_study(study: StudyAnalysis, folder: Path) -> tuple[Path, Path]:
    """`study.html` and `study.json` in a folder, made if missing."""
    return write_page(folder, "study", _page(study), study_data(study))


def _page(study: StudyAnalysis) -> str:
    spaces = list(dict.fromkeys(sweep.results.plan.space.title for sweep in study.sweeps))
    datasets = list(dict.fromkeys(sweep.results.plan.dataset for sweep in study.sweeps))
    facts = tuple(
        (
            sweep.results.name,
            f"{sweep.results.plan.dataset}: {len(sweep.cells)} cells x {len(sweep.seeds)} seeds, "
            f"{duration(sum(trial.seconds for trial in sweep.results.trials))}",
        )
        for sweep in study.sweeps
    )
    verdicts = _verdicts(study, named=len(datasets) < len(study.sweeps))  # a data set of its own tells a sweep
    head = PageHead(
        ", ".join(study.names), f"Study of {len(study.sweeps)} sweeps on {', '.join(datasets)}", "; ".join(spaces),
        Answer(verdicts, None, "", facts), f"Sweeps: {', '.join(study.names)}.", "study.json (every number in full precision)",
    )  # fmt: skip
    return page_of(head, [_transfer(study), _tuning(study)])


def _transfer(study: StudyAnalysis) -> Section:
    metric = study.sweeps[0].metric
    rows = tuple(
        (*map(text_cell, (t.knob, t.first, t.second)), *map(value_cell, (t.shared, round(t.tau, 3), t.low, t.high)),
         text_cell(t.carried or "-"), delta_cell(metric, t.lost.estimate if t.lost else math.nan), text_cell(t.refusal))
        for t in study.transfers
    )  # fmt: skip
    columns = (
        "knob",
        "from",
        "to",
        "shared values",
        "tau",
        "at least",
        "at most",
        "carried over",
        "tuning gains",
        "refused",
    )
    caption = (
        "Kendall's tau between the orders of the values, and what is certain of it: a pair counts only where its order is "
        "established in both sweeps. The gain is judged on seeds that did not choose."
    )
    body: list[Block] = [Text(_carried(study, item)) for item in study.transfers]
    return Section(
        "transfer", "Does the optimum carry over?", "Transfer",
        (*body, Table("transfer", caption, columns, rows, folded="The numbers")),
    )  # fmt: skip


def _tuning(study: StudyAnalysis) -> Section:
    metric = study.sweeps[0].metric
    rows = tuple(
        (text_cell(t.sweep), text_cell(t.dataset), text_cell(t.knob), text_cell(t.best), text_cell(t.default or "-"),
         delta_cell(metric, t.tunability.estimate if t.tunability else math.nan),
         delta_cell(metric, t.tunability.low if t.tunability else math.nan),
         delta_cell(metric, t.tunability.high if t.tunability else math.nan),
         delta_cell(metric, t.mistunability.estimate), value_cell(t.tolerant), value_cell(t.values))
        for t in study.tunings
    )  # fmt: skip
    columns = (
        "sweep",
        "data",
        "knob",
        "best",
        "over",
        "gain",
        "low",
        "high",
        "lost blindly",
        "within margin",
        "values",
    )
    caption = (
        "What tuning gains over the paper's value or the baseline, and what a value picked blindly from those tried loses; "
        "intervals, each by itself at the level of its sweep's look, from seeds that did not choose."
    )
    body: list[Block] = [Text(_gained(study, item)) for item in study.tunings]
    known = [t for t in study.tunings if t.tunability is not None and math.isfinite(t.tunability.estimate)]
    if known:
        body.insert(0, _figure(study, known))
    return Section(
        "tuning",
        "What is tuning worth?",
        "Tuning",
        (*body, Table("tuning", caption, columns, rows, folded="The numbers")),
    )


def _figure(study: StudyAnalysis, known: list[Tuning]) -> Figure:
    metric = study.sweeps[0].metric
    items = [
        Whisker(
            f"{t.sweep}: {t.knob}", t.tunability.estimate, t.tunability.low, t.tunability.high, tip=_gained(study, t)
        )
        for t in known
        if t.tunability is not None
    ]
    unit = f", {metric.unit}" if metric.unit else ""
    return Figure(
        "tuning", lambda narrow: whiskers(items, f"gain of tuning in {metric.name}{unit}", narrow=narrow, zero=True),
        " ".join(_gained(study, t) for t in known),
        "The gain of tuning over the paper's value, or the baseline, on seeds that did not choose, with intervals.",
    )  # fmt: skip
