"""Warnings in the answer: no cell beats raw pixels, training had not converged, trials collapsed, cells are alike."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from tune_dml.planning.checks.data import FLOOR_SEEDS
from tune_dml.record.origin.commands import command
from tune_dml.record.results import Results, TrialResult
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import CellAnalysis, identical_cells
from tune_dml.report.analysis.convergence import Convergence, judge_convergence
from tune_dml.report.naming import floors_of, prose_label, symbol_of
from tune_dml.report.questions import question
from tune_dml.report.section import Notes, Section, Text
from tune_dml.report.steps import train_longer
from tune_dml.stats.intervals import ROUNDING
from tune_dml.stats.intervals.paired import interval_of_first
from tune_dml.text import counted, joined, level_key, shortened, value_text

_MAX_READ = 24
"""Maximum number of trials whose histories are read, the baseline and the best cells first; reading is slow."""
_MAX_NAMED = 4  # maximum number of configurations that a sentence names; for more it gives their number
_MAX_CHARACTERS = 100  # maximum number of characters of a reason in the answer
_TRAIN_LONGER = 55
"""Urgency of longer training: above wider ranges and more seeds, which would repeat unconverged training."""
_COLLAPSED = "collapsed"
_R_AT_1 = "val/recall_at_1"
_STEPS = "training.steps"


def unbeaten_floor(analysis: Analysis) -> tuple[str, float] | None:
    """Return (name, score) of the best floor if no cell beats it; else None. A floor is a score without training."""
    floors, sign = floors_of(analysis.results), analysis.sign
    if not analysis.ranked or not floors:
        return None
    name, highest = max(floors.items(), key=lambda item: sign * item[1])
    best = analysis.ranked[0].mean
    is_beaten = sign * best > sign * highest and not math.isclose(best, highest, rel_tol=ROUNDING)
    return None if is_beaten else (name, highest)


@question(order=94)
def below_floors(analysis: Analysis) -> Section | None:
    """Warn if no cell beats the scores that are reached without training; advise longer training."""
    floor = unbeaten_floor(analysis)
    if floor is None:
        return None
    best, (name, highest), number = analysis.ranked[0], floor, analysis.metric.number
    untrained = "" if "untrained" in name else " without training"
    claim = "No configuration beats" if _all_are_below(analysis, highest) else "No configuration is shown to beat"
    sentence = (
        f"{claim} {name}{untrained} ({number(highest)}): "
        f"the best, {prose_label(best.label)}, reaches {number(best.mean)}."
    )
    is_perfect = analysis.metric.percent and highest >= 100
    if is_perfect or _mostly_collapsed(analysis):  # longer training cannot beat that, or would collapse again
        return Section(headline=sentence)
    settles = f"whether longer training beats {name}"
    return Section(headline=sentence, steps=train_longer(analysis.results, settles, _TRAIN_LONGER))


def _all_are_below(analysis: Analysis, floor: float) -> bool:
    """Return whether each cell is significantly worse than a floor, by its own t interval.

    A floor depends on the classes of the seeds that measured it. So the means are of these seeds; the noise is of all.
    The one-sided test has half the level, because a cell with rare good seeds is called worse in up to 13 % at the whole.
    """
    table, sign, level = analysis.table.times(analysis.sign), analysis.sign, analysis.looks.level
    count = min(FLOOR_SEEDS, analysis.looks.planned)
    return all(interval_of_first(table, row, count, level).high < sign * floor for row in range(len(table.labels)))


@question(order=93)
def at_one_value(analysis: Analysis) -> Section | None:
    """Warn if every trial has the same result, such as 100%, because the metric is too coarse or at its limit."""
    values = {number for cell in analysis.cells for number in cell.values.values()}
    if len(values) != 1 or len(analysis.ranked) < 2 or any(knob.unused for knob in analysis.knobs):
        return None
    same = f"Every trial has the same {analysis.metric.name}, {analysis.metric.number(*values)}"
    return Section(headline=f"{same}: it cannot tell the configurations apart. A finer metric or harder data may.")


@question(order=97)
def unused_seed(analysis: Analysis) -> Section | None:
    """Warn if a user's program may ignore its seed: results differ between cells, but not between seeds."""
    results = [set(cell.values.values()) for cell in analysis.cells if len(cell.values) > 1]
    is_constant = all(len(values) == 1 for values in results) and len(set().union(*results)) > 1
    if analysis.results.plan.space.program is None or not is_constant:
        return None
    return Section(
        headline=f"Seeds changed nothing: every configuration has the same {analysis.metric.name} under all of its seeds. "
        "If your program ignores its seed, more seeds add no evidence."
    )


