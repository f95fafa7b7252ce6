"""Can I trust it? How noise departs from what is usually assumed, what seeds were lost, and what was spent on looking."""

from __future__ import annotations

import math

from tune_dml.report.knob import MeasuredKnob
from tune_dml.report.measured import ALPHA, Measured
from tune_dml.report.questions import question
from tune_dml.report.section import Facts, Section, Text


@question(order=340, unanswered={"trust": None})
def trust(measured: Measured) -> Section | None:
    """The assumptions behind the verdicts, with what the sweep says of them; None before any trial has ended."""
    looks = measured.looks
    if not looks.seeds[-1]:
        return None
    text = (
        "Every statement compares cells within seeds and assumes nothing else of the noise: cells may be unequally noisy, "
        "and seeds may react differently to a knob. The statements of one table hold all at once, over all looks at it, "
        f"at an error of {100 * ALPHA:g}%."
    )
    facts = [("Looks", _looks(measured)), ("Error", _error(measured)), ("Seeds", _seeds(measured))]
    facts += [("Race", race) for race in _race(measured)]
    facts += [(f"Noise over {knob.symbol}", noise) for knob in measured.knobs if (noise := _noise(knob))]
    return Section(
        "trust",
        "Can I trust it?",
        "Trust",
        (Text(text), Facts(tuple(facts))),
        data={
            "trust": {
                "looks": looks.seeds,
                "planned_seeds": looks.planned,
                "level": looks.level,
                "error_spent": looks.spent,
                "error_allowed": ALPHA,
                "epsilon": {knob.key: knob.sensitivity.epsilon for knob in measured.knobs},
                "prior_df": {knob.key: knob.sensitivity.prior_df for knob in measured.knobs},
            }
        },
    )


def _looks(measured: Measured) -> str:
    looks = measured.looks
    numbers = list(dict.fromkeys(f"{seeds:.3g}" for seeds in looks.seeds))
    times = "once" if len(looks.seeds) == 1 else f"{len(looks.seeds)} times"
    return f"{times}, at {', '.join(numbers)} seeds a cell; {looks.planned} were planned before the first"


def _error(measured: Measured) -> str:
    looks = measured.looks
    return (
        f"{100 * looks.spent:.3g}% of {100 * ALPHA:g}% is spent; this look's statements hold with "
        f"{100 * (1 - looks.level):.4g}%. Looking again at the same seeds costs nothing, more seeds cost some of the rest"
    )


def _seeds(measured: Measured) -> str:
    trials = measured.results.trials
    lost = sum(len(cell.failures) for cell in measured.cells)
    text = f"{len(measured.seeds)}, the same in every cell"
    text += (
        f"; {lost} of {len(trials)} trials gave no number, which widens intervals and erases nothing" if lost else ""
    )
    if len(measured.seeds) == 2:
        text += ". Two seeds give each pair one degree of freedom: only large differences among few values can be told"
    return text


def _race(measured: Measured) -> list[str]:
    """When and why cells stopped, and that the page judges by all the race's blocks."""
    race = measured.results.race
    if race is None or not race.settled:
        return []
    labels = {cell.cell.digest: cell.label for cell in measured.cells}
    stops = "; ".join(f"{labels[digest]} {settled.sentence}" for digest, settled in race.settled.items())
    together = "The verdicts above keep what the intervals of all its blocks say together, each at its level"
    return [f"{stops}. {together}"]


def _noise(knob: MeasuredKnob) -> str:
    verdict = knob.sensitivity
    if verdict.noise is None:
        return ""
    borrowed = f"each pair borrows {verdict.prior_df:.2g} degrees of freedom from the others"
    if not math.isfinite(verdict.epsilon):
        return f"two seeds cannot tell whether it is equal in all values; {borrowed}"
    if len(verdict.labels) < 3:
        return f"two values have one difference, which stands on its own spread; {borrowed}"
    return f"epsilon {verdict.epsilon:.2f} (1: equal and independent; small: seeds react differently to it); {borrowed}"
