"""Evaluate stored heads on the test half when their sweep is opened.

A trial on stored features would spend half of its time on test figures that most sweeps never open. Instead it stores
its head (`trainables.context.UNTESTED`), some kilobytes. The late figures equal those that the trial would have sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainables.context import UNTESTED, TrialContext
from trainables.errors import DataError, Problem
from tune_dml.planning.checks.data import SweepData, data_key, known_digests
from tune_dml.planning.plan import PlannedTrial
from tune_dml.record.ledger import trial_folder
from tune_dml.record.state import SweepState


def is_untested(sweep: Path, key: str) -> bool:
    """Return whether a trial has stored its head instead of test figures."""
    return (trial_folder(sweep, key) / UNTESTED).exists()


@dataclass(frozen=True)
class UntestedHeads:
    """Evaluates the stored heads of a sweep's finished trials on the test half."""

    state: SweepState
    trials: Sequence[PlannedTrial]
    digests: Mapping[str, Mapping[str, str]]
    cache_dir: Path | None

    @classmethod
    def of(cls, state: SweepState, cache_dir: Path | None) -> UntestedHeads:
        """Find the heads and their data. Raise DataError if the features are missing, or differ from the sweep's."""
        trials = [
            trial
            for key, trial in {**state.trials, **state.confirmation_trials}.items()
            if state.trial(key).status == "finished" and is_untested(state.folder, key)
        ]
        if not trials:
            return cls(state, (), {}, cache_dir)
        if (digest := SweepData.of(state.plan, cache_dir).digest()) != state.plan.data_digest:
            rule = "the test half must be evaluated on the data of the sweep, but they have changed"
            raise DataError(Problem("data", rule, digest[:12], "Restore them."))
        return cls(state, trials, known_digests(state.plan, cache_dir), cache_dir)

    def evaluate(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Evaluate each head, seal its metrics and delete it; then call `progress(done, total)`."""
        import torch  # imported late, because most sweeps have no heads

        from trainables.training import evaluate_test

        for done, trial in enumerate(self.trials, 1):
            folder = trial_folder(self.state.folder, trial.key)
            context = TrialContext(
                folder,
                torch.device("cpu"),
                threads=self.state.resources.cpus_per_worker,
                digests=self.digests.get(data_key(trial.cell.settings), {}),
            )
            evaluate_test(trial.config, context, (folder / UNTESTED).read_bytes(), cache_dir=self.cache_dir)
            (folder / UNTESTED).unlink()
            if progress is not None:
                progress(done, len(self.trials))
