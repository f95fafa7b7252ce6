"""Does the best cell hold up? Compare the best cells with the baseline on fresh seeds, which did not select them."""

import math
from dataclasses import dataclass
from functools import partial

from tune_dml.record.judging.resolution import resolution_in
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import analyse_cells, identical_cells
from tune_dml.report.analysis.comparisons import better_or_worse
from tune_dml.report.cells import delta_cells, interval_cells, metric_cell, metric_cells, text_cell
from tune_dml.report.naming import prose_label
from tune_dml.report.questions import question
from tune_dml.report.questions.validity.caveats import unbeaten_floor
from tune_dml.report.section import Card, Section, Table, Text
from tune_dml.report.steps import Step, continue_sweep
from tune_dml.stats import SeedTable
from tune_dml.stats.forecast import Forecast, forecast_fresh_seeds
from tune_dml.stats.intervals.paired import Interval, cell_interval, paired_difference
from tune_dml.stats.sequential.looks import level_left
from tune_dml.text import counted, joined

_FRESH = (5, 8, 12)  # seeds that may be advised for a confirmation
_MIN_SEEDS = 5
"""Seeds from which on a chance is stated. With 3 seeds, 63 % would be promised and 41 % come true (docs/verdicts.md)."""


@dataclass(frozen=True)
class ConfirmedCell:
    """Results of a cell on the seeds that selected it, and on fresh seeds."""

    label: str
    baseline: bool
    selection: Interval  # mean on the sweep's own seeds
    fresh: Interval
    optimism: float  # selection score minus fresh score; a positive number means that the selection score was too good
    gain: Interval | None
    """Gain over the baseline, within fresh seeds; None for the baseline itself, or without a baseline."""
    gain_optimism: float  # gain on the seeds that selected the cell minus the gain on fresh seeds
    planned: int
    lost: tuple[str, ...]


@dataclass(frozen=True)
class _Confirmation:
    winner: str
    verdict: str  # `holds`, `worse`, `undecided`, or `measured again` without a baseline
    sentences: tuple[str, ...]
    cells: tuple[ConfirmedCell, ...]


@question(order=305, unanswered={"confirmation": None})
def confirmation(analysis: Analysis) -> Section | None:
    """Compare selection and fresh scores; advise a confirmation if there is none."""
    if not analysis.results.confirmed:
        steps, hint = _advice(analysis)
        return Section(steps=steps, hint=hint, data={"confirmation": None})
    cells = _cells(analysis)
    outcome = _judge(analysis, cells)
    results, settles = analysis.results, "whether the best configuration holds up on fresh seeds"
    return Section(
        "confirmation",
        "Does the best configuration hold up?",
        "Confirmation",
        (Text(" ".join(outcome.sentences)), _scores(analysis, cells), _gains(analysis, cells), _trials(analysis)),
        Card(outcome.verdict, {"holds": "better", "worse": "worse"}.get(outcome.verdict, "undecided")),
        outcome.sentences[:1],
        headline=_headline(analysis, outcome),
        steps=continue_sweep(results, "resume", settles=settles, trials=results.confirmation_left, urgency=85),
        data={"confirmation": outcome},
    )


def _advice(analysis: Analysis) -> tuple[tuple[Step, ...], str]:
    """Return a step that confirms the best cell, or the reason why none is advised.

    Both are empty if there is no choice to confirm.
    """
    best = [cell for cell in analysis.selectable if not cell.cell.baseline]
    if not best or analysis.results.is_incomplete or len(analysis.cells) < 2 or unbeaten_floor(analysis):
        return (), ""
    values, alike = analysis.table.values, identical_cells(analysis.cells)
    if any(len(group) == len(analysis.cells) for group in alike) or (values == values[0]).all():
        return (), ""  # the cells do not differ
    winner, baseline = best[0].label, analysis.baseline
    ahead = _ahead(analysis, winner)
    gain = f"that {winner} beats {baseline.label if baseline else ''}"
    if ahead is not None and not ahead.worth_it:
        return (), f"Even with {ahead.seeds} fresh seeds, the chance of showing {gain} would be below 50%."
    seeds, chance = (_FRESH[0], None) if ahead is None else (ahead.seeds, ahead.chance)
    chance = chance if len(analysis.seeds) >= _MIN_SEEDS else None
    settles = f"whether {winner} holds up on fresh seeds" if chance is None else f"{gain} on fresh seeds"
    trials, change = seeds * (1 + (baseline is not None)), f"--top 1 --seeds {seeds}"
    confirm = partial(continue_sweep, analysis.results, "confirm", change)
    return confirm(settles=settles, trials=trials, urgency=10, chance=chance), ""


