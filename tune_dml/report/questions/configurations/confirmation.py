"""Does the best cell hold up? Compare the best cells with the baseline on fresh seeds, which did not select them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tune_dml.record.judging.resolution import resolution_in
from tune_dml.record.results import TrialResult
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.alike import identical_cells
from tune_dml.report.analysis.cell import best_cells
from tune_dml.report.analysis.comparisons import better_or_worse
from tune_dml.report.naming import prose_label
from tune_dml.report.questions import question
from tune_dml.report.questions.validity.caveats import unbeaten_floor
from tune_dml.report.section import (
    Block,
    Card,
    Section,
    Table,
    TableCell,
    Text,
    delta_cell,
    metric_cell,
    text_cell,
    value_cell,
)
from tune_dml.report.steps import Step, continue_sweep
from tune_dml.stats import SeedTable
from tune_dml.stats.forecast import Forecast, forecast_fresh_seeds
from tune_dml.stats.intervals.paired import Interval, cell_interval, paired_difference
from tune_dml.stats.sequential.looks import level_left
from tune_dml.text import counted, joined

_FRESH = (5, 8, 12)
"""Seeds that may be advised for a confirmation."""


@dataclass(frozen=True)
class ConfirmedCell:
    """Results of a cell on the seeds that selected it, and on fresh seeds."""

    label: str
    baseline: bool
    selection: Interval
    """Mean on the sweep's own seeds."""
    fresh: Interval
    """Mean on the fresh seeds."""
    optimism: float
    """Selection score minus fresh score; a positive number means that the selection score was too good."""
    gain: Interval | None
    """Gain over the baseline, within fresh seeds; None for the baseline itself, or without a baseline."""
    gain_optimism: float
    """Gain on the seeds that selected the cell minus the gain on fresh seeds."""
    planned: int
    """Number of planned fresh seeds."""
    lost: tuple[str, ...]
    """Fresh trials without a result, each with the reason."""


@dataclass(frozen=True)
class _Confirmation:
    """The verdict on the winner."""

    winner: str
    verdict: str
    """`holds`, `worse`, `undecided`, or `measured again` without a baseline."""
    sentences: tuple[str, ...]
    cells: tuple[ConfirmedCell, ...]


@question(order=305, unanswered={"confirmation": None})
def confirmation(analysis: Analysis) -> Section | None:
    """Compare selection and fresh scores; advise a confirmation if there is none."""
    if not analysis.results.confirmed:
        steps, hint = _advice(analysis)
        return Section("", "", "", steps=steps, hint=hint, data={"confirmation": None})
    cells = _cells(analysis)
    outcome = _judge(analysis, cells)
    body: list[Block] = [Text(" ".join(outcome.sentences)), _scores(analysis, cells)]
    if any(cell.gain for cell in cells):
        body.append(_gains(analysis, cells))
    body.append(_trials(analysis))
    title, first = "Does the best configuration hold up?", outcome.sentences[0]
    style = {"holds": "better", "worse": "worse"}.get(outcome.verdict, "undecided")
    return Section(
        "confirmation",
        title,
        "Confirmation",
        tuple(body),
        card=Card(outcome.verdict, style, title, first),
        verdicts=(first,),
        headline=_headline(analysis, outcome),
        steps=continue_sweep(
            analysis.results,
            "resume",
            "",
            settles="whether the best configuration holds up on fresh seeds",
            trials=analysis.results.confirmation_left,
            urgency=85,
        ),
        data={"confirmation": outcome},
    )


