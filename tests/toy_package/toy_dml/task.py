"""A task of another package: retrieval with one more metric."""

from dataclasses import dataclass, replace
from pathlib import Path

from trainables.context import TrialContext
from trainables.tasks import Evaluation
from trainables.tasks.retrieval import RetrievalLearner, RetrievalTask


@dataclass(frozen=True)
class ToyRetrieval(RetrievalTask):
    """Retrieval that also logs the number of evaluated pictures."""

    name = "toy_retrieval"
    citation = "A. Author, A Toy, 2020"

    def learner(self, context: TrialContext, cache_dir: Path | None = None) -> "ToyLearner":
        """Return a learner that also counts pictures."""
        return ToyLearner(self, context, cache_dir)


class ToyLearner(RetrievalLearner):
    """Evaluate like retrieval, with one more metric."""

    def validate(self) -> Evaluation:
        """Return the metrics of retrieval and `val/pictures`."""
        judged = super().validate()
        return replace(judged, figures={**judged.figures, "val/pictures": float(len(self.split.validation))})