@question(order=95)
def unconverged(analysis: Analysis) -> Section | None:
    """Warn if a cell still gained at the end of training, or if its protocol is known to be too short."""
    found = _convergence(analysis)
    gains, short = short_protocols(analysis)
    if gains and not found.gaining:  # a decayed learning rate can hide that twice the steps add more
        whose = f" of {joined(short)}" if len(short) < len(analysis.results.plan.arms) else ""
        return Section(headline=f"Training{whose} had not converged: {twice_the_steps(gains)}.")
    if not (changes := found.gaining or found.open):
        return None
    largest = max(changes.values(), key=lambda change: analysis.sign * change.size)
    gain = analysis.metric.rough(abs(largest.size))
    what = f"{prose_label(largest.label)} gained another {gain} between steps {largest.first} and {largest.last}"
    settles = "whether the answer is the same once training has converged"
    longer = train_longer(analysis.results, settles, _TRAIN_LONGER)
    if found.gaining:
        return Section(headline=f"Training had not converged: {what}.", steps=longer)
    if not found.is_judged:
        return Section(headline=f"Training may not have converged: {what}, {found.why_open}.", steps=longer)
    return Section(headline=f"It is undecided whether training had converged: {what}, {found.why_open}.")


def short_protocols(analysis: Analysis) -> tuple[dict[str, float], list[str]]:
    """Return the gain in R@1 from twice the steps, by short protocol, and the arms that do not train longer.

    A protocol is short if that gain is known to exceed the margin.
    """
    gains: dict[str, float] = {}
    short: list[str] = []
    for arm in analysis.results.plan.arms:
        settings, protocol = arm.base_settings, arm.protocol
        gain = 0.0 if protocol is None else protocol.still_gains.get(str(settings.get("loss.name")), 0.0)
        if protocol is None or gain <= analysis.margin or analysis.results.plan.metric != _R_AT_1:
            continue
        if any(knob.path == _STEPS for knob in arm.knobs):  # the sweep itself shows the gain from more steps
            continue
        if int(str(settings.get(_STEPS) or 0)) <= int(str(protocol.settings.get(_STEPS) or 0)):
            gains[protocol.name] = gain
            short.append(arm.name)
    return gains, short


def twice_the_steps(gains: Mapping[str, float]) -> str:
    """Return the gains as a clause: `twice the steps of glyphs/triplet add about 3 points of R@1`."""
    parts = [f"twice the steps of {name} add about {gain:g} points" for name, gain in gains.items()]
    return f"{joined(parts)} of R@1"


@question(order=96)
def collapsed(analysis: Analysis) -> Section | None:
    """Warn if trials ended with the same embedding for all pictures."""
    cells = [(cell, number) for cell in analysis.cells if (number := len(_collapsed_trials(cell)))]
    if not cells:
        return None
    count = sum(number for _, number in cells)
    where = ", ".join(f"{cell.label}: {number} of {len(cell.trials)}" for cell, number in cells)
    where = where if len(cells) <= _MAX_NAMED else f"in {len(cells)} of {len(analysis.cells)} configurations"
    verb = "has" if count == 1 else "have"
    trials = counted(len(analysis.results.trials), "trial")
    advice = " A smaller optim.lr may help." if _mostly_collapsed(analysis) else ""
    collapsed = f"{count} of {trials} collapsed to a single embedding"
    return Section(headline=f"{collapsed} and {verb} no result ({where}).{advice}")


