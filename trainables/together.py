"""Train several short trials in one process, with one backward pass and one optimizer call per step for all.

A step of a head on stored features is a few small operations, and torch's calls cost more than their arithmetic. The
trials share no tensor, so each has exactly the numbers that it would have alone.
"""

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
    result: Outcome | Exception | None = None  # its outcome, or the error that ended it; None while it trains
    run: Run | None = None
    step_due: float = 0.0  # time at which its next step was due
    own_seconds: float = 0.0  # seconds of its next step that count as its own

    def advance(self) -> None:
        """Continue the trial up to its next step: rows, evaluations, checkpoints."""
        if self.run is not None:
            self.run.waited += time.perf_counter() - self.step_due - self.own_seconds
        try:
            self.run = next(self.training)
        except StopIteration as end:
            self.result = end.value
        except Exception as error:
            self.result = error
        self.step_due = time.perf_counter()

    def objective(self, run: Run) -> Tensor | None:
        """Return the objective of the next step; None if an error ends the trial."""
        start, value = time.perf_counter(), None
        try:
            value = objective(run)
        except Exception as error:
            self.result = error
            self.training.close()
        self.own_seconds = time.perf_counter() - start
        return value


def train_together(trainings: Sequence[Training]) -> list[Outcome | Exception]:
    """Train trials on the CPU to their ends. Return the outcome of each, or the exception that ended it.

    A trial's seconds count its own objectives, rows and evaluations, and an equal share of each common step.
    """
    members = [_Member(training) for training in trainings]
    for member in members:
        member.advance()
    while active := [(member, member.run) for member in members if member.result is None and member.run is not None]:
        steps = [(member, run, value) for member, run in active if (value := member.objective(run)) is not None]
        if steps:
            _take_common_step(*zip(*steps, strict=True))
        for member, _, _ in steps:
            member.advance()
    return [member.result for member in members if member.result is not None]


def _take_common_step(members: Sequence[_Member], runs: Sequence[Run], values: Sequence[Tensor]) -> None:
    start = time.perf_counter()
    set_gradients(runs, values)
    step_together([run.optimizer for run in runs])
    for run, value in zip(runs, values, strict=True):
        run.recent.append(value.detach())
    share = (time.perf_counter() - start) / len(runs)
    for member in members:
        member.own_seconds += share
