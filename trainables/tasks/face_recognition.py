"""Face recognition: a margin softmax over identities, judged on identities never trained on.

Verification asks whether two pictures show one person, identification finds a person's other picture among strangers.
Both are asked of named benchmarks (lfw_bin, agedb30, cfp_fp ...) or of held-out classes of the training set; with one
character drawn in many typefaces in place of a person in many pictures, the same task runs without any face.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from trainables.context import TrialContext
from trainables.data import DATASETS
from trainables.data.augment import AUGMENTATIONS
from trainables.data.base import DataSet, Indices, Pictures
from trainables.errors import ConfigError, Problem, nearest, raise_if_any
from trainables.evidence.from_embeddings import hardest_pairs
from trainables.evidence.record import Sheet
from trainables.losses.base import normalise
from trainables.metrics import VerificationMetrics, rank_1_with_distractors, verification_metrics
from trainables.models.views import Views
from trainables.tasks.evaluation import Evaluation, Figures, embedding_statistics, evidence_of, named
from trainables.tasks.exams import NOBODY, STRANGERS, Exam, ExamHalf, benchmark, benchmark_half, held_out_half
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
    """Verification accuracy and TAR at FAR 1e-3 over ten folds, rank-1 among distractors.

    Zhang et al., Deep Metric Learning with Spherical Embedding, NeurIPS 2020, supplement, Table 6. The descriptor of a
    picture is the sum of its embedding and its mirror image's, scaled to unit length. Exams drawn from held-out classes
    follow the seed in validation and are the same for every seed in test.
    """

    name = "face_recognition"
    citation = "Deng et al., ArcFace: Additive Angular Margin Loss for Deep Face Recognition, CVPR 2019"
    headline = "val/verification_accuracy"

    validation_sets: Annotated[
        Names, Field(description="benchmarks that validate; empty holds classes of the training set out")
    ] = ()
    test_sets: Annotated[
        Names, Field(description="benchmarks of the sealed test; empty uses the data set's test classes")
    ] = ()
    evaluation_root: Annotated[
        str | None,
        Field(description="folder of the benchmarks, and of `distractors`; data.root where not given"),
    ] = None
    strict: Annotated[bool, Field(description="benchmarks must have their published size")] = True
    mirror: Annotated[bool, Field(description="add the mirror image's embedding")] = True
    folds: Annotated[int, Field(ge=2, description="folds of pairs; each is judged by the others")] = 10
    pairs: Annotated[int, Field(ge=4, multiple_of=2, description="pairs drawn from held-out classes")] = 6000
    distractors: Annotated[tuple[Size, ...], Field(description="gallery sizes for rank-1; empty measures none")] = ()

    def metrics(self) -> list[str]:
        """Accuracy, TAR and rank-1: means over the benchmarks, and each benchmark's own."""
        plain = [*_VERIFICATION, *(f"rank1_at_{size}" for size in self.distractors)]
        own = [f"{figure}_{name}" for name in self.validating_sets for figure in plain]
        return [f"val/{name}" for name in [*plain, *own]]

    @property
    def selects_on_test(self) -> bool:
        """Whether what tests also validates, as the papers did."""
        return self.config.data.split == "paper_test_selection"

    @property
    def validating_sets(self) -> Names:
        """The benchmarks that validate: empty where held-out classes do."""
        return self.test_sets if self.selects_on_test else self.validation_sets

    def split(self, pictures: Pictures) -> Split:
        """Class-disjoint; nothing is held out for validation where benchmarks validate."""
        if not self.validating_sets:
            return disjoint_split(self.config, pictures)
        test = np.isin(pictures.labels, pictures.test_classes)
        split = Split(np.flatnonzero(~test), NOBODY, np.flatnonzero(test), self.config.data.split)
        return with_fewer_pictures(split, pictures.labels, self.config)

    def problems(self) -> list[Problem]:
        """Benchmarks must be known, and not both validate and test unless that is said aloud."""
        problems = super().problems()
        sets = {"validation_sets": self.validation_sets, "test_sets": self.test_sets}
        for field, name in [(field, name) for field, names in sets.items() for name in names]:
            if name not in DATASETS:
                remedy = nearest(name, _benchmarks(), what="verification set")
                problems.append(Problem(f"task.{field}", "unknown verification set", name, remedy))
        if self.pairs < 2 * self.folds:
            problems.append(
                Problem("task.pairs", f"{self.folds} folds need at least {2 * self.folds} pairs", self.pairs)
            )
        both = sorted(set(self.validation_sets) & set(self.test_sets))
        if self.selects_on_test and self.validation_sets:
            rule = "paper_test_selection validates on what tests"
            problems.append(Problem("task.validation_sets", rule, list(self.validation_sets), "Leave it empty."))
        elif both:
            remedy = "Leave task.validation_sets empty, or set data.split=paper_test_selection."
            problems.append(Problem("task.validation_sets", "a test set must not validate", both, remedy))
        return problems

    def data_problems(self, pictures: Pictures) -> list[Problem]:
        """Whether pairs, probes and strangers can be drawn from the classes held out."""
        problems = super().data_problems(pictures)
        if not (pictures.test_classes or self.test_sets):
            rule = f"{pictures.name} has no test classes, so benchmarks must test"
            remedy = f"Set task.test_sets to some of {', '.join(_benchmarks())}."
            problems.append(Problem("task.test_sets", rule, [], remedy))
        try:
            self.further_datasets(None)
        except ConfigError as error:
            problems += error.problems
        if problems:
            return problems
        split = self.split(pictures)
        drawn = [] if self.test_sets else [(split.test, 0)]
        if not self.validating_sets and not self.selects_on_test:
            drawn.append((split.validation, self.config.seed_of("split")))
        for part, seed in drawn:
            try:
                self.half(pictures, part, (), {}, seed=seed)
            except ConfigError as error:
                problems += error.problems
        return list(dict.fromkeys(problems))

    def further_datasets(self, cache_dir: Path | None) -> list[DataSet]:
        """The benchmarks, and the distractors where benchmarks need them. Raises ConfigError where no folder is given."""
        names = list(dict.fromkeys([*self.validation_sets, *self.test_sets]))
        if names and self.distractors:
            names.append(STRANGERS)
        root = self.evaluation_root or self.config.data.root
        if not names:
            return []
        if root is None:
            rule, remedy = "benchmarks need the folder they lie in", "Set task.evaluation_root=DIR."
            raise ConfigError(Problem("task.evaluation_root", rule, None, remedy))
        return [benchmark(name, Path(root), cache_dir, strict=self.strict) for name in names]

    def half(
        self, pictures: Pictures, part: Indices, sets: Names, opened: Mapping[str, Pictures], *, seed: int
    ) -> ExamHalf:
        """Exams on named benchmarks, which are `opened`, else on the held-out classes of `part`."""
        if sets:
            return benchmark_half([opened[name] for name in sets], opened.get(STRANGERS), self.distractors)
        return held_out_half(pictures, part, pairs=self.pairs, sizes=self.distractors, seed=seed)

    def learner(self, context: TrialContext, cache_dir: Path | None = None) -> FaceRecognitionLearner:
        return FaceRecognitionLearner(self, context, cache_dir)


