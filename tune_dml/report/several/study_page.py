"""Write a study of several sweeps as one page and as JSON."""

from __future__ import annotations

import math
from pathlib import Path

from tune_dml.report.drawing.charts import Whisker
from tune_dml.report.page import page_of, write_page
from tune_dml.report.questions.knobs.sensitivity import knob_headline
from tune_dml.report.section import Block, Figure, Section, Table, Text, text_cell, value_cell
from tune_dml.report.several.page import delta_cells, interval_figure, sweeps_head
from tune_dml.report.several.study import StudyAnalysis, Transfer, Tuning, TuningGain
from tune_dml.text import duration, json_value

SCHEMA = "tune_dml.study/1"


def study_data(study: StudyAnalysis) -> dict[str, object]:
    """Return the study as data for JSON; numbers that are not finite become null."""
    sweeps = [{"name": s.results.name, "dataset": s.results.plan.dataset, "margin": s.margin} for s in study.sweeps]
    body: dict[str, object] = json_value({
        "schema": SCHEMA,
        "sweeps": sweeps,
        "sentences": study_sentences(study),
        "tuning": study.tunings,
        "transfer": study.transfers,
    })  # fmt: skip
    return body


def study_sentences(study: StudyAnalysis) -> tuple[str, ...]:
    """Return sentences on each sweep's verdicts, on transfer between sweeps, and on the gains of tuning."""
    transfers = [_transfer_sentence(study, item) for item in study.transfers]
    return (*_verdicts(study, named=True), *transfers, *(_tuning_sentence(study, item) for item in study.tunings))


def _verdicts(study: StudyAnalysis, *, named: bool) -> tuple[str, ...]:
    """Return the verdict on each knob of each sweep, with the sweep's name if `named`."""
    rows = [(s.results.name, sentence) for s in study.sweeps for k in s.knobs if (sentence := knob_headline(s, k))]
    return tuple(f"{name}: {sentence}" if named else sentence for name, sentence in rows)


def _transfer_sentence(study: StudyAnalysis, item: Transfer) -> str:
    where = f"From {item.first} to {item.second}"
    if item.refusal:
        return f"{where}, the orders of {item.knob} are not compared: {item.refusal}."
    order = f"the order of {item.knob} agrees with tau {item.tau:+.2f} (bounds {item.low:+.2f} to {item.high:+.2f})"
    lost = item.lost
    if lost is None or not math.isfinite(lost.estimate):
        return f"{where}, {order}."
    worth = f"tuning there gains {study.metric.signed_amount(lost.estimate)}"
    return f"{where}, {order}; {worth} ({_ends(study, lost)}) over {item.carried}, which is best in {item.first}."


def _tuning_sentence(study: StudyAnalysis, item: Tuning) -> str:
    metric, loss, gain = study.metric, item.mistunability, item.tunability
    parts = []
    if gain is not None and math.isfinite(gain.estimate):
        amount = metric.signed_amount(gain.estimate)
        parts.append(f"tuning {item.knob} gains {amount} ({_ends(study, gain)}) over {item.default}")
    if math.isfinite(loss.estimate):
        amount = metric.amount(loss.estimate)
        parts.append(f"a random value of {item.knob} loses {amount} ({_ends(study, loss)})")
    if not parts:
        parts = [f"the gain of tuning {item.knob} is unknown with one seed"]
    have = "has" if item.tolerant == 1 else "have"
    near = f"{item.tolerant} of {item.values} values {have} a mean so close to the best that the difference does not matter"
    return f"{item.sweep}: {'; '.join(parts)}; {near}."


def _ends(study: StudyAnalysis, gain: TuningGain) -> str:
    metric = study.metric
    return f"{metric.signed(gain.low)} to {metric.signed(gain.high)}" if math.isfinite(gain.low) else "no interval"


def write_study(study: StudyAnalysis, folder: Path) -> tuple[Path, Path]:
    """Write `study.html` and `study.json` into a folder, which is created if missing."""
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
    verdicts = _verdicts(study, named=len(datasets) < len(study.sweeps))  # each verdict names its data set
    names, kicker = ", ".join(study.names), f"Study of {len(study.sweeps)} sweeps on {', '.join(datasets)}"
    head = sweeps_head((names, kicker, "; ".join(spaces)), (verdicts, facts), f"Sweeps: {names}.", "study.json")
    return write_page(folder, "study", page_of(head, [_transfer(study), _tuning(study)]), study_data(study))


def _transfer(study: StudyAnalysis) -> Section:
    rows = tuple(
        (text_cell(t.knob), text_cell(t.first), text_cell(t.second), value_cell(t.shared),
         value_cell(round(t.tau, 3)), value_cell(t.low), value_cell(t.high), text_cell(t.carried or "-"),
         *delta_cells(study.metric, (t.lost or TuningGain()).estimate),
         text_cell(t.refusal))
        for t in study.transfers
    )  # fmt: skip
    columns = (
        "knob", "from", "to", "shared values", "tau", "at least", "at most", "carried over", "tuning gains", "refused",
    )  # fmt: skip
    caption = (
        "Kendall's tau between the orders of the values, with bounds: a pair counts only if its order is significant in both "
        "sweeps. The gain comes from seeds that did not choose the value."
    )
    body: list[Block] = [Text(_transfer_sentence(study, item)) for item in study.transfers]
    body.append(Table("transfer", caption, columns, rows, folded="The numbers"))
    return Section("transfer", "Does the optimum carry over?", "Transfer", tuple(body))


def _tuning(study: StudyAnalysis) -> Section:
    rows = []
    for t in study.tunings:
        gain = t.tunability or TuningGain()
        cells = delta_cells(study.metric, gain.estimate, gain.low, gain.high, t.mistunability.estimate)
        names = (
            text_cell(t.sweep),
            text_cell(t.dataset),
            text_cell(t.knob),
            text_cell(t.best),
            text_cell(t.default or "-"),
        )
        rows.append((*names, *cells, value_cell(t.tolerant), value_cell(t.values)))
    columns = (
        "sweep", "data", "knob", "best", "over", "gain", "low", "high", "random value loses", "near the best", "values",
    )  # fmt: skip
    caption = (
        "Gain of tuning over the paper's value or the baseline, and loss of a random tried value, from seeds that did "
        "not choose the value. Each interval holds by itself at the level of its sweep's look."
    )
    known = [(t, t.tunability) for t in study.tunings if t.tunability and math.isfinite(t.tunability.estimate)]
    body: list[Block] = [_figure(study, known)] if known else []
    body += [Text(_tuning_sentence(study, item)) for item in study.tunings]
    body.append(Table("tuning", caption, columns, tuple(rows), folded="The numbers"))
    return Section("tuning", "What is tuning worth?", "Tuning", tuple(body))


def _figure(study: StudyAnalysis, known: list[tuple[Tuning, TuningGain]]) -> Figure:
    metric = study.metric
    items = [
        Whisker(f"{t.sweep}: {t.knob}", gain.estimate, gain.low, gain.high, tip=_tuning_sentence(study, t))
        for t, gain in known
    ]
    caption = "Gain of tuning over the paper's value or the baseline, from seeds that did not choose the value."
    texts = " ".join(_tuning_sentence(study, t) for t, _ in known), caption
    return interval_figure("tuning", items, f"gain of tuning in {metric.name}{metric.unit_after}", texts)
