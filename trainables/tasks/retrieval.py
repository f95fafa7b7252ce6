"""The retrieval task: embeddings trained by a metric loss, evaluated by nearest neighbours of unseen classes."""

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
from trainables.evidence.stored import Hits, StoredEmbeddings, embeddings_bytes
from trainables.metrics import retrieval_metrics
from trainables.metrics.clustering import CLUSTERING_METRICS, ClusteringMetrics, clustering_metrics
from trainables.metrics.families import FAMILIES, Ranking
from trainables.tasks.evaluation import (
    Evaluation,
    Figures,
    embedding_statistics,
    evidence_of,
    neighbour_sheet,
    with_part,
)
from trainables.tasks.learner import Learner
from trainables.tasks.splits import Split, class_disjoint_split, match_classes, with_fewer_pictures
from trainables.tasks.task import Task


@dataclass(frozen=True)
class RetrievalTask(Task):
    """L = L_metric(f/|f|) + eta_t * L_regularizer(f), evaluated by Recall@k, MAP@R and other retrieval metrics.

    Validation uses classes that training never sees. Test classes are evaluated once, at the final evaluation, and stay
    sealed. Every picture searches the others of its half. If the data set separates queries and gallery (In-Shop),
    queries search the gallery.
    """

    name = "retrieval"
    citation = "Oh Song et al., Deep Metric Learning via Lifted Structured Feature Embedding, CVPR 2016"
    headline = "val/recall_at_1"
    keeps_embeddings = True

    def metrics(self) -> list[str]:
        ranked = [f"val/{key}" for family in FAMILIES.values() for key in family.keys(self.config.evaluation.ks)]
        return ranked + self.final_metrics()

    def final_metrics(self) -> list[str]:
        return [f"val/{key}" for key in CLUSTERING_METRICS] if self.config.evaluation.clustering else []

    def split(self, pictures: Pictures) -> Split:
        return disjoint_split(self.config, pictures)

    def notes(self, pictures: Pictures) -> list[str]:
        """Add the number of classes in each half, because a search among fewer classes is easier."""
        split = self.split(pictures)
        if split.protocol == "paper_test_selection":
            selected = "Validation IS the test half, as in the papers: the figures are optimistic and so labelled."
            return [selected, *super().notes(pictures)]
        parts = [
            f"{len(np.unique(pictures.labels[part]))} ({len(part)} pictures) for {use}"
            for use, part in (("training", split.train), ("validation", split.validation), ("test", split.test))
        ]
        sizes = np.unique(pictures.labels[np.concatenate([split.train, split.validation])], return_counts=True)[1]
        if len(set(sizes.tolist())) > 1 and self.config.seeds.split is None:  # the halves of other seeds have others
            parts[-1] += f", under seed {self.config.seed}"
        return [
            f"Classes: {', '.join(parts)}. A search among fewer classes is easier, so validation figures compare with "
            "validation figures only.",
            *super().notes(pictures),
        ]

    def kept_bytes(self, pictures: Pictures) -> int:
        if self.config.evaluation.keep != "embeddings":
            return super().kept_bytes(pictures)
        split = self.split(pictures)
        return embeddings_bytes(len(split.validation) + len(split.test), self.config.model.embedding_dim)

    def learner(self, context: TrialContext, cache_dir: Path | None = None) -> RetrievalLearner:
        return RetrievalLearner(self, context, cache_dir)


