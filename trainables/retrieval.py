"""The retrieval task: pictures to embeddings, trained by a metric loss, judged by nearest neighbours of unseen classes."""

from __future__ import annotations

import math

from torch import Tensor

from trainables.config import TrialConfig
from trainables.data.base import Pictures
from trainables.data.splits import Split, class_disjoint_split
from trainables.metrics import retrieval_metrics
from trainables.task import Task

__all__ = ["RetrievalTask", "split_of"]


class RetrievalTask(Task):
    """L = L_metric(f/|f|) + eta_t * L_regularizer(f), judged by Recall@k, MAP@R and the like.

    Validation uses classes never trained on; test classes are looked at once, for the evaluation that counts, and stay
    sealed.
    """

    name = "retrieval"
    citation = "Oh Song et al., Deep Metric Learning via Lifted Structured Feature Embedding, CVPR 2016"
    headline = "val/recall_at_1"

    @classmethod
    def split_of(cls, config: TrialConfig, pictures: Pictures) -> Split:
        """The class-disjoint train, validation and test pictures; the seed chooses the validation classes."""
        return split_of(config, pictures)

    @classmethod
    def validation_metrics(cls, config: TrialConfig) -> list[str]:
        """Recall, precision, MAP and nDCG at every k, MAP@R and R-precision."""
        families = ("recall_at", "precision_at", "map_at", "ndcg_at")
        ranked = [f"val/{family}_{k}" for family in families for k in config.evaluation.ks]
        return [*ranked, "val/map_at_r", "val/r_precision"]

    def validate(self) -> dict[str, float]:
        """Retrieval metrics on the validation classes, `val/...`, with the mean pairwise cosine and norm statistics."""
        embeddings, labels = self._embed(self.split.validation)
        return {f"val/{name}": value for name, value in self._judge(embeddings, labels).items()}

    def test(self) -> dict[str, float]:
        """The same on the test classes, `test/...`: sealed."""
        embeddings, labels = self._embed(self.split.test)
        return {f"test/{name}": value for name, value in self._judge(embeddings, labels).items()}

    def _judge(self, embeddings: Tensor, labels: Tensor) -> dict[str, float]:
        figures = self._statistics(embeddings)
        if math.isnan(figures["mean_cosine"]):
            return figures
        return {**retrieval_metrics(embeddings, labels, ks=self.config.evaluation.ks), **figures}


def split_of(config: TrialConfig, pictures: Pictures) -> Split:
    """The class-disjoint train, validation and test pictures of a trial; the seed chooses the validation classes."""
    return class_disjoint_split(
        pictures.labels,
        pictures.test_classes,
        validation_fraction=config.data.validation_fraction,
        seed=config.seed,
        protocol=config.data.split,
    )
