"""The retrieval task: pictures to embeddings, trained by a metric loss, judged by nearest neighbours of unseen classes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trainables.config import TrialConfig
from trainables.context import TrialContext
from trainables.data.base import Indices, Pictures
from trainables.metrics import retrieval_metrics
from trainables.metrics.clustering import CLUSTERING_METRICS, ClusteringMetrics, clustering_metrics
from trainables.metrics.families import FAMILIES
from trainables.tasks.evaluation import Evaluation, Figures, embedding_statistics, evidence_of, named, neighbour_sheet
from trainables.tasks.learner import Learner
from trainables.tasks.splits import Split, class_disjoint_split, class_matched
from trainables.tasks.task import Task


@dataclass(frozen=True)
class RetrievalTask(Task):
    """L = L_metric(f/|f|) + eta_t * L_regularizer(f), judged by Recall@k, MAP@R and the like.

    Validation uses classes never trained on; test classes are looked at once, for the evaluation that counts, and stay
    sealed. Every picture is searched among the others of its half; where the data set says which pictures of the test
    half are queries and which the gallery (In-Shop), queries are searched in the gallery.
    """

    name = "retrieval"
    citation = "Oh Song et al., Deep Metric Learning via Lifted Structured Feature Embedding, CVPR 2016"
    headline = "val/recall_at_1"

    def metrics(self) -> list[str]:
        """Every family of retrieval metrics, at every k where it has one, and those of clusters."""
        ranked = [f"val/{key}" for family in FAMILIES.values() for key in family.keys(self.config.evaluation.ks)]
        return ranked + self.final_metrics()

    def final_metrics(self) -> list[str]:
        """NMI and F1 of k-means with as many clusters as classes."""
        return [f"val/{key}" for key in CLUSTERING_METRICS] if self.config.evaluation.clustering else []

    def split(self, pictures: Pictures) -> Split:
        return disjoint_split(self.config, pictures)

    def notes(self, pictures: Pictures) -> list[str]:
        """How many classes are told apart in each half: a search among fewer classes is an easier one."""
        split = self.split(pictures)
        if split.protocol == "paper_test_selection":
            return ["Validation IS the test half, as in the papers: the figures are optimistic and so labelled."]
        parts = [
            f"{len(np.unique(pictures.labels[part]))} ({len(part)} pictures) for {use}"
            for use, part in (("training", split.train), ("validation", split.validation), ("test", split.test))
        ]
        return [
            f"Classes: {', '.join(parts)}. A search among fewer classes is easier, so validation figures compare with "
            "validation figures only."
        ]

    def learner(self, context: TrialContext, cache_dir: Path | None = None) -> RetrievalLearner:
        return RetrievalLearner(self, context, cache_dir)


@dataclass(frozen=True)
class RetrievalEvaluation(Evaluation):
    """The validation figures, and what was judged."""

    embeddings: Tensor
    labels: Tensor


class RetrievalLearner(Learner[RetrievalEvaluation]):
    """Judges raw embeddings by what lies nearest to each."""

    def validate(self) -> RetrievalEvaluation:
        """Retrieval metrics on the validation classes, with the mean pairwise cosine and norm statistics."""
        indices, count, seed = self.split.validation, self.config.evaluation.sheet_queries, self.config.seed
        embeddings, labels = self.embed(indices)
        apart = query_and_gallery(self.pictures, indices)
        sheet = neighbour_sheet(embeddings, indices, self.pictures, count=count, seed=seed, query_and_gallery=apart)
        evidence = evidence_of(self.split, embeddings, sheet)
        return RetrievalEvaluation(named("val", self._judge(indices, embeddings, labels)), evidence, embeddings, labels)

    def conclude(self, validated: RetrievalEvaluation) -> RetrievalEvaluation:
        """With NMI and F1, and in the evidence the program that clustered."""
        if not self.config.evaluation.clustering:
            return validated
        found = self._clusters(validated.embeddings, validated.labels)
        evidence = validated.evidence and replace(validated.evidence, clustering=found.backend)
        return replace(validated, figures=validated.figures | named("val", found.figures()), evidence=evidence)

    def _clusters(self, embeddings: Tensor, labels: Tensor) -> ClusteringMetrics:
        return clustering_metrics(embeddings, labels, backend="auto", seed=self.config.seed)

    def test(self, validated: RetrievalEvaluation) -> Figures:
        """The same on the test classes; also `test/matched_...` where asked for."""
        test = self.split.test
        if not len(test):
            return {}  # a set that only trains, to be judged on another one
        embeddings, labels = self.embed(test)
        figures = named("test", self._final(test, embeddings, labels))
        if not self.config.evaluation.matched_classes:
            return figures
        some = class_matched(self.pictures.labels, test, self.split.validation, seed=self.config.seed)
        rows = torch.from_numpy(np.searchsorted(test, some)).to(labels.device)
        matched = self._final(some, embeddings[rows], labels[rows])
        return figures | {f"test/matched_{name}": value for name, value in matched.items()}

    def _final(self, indices: Indices, embeddings: Tensor, labels: Tensor) -> Figures:
        figures = self._judge(indices, embeddings, labels)
        if self.config.evaluation.clustering and not math.isnan(figures["mean_cosine"]):
            figures |= self._clusters(embeddings, labels).figures()
        return figures

    def _judge(self, indices: Indices, embeddings: Tensor, labels: Tensor) -> Figures:
        statistics = embedding_statistics(embeddings)
        if math.isnan(statistics["mean_cosine"]):
            return statistics
        queries, query_labels, gallery = embeddings, labels, None
        if rows := query_and_gallery(self.pictures, indices):
            asked, searched = (torch.from_numpy(part).to(labels.device) for part in rows)
            gallery = (embeddings[searched], labels[searched])
            queries, query_labels = embeddings[asked], labels[asked]
        ranked = retrieval_metrics(queries, query_labels, ks=self.config.evaluation.ks, gallery=gallery)
        return {**ranked, **statistics}


def query_and_gallery(pictures: Pictures, indices: Indices) -> tuple[Indices, Indices] | None:
    """Which of `indices` are queries and which the gallery, by position, where the data set's protocol keeps them apart."""
    if not {"query", "gallery"} <= set(pictures.extras):
        return None
    query, gallery = (np.flatnonzero(np.isin(indices, pictures.extras[part])) for part in ("query", "gallery"))
    return (query, gallery) if len(query) and len(gallery) else None


def disjoint_split(config: TrialConfig, pictures: Pictures) -> Split:
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