def _advice(analysis: Analysis) -> tuple[tuple[Step, ...], str]:
    """Return a step that confirms the best cell, or the reason why none is advised.

    Both are empty if there is no choice to confirm.
    """
    best = [cell for cell in best_cells(analysis.results) if not cell.baseline]
    if not best or analysis.results.is_incomplete or len(analysis.cells) < 2 or unbeaten_floor(analysis):
        return (), ""
    values = analysis.table.values
    if (
        any(len(group) == len(analysis.cells) for group in identical_cells(analysis.cells))
        or (values == values[0]).all()
    ):
        return (), ""  # the cells do not differ
    winner, baseline = best[0].label, analysis.baseline
    ahead = _ahead(analysis, winner)
    gain = f"that {winner} beats {baseline.label if baseline else ''}"
    if ahead is not None and not ahead.worth_it:
        return (), f"Even with {ahead.seeds} fresh seeds, the chance of showing {gain} would be below 50%."
    seeds, chance = (_FRESH[0], None) if ahead is None else (ahead.seeds, ahead.chance)
    settles = f"whether {winner} holds up on fresh seeds" if chance is None else f"{gain} on fresh seeds"
    trials = seeds * (1 + (baseline is not None))
    change = f"--top 1 --seeds {seeds}"
    steps = continue_sweep(
        analysis.results, "confirm", change, settles=settles, trials=trials, urgency=10, chance=chance
    )
    return steps, ""


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
    trials: dict[str, list[TrialResult]] = {}
    for trial in analysis.results.confirmed:
        trials.setdefault(trial.cell.digest, []).append(trial)
    by_digest = {cell.cell.digest: cell for cell in analysis.cells}
    ranked = [cell.digest for cell in best_cells(analysis.results)]
    order = [digest for digest in dict.fromkeys((*ranked, *trials)) if digest in trials]
    chosen = sorted((by_digest[digest] for digest in order), key=lambda cell: not cell.cell.baseline)
    seeds = list(dict.fromkeys(trial.seed for trial in analysis.results.confirmed))
    metric = analysis.metric.key
    numbers = {cell.label: _values(trials[cell.cell.digest], metric) for cell in chosen}
    step = resolution_in(metric, [[trial.metrics for trial in cell_trials] for cell_trials in trials.values()])
    fresh = SeedTable.of(numbers, seeds, resolution=step)
    before = SeedTable.of({cell.label: cell.values for cell in chosen}, analysis.seeds, resolution=analysis.resolution)
    sign, alpha = analysis.sign, analysis.confirmation_looks.level
    confirmed = []
    for row, cell in enumerate(chosen):
        selection, confirmation_score = (cell_interval(table, row, alpha) for table in (before, fresh))
        gain, gain_optimism = None, math.nan
        if chosen[0].cell.baseline and row:
            gain = paired_difference(fresh, row, 0, alpha)
            gain_optimism = sign * (paired_difference(before, row, 0).mean - gain.mean)
        fresh_trials = trials[cell.cell.digest]
        unfinished = [trial for trial in fresh_trials if trial.status != "finished"]
        lost = tuple(f"seed {t.seed} {t.status}{': ' if t.reason else ''}{t.reason}" for t in unfinished)
        optimism = sign * (selection.mean - confirmation_score.mean)
        confirmed.append(
            ConfirmedCell(
                cell.label, cell.cell.baseline, selection, confirmation_score, optimism, gain, gain_optimism,
                len(fresh_trials), lost,
            )
        )  # fmt: skip
    return tuple(confirmed)


def _values(trials: Sequence[TrialResult], metric: str) -> dict[int, float]:
    numbers = {trial.seed: trial.metrics.get(metric, math.nan) for trial in trials if trial.status == "finished"}
    return {seed: float(number) for seed, number in numbers.items() if math.isfinite(number)}


def _judge(analysis: Analysis, cells: tuple[ConfirmedCell, ...]) -> _Confirmation:
    """Judge the confirmed cell that validation selects, by its gain over the baseline, or else by its score."""
    winner, *runners_up = [cell for cell in cells if not cell.baseline]
    verdict, baseline = _verdict(winner, analysis.sign), next((cell for cell in cells if cell.baseline), None)
    against = baseline.label if baseline else ""
    sentences = [_verdict_sentence(analysis, winner, verdict, against)]
    sentences += _selection_sentences(analysis, winner, baseline)
    better = [cell.label for cell in runners_up if analysis.sign * (cell.fresh.mean - winner.fresh.mean) > 0]
    if better:
        sentences.append(f"On fresh seeds, {joined(better)} did better.")
    sentences += [f"No result: {cell.label}, {lost}." for cell in cells for lost in cell.lost]
    return _Confirmation(winner.label, verdict, tuple(sentences), cells)


def _headline(analysis: Analysis, outcome: _Confirmation) -> str:
    """Return the verdict in a sentence, or the winner's mean without a baseline; empty without results."""
    baseline, winner = outcome.cells[0].label, outcome.winner
    cell = next(cell for cell in outcome.cells if cell.label == winner)
    gain, metric = cell.gain, analysis.metric
    if outcome.verdict == "measured again" and cell.fresh.n:
        score, selection_score = metric.number(cell.fresh.mean), metric.number(cell.selection.mean)
        seeds = counted(cell.fresh.n, "fresh seed")
        return f"On {seeds}, {prose_label(winner)} reaches {score} ({selection_score} on those that selected it)."
    if gain is None or not math.isfinite(gain.low):
        return ""
    if outcome.verdict == "undecided":
        return f"It is undecided whether {prose_label(winner)} beats {baseline} on fresh seeds."
    how = (
        f"{analysis.metric.rough(abs(gain.mean))} {'better' if outcome.verdict == 'holds' else 'worse'} than {baseline}"
    )
    return f"On {gain.n} fresh seeds, {prose_label(winner)} is {how}."


def _selection_sentences(analysis: Analysis, winner: ConfirmedCell, baseline: ConfirmedCell | None) -> list[str]:
    """Return sentences about the winner's score and gain on the seeds that selected it."""
    metric, sentences = analysis.metric, []
    if winner.gain is not None and math.isfinite(winner.gain_optimism):
        before = winner.gain.mean + analysis.sign * winner.gain_optimism
        sentences.append(f"On the seeds that selected it, the difference was {metric.signed(before)}.")
    cells = [cell for cell in (winner, baseline) if cell is not None and math.isfinite(cell.optimism)]
    scores = [f"{c.label} {metric.number(c.selection.mean)} and {metric.number(c.fresh.mean)}" for c in cells]
    return [*sentences, f"{metric.label} on selection and fresh seeds: {', '.join(scores)}."] if scores else sentences


