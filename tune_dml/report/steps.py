"""Steps: candidates for the next command, each checked against the plan before it is advised."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainables.errors import ConfigError
from tune_dml.planning.checks.effects import added_cell_problems
from tune_dml.record.origin.commands import command, is_program, program, storage_option
from tune_dml.record.results import Results
from tune_dml.space import Value
from tune_dml.stats.forecast import EVEN, Forecast
from tune_dml.stats.sequential.racing import next_look
from tune_dml.text import counted, duration, value_text

_LENGTHS = ("training.steps", "training.epochs")
_DROPPED_OPTIONS = frozenset({"--name", "--storage", "-o", "--output"})
"""Options of a sweep's command that are not copied to another sweep; the folder of the sweep may have moved."""
_MAX_COST = 6.0  # maximum expected number of trials for an answer, as a multiple of the sweep's number of trials
_SMALL_SWEEP = 12  # number of trials that a smaller sweep is taken to have when the cost of a step is judged
_COMPLETES_SWEEP = 60  # urgency from which on a step completes the sweep, and is worth any cost
_LONGER = 2  # factor of the number of steps when training was too short


@dataclass(frozen=True)
class Step:
    """A command to run next, with its cost and value."""

    command: str
    settles: str  # the question that the step would settle, as a clause: `whether rho matters`
    trials: int
    urgency: int  # Rank: 90 resumes a sweep, 50 widens a range, 40 adds seeds. The page advises the most urgent step.
    chance: float | None = None  # probability that the step settles the question (`stats.forecast`); None if unknown
    length: float = 1.0  # length of each trial, relative to the sweep's trials

    @property
    def trials_per_answer(self) -> float:
        """Expected number of trials for an answer; it ranks steps of equal urgency."""
        return self.trials * self.length / (EVEN if self.chance is None else max(self.chance, 1e-9))

    def is_worth_it(self, results: Results) -> bool:
        """Return whether the expected cost of an answer is in proportion to the cost of the sweep."""
        affordable = _MAX_COST * max(len(results.trials), _SMALL_SWEEP)
        return self.urgency >= _COMPLETES_SWEEP or self.trials_per_answer <= affordable

    @property
    def sentence(self) -> str:
        """What the step would show: `It would show whether rho matters with a chance of about 62%`."""
        if self.chance is None:
            return f"It would show {self.settles}."
        return f"It would show {self.settles} with {chance_text(self.chance)}."


def chance_text(chance: float) -> str:
    """Return a probability in words: `a chance of about 62%`."""
    percent = 100 * chance
    share = "below 1%" if percent < 1 else "above 99%" if percent > 99 else f"about {percent:.0f}%"
    return f"a chance of {share}"


def cost_of(step: Step, results: Results) -> str:
    """Return the cost of a step: `12 trials, about 3 min 05 s of training`."""
    return counted(step.trials, "trial") + training_time(results, step.trials * step.length)


def training_time(results: Results, trials: float) -> str:
    """Return `, about 3 min 05 s of training` for a number of trials; empty if unknown."""
    seconds = [trial.seconds for trial in results.trials if trial.status == "finished" and trial.seconds > 0]
    return f", about {duration(trials * sum(seconds) / len(seconds))} of training" if seconds else ""


def continue_sweep(
    results: Results, verb: str, change: str = "", *,
    settles: str, trials: int, urgency: int, chance: float | None = None,
) -> tuple[Step, ...]:  # fmt: skip
    """Return a step that runs a verb on the sweep; empty without trials, or for another protocol version."""
    if results.plan.protocol_version != results.plan.current_version or not trials:
        return ()
    finite = chance if chance is not None and math.isfinite(chance) else None
    return (Step(command(results, verb, change), settles, trials, urgency, finite),)


def add_seeds(results: Results, settles: str, urgency: int, ahead: Forecast | None) -> tuple[Step, ...]:
    """Return a step that adds the forecast number of seeds, or the seeds of the next look if the noise is unknown.

    The result is empty if no number of seeds is worth running.
    """
    if ahead is None:
        return extend(results, settles, urgency, seeds=next_look(len(results.plan.seeds)))
    if not ahead.worth_it:
        return ()
    return extend(results, settles, urgency, seeds=ahead.seeds, chance=ahead.chance)


def explain_no_extension(ahead: Forecast | None, question: str, instead: str) -> str:
    """Return a sentence on why no extension is advised; empty if an extension is advised."""
    if ahead is None or ahead.worth_it:
        return ""
    return f"Even with {ahead.seeds} seeds, the chance of showing {question} would be below 50%. {instead} may help."


def train_longer(results: Results, settles: str, urgency: int) -> tuple[Step, ...]:
    """Return a step that repeats the sweep's command with twice the training.

    The result is empty if Python started the sweep, or if its command contains a secret.
    """
    plan, typed = results.plan, results.provenance.get("argv", [])
    key = next((key for key in _LENGTHS if plan.base_settings.get(key)), "")
    if len(typed) < 3 or not is_program(typed[0]) or typed[1] != "sweep" or not key or any("***" in w for w in typed):
        return ()
    words, kept = iter(typed[2:]), []
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in {*_DROPPED_OPTIONS, "--set", "--seeds"}:
            value = value if equals else next(words, "")
            if flag == "--seeds":  # the sweep may have been extended; a number without a comma would be a count
                listed = ",".join(map(str, plan.seeds)) + "," * (len(plan.seeds) == 1)
                value = str(len(plan.seeds)) if value.isdigit() else listed
            word = f"{flag} {shlex.quote(value)}"  # noqa: PLW2901 - a flag and its value stay together
        else:
            word = shlex.quote(word)  # noqa: PLW2901
        if flag not in _DROPPED_OPTIONS and not (flag == "--set" and value.startswith(f"{key}=")):
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
    """Return a step that extends the sweep; empty if the extension would be refused or would change nothing."""
    plan = results.plan
    if results.race is not None or plan.protocol_version != plan.current_version:
        return ()
    # a number as the command line parses its text
    written = {
        path: [json.loads(value_text(x)) if isinstance(x, float) else x for x in listed]
        for path, listed in (values or {}).items()
    }
    try:
        extended = plan.extend(seeds=seeds, values=written, num_samples=num_samples)
    except ConfigError:
        return ()
    if extended.identity() == plan.identity() or added_cell_problems(plan, extended):
        return ()
    parts = [f"--seeds {seeds}"] if seeds else []
    parts += [f"--add {path}={','.join(map(value_text, listed))}" for path, listed in written.items()]
    parts += [f"--num-samples {num_samples}"] if num_samples else []
    cells = len(extended.cells) - len(plan.cells) + num_samples + len(results.cells)
    trials = cells * len(extended.seeds) - len(results.cells) * len(plan.seeds)
    return continue_sweep(
        results, "extend", " ".join(parts), settles=settles, trials=trials, urgency=urgency, chance=chance
    )
