"""How fast and how long to train on new data: a learning rate and a number of steps that a short probe justifies."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from trainables.config import TrialConfig
from trainables.probe import begun, one_step
from trainables.resolve import Layer, resolve

FIRST = 50
"""Steps after which rates are compared."""
_MOST_DOUBLINGS = 6
_CLOSE = 1.0  # points of R@1 that half as many steps may cost
_METRIC = "val/recall_at_1"


@dataclass(frozen=True)
class TrialLength:
    """What a probe found."""

    lr: float
    steps: int
    by_rate: Mapping[float, float]
    """Learning rate -> R@1 after the first steps."""
    by_steps: Mapping[int, float]
    """Steps -> R@1 at the chosen rate, each twice the one before."""
    finished: bool
    """Whether half as many steps cost less than a point."""

    @property
    def reason(self) -> str:
        """Both choices in a line."""
        rates = ", ".join(f"{value:.1f} at {rate:g}" for rate, value in self.by_rate.items())
        steps = ", ".join(f"{value:.1f} after {count}" for count, value in self.by_steps.items())
        end = "half as many steps cost less than a point" if self.finished else "the probe ended before training did"
        return f"R@1 after {FIRST} steps: {rates}. At {self.lr:g}: {steps}; {end}."


def probe_length(
    config: TrialConfig, rates: Sequence[float], *, seconds: float, cache_dir: Path | None = None
) -> TrialLength:
    """Train a few steps at each rate, then on at the best one until half as many steps would cost less than a point.

    Args:
        config: the trial, at any rate and length; its schedule must be constant.
        rates: learning rates to compare.
        seconds: what the probe may take; what it has not seen by then it does not claim.
        cache_dir: where decoded pictures are kept.

    Returns:
        Rate and steps. A probe that ended early names twice the steps it has seen.
    """
    end = time.perf_counter() + seconds
    by_rate = {rate: _curve(config, rate, 1, end, cache_dir)[FIRST] for rate in rates}
    lr = max(by_rate, key=lambda rate: by_rate[rate])
    by_steps = _curve(config, lr, _MOST_DOUBLINGS + 1, end, cache_dir)
    finished = _is_close(list(by_steps.values()))
    last = max(by_steps)
    return TrialLength(lr, last if finished else 2 * last, by_rate, by_steps, finished)


def _curve(config: TrialConfig, lr: float, marks: int, end: float, cache_dir: Path | None) -> dict[int, float]:
    """R@1 after the first steps, twice as many, and so on, until it settles or the time is over; the first mark always."""
    longest = FIRST * 2**marks
    length = {"optim.lr": lr, "training.steps": longest, "training.eval_every": longest}
    trial = resolve(Layer("trial", config.settings()), Layer("probe", length)).config
    found: dict[int, float] = {}
    with begun(trial, torch.device("cpu"), torch.get_num_threads(), cache_dir) as run:
        for step in range(1, FIRST * 2 ** (marks - 1) + 1):
            one_step(run)
            if step == FIRST * 2 ** len(found):
                found[step] = run.learner.validate().figures[_METRIC]
                if _is_close(list(found.values())):
                    break
            if found and time.perf_counter() > end:
                break
    return found


def _is_close(values: Sequence[float]) -> bool:
    """Whether the last doubling gained less than a point, and the one before it did not stand still by chance."""
    return (
        len(values) > 2 and max(values[-1], values[-2]) - values[-2] < _CLOSE and values[-1] - values[-3] < 2 * _CLOSE
    )