def _verdict(winner: ConfirmedCell, sign: float) -> str:
    """Return the verdict by the paired interval of the gain over the baseline on fresh seeds."""
    gain = winner.gain
    if gain is None or not math.isfinite(gain.low):
        return "undecided" if gain is not None else "measured again"
    verdict = better_or_worse(gain.low, gain.high, sign)
    return "holds" if verdict == "better" else verdict


def _verdict_sentence(analysis: Analysis, winner: ConfirmedCell, verdict: str, baseline: str) -> str:
    metric, fresh, gain = analysis.metric, winner.fresh, winner.gain
    seeds = counted(fresh.n, "fresh seed")
    if not fresh.n:
        return f"{winner.label}, the best on validation, has no result on fresh seeds yet."
    if gain is None:
        return (
            f"{winner.label}, the best on validation, has {metric.label} {_with_interval(analysis, fresh)} on {seeds}."
        )
    if not gain.n or not math.isfinite(gain.low):
        return f"It is undecided whether {winner.label} holds up: {seeds} shared with {baseline} give no interval."
    ends = " to ".join(map(metric.signed, metric.change_ends(gain.low, gain.high)))
    confidence = analysis.confirmation_looks.confidence
    interval = f"{metric.signed(gain.mean)} ({confidence} interval {ends}, paired t over {gain.n} fresh seeds)"
    if verdict == "holds":
        return f"{winner.label} holds up: on fresh seeds it is better than {baseline}, {interval}."
    if verdict == "worse":
        return f"{winner.label} does not hold up: on fresh seeds it is worse than {baseline}, {interval}."
    return (
        f"It is undecided whether {winner.label} holds up: on fresh seeds its difference to {baseline} is {interval}."
    )


def _with_interval(analysis: Analysis, interval: Interval) -> str:
    metric = analysis.metric
    if not math.isfinite(interval.low):
        return metric.number(interval.mean)
    ends = metric.interval(*metric.level_ends(interval.low, interval.high))
    return f"{metric.number(interval.mean)} ({analysis.confirmation_looks.confidence} interval {ends}, Student's t)"


def _scores(analysis: Analysis, cells: tuple[ConfirmedCell, ...]) -> Table:
    metric = analysis.metric
    rows = tuple(
        (text_cell(cell.label), value_cell(cell.selection.n), metric_cell(metric, cell.selection.mean),
         text_cell(f"{cell.fresh.n} of {cell.planned}"),
         *(metric_cell(metric, value) for value in (cell.fresh.mean, cell.fresh.low, cell.fresh.high)),
         delta_cell(metric, cell.optimism))
        for cell in cells
    )  # fmt: skip
    caption = (
        f"{metric.axis} on the seeds that selected the cells and on fresh ones, with the "
        f"{analysis.confirmation_looks.confidence} interval of the fresh mean "
        "(Student's t). Optimism: how much better the cell looked on the seeds that selected it."
    )
    columns = ("cell", "seeds", "selection score", "fresh seeds", "confirmation score", "low", "high", "optimism")
    return Table("confirmation", caption, columns, rows)


def _gains(analysis: Analysis, cells: tuple[ConfirmedCell, ...]) -> Table:
    metric, confidence = analysis.metric, analysis.confirmation_looks.confidence
    rows: tuple[tuple[TableCell, ...], ...] = tuple(
        (text_cell(cell.label), value_cell(cell.gain.n), delta_cell(metric, cell.gain.mean), delta_cell(metric, cell.gain.low),
         delta_cell(metric, cell.gain.high), delta_cell(metric, cell.gain_optimism))
        for cell in cells
        if cell.gain
    )  # fmt: skip
    caption = (
        f"Cell minus baseline within fresh seeds, with its own {confidence} interval (paired t); optimism as above."
    )
    return Table("confirmation-gains", caption, ("cell", "fresh seeds", "gain", "low", "high", "optimism"), rows)


def _trials(analysis: Analysis) -> Table:
    metric = analysis.metric
    rows = tuple(
        (text_cell(trial.cell.label, anchor=f"trial-{trial.key}"), value_cell(trial.seed),
         text_cell(trial.status, mark=trial.status), text_cell(trial.key), text_cell(trial.run_id or "-"),
         metric_cell(metric, trial.metrics.get(metric.key, math.nan)))
        for trial in analysis.results.confirmed
    )  # fmt: skip
    columns = ("cell", "seed", "status", "trial", "MLflow run", metric.axis)
    caption = "Every fresh trial. No curve, selection or other verdict of this report uses them."
    return Table("confirmation-trials", caption, columns, rows, folded="The fresh trials", for_paper=False)