class FaceRecognitionLearner(Learner[Evaluation]):
    """Judges descriptors by pairs to verify and by probes to find again among strangers."""

    task: FaceRecognitionTask

    def __init__(self, task: FaceRecognitionTask, context: TrialContext, cache_dir: Path | None = None) -> None:
        super().__init__(task, context, cache_dir)
        opened = {item.name: open_pictures(item, context) for item in task.further_datasets(cache_dir)}
        raise_if_any(problem for item in opened.values() for problem in self._misfits(item))
        split, seed = self.split, self.config.seed_of("split")
        self.test_half = task.half(self.pictures, split.test, task.test_sets, opened, seed=0)
        if task.selects_on_test:
            self.validation_half = self.test_half
        else:
            self.validation_half = task.half(self.pictures, split.validation, task.validation_sets, opened, seed=seed)

    def validate(self) -> Evaluation:
        """Figures of the validation exams, with the mean pairwise cosine and norm statistics.

        Their sheet shows the pairs of the first exam that were judged wrong with most confidence.
        """
        figures, embeddings, sheet = self._examine(self.validation_half, show=True)
        return Evaluation(named("val", figures), evidence_of(self.split, embeddings, sheet))

    def test(self, validated: Evaluation) -> Evaluation:
        return Evaluation(named("test", self._examine(self.test_half)[0]))

    def _examine(self, half: ExamHalf, *, show: bool = False) -> tuple[Figures, Tensor, Sheet | None]:
        """Each exam's figures under its name and their means under plain names, raw embeddings, and the sheet to `show`."""
        strangers = self._describe(half.gallery, half.strangers)[0] if len(half.strangers) else None
        results, raw = [], []
        sheet = None
        for exam in half.exams:
            needed = np.unique(np.concatenate([exam.pairs.couples.reshape(-1), exam.probes]))
            descriptors, embeddings = self._describe(exam.pictures, needed)
            raw.append(embeddings)
            if not bool(torch.isfinite(descriptors).all()):
                continue
            first, second, probes = (
                descriptors[torch.from_numpy(np.searchsorted(needed, part)).to(descriptors.device)]
                for part in (*exam.pairs.couples.T, exam.probes)
            )
            verified = verification_metrics(first, second, exam.pairs.same, folds=self.task.folds, far=_FAR)
            figures = dict(zip(_VERIFICATION, (verified.accuracy, verified.tar_at_far), strict=True))
            if strangers is not None:
                ranked = rank_1_with_distractors(probes, exam.probe_labels, strangers, self.task.distractors)
                figures |= {f"rank1_at_{size}": value for size, value in ranked.items()}
            results.append(figures)
            if show and sheet is None:
                sheet = self._confused(exam, verified, first, second)
        embeddings = torch.cat(raw)
        figures = embedding_statistics(embeddings)
        if not math.isnan(figures["mean_cosine"]) and len(results) == len(half.exams):
            figures = {**_means_and_own(half, results), **figures}
        return figures, embeddings, sheet

    def _confused(self, exam: Exam, verified: VerificationMetrics, first: Tensor, second: Tensor) -> Sheet | None:
        """The pairs judged wrong with most confidence; None where there are none, or none are wanted."""
        similarity = (normalise(first) * normalise(second)).sum(dim=1).double().cpu().numpy()
        count, pairs = self.config.evaluation.sheet_queries, exam.pairs
        rows = hardest_pairs(similarity, pairs.same, verified.thresholds, pairs.couples, exam.pictures, count=count)
        titles = (0, "two classes, told one"), (3, "one class, told two")
        return Sheet(titles, rows, exam.pictures) if rows else None

    def _describe(self, pictures: Pictures, indices: Indices) -> tuple[Tensor, Tensor]:
        """Descriptors and raw embeddings of pictures, (N, d) each."""
        augmentation, seed, device = self.task.augmentation(), self.config.seed_of("order"), self.context.device
        views = self.views
        if pictures is not self.pictures:
            views = Views(pictures.images, augmentation, seed=seed, device=device)

        def both(part: Indices) -> Tensor:
            images = views.evaluation(part)
            embeddings = self.network(images)
            if not self.task.mirror:
                return torch.stack([embeddings, embeddings], dim=1)
            return torch.stack([embeddings + self.network(images.flip(-1)), embeddings], dim=1)

        rows = self.rows(both, indices)
        return rows[:, 0], rows[:, 1]

    def _misfits(self, pictures: Pictures) -> list[Problem]:
        """Whether the network can see these pictures as it sees those it trains on."""
        mine = self.pictures
        problems = []
        if pictures.in_channels != mine.in_channels:
            rule = f"{pictures.name} must have the {mine.in_channels} channels of {mine.name}"
            problems.append(Problem("task", rule, pictures.in_channels))
        size, wanted = self.task.picture_size(pictures), self.task.picture_size(mine)
        if size != wanted:
            rule = f"{pictures.name} must be shown at the {wanted} pixels of {mine.name}"
            remedy = f"Set augment.name to {' or '.join(AUGMENTATIONS)}, and augment.crop=..."
            problems.append(Problem("augment.name", rule, size, remedy))
        return problems


def _means_and_own(half: ExamHalf, results: list[Figures]) -> Figures:
    """The means of the exams' figures, and each named exam's own."""
    means = {name: float(np.mean([figures[name] for figures in results])) for name in results[0]}
    own = {
        f"{name}_{exam.name}": value
        for exam, figures in zip(half.exams, results, strict=True)
        if exam.name
        for name, value in figures.items()
    }
    return means | own


def _benchmarks() -> list[str]:
    """The data sets that list pairs."""
    return sorted(name for name, kind in DATASETS.items() if "pairs" in kind.expected)