def _mostly_collapsed(analysis: Analysis) -> bool:
    return 2 * sum(len(_collapsed_trials(cell)) for cell in analysis.cells) >= len(analysis.results.trials)


@question(order=399)
def frozen_backbone(analysis: Analysis) -> Section | None:
    """Warn that heads on stored features may hide the effect of a knob on the backbone."""
    if analysis.results.plan.dataset != "features":
        return None
    compare = command(analysis.results, "compare", "FULL --rank")
    return Section(
        headline="The backbone was frozen: a knob may seem not to matter because a head cannot change the features. "
        f"`{compare}` measures whether its values keep their order in full training."
    )


@question(order=298)
def lost_trials(analysis: Analysis) -> Section | None:
    """Name the values that diverge, and state how many trials failed, and why."""
    parts = [_divergence_sentence(analysis)]
    if failed := analysis.counts.get("failed", 0):
        reasons = Counter(shortened(t.reason, _MAX_CHARACTERS) for t in analysis.results.trials if t.status == "failed")
        (reason, most), *others = reasons.most_common(2)
        how_often = "for example: " if any(count == most for _, count in others) else "most often: "
        why = f" ({how_often if others else ''}{reason})" if reason else ""
        text = f"{failed} of {counted(len(analysis.results.trials), 'trial')} failed{why}"
        always = [cell for cell in analysis.cells if cell.trials and all(t.status == "failed" for t in cell.trials)]
        if 0 < len(always) < len(analysis.cells):
            text += f", among them all trials of {_names(analysis, always)[0]}"
        parts.append(f"{text}.")
    parts.append(if_lost_by_result(analysis.cells))
    return Section(headline=" ".join(filter(None, parts))) if any(parts) else None


def if_lost_by_result(cells: Sequence[CellAnalysis]) -> str:
    """Return a sentence on the cells that lost so many trials that their means may be biased; empty without any."""
    names = [prose_label(cell.label) for cell in cells if cell.may_be_biased]
    if not names:
        return ""
    which = joined(names) if len(names) <= _MAX_NAMED else f"{len(names)} configurations"
    return f"If trials without a result were lost because of their results, comparisons with {which} may be wrong."


def _divergence_sentence(analysis: Analysis) -> str:
    """Name the values that diverge: `lr = 1000 and 1e12 always diverge; lr = 100 diverges in 1 of 3 trials.`.

    Collapsed trials are not counted.
    """
    counts = [sum(t.status == "diverged" for t, _ in c.failures) - len(_collapsed_trials(c)) for c in analysis.cells]
    diverging = [(cell, count) for cell, count in zip(analysis.cells, counts, strict=True) if count]
    always = [cell for cell, count in diverging if count == len(cell.trials)]
    sometimes = [(cell, count) for cell, count in diverging if count < len(cell.trials)]
    parts = []
    if always:
        named, count = _names(analysis, always)
        parts.append(f"{named} always {'diverges' if count == 1 else 'diverge'}")
    if sometimes:
        named, count = _names(analysis, [cell for cell, _ in sometimes])
        diverged, trials = sum(n for _, n in sometimes), sum(len(cell.trials) for cell, _ in sometimes)
        verb = f"diverges in {diverged} of {trials} trials" if count == 1 else "diverge in some trials"
        parts.append(f"{named} {verb}")
    return f"{'; '.join(parts)}." if parts else ""


