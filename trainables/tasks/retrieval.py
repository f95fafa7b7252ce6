"""The retrieval task: pictures to embeddings, trained by a metric loss, judged by nearest neighbours of unseen classes."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from trainables.config import TrialConfig
from trainables.data.base import Indices, Pictures
from trainables.data.splits import Split, class_disjoint_split, class_matched
from trainables.metrics import retrieval_metrics
from trainables.tasks.task import Task


class RetrievalTask(Task):
    """L = L_metric(f/|f|) + eta_t * L_regularizer(f), judged by Recall@k, MAP@R and the like.

    Validation uses classes never trained on; test classes are looked at once, for the evaluation that counts, and stay
    sealed. Every picture is searched among the others of its half; where the data set says which pictures of the test
    half are queries and which the gallery (In-Shop), queries are searched in the gallery.
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
        indices = self.split.validation
        embeddings, labels = self._embed(indices)
        sheet = self._neighbours(embeddings, indices, query_and_gallery(self.pictures, indices))
        self.evidence = self._evidence(embeddings, sheet)
        return {f"val/{name}": value for name, value in self._judge(indices, embeddings, labels).items()}

    def test(self) -> dict[str, float]:
        """The same on the test classes, `test/...`: sealed; also `test/matched_...` where asked for."""
        test = self.split.test
        if not len(test):
            return {}  # a set that only trains, to be judged on another one
        embeddings, labels = self._embed(test)
        figures = {f"test/{name}": value for name, value in self._judge(test, embeddings, labels).items()}
        if not self.config.evaluation.matched_classes:
            return figures
        some = class_matched(self.pictures.labels, test, self.split.validation, seed=self.config.seed)
        places = torch.from_numpy(np.searchsorted(test, some)).to(labels.device)
        matched = self._judge(some, embeddings[places], labels[places])
        return figures | {f"test/matched_{name}": value for name, value in matched.items()}

    def _judge(self, indices: Indices, embeddings: Tensor, labels: Tensor) -> dict[str, float]:
        figures = self._statistics(embeddings)
        if math.isnan(figures["mean_cosine"]):
            return figures
        queries, gallery = embeddings, None
        query_labels = labels
        if places := query_and_gallery(self.pictures, indices):
            asked, searched = (torch.from_numpy(part).to(labels.device) for part in places)
            gallery = (embeddings[searched], labels[searched])
            queries, query_labels = embeddings[asked], labels[asked]
        found = retrieval_metrics(queries, query_labels, ks=self.config.evaluation.ks, gallery=gallery)
        return {**found, **figures}

    @classmethod
    def notes(cls, config: TrialConfig, pictures: Pictures) -> list[str]:
        """How many classes are told apart in each half: a search among fewer classes is an easier one."""
        split = split_of(config, pictures)
        if split.protocol == "paper_test_selection":
            return ["Validation IS the test half, as in the papers: the figures are optimistic and so labelled."]
        parts = [
            f"{len(np.unique(pictures.labels[part]))} ({len(part)} pictures) for {use}"
            for use, part in (
                ("training", split.train),
                ("validation", split.validation),
                ("test", split.test),
            )
        ]
        return [
            f"Classes: {', '.join(parts)}. A search among fewer classes is easier, so validation figures compare with "
            "validation figures only."
        ]


def query_and_gallery(pictures: Pictures, indices: Indices) -> tuple[Indices, Indices] | None:
    """The places of queries and gallery among `indices`, where the data set's protocol keeps them apart."""
    if not {"query", "gallery"} <= set(pictures.extras):
        return None
    query, gallery = (np.flatnonzero(np.isin(indices, pictures.extras[part])) for part in ("query", "gallery"))
    return (query, gallery) if len(query) and len(gallery) else None


def split_of(config: TrialConfig, pictures: Pictures) -> Split:
    """The class-disjoint train, validation and test pictures of a trial; the seed chooses the validation classes."""
    return class_disjoint_split(
        pictures.labels,
        pictures.test_classes,
        validation_fraction=config.data.validation_fraction,
        folds=config.data.folds,
        fold=config.data.fold,
        seed=config.seed,
        protocol=config.data.split,
    )
