"""Train several short trials in one process, step by step: one backward pass and one optimizer call for all of them.

A step of a head on stored features is a few small operations, and torch's calls cost more than their arithmetic. The
trials share no tensor, so each has the numbers that it has alone, to the bit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from trainables.optimizers import step_together
from trainables.run import Run, objective, set_gradients
from trainables.training import Outcome, Training


@dataclass
class _Member:
    """A trial of the group."""

    training: Training
    result: Outcome | Exception | None = None
    """Its outcome, or the error that ended it; None while it trains."""
    run: Run | None = None
    due: float = 0.0
    """Time at which its next step was due."""
    own: float = 0.0
    """Seconds of its next step that count as its own."""

    def go_on(self) -> None:
        """Do what lies between two steps: rows, evaluations, checkpoints."""
        if self.run is not None:
            self.run.waited += time.perf_counter() - self.due - self.own
        try:
            self.run = next(self.training)
        except StopIteration as end:
            self.result = end.value
        except Exception as error:
            self.result = error
        self.due = time.perf_counter()

    def objective(self, run: Run) -> Tensor | None:
        """Return the objective of the next step; None if an error ends the trial."""
        begun, value = time.perf_counter(), None
        try:
            value = objective(run)
        except Exception as error:
            self.result = error
            self.training.close()
        self.own = time.perf_counter() - begun
        return value


def train_together(trainings: Sequence[Training]) -> list[Outcome | Exception]:
    """Train trials on the CPU to their ends. Return the outcome of each, or the exception that ended it.

    A trial's seconds count its own objectives, rows and evaluations, and an equal share of each common step.
    """
    members = [_Member(training) for training in trainings]
    for member in members:
        member.go_on()
    while active := [(member, member.run) for member in members if member.result is None and member.run is not None]:
        steps = [(member, run, value) for member, run in active if (value := member.objective(run)) is not None]
        if steps:
            _step(*zip(*steps, strict=True))
        for member, _, _ in steps:
            member.go_on()
    return [member.result for member in members if member.result is not None]


def _step(members: Sequence[_Member], runs: Sequence[Run], values: Sequence[Tensor]) -> None:
    begun = time.perf_counter()
    set_gradients(runs, values)
    step_together([run.optimizer for run in runs])
    for run, value in zip(runs, values, strict=True):
        run.recent.append(value.detach())
    share = (time.perf_counter() - begun) / len(runs)
    for member in members:
        member.own += share