def _names(analysis: Analysis, cells: Sequence[CellAnalysis]) -> tuple[str, int]:
    """Return the cells in words, and the number of items that the words name.

    If the cells are all cells of some values of a knob, the values are named: `lr = 1 and 10`.
    """
    for knob in {knob.path: knob for arm in analysis.arms for knob in arm.knobs}.values():
        values = {level_key(cell.cell.knobs[knob.path]): cell for cell in cells if knob.path in cell.cell.knobs}
        cells_at_values = [cell for cell in analysis.cells if level_key(cell.cell.knobs.get(knob.path)) in values]
        if cells_at_values == list(cells) and len(values) <= _MAX_NAMED:
            texts = [value_text(cell.cell.knobs[knob.path]) for cell in values.values()]
            return f"{symbol_of(knob)} = {joined(texts)}", len(values)
    if len(cells) > _MAX_NAMED:
        return f"{len(cells)} configurations", len(cells)
    return joined([prose_label(cell.label) for cell in cells]), len(cells)


def _convergence(analysis: Analysis) -> Convergence:
    """Judge the changes of the metric at the end of training, for the baseline and the best cells."""
    keys: dict[str, list[str]] = {}
    for cell in sorted(analysis.ranked, key=lambda cell: not cell.cell.baseline):
        trials = [trial.key for trial in cell.trials if trial.status == "finished"]
        if keys and sum(map(len, keys.values())) + len(trials) > _MAX_READ:
            break
        keys[cell.label] = trials
    return judge_convergence(analysis, analysis.histories_of(keys), len(analysis.ranked))


def _collapsed_trials(cell: CellAnalysis) -> list[TrialResult]:
    return [trial for trial, _ in cell.failures if trial.status == "diverged" and _COLLAPSED in trial.reason]


@question(order=148, unanswered={"untrained": ()})
def untrained(analysis: Analysis) -> Section | None:
    """Name the configurations whose loss was 0 at every logged step; None if there are none."""
    results = analysis.results
    labels = [cell.label for cell in analysis.cells if all(_is_untrained(results, trial) for trial in cell.trials)]
    if not labels:
        return None
    subject = labels[0] if len(labels) == 1 else f"{len(labels)} configurations"
    sentence = f"{subject} learned nothing: the loss was 0 at every logged step, so there was no gradient."
    advice = (
        "No pair or triplet gave a loss. Differences to such a configuration show the value of training, not which method is "
        "better. Try another margin, threshold or initial network."
    )
    return Section(
        "untrained",
        "Which configurations learned nothing?",
        "Untrained",
        (Text(sentence), Notes(tuple(labels)), Text(advice)),
        findings=tuple(f"{label}: the loss was 0 at every logged step: nothing was learned" for label in labels),
        headline=sentence,
        data={"untrained": labels},
    )


def _is_untrained(results: Results, trial: TrialResult) -> bool:
    if trial.status != "finished" or trial.metrics.get("train/loss") != 0:
        return False
    losses = [row["train/loss"] for row in results.history(trial.key) if "train/loss" in row]
    return bool(losses) and not any(losses)


@question(order=341, unanswered={"alike": ()})
def identical_configurations(analysis: Analysis) -> Section | None:
    """Group the configurations with identical results; None if all differ.

    Return None for imported results as well, which have too few numbers to tell.
    """
    if analysis.results.imported is not None:
        return None
    groups = [[cell.label for cell in group] for group in identical_cells(analysis.cells)]
    if not groups:
        return None
    same = "gave exactly the same results under every seed"
    sentence = f"{len(groups)} groups of configurations {same}."
    notes = [Notes(tuple(map(joined, groups)))]
    if len(groups) == 1 and len(groups[0]) <= _MAX_NAMED:
        sentence, notes = f"{joined(groups[0])} {same}.", []
    elif len(groups) == 1:
        sentence = f"{len(groups[0])} of {len(analysis.cells)} configurations {same}."
    advice = (
        "The setting in which they differ had no effect: the method does not read it, other settings switch it off, or no "
        "batch reached it. If the configurations are equal by definition, this confirms it."
    )
    unused = any(knob.unused for knob in analysis.knobs)  # the knob's own headline then states it
    return Section(
        "alike",
        "Which configurations are identical?",
        "Identical",
        (Text(sentence), *notes, Text(advice)),
        headline="" if unused else sentence,
        data={"alike": groups},
    )
