"""Choose a learning rate and a number of steps for new data from a short probe."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from trainables.config import TrialConfig
from trainables.probe import one_step, started_run
from trainables.resolve import Layer, resolve

FIRST = 50
"""Steps after which rates are compared."""
_MOST_DOUBLINGS = 6
_CLOSE = 1.0  # points of R@1 that half as many steps may cost
_METRIC = "val/recall_at_1"


@dataclass(frozen=True)
class TrialLength:
    """Result of a probe."""

    lr: float
    steps: int
    by_rate: Mapping[float, float]
    """Learning rate -> R@1 after `FIRST` steps."""
    by_steps: Mapping[int, float]
    """Steps -> R@1 at the chosen rate; steps double."""
    finished: bool
    """True if half as many steps cost less than a point."""

    @property
    def reason(self) -> str:
        """Explain both choices in one line."""
        rates = ", ".join(f"{value:.1f} at {rate:g}" for rate, value in self.by_rate.items())
        steps = ", ".join(f"{value:.1f} after {count}" for count, value in self.by_steps.items())
        end = "half as many steps cost less than a point" if self.finished else "the probe ended before training did"
        return f"R@1 after {FIRST} steps: {rates}. At {self.lr:g}: {steps}; {end}."


def probe_length(
    config: TrialConfig, rates: Sequence[float], *, seconds: float, cache_dir: Path | None = None
) -> TrialLength:
    """Train `FIRST` steps at each rate, then double the steps at the best rate until R@1 settles.

    Args:
        config: the trial, at any rate and length; its schedule must be constant.
        rates: learning rates to compare.
        seconds: time limit of the probe.
        cache_dir: folder of decoded pictures.

    Returns:
        Rate and steps. A probe that runs out of time names twice the steps it has trained.
    """
    end = time.perf_counter() + seconds
    by_rate = {rate: _curve(config, rate, 1, end, cache_dir)[FIRST] for rate in rates}
    lr = max(by_rate, key=lambda rate: by_rate[rate])
    by_steps = _curve(config, lr, _MOST_DOUBLINGS + 1, end, cache_dir)
    finished = _is_close(list(by_steps.values()))
    last = max(by_steps)
    return TrialLength(lr, last if finished else 2 * last, by_rate, by_steps, finished)


def _curve(config: TrialConfig, lr: float, marks: int, end: float, cache_dir: Path | None) -> dict[int, float]:
    """Return R@1 after `FIRST` steps, twice as many, and so on, until it settles or time is up."""
    longest = FIRST * 2**marks
    length = {"optim.lr": lr, "training.steps": longest, "training.eval_every": longest}
    trial = resolve(Layer("trial", config.settings()), Layer("probe", length)).config
    found: dict[int, float] = {}
    with started_run(trial, torch.device("cpu"), torch.get_num_threads(), cache_dir) as run:
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
    """Return whether the last doubling gained less than a point, and the one before did not stall by chance."""
    return (
        len(values) > 2 and max(values[-1], values[-2]) - values[-2] < _CLOSE and values[-1] - values[-3] < 2 * _CLOSE
    )
