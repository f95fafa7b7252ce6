"""Face recognition: a margin softmax over identities, evaluated on identities that training does not see.

Verification decides whether two pictures show one person; identification finds a person's other picture among
distractors. Both use named benchmarks (lfw_bin, agedb30, cfp_fp ...) or held-out classes of the training set. The task
needs no faces: characters in many typefaces serve as persons in many pictures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from trainables.context import TrialContext
from trainables.data import DATASETS
from trainables.data.augment import AUGMENTATIONS
from trainables.data.base import DataSet, Indices, Pictures, problems_raised
from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.evidence.from_embeddings import hardest_pairs
from trainables.evidence.record import Sheet
from trainables.losses.base import normalise
from trainables.metrics.faces import VerificationMetrics, rank_1_with_distractors, verification_metrics
from trainables.tasks.evaluation import Evaluation, Figures, embedding_statistics, evidence_of, with_part
from trainables.tasks.face_benchmarks import (
    DISTRACTORS,
    NO_PICTURES,
    BenchmarkHalf,
    FaceBenchmark,
    benchmark_dataset,
    benchmark_half,
    held_out_half,
    no_pairs_error,
    require_distractors,
)
from trainables.tasks.learner import Learner, open_pictures
from trainables.tasks.retrieval import disjoint_split
from trainables.tasks.splits import Split, with_fewer_pictures
from trainables.tasks.task import Task

_FAR = 1e-3
_VERIFICATION = ("verification_accuracy", "tar_at_far_1e-3")

Names = tuple[str, ...]
Size = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True)
class FaceRecognitionTask(Task):
    """Verification accuracy and TAR at FAR 1e-3 over `folds` folds of pairs, and rank-1 among distractors.

    Zhang et al., Deep Metric Learning with Spherical Embedding, NeurIPS 2020, supplement, Table 6. A picture's
    descriptor is the sum of the embeddings of the picture and its mirror image, scaled to unit length. Pairs drawn from
    held-out classes depend on the seed in validation, and are the same for every seed in test.
    """

    name = "face_recognition"
    citation = "Deng et al., ArcFace: Additive Angular Margin Loss for Deep Face Recognition, CVPR 2019"
    headline = "val/verification_accuracy"

    validation_sets: Annotated[
        Names, Field(description="benchmarks for validation; empty holds out classes of the training set")
    ] = ()
    test_sets: Annotated[
        Names, Field(description="benchmarks for the sealed test; empty uses the data set's test classes")
    ] = ()
    evaluation_root: Annotated[
        str | None, Field(description="folder of the benchmarks, and of `distractors`; data.root by default")
    ] = None
    strict: Annotated[bool, Field(description="benchmarks must have their published size")] = True
    mirror: Annotated[bool, Field(description="add the mirror image's embedding")] = True
    folds: Annotated[int, Field(ge=2, description="folds of pairs; the threshold of each comes from the others")] = 10
    pairs: Annotated[int, Field(ge=4, multiple_of=2, description="pairs drawn from held-out classes")] = 6000
    distractors: Annotated[tuple[Size, ...], Field(description="gallery sizes for rank-1; empty measures none")] = ()

    def metrics(self) -> list[str]:
        """Return accuracy, TAR and rank-1: means over the benchmarks, and each benchmark's values."""
        plain = [*_VERIFICATION, *(f"rank1_at_{size}" for size in self.distractors)]
        own = [f"{figure}_{name}" for name in self.validating_sets for figure in plain]
        return [f"val/{name}" for name in [*plain, *own]]

    @property
    def selects_on_test(self) -> bool:
        """Whether the test benchmarks also validate, as in the papers."""
        return self.config.data.split == "paper_test_selection"

    @property
    def validating_sets(self) -> Names:
        """Benchmarks for validation; empty if held-out classes validate."""
        return self.test_sets if self.selects_on_test else self.validation_sets

    def split(self, pictures: Pictures) -> Split:
        """Split by classes; no class is held out if benchmarks validate."""
        if not self.validating_sets:
            return disjoint_split(self.config, pictures)
        test = np.isin(pictures.labels, pictures.test_classes)
        split = Split(np.flatnonzero(~test), NO_PICTURES, np.flatnonzero(test), self.config.data.split)
        return with_fewer_pictures(split, pictures.labels, self.config)

    def problems(self) -> list[Problem]:
        """Require known benchmarks, which validate and test only under paper_test_selection."""
        problems = super().problems()
        sets = {"validation_sets": self.validation_sets, "test_sets": self.test_sets}
        for field, name in [(field, name) for field, names in sets.items() for name in names]:
            if name not in DATASETS:
                rule, known = "unknown verification set", _benchmarks()
                problems.append(Problem(f"task.{field}", rule, name, known=known, kind="verification set"))
        if self.pairs < 2 * self.folds:
            problems.append(
                Problem("task.pairs", f"{self.folds} folds need at least {2 * self.folds} pairs", self.pairs)
            )
        shared = sorted(set(self.validation_sets) & set(self.test_sets))
        if self.selects_on_test and self.validation_sets:
            rule = "paper_test_selection validates on the test sets"
            problems.append(Problem("task.validation_sets", rule, list(self.validation_sets), "Leave it empty."))
        elif shared:
            remedy = "Leave task.validation_sets empty, or set data.split=paper_test_selection."
            problems.append(Problem("task.validation_sets", "a test set must not validate", shared, remedy))
        return problems

    def data_problems(self, pictures: Pictures) -> list[Problem]:
        """Check that pairs, probes and distractors can be drawn from the held-out classes."""
        problems = super().data_problems(pictures)
        if not (pictures.test_classes or self.test_sets):
            rule = f"{pictures.name} has no test classes, so benchmarks are needed"
            remedy = f"Set task.test_sets to some of {', '.join(_benchmarks())}."
            problems.append(Problem("task.test_sets", rule, [], remedy))
        if problems := problems + problems_raised(self._require_benchmarks):
            return problems
        split = self.split(pictures)
        drawn = [] if self.test_sets else [(split.test, 0)]
        if not self.validating_sets and not self.selects_on_test:
            drawn.append((split.validation, self.config.seed_of("split")))
        for part, seed in drawn:
            problems += problems_raised(partial(self.half, pictures, part, (), {}, seed=seed))
        return list(dict.fromkeys(problems))

    def _require_benchmarks(self) -> None:
        """Raise ConfigError without a folder of the benchmarks, pairs in one of ours, or enough distractors."""
        for dataset in self.further_datasets(None):
            if dataset.name == DISTRACTORS:
                require_distractors(dataset.counts()["images"], self.distractors)
            elif dataset.name not in _benchmarks() and type(dataset).__module__.startswith("trainables."):
                raise no_pairs_error(dataset.name)

    def further_datasets(self, cache_dir: Path | None) -> list[DataSet]:
        """Return the benchmarks, and the distractors if rank-1 needs them. Raises ConfigError without a folder."""
        names = list(dict.fromkeys([*self.validation_sets, *self.test_sets]))
        if names and self.distractors:
            names.append(DISTRACTORS)
        root = self.evaluation_root or self.config.data.root
        if not names:
            return []
        if root is None:
            rule, remedy = "benchmarks need a folder", "Set task.evaluation_root=DIR."
            raise ConfigError(Problem("task.evaluation_root", rule, None, remedy))
        return [benchmark_dataset(name, Path(root), cache_dir, strict=self.strict) for name in names]

    def half(
        self, pictures: Pictures, part: Indices, sets: Names, opened: Mapping[str, Pictures], *, seed: int
    ) -> BenchmarkHalf:
        """Return the named benchmarks, already `opened`, or, without names, those of the held-out classes of `part`."""
        if sets:
            return benchmark_half([opened[name] for name in sets], opened.get(DISTRACTORS), self.distractors)
        return held_out_half(pictures, part, pairs=self.pairs, sizes=self.distractors, seed=seed)

    def learner(self, context: TrialContext, cache_dir: Path | None = None) -> FaceRecognitionLearner:
        return FaceRecognitionLearner(self, context, cache_dir)


