"""A task of one's own: retrieval, and one figure more."""

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
        """Retrieval's, which counts."""
        return ToyLearner(self, context, cache_dir)


class ToyLearner(RetrievalLearner):
    """Judges as retrieval does."""

    def validate(self) -> Evaluation:
        """Retrieval's figures and `val/pictures`."""
        judged = super().validate()
        return replace(judged, figures={**judged.figures, "val/pictures": float(len(self.split.validation))})
