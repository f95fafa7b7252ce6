"""Candidates for the next command; each is tried on the plan before it is advised."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainables.config import PROTOCOL_VERSION
from trainables.errors import ConfigError
from tune_dml.planning.checks.effects import added_cell_problems
from tune_dml.record.origin.commands import command, is_program, program, storage_option
from tune_dml.record.results import Results
from tune_dml.space import Value
from tune_dml.stats.forecast import EVEN, Forecast
from tune_dml.stats.sequential.racing import next_look
from tune_dml.text import counted, duration, value_text

_LENGTHS = ("training.steps", "training.epochs")
_LEFT_OUT = frozenset({"--name", "--storage", "-o", "--output"})
"""Options of a sweep's own command that another sweep does not take over; its folder may have moved."""
_MOST_COST = 6.0
"""Maximum expected number of trials for an answer, as a multiple of the sweep's, for which a step is worth its cost."""
_SMALL_SWEEP = 12
"""Smaller sweeps may spend as many trials on an answer as a sweep of this size."""
_NEEDED = 60
"""Least urgency of a step that completes the sweep, which is worth any cost."""
_LONGER = 2
"""Factor by which training that was too short is lengthened."""


@dataclass(frozen=True)
class Step:
    """A command to run next, with its cost and value."""

    command: str
    settles: str
    """The question that it would settle, as a clause: `whether rho matters`."""
    trials: int
    """Number of trials that it runs."""
    urgency: int
    """Rank: 90 resumes a sweep, 50 widens a range, 40 adds seeds. The page advises the most urgent."""
    chance: float | None = None
    """Probability that it settles the question (`stats.forecast`); None if unknown."""
    length: float = 1.0
    """Length of each trial, relative to those that have run."""

    @property
    def trials_per_answer(self) -> float:
        """Expected number of trials for an answer; it ranks steps of equal urgency."""
        return self.trials * self.length / (EVEN if self.chance is None else max(self.chance, 1e-9))

    def is_worth_it(self, results: Results) -> bool:
        """Return whether its expected cost for an answer is in proportion to the cost of the sweep."""
        affordable = _MOST_COST * max(len(results.trials), _SMALL_SWEEP)
        return self.urgency >= _NEEDED or self.trials_per_answer <= affordable

    @property
    def sentence(self) -> str:
        """`It would show whether rho matters with a chance of about 62%`."""
        if self.chance is None:
            return f"It would show {self.settles}."
        return f"It would show {self.settles} with {chance_text(self.chance)}."


def chance_text(chance: float) -> str:
    """Return `a chance of about 62%`."""
    percent = 100 * chance
    share = "below 1%" if percent < 1 else "above 99%" if percent > 99 else f"about {percent:.0f}%"
    return f"a chance of {share}"


def cost_of(step: Step, results: Results) -> str:
    """Return `12 trials, about 3 min 05 s of training`."""
    seconds = [trial.seconds for trial in results.trials if trial.status == "finished" and trial.seconds > 0]
    text = counted(step.trials, "trial")
    if not seconds:
        return text
    return f"{text}, about {duration(step.trials * step.length * sum(seconds) / len(seconds))} of training"


def go_on(
    results: Results, verb: str, change: str, *, settles: str, trials: int, urgency: int, chance: float | None = None
) -> tuple[Step, ...]:
    """Return a step that runs a verb on the sweep; none for another protocol version."""
    if results.plan.protocol_version != PROTOCOL_VERSION or not trials:
        return ()
    known = chance if chance is not None and math.isfinite(chance) else None
    return (Step(command(results, verb, change), settles, trials, urgency, known),)


def more_seeds(results: Results, settles: str, urgency: int, ahead: Forecast | None) -> tuple[Step, ...]:
    """Return a step that adds the seeds that are worth running, or the fewest possible if the noise is unknown."""
    if ahead is None:
        return extend(results, settles, urgency, seeds=next_look(len(results.plan.seeds)))
    if not ahead.worth_it:
        return ()
    return extend(results, settles, urgency, seeds=ahead.seeds, chance=ahead.chance)


def not_worth_it(ahead: Forecast | None, question: str, instead: str) -> str:
    """Explain why no extension is advised; empty if one is."""
    if ahead is None or ahead.worth_it:
        return ""
    return f"Even with {ahead.seeds} seeds, the chance of showing {question} would be below 50%. {instead} may help."


def train_longer(results: Results, settles: str, urgency: int) -> tuple[Step, ...]:
    """Return the sweep's own command with twice the training; none if Python started it, or if it contains a secret."""
    plan, typed = results.plan, [str(word) for word in results.provenance.get("argv", ())]
    key = next((key for key in _LENGTHS if plan.base_settings.get(key)), "")
    if len(typed) < 3 or not is_program(typed[0]) or typed[1] != "sweep" or not key or any("***" in w for w in typed):
        return ()
    words, kept = iter(typed[2:]), []
    for word in words:
        flag, _, value = word.partition("=")
        if flag in {*_LEFT_OUT, "--set", "--seeds"} and not value:
            value = next(words, "")
            if flag == "--seeds" and value.isdigit():  # the sweep may have been extended since
                value = str(len(plan.seeds))
            word = f"{flag} {shlex.quote(value)}"  # noqa: PLW2901 - a flag and its value stay together
        else:
            word = shlex.quote(word)  # noqa: PLW2901
        if flag not in _LEFT_OUT and not (flag == "--set" and value.startswith(f"{key}=")):
            kept.append(word)
    length = f"{_LONGER * float(str(plan.base_settings[key])):.12g}"
    kept += [f"--set {key}={length}", f"--name {shlex.quote(f'{results.name}-{length}')}", *storage_option(results)]
    trials = len(plan.trials()) + plan.search.num_samples * len(plan.seeds)
    return (Step(" ".join([program(), "sweep", *kept]), settles, trials, urgency, length=_LONGER),) if trials else ()


def extend(
    results: Results,
    settles: str,
    urgency: int,
    *,
    seeds: int = 0,
    values: Mapping[str, Sequence[Value]] | None = None,
    num_samples: int = 0,
    chance: float | None = None,
) -> tuple[Step, ...]:
    """Return an extension of the sweep; none if it would be refused."""
    plan = results.plan
    if results.race is not None or plan.protocol_version != PROTOCOL_VERSION:
        return ()
    written = {path: [_as_written(value) for value in listed] for path, listed in (values or {}).items()}
    try:
        longer = plan.extended(seeds=range(seeds), values=written, num_samples=num_samples)
    except ConfigError:
        return ()
    if longer.identity() == plan.identity() or added_cell_problems(plan, longer):
        return ()
    parts = [f"--seeds {seeds}"] if seeds else []
    parts += [f"--add {path}={','.join(map(value_text, listed))}" for path, listed in written.items()]
    parts += [f"--num-samples {num_samples}"] if num_samples else []
    cells = len(longer.cells) - len(plan.cells) + num_samples + len(results.cells)
    trials = cells * len(longer.seeds) - len(results.cells) * len(plan.seeds)
    return go_on(results, "extend", " ".join(parts), settles=settles, trials=trials, urgency=urgency, chance=chance)


def _as_written(value: Value) -> Value:
    """Return a number as the command line would read its text."""
    return json.loads(value_text(value)) if isinstance(value, float) else value