class FaceRecognitionLearner(Learner[Evaluation]):
    """Evaluates descriptors by verification and by identification among distractors."""

    task: FaceRecognitionTask

    def __init__(self, task: FaceRecognitionTask, context: TrialContext, cache_dir: Path | None = None) -> None:
        super().__init__(task, context, cache_dir)
        opened = {item.name: open_pictures(item, context) for item in task.further_datasets(cache_dir)}
        raise_if_any(problem for item in opened.values() for problem in self._incompatibilities(item))
        split, seed = self.split, self.config.seed_of("split")
        self.test_half = task.half(self.pictures, split.test, task.test_sets, opened, seed=0)
        if task.selects_on_test:
            self.validation_half = self.test_half
        else:
            self.validation_half = task.half(self.pictures, split.validation, task.validation_sets, opened, seed=seed)

    def validate(self) -> Evaluation:
        """Return the figures of the validation benchmarks, with the mean pairwise cosine and norm statistics.

        The sheet shows the first benchmark's most confident wrong decisions.
        """
        figures, embeddings, sheet = self._evaluate(self.validation_half, show=True)
        return Evaluation(with_part("val", figures), evidence_of(self.split, embeddings, sheet))

    def test(self, validated: Evaluation) -> Evaluation:
        return Evaluation(with_part("test", self._evaluate(self.test_half)[0]))

    def _evaluate(self, half: BenchmarkHalf, *, show: bool = False) -> tuple[Figures, Tensor, Sheet | None]:
        """Return figures (of each benchmark and their means), raw embeddings, and the sheet if `show`."""
        distractors = self._describe(half.gallery, half.distractors)[0] if len(half.distractors) else None
        results, raw = [], []
        sheet = None
        for benchmark in half.benchmarks:
            needed = np.unique(np.concatenate([benchmark.pairs.reshape(-1), benchmark.probes]))
            descriptors, embeddings = self._describe(benchmark.pictures, needed)
            if not all(bool(rows.isfinite().all()) for rows in (descriptors, distractors) if rows is not None):
                raw.append(torch.full_like(embeddings, math.nan))  # a sum may overflow although its terms are finite
                continue
            raw.append(embeddings)
            first, second, probes = (
                descriptors[torch.from_numpy(np.searchsorted(needed, part)).to(descriptors.device)]
                for part in (*benchmark.pairs.T, benchmark.probes)
            )
            verified = verification_metrics(first, second, benchmark.same, folds=self.task.folds, far=_FAR)
            figures = dict(zip(_VERIFICATION, (verified.accuracy, verified.tar_at_far), strict=True))
            if distractors is not None:
                ranked = rank_1_with_distractors(probes, benchmark.probe_labels, distractors, self.task.distractors)
                figures |= {f"rank1_at_{size}": value for size, value in ranked.items()}
            results.append(figures)
            if show and sheet is None and not benchmark.pictures.are_features:
                sheet = self._worst_pairs(benchmark, verified, first, second)
        embeddings = torch.cat(raw)
        figures = embedding_statistics(embeddings)
        if not math.isnan(figures["mean_cosine"]) and len(results) == len(half.benchmarks):
            figures = {**_benchmark_figures(half, results), **figures}
        return figures, embeddings, sheet

    def _worst_pairs(
        self, benchmark: FaceBenchmark, verified: VerificationMetrics, first: Tensor, second: Tensor
    ) -> Sheet | None:
        """Return the sheet of the most confident wrong decisions; None without any."""
        similarity = (normalise(first) * normalise(second)).sum(dim=1).double().cpu().numpy()
        count, pairs, same = self.config.evaluation.sheet_queries, benchmark.pairs, benchmark.same
        rows = hardest_pairs(similarity, same, verified.thresholds, pairs, benchmark.pictures, count=count)
        titles = (0, "two classes, told one"), (3, "one class, told two")
        return Sheet(titles, rows, benchmark.pictures) if rows else None

    def _describe(self, pictures: Pictures, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return descriptors and raw embeddings of pictures, (N, d) each."""
        views = self.views_of(pictures)

        def descriptors_and_embeddings(part: Indices) -> Tensor:
            images = views.evaluation(part)
            embeddings = self.network(images)
            if not self.task.mirror:
                return torch.stack([embeddings, embeddings], dim=1)
            return torch.stack([embeddings + self.network(images.flip(-1)), embeddings], dim=1)

        rows = self.compute_rows(descriptors_and_embeddings, indices)
        return rows[:, 0], rows[:, 1]

    def _incompatibilities(self, pictures: Pictures) -> list[Problem]:
        """Compare channels and size of these pictures with those of the training set."""
        training = self.pictures
        problems = []
        if pictures.in_channels != training.in_channels:
            rule = f"{pictures.name} must have the {training.in_channels} channels of {training.name}"
            problems.append(Problem("task", rule, pictures.in_channels))
        size, required = self.task.picture_size(pictures), self.task.picture_size(training)
        if size != required:
            rule = f"{pictures.name} must be shown at the {required} pixels of {training.name}"
            remedy = f"Set augment.name to {' or '.join(AUGMENTATIONS)}, and augment.crop=..."
            problems.append(Problem("augment.name", rule, size, remedy))
        return problems


def _benchmark_figures(half: BenchmarkHalf, results: list[Figures]) -> Figures:
    means = {name: float(np.mean([figures[name] for figures in results])) for name in results[0]}
    own = {
        f"{name}_{benchmark.name}": value
        for benchmark, figures in zip(half.benchmarks, results, strict=True)
        if benchmark.name
        for name, value in figures.items()
    }
    return means | own


def _benchmarks() -> list[str]:
    """Return the data sets that list pairs."""
    return sorted(name for name, kind in DATASETS.items() if "pairs" in kind.expected)