def _ahead(analysis: Analysis, winner: str) -> Forecast | None:
    """Forecast how many fresh seeds would show that the winner beats the baseline.

    Return None without a baseline or a noise estimate.
    """
    baseline, table = analysis.baseline, analysis.table.times(analysis.sign)
    if baseline is None or winner not in table.labels or baseline.label not in table.labels:
        return None
    pair = [table.labels.index(label) for label in (winner, baseline.label)]
    planned = level_left([1.0], planned=1)  # level of a look at all planned fresh seeds
    return forecast_fresh_seeds(
        table.values, (pair[0], pair[1]), _FRESH, scale=analysis.margin, resolution=table.resolution, alpha=planned
    )


def _cells(analysis: Analysis) -> tuple[ConfirmedCell, ...]:
    """Return the confirmed cells: the baseline first, then the others by their rank on validation."""
    metric, confirmed = analysis.metric.key, analysis.results.confirmed
    by_digest = {cell.cell.digest: cell for cell in analysis.cells}
    again = {cell.cell.digest: cell for cell in analyse_cells(confirmed, metric)}
    ranked = [cell.cell.digest for cell in analysis.selectable]
    order = [digest for digest in dict.fromkeys((*ranked, *again)) if digest in again]
    chosen = sorted((by_digest[digest] for digest in order), key=lambda cell: not cell.cell.baseline)
    seeds = list(dict.fromkeys(trial.seed for trial in confirmed))
    step = resolution_in(metric, [[trial.metrics for trial in cell.trials] for cell in again.values()])
    fresh = SeedTable.of({cell.label: again[cell.cell.digest].values for cell in chosen}, seeds, resolution=step)
    before = SeedTable.of({cell.label: cell.values for cell in chosen}, analysis.seeds, resolution=analysis.resolution)
    sign, alpha = analysis.sign, analysis.confirmation_looks.level
    rows = []
    for row, cell in enumerate(chosen):
        selection, score = (cell_interval(table, row, alpha) for table in (before, fresh))
        gain, gain_optimism = None, math.nan
        if chosen[0].cell.baseline and row:
            gain = paired_difference(fresh, row, 0, alpha)
            gain_optimism = sign * (paired_difference(before, row, 0).mean - gain.mean)
        own = again[cell.cell.digest].trials
        unfinished = [trial for trial in own if trial.status != "finished"]
        lost = tuple(f"seed {t.seed} {t.status}{': ' if t.reason else ''}{t.reason}" for t in unfinished)
        scores = (selection, score, sign * (selection.mean - score.mean))
        rows.append(ConfirmedCell(cell.label, cell.cell.baseline, *scores, gain, gain_optimism, len(own), lost))
    return tuple(rows)


def _judge(analysis: Analysis, cells: tuple[ConfirmedCell, ...]) -> _Confirmation:
    """Judge the confirmed cell that validation selects, by its gain over the baseline, or else by its score."""
    winner, *runners_up = [cell for cell in cells if not cell.baseline]
    baseline, verdict = next((cell for cell in cells if cell.baseline), None), "measured again"
    if winner.gain is not None:
        verdict = better_or_worse(winner.gain.low, winner.gain.high, analysis.sign).replace("better", "holds")
    diverged = _diverged(analysis, winner)
    if diverged and verdict == "holds":  # the seeds that are left were not drawn at random
        verdict = "undecided"
    sentences = [diverged + _verdict_sentence(analysis, winner, verdict, baseline.label if baseline else "")]
    sentences += _selection_sentences(analysis, winner, baseline)
    better = [cell.label for cell in runners_up if analysis.sign * (cell.fresh.mean - winner.fresh.mean) > 0]
    if better:
        sentences.append(f"On fresh seeds, {joined(better)} had a better mean; this is not tested.")
    sentences += [f"No result: {cell.label}, {lost}." for cell in cells for lost in cell.lost]
    return _Confirmation(winner.label, verdict, tuple(sentences), cells)


def _diverged(analysis: Analysis, winner: ConfirmedCell) -> str:
    """Return a sentence on the fresh seeds under which the winner diverged; empty if there are none."""
    trials = [trial for trial in analysis.results.confirmed if trial.cell.label == winner.label]
    count = sum(trial.status == "diverged" for trial in trials)
    label = prose_label(winner.label)
    return f"{label} diverged under {count} of {counted(len(trials), 'fresh seed')}. " if count else ""


def _headline(analysis: Analysis, outcome: _Confirmation) -> str:
    """Return the verdict in a sentence, or the winner's mean without a baseline; empty without results."""
    baseline, winner = outcome.cells[0].label, outcome.winner
    cell = next(cell for cell in outcome.cells if cell.label == winner)
    gain, metric, diverged = cell.gain, analysis.metric, _diverged(analysis, cell)
    if diverged:
        return diverged.strip()
    if outcome.verdict == "measured again" and cell.fresh.n:
        score, selection_score = metric.number(cell.fresh.mean), metric.number(cell.selection.mean)
        seeds = counted(cell.fresh.n, "fresh seed")
        return f"On {seeds}, {prose_label(winner)} reaches {score} ({selection_score} on those that selected it)."
    if gain is None or not math.isfinite(gain.low):
        return ""
    if outcome.verdict == "undecided":
        return f"It is undecided whether {prose_label(winner)} beats {baseline} on fresh seeds."
    how = f"{metric.rough(abs(gain.mean))} {'better' if outcome.verdict == 'holds' else 'worse'}"
    return f"On {gain.n} fresh seeds, {prose_label(winner)} is {how} than {baseline}."


