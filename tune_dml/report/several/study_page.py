"""Write a study of several sweeps as one page and as JSON."""

import math
from pathlib import Path

from tune_dml.report.cells import delta_cells
from tune_dml.report.drawing.charts import Whisker
from tune_dml.report.page import PageHead, write_page
from tune_dml.report.questions.knobs.sensitivity import knob_headline
from tune_dml.report.section import Block, Figure, Section, Table, Text, whisker_figure
from tune_dml.report.several.study import StudyAnalysis, Transfer, Tuning, TuningGain
from tune_dml.report.summary import Answer
from tune_dml.text import counted, duration

SCHEMA = "tune_dml.study/1"


def study_data(study: StudyAnalysis) -> dict[str, object]:
    """Return the study as data for JSON."""
    sweeps = [{"name": s.results.name, "dataset": s.results.plan.dataset, "margin": s.margin} for s in study.sweeps]
    return {
        "schema": SCHEMA,
        "sweeps": sweeps,
        "metric": study.metric.description(study.sweeps[0].goal),
        "sentences": study_sentences(study),
        "tuning": study.tunings,
        "transfer": study.transfers,
    }


def study_sentences(study: StudyAnalysis) -> tuple[str, ...]:
    """Return sentences on each sweep's verdicts, on transfer between sweeps, and on the gains of tuning."""
    transfers = [_transfer_sentence(study, item) for item in study.transfers]
    return (*_verdicts(study, named=True), *transfers, *(_tuning_sentence(study, item) for item in study.tunings))


def _verdicts(study: StudyAnalysis, *, named: bool) -> tuple[str, ...]:
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
    if lost.keeps_default:  # the interval of its gain would end at 0, although another value may be better
        return f"{where}, {order}; {item.carried}, which is best in {item.first}, has the best mean there too."
    worth = f"tuning there gains {study.metric.signed_amount(lost.estimate)}"
    return f"{where}, {order}; {worth} ({_ends(study, lost)}) over {item.carried}, which is best in {item.first}."


def _tuning_sentence(study: StudyAnalysis, item: Tuning) -> str:
    metric, loss, gain = study.metric, item.mistunability, item.tunability
    parts = []
    if gain is not None and gain.keeps_default:
        parts.append(f"no value of {item.knob} has a better mean than {item.default}")
    elif gain is not None and math.isfinite(gain.estimate):
        amount = metric.signed_amount(gain.estimate)
        parts.append(f"tuning {item.knob} gains {amount} ({_ends(study, gain)}) over {item.default}")
    if math.isfinite(loss.estimate):
        amount = metric.amount(loss.estimate)
        parts.append(f"a random value of {item.knob} loses {amount} ({_ends(study, loss)})")
    parts = parts or [f"the gain of tuning {item.knob} is unknown: {item.why_unknown}"]
    margin = metric.amount(study.sweeps[study.names.index(item.sweep)].margin)
    verb = "is" if item.tolerant == 1 else "are"
    near = f"{item.tolerant} of {counted(item.values, 'mean')} {verb} within {margin} of the best"
    return f"{item.sweep}: {'; '.join(parts)}; {near}."


def _ends(study: StudyAnalysis, gain: TuningGain) -> str:
    metric = study.metric
    return f"{metric.signed(gain.low)} to {metric.signed(gain.high)}" if math.isfinite(gain.low) else "no interval"


def write_study(study: StudyAnalysis, folder: Path) -> tuple[Path, Path]:
    """Write `study.html` and `study.json` into a folder, which is created if missing."""
    spaces = list(dict.fromkeys(sweep.results.plan.space.title for sweep in study.sweeps))
    datasets = list(dict.fromkeys(sweep.results.plan.dataset for sweep in study.sweeps))
    sizes = [f"{len(s.cells)} cells x {len(s.seeds)} seeds, {duration(s.seconds)}" for s in study.sweeps]
    data = [f"{s.results.plan.dataset}: {size}" for s, size in zip(study.sweeps, sizes, strict=True)]
    facts = tuple(zip(study.names, data, strict=True))
    verdicts = _verdicts(study, named=len(datasets) < len(study.sweeps))  # each verdict names its data set
    names, kicker = ", ".join(study.names), f"Study of {len(study.sweeps)} sweeps on {', '.join(datasets)}"
    head = PageHead(names, kicker, "; ".join(spaces), Answer(verdicts, facts=facts), f"Sweeps: {names}.")
    return write_page(folder, "study", head, [_transfer(study), _tuning(study)], study_data(study))


def _transfer(study: StudyAnalysis) -> Section:
    rows = [
        (t.knob, t.first, t.second, t.shared, round(t.tau, 3), t.low, t.high, t.carried or "-",
         *delta_cells(study.metric, (t.lost or TuningGain()).estimate), t.refusal)
        for t in study.transfers
    ]  # fmt: skip
    columns = (
        "knob", "from", "to", "shared values", "tau", "at least", "at most", "carried over", "tuning gains", "refused",
    )  # fmt: skip
    caption = (
        "Kendall's tau between the orders of the values, with bounds: a pair counts only if its order is significant in both "
        "sweeps. The gain comes from seeds that did not choose the value."
    )
    body: list[Block] = [Text(_transfer_sentence(study, item)) for item in study.transfers]
    body.append(Table("transfer", caption, columns, rows, folded="The numbers"))
    return Section("transfer", "Does the optimum carry over?", "Transfer", body)


def _tuning(study: StudyAnalysis) -> Section:
    rows = []
    for t in study.tunings:
        gain = t.tunability or TuningGain()
        cells = delta_cells(study.metric, gain.estimate, gain.low, gain.high, t.mistunability.estimate)
        rows.append((t.sweep, t.dataset, t.knob, t.best, t.default or "-", *cells, t.tolerant, t.values))
    columns = (
        "sweep", "data", "knob", "best", "over", "gain", "low", "high", "random value loses", "near the best", "values",
    )  # fmt: skip
    caption = (
        "Gain of tuning over the paper's value or the baseline, and loss of a random tried value, from seeds that did "
        "not choose the value. Each interval holds by itself at the level of its sweep's look."
    )
    gains = [(t, t.tunability) for t in study.tunings if t.tunability and math.isfinite(t.tunability.estimate)]
    known = [(t, gain) for t, gain in gains if not gain.keeps_default]
    body: list[Block] = [_figure(study, known)] if known else []
    body += [Text(_tuning_sentence(study, item)) for item in study.tunings]
    body.append(Table("tuning", caption, columns, rows, folded="The numbers"))
    return Section("tuning", "What is tuning worth?", "Tuning", body)


def _figure(study: StudyAnalysis, known: list[tuple[Tuning, TuningGain]]) -> Figure:
    metric = study.metric
    items = [
        Whisker(f"{t.sweep}: {t.knob}", gain.estimate, gain.low, gain.high, tip=_tuning_sentence(study, t))
        for t, gain in known
    ]
    caption = "Gain of tuning over the paper's value or the baseline, from seeds that did not choose the value."
    texts = " ".join(_tuning_sentence(study, t) for t, _ in known), caption
    return whisker_figure("tuning", items, f"gain of tuning in {metric.name}{metric.unit_after}", *texts)
