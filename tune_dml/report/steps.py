"""What to run next: commands that the program accepts, because each was tried on the plan before it is advised."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trainables.config import PROTOCOL_VERSION
from trainables.errors import ConfigError
from tune_dml.record.commands import command
from tune_dml.record.results import Results
from tune_dml.space import Value
from tune_dml.stats.noise import PairNoise
from tune_dml.stats.power import chance_of_difference
from tune_dml.stats.racing import next_look
from tune_dml.text import counted, duration, value_text

_EVEN = 0.5
_MOST_TIMES = 3
"""Of the seeds that have run: no more are advised at once."""


@dataclass(frozen=True)
class Step:
    """What to run next, ready to paste, and what it is worth."""

    command: str
    settles: str
    """What it is run for, as a clause: `whether rho matters`."""
    trials: int
    """How many it runs."""
    urgency: int
    """Of several the page advises the most urgent: 90 goes on with what stopped, 50 widens a range, 40 adds seeds."""
    chance: float | None = None
    """Of settling it, as far as the numbers so far can tell; None where that is not known."""

    @property
    def sentence(self) -> str:
        """`It would show whether rho holds.`, or with what chance it does."""
        if self.chance is None:
            return f"It would show {self.settles}."
        percent = 100 * self.chance
        share = "below 1%" if percent < 1 else "above 99%" if percent > 99 else f"about {percent:.0f}%"
        return f"It would show {self.settles} with a chance of {share}."


def seeds_worth_running(now: int, chance_of: Callable[[int], float | None]) -> tuple[int, float | None]:
    """The seeds, in all, of the next look that has an even chance of an answer, and that chance; of few looks the last."""
    seeds = next_look(now)
    chance = chance_of(seeds)
    while chance is not None and chance < _EVEN and seeds < _MOST_TIMES * now:
        seeds = next_look(seeds)
        chance = chance_of(seeds)
    return seeds, chance


def told_apart(
    noise: PairNoise, best: int, rivals: Sequence[int], *, seeds: int, planned: int, alpha: float
) -> float | None:
    """The chance that the best row is told from its nearest rival: at most what telling it from all of them has."""
    chances = [chance_of_difference(noise, (best, rival), seeds, planned, alpha) for rival in rivals]
    return min(chances) if chances and all(map(math.isfinite, chances)) else None


def cost_of(step: Step, results: Results) -> str:
    """`12 trials, about 3 min 05 s of training`."""
    seconds = [trial.seconds for trial in results.trials if trial.status == "finished" and trial.seconds > 0]
    text = counted(step.trials, "trial")
    return f"{text}, about {duration(step.trials * sum(seconds) / len(seconds))} of training" if seconds else text


def go_on(
    results: Results, verb: str, change: str, *, settles: str, trials: int, urgency: int, chance: float | None = None
) -> tuple[Step, ...]:
    """A step of a verb that takes the sweep as it is planned; none for a sweep of another protocol version."""
    if results.plan.protocol_version != PROTOCOL_VERSION or not trials:
        return ()
    known = chance if chance is not None and math.isfinite(chance) else None
    return (Step(command(results, verb, change), settles, trials, urgency, known),)


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
    """An extension of the sweep; none where it would be refused: a race, another protocol version, values that cannot be."""
    plan = results.plan
    if results.race is not None or plan.protocol_version != PROTOCOL_VERSION:
        return ()
    written = {path: [_as_written(value) for value in listed] for path, listed in (values or {}).items()}
    try:
        longer = plan.extended(seeds=range(seeds), values=written, num_samples=num_samples)
    except ConfigError:
        return ()
    if longer.identity() == plan.identity():
        return ()
    parts = [f"--seeds {seeds}"] if seeds else []
    parts += [f"--add {path}={','.join(map(value_text, listed))}" for path, listed in written.items()]
    parts += [f"--num-samples {num_samples}"] if num_samples else []
    cells = len(longer.cells) - len(plan.cells) + num_samples + len(results.cells)
    trials = cells * len(longer.seeds) - len(results.cells) * len(plan.seeds)
    return go_on(results, "extend", " ".join(parts), settles=settles, trials=trials, urgency=urgency, chance=chance)


def _as_written(value: Value) -> Value:
    """A number as the command line reads what people are shown of it."""
    return json.loads(value_text(value)) if isinstance(value, float) else value
