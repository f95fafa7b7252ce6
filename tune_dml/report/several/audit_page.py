"""The page and the sentences of an audit: which settings change the result, and by how much."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tune_dml.planning.audit import Audit
from tune_dml.record.results import Results
from tune_dml.report.cells import delta_cells, metric_cell, text_cell
from tune_dml.report.drawing.charts import Whisker
from tune_dml.report.naming import MetricName, metric_name
from tune_dml.report.page import PageHead, write_page
from tune_dml.report.section import Notes, Section, Table, Text, whisker_figure
from tune_dml.report.summary import Answer
from tune_dml.stats.screening import FactorEffect, ScreeningVerdict, Suspects
from tune_dml.text import counted, joined

_CONTEXT = "docs/audit.md has the error rates of this procedure."


@dataclass(frozen=True, eq=False)
class AuditReport:
    """A finished audit."""

    audit: Audit
    verdict: ScreeningVerdict
    suspects: Suspects
    first: Results
    second: Results
    notes: tuple[str, ...] = ()

    @property
    def metric(self) -> MetricName:
        """Metric by which the audit judges."""
        return metric_name(self.audit.metric)

    @property
    def trials(self) -> int:
        """Trials of both stages."""
        return len(self.first.trials) + len(self.second.trials)


def audit_sentences(report: AuditReport) -> tuple[str, ...]:
    """Return the answer in sentences: settings that change the result, a bound for the others, faults of the data.

    If no setting is named, the faults of the data come first, because they may be the cause.
    """
    settings, faults = _settings_sentences(report), "; ".join(report.audit.data)
    data = (f"Check the data: {faults}.",) if faults else ()
    return (*settings, *data) if report.verdict.named else (*data, *settings)


def _settings_sentences(report: AuditReport) -> tuple[str, ...]:
    verdict, audit, metric = report.verdict, report.audit, report.metric
    count = len(audit.factors)
    suspects = {*verdict.named, *verdict.one_of}
    other_effects = [effect for index, effect in enumerate(verdict.effects) if index not in suspects]
    bound = _bound_sentence(other_effects, metric, "other " if suspects else "")
    if verdict.named:
        first = [_effect_sentence(report, index) for index in verdict.named if index not in (verdict.pair or ())]
        if verdict.together is not None:
            first.insert(0, _pair_sentence(report, verdict.together))
    elif verdict.one_of:
        names = " and ".join(audit.factors[index].name for index in verdict.one_of)
        first = [f"At least one of {names} changes {metric.name}; {report.trials} trials cannot tell which."]
    else:
        subject = f"None of the {count} settings that differ is" if count > 1 else "The setting that differs is not"
        first = [f"{subject} shown to change {metric.name}."]
    if audit.number is None:
        return (*first, *bound)
    reached = f"{audit.protocol.name} itself reaches {metric.number(verdict.reference)} here"
    return (*first, *bound, f"{reached}; the number is {metric.number(audit.number)}.")


def _bound_sentence(effects: Sequence[FactorEffect], metric: MetricName, adjective: str) -> tuple[str, ...]:
    if not effects:
        return ()
    bound = metric.amount(max(max(abs(effect.low), abs(effect.high)) for effect in effects))
    if len(effects) == 1:
        return (f"The {adjective}setting changes it by at most {bound}.",)
    return (f"None of the {len(effects)} {adjective}settings changes it by more than {bound}.",)


def _effect_sentence(report: AuditReport, index: int) -> str:
    name, yours, theirs = report.audit.describe(index)
    effect, metric = report.verdict.effects[index], report.metric
    return f"{name} {_changes(effect, metric)}: you have {yours}, {report.audit.protocol.name} has {theirs}."


def _changes(effect: FactorEffect, metric: MetricName, verbs: tuple[str, str] = ("costs", "adds")) -> str:
    """Return the effect as a predicate: `costs 3.10 points of R@1 (1.90 to 4.30)`."""
    sign, verb = (-1, verbs[0]) if effect.effect < 0 else (1, verbs[1])
    low, high = sorted((sign * effect.low, sign * effect.high))
    return f"{verb} {metric.amount(sign * effect.effect)} of {metric.name} ({metric.interval(low, high)})"


def _pair_sentence(report: AuditReport, together: FactorEffect) -> str:
    verdict, metric = report.verdict, report.metric
    pair = verdict.pair or ()
    first, second = (report.audit.factors[index].name for index in pair)
    alone = [_changes(verdict.effects[index], metric) for index in pair]
    both = _changes(together, metric, ("cost", "add"))
    return f"{first} and {second} act together: both {both}; {first} alone {alone[0]}, {second} alone {alone[1]}."


def audit_data(report: AuditReport) -> dict[str, Any]:
    """Return the audit as data for JSON."""
    verdict = report.verdict
    audit = report.audit
    settings = [
        {"name": factor.name, "yours": factor.yours, "protocol": factor.protocol, **asdict(effect)}
        for factor, effect in zip(audit.factors, verdict.effects, strict=True)
    ]
    return {
        "run": audit.run,
        "protocol": audit.protocol.name,
        "metric": audit.metric,
        "number": audit.number,
        "protocol_mean": verdict.reference,
        "named": [audit.factors[index].name for index in verdict.named],
        "one_of": [audit.factors[index].name for index in verdict.one_of],
        "together": verdict.together,
        "settings": settings,
        "noise": verdict.noise,
        "trials": report.trials,
        "ineffective": audit.differences.ineffective,
        "unscreened": audit.differences.unscreened,
        "data": audit.data,
        "answer": audit_sentences(report),
        "notes": report.notes,
        "sweeps": [report.first.name, report.second.name],
    }


def write_audit(report: AuditReport, folder: Path) -> tuple[Path, Path]:
    """Write `audit.html` and `audit.json` into a folder, which is created if missing."""
    audit = report.audit
    facts = (
        ("Settings that differ", str(len(audit.factors))),
        ("Trials", f"{len(report.first.trials)} screen all settings, {len(report.second.trials)} on fresh seeds"),
        ("Noise of a trial", f"{report.metric.amount(report.verdict.noise)} beside its seed"),
    )
    title = f"{audit.run} against {audit.protocol.name}"
    footer = f"Sweeps {report.first.name} and {report.second.name}. {_CONTEXT}"
    head = PageHead(title, "Audit", title, Answer(audit_sentences(report), facts=facts), footer)
    return write_page(folder, "audit", head, [_settings(report), _trust(report)], audit_data(report))


def _verdict_text(effect: FactorEffect) -> str:
    if effect.named:
        return "changes the result"
    return "suspect, not confirmed" if effect.suspect else "not shown"


def _settings(report: AuditReport) -> Section:
    metric, effects, names = report.metric, report.verdict.effects, [f.name for f in report.audit.factors]
    order = sorted(range(len(names)), key=lambda index: -abs(effects[index].effect))
    items = [
        Whisker(names[i], effects[i].effect, effects[i].low, effects[i].high,
                colour="mean" if effects[i].named else "base", tip=f"{names[i]}: {_verdict_text(effects[i])}")
        for i in order
    ]  # fmt: skip
    caption = "Your value minus the protocol's, with intervals that hold at once. Grey: not named."
    axis, finding = f"effect on {metric.label}{metric.unit_after}", " ".join(audit_sentences(report))
    figure = whisker_figure("effects", items, axis, finding, caption)
    rows = [
        (*report.audit.describe(i), *delta_cells(metric, effects[i].effect, effects[i].low, effects[i].high),
         text_cell(_verdict_text(effects[i]), mark="worse" if effects[i].named else ""))
        for i in order
    ]  # fmt: skip
    columns = ("setting", "yours", "protocol", "effect", "low", "high", "verdict")
    table = Table("settings", "The same in numbers.", columns, rows)
    return Section("settings", "Which setting changes the result?", "Settings", (figure, table))


def _trust(report: AuditReport) -> Section:
    audit, metric = report.audit, report.metric
    suspects = "the suspect" if len(report.suspects.factors) == 1 else "the suspects"
    names = joined([audit.factors[index].name for index in report.suspects.factors])
    text = Text(
        f"The first {counted(len(report.first.trials), 'trial')} change all settings at once, by a two-level design with its "
        f"mirror image. It found {suspects} {names}. {counted(len(report.second.trials), 'trial')} on fresh seeds combine "
        "them so as to tell the probable explanations apart. "
        "The effects are estimated from both. A setting is named if every explanation without it is "
        "much less likely than the best one; the threshold comes from a simulation of the whole procedure."
    )
    values = [(trial.cell.arm, trial.metrics.get(audit.metric, np.nan)) for trial in report.second.trials]
    rows = [(arm, metric_cell(metric, value)) for arm, value in values if np.isfinite(value)]
    fresh = Table("fresh", "The second stage.", ("run", metric.axis), rows)
    differences = audit.differences
    notes = [f"{path} differs without an effect on training." for path in differences.ineffective]
    notes += [f"{path} differs and chooses other pictures: it was not screened." for path in differences.unscreened]
    notes += report.notes
    return Section("trust", "How was it found?", "Design", (text, fresh, *([Notes(notes)] if notes else [])))