def _selection_sentences(analysis: Analysis, winner: ConfirmedCell, baseline: ConfirmedCell | None) -> list[str]:
    """Return sentences about the winner's score and gain on the seeds that selected it."""
    metric, sentences = analysis.metric, []
    if winner.gain is not None and math.isfinite(winner.gain_optimism):
        before = winner.gain.mean + analysis.sign * winner.gain_optimism
        sentences.append(f"On the seeds that selected it, the difference was {metric.signed(before)}.")
    cells = [cell for cell in (winner, baseline) if cell is not None and math.isfinite(cell.optimism)]
    scores = [f"{c.label} {metric.number(c.selection.mean)} and {metric.number(c.fresh.mean)}" for c in cells]
    return [*sentences, f"{metric.label} on selection and fresh seeds: {', '.join(scores)}."] if scores else sentences


def _verdict_sentence(analysis: Analysis, winner: ConfirmedCell, verdict: str, baseline: str) -> str:
    metric, fresh, gain = analysis.metric, winner.fresh, winner.gain
    seeds = counted(fresh.n, "fresh seed")
    confidence, label = analysis.confirmation_looks.confidence, winner.label
    if not fresh.n:
        return f"{label}, the best on validation, has no result on fresh seeds."
    if gain is None:
        ends = metric.interval(*metric.level_ends(fresh.low, fresh.high))
        interval = f" ({confidence} interval {ends}, Student's t)" if ends else ""
        return f"{label}, the best on validation, has {metric.label} {metric.number(fresh.mean)}{interval} on {seeds}."
    if not gain.n or not math.isfinite(gain.low):
        return f"It is undecided whether {label} holds up: {seeds} shared with {baseline} give no interval."
    ends = " to ".join(map(metric.signed, metric.change_ends(gain.low, gain.high)))
    interval = f"{metric.signed(gain.mean)} ({confidence} interval {ends}, paired t over {gain.n} fresh seeds)"
    if verdict == "holds":
        return f"{label} holds up: on fresh seeds it is better than {baseline}, {interval}."
    if verdict == "worse":
        return f"{label} does not hold up: on fresh seeds it is worse than {baseline}, {interval}."
    return f"It is undecided whether {label} holds up: on fresh seeds its difference to {baseline} is {interval}."


def _scores(analysis: Analysis, cells: tuple[ConfirmedCell, ...]) -> Table:
    metric = analysis.metric
    rows = [
        (c.label, c.selection.n, metric_cell(metric, c.selection.mean), f"{c.fresh.n} of {c.planned}",
         *metric_cells(metric, c.fresh.mean, *metric.level_ends(c.fresh.low, c.fresh.high)),
         *delta_cells(metric, c.optimism))
        for c in cells
    ]  # fmt: skip
    caption = (
        f"{metric.axis} on the seeds that selected the cells and on fresh ones, with the "
        f"{analysis.confirmation_looks.confidence} interval of the fresh mean "
        "(Student's t). Optimism: how much better the cell looked on the seeds that selected it."
    )
    columns = ("cell", "seeds", "selection score", "fresh seeds", "confirmation score", "low", "high", "optimism")
    return Table("confirmation", caption, columns, rows)


def _gains(analysis: Analysis, cells: tuple[ConfirmedCell, ...]) -> Table:
    metric, level = analysis.metric, analysis.confirmation_looks.confidence
    rows = [
        (
            cell.label,
            gain.n,
            *interval_cells(metric, gain.mean, gain.low, gain.high),
            *delta_cells(metric, cell.gain_optimism),
        )
        for cell in cells
        if (gain := cell.gain)
    ]
    caption = f"Cell minus baseline within fresh seeds, with its own {level} interval (paired t); optimism as above."
    return Table("confirmation-gains", caption, ("cell", "fresh seeds", "gain", "low", "high", "optimism"), rows)


def _trials(analysis: Analysis) -> Table:
    metric = analysis.metric
    rows = [
        (text_cell(t.cell.label, anchor=f"trial-{t.key}"), t.seed, text_cell(t.status, mark=t.status), t.key,
         t.run_id or "-", metric_cell(metric, t.metrics.get(metric.key, math.nan)))
        for t in analysis.results.confirmed
    ]  # fmt: skip
    columns = ("cell", "seed", "status", "trial", "MLflow run", metric.axis)
    caption = "Every fresh trial. No curve, selection or other verdict of this report uses them."
    return Table("confirmation-trials", caption, columns, rows, folded="The fresh trials", for_paper=False)