class RetrievalLearner(Learner[Evaluation]):
    """Evaluates raw embeddings by their nearest neighbours."""

    tests_by_weights = True

    def validate(self) -> Evaluation:
        """Return retrieval metrics on the validation classes, with the mean pairwise cosine and norm statistics."""
        indices, count, seed = self.split.validation, self.config.evaluation.sheet_queries, self.config.seed_of("split")
        stored = self._embed_half(indices)
        vectors, sets = stored.vectors, stored.query_and_gallery
        sheet = neighbour_sheet(vectors, indices, self.pictures, count=count, seed=seed, query_and_gallery=sets)
        figures, hits = self._judge(stored)
        return Evaluation(with_part("val", figures), evidence_of(self.split, vectors, sheet), hits, stored)

    def conclude(self, validated: Evaluation) -> Evaluation:
        """Add NMI and F1 to the figures, and the clustering program to the evidence."""
        clusters = self._clusters(validated.stored)
        if clusters is None:
            return validated
        evidence = validated.evidence and replace(validated.evidence, clustering=clusters.backend)
        return replace(validated, figures=validated.figures | with_part("val", clusters.figures()), evidence=evidence)

    def _clusters(self, stored: StoredEmbeddings | None) -> ClusteringMetrics | None:
        """Return NMI and F1; None if they are not configured, or an embedding is not finite."""
        if not self.config.evaluation.clustering or stored is None or not bool(stored.vectors.isfinite().all()):
            return None
        return clustering_metrics(stored.vectors, stored.labels, backend="auto", seed=self.config.seed_of("split"))

    def test(self, validated: Evaluation) -> Evaluation:
        """Return the figures on the test classes, and `test/matched_...` if `evaluation.matched_classes`."""
        test = self.split.test
        if not len(test):
            return Evaluation({})  # this data set has no test classes; another one tests
        stored = self._embed_half(test)
        own_figures, hits = self._final_figures(stored)
        figures = with_part("test", own_figures)
        if self.config.evaluation.matched_classes:
            seed = self.config.seed_of("split")
            matched = match_classes(self.pictures.labels, test, self.split.validation, seed=seed)
            rows = np.searchsorted(test, matched)
            part = self._stored_embeddings(matched, stored.vectors[rows], stored.labels[rows])
            figures |= {f"test/matched_{name}": value for name, value in self._final_figures(part)[0].items()}
        return Evaluation(figures, hits=hits, stored=stored)

    def judge_vectors(self, vectors: Tensor, indices: Indices) -> Figures:
        """Return retrieval figures of arbitrary vectors (N, D) of pictures, such as their pixels."""
        labels = torch.from_numpy(self.pictures.labels[indices]).to(vectors.device)
        return self._judge(self._stored_embeddings(indices, vectors, labels))[0]

    def _embed_half(self, indices: Indices) -> StoredEmbeddings:
        return self._stored_embeddings(indices, *self.embed(indices))

    def _stored_embeddings(self, indices: Indices, vectors: Tensor, labels: Tensor) -> StoredEmbeddings:
        """Return the embeddings of pictures with the protocol's queries and gallery."""
        return StoredEmbeddings(vectors, labels, indices, _query_and_gallery(self.pictures, indices))

    def _final_figures(self, stored: StoredEmbeddings) -> tuple[Figures, Hits | None]:
        figures, hits = self._judge(stored)
        clusters = self._clusters(stored)
        return (figures if clusters is None else figures | clusters.figures()), hits

    def _judge(self, stored: StoredEmbeddings) -> tuple[Figures, Hits | None]:
        """Return figures and hits; no hits if an embedding is not finite."""
        statistics = embedding_statistics(stored.vectors)
        if math.isnan(statistics["mean_cosine"]):
            return statistics, None
        query_blocks: list[Tensor] = []
        hit_blocks: list[Tensor] = []

        def collect(ranking: Ranking) -> None:
            query_blocks.append(ranking.queries)
            hit_blocks.append(ranking.positions[:, 0] == 1)

        queries, labels, gallery = stored.search
        ks = self.config.evaluation.ks
        ranked = retrieval_metrics(queries, labels, ks=ks, gallery=gallery, callback=collect)
        rows = np.concatenate([block.cpu().numpy() for block in query_blocks])
        hit = np.concatenate([block.cpu().numpy() for block in hit_blocks])
        sets = stored.query_and_gallery
        numbers = stored.pictures if sets is None else stored.pictures[sets[0]]
        hits = Hits.of(hit, self.pictures.labels[numbers[rows]], numbers[rows])
        return {**ranked, **statistics}, hits


def _query_and_gallery(pictures: Pictures, indices: Indices) -> tuple[Indices, Indices] | None:
    """Return positions in `indices` of queries and of the gallery, if the data set's protocol separates them."""
    if not {"query", "gallery"} <= set(pictures.extras):
        return None
    query, gallery = (np.flatnonzero(np.isin(indices, pictures.extras[part])) for part in ("query", "gallery"))
    return (query, gallery) if len(query) and len(gallery) else None


def disjoint_split(config: TrialConfig, pictures: Pictures) -> Split:
    """Return a trial's class-disjoint train, validation and test pictures; the seed chooses the validation classes."""
    split = class_disjoint_split(
        pictures.labels,
        pictures.test_classes,
        validation_fraction=config.data.validation_fraction,
        folds=config.data.folds,
        fold=config.data.fold,
        seed=config.seed_of("split"),
        protocol=config.data.split,
    )
    return with_fewer_pictures(split, pictures.labels, config)
