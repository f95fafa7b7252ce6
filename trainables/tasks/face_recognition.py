"""Face recognition: a margin softmax over identities, judged on identities never trained on.

Verification asks whether two pictures show one person, identification finds a person's other picture among strangers.
Both are asked of named benchmarks (lfw_bin, agedb30, cfp_fp ...) or of held-out classes of the training set; with one
character drawn in many typefaces in place of a person in many pictures, the same task runs without any face.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from trainables.config import TrialConfig
from trainables.context import TrialContext
from trainables.data import DATASETS
from trainables.data.base import DataSet, Indices, Pictures
from trainables.data.splits import Split
from trainables.errors import ConfigError, Problem, nearest, raise_if_any
from trainables.evidence.from_embeddings import hardest_pairs
from trainables.evidence.record import Sheet
from trainables.losses.base import normalise
from trainables.metrics import rank_1_with_distractors, verification_metrics
from trainables.metrics.verification import VerificationMetrics
from trainables.models.views import Views
from trainables.tasks.exams import DISTRACTORS, Exam, Half, benchmark, benchmark_half, held_out_half
from trainables.tasks.retrieval import split_of
from trainables.tasks.task import Task

FAR = 1e-3
VERIFICATION = ("verification_accuracy", "tar_at_far_1e-3")

Names = tuple[str, ...]
Size = Annotated[int, Field(ge=1)]


class FaceRecognitionTask(Task):
    """Verification accuracy and TAR at FAR 1e-3 over ten folds, rank-1 among distractors.

    Zhang et al., Deep Metric Learning with Spherical Embedding, NeurIPS 2020, supplement, Table 6. The descriptor of a
    picture is the sum of its embedding and its mirror image's, scaled to unit length. Exams drawn from held-out classes
    follow the seed in validation and are the same for every seed in test.
    """

    name = "face_recognition"
    citation = "Deng et al., ArcFace: Additive Angular Margin Loss for Deep Face Recognition, CVPR 2019"
    headline = "val/verification_accuracy"

    def __init__(
        self,
        config: TrialConfig,
        context: TrialContext,
        *,
        cache_dir: Path | None = None,
        validation_sets: Annotated[
            Names, Field(description="benchmarks that validate; empty holds classes of the training set out")
        ] = (),
        test_sets: Annotated[
            Names, Field(description="benchmarks of the sealed test; empty uses the data set's test classes")
        ] = (),
        evaluation_root: Annotated[
            str | None,
            Field(description="folder of the benchmarks, and of `distractors`; data.root where not given"),
        ] = None,
        strict: Annotated[bool, Field(description="benchmarks must have their published size")] = True,
        mirror: Annotated[bool, Field(description="add the mirror image's embedding")] = True,
        folds: Annotated[int, Field(ge=2, description="folds of pairs; each is judged by the others")] = 10,
        pairs: Annotated[int, Field(ge=4, multiple_of=2, description="pairs drawn from held-out classes")] = 6000,
        distractors: Annotated[
            tuple[Size, ...], Field(description="gallery sizes for rank-1; empty measures none")
        ] = (),
    ) -> None:
        super().__init__(config, context, cache_dir=cache_dir)
        self.mirror, self.folds, self.sizes = mirror, folds, distractors
        opened = {item.name: item.prepare() for item in self.further_datasets(config, cache_dir)}
        raise_if_any(problem for item in opened.values() for problem in self._misfits(item))
        self.test_half = _half(config, self.pictures, self.split.test, test_sets, opened, seed=0)
        if config.data.split == "paper_test_selection":
            self.validation_half = self.test_half
        else:
            self.validation_half = _half(
                config, self.pictures, self.split.validation, validation_sets, opened, seed=config.seed
            )
        self._views = {id(self.pictures): self.views}

    @classmethod
    def split_of(cls, config: TrialConfig, pictures: Pictures) -> Split:
        """Class-disjoint; nothing is held out for validation where benchmarks validate."""
        if not _validating_sets(config):
            return split_of(config, pictures)
        test = np.isin(pictures.labels, pictures.test_classes)
        nobody = np.zeros(0, dtype=np.int64)
        return Split(np.flatnonzero(~test), nobody, np.flatnonzero(test), config.data.split)

    @classmethod
    def validation_metrics(cls, config: TrialConfig) -> list[str]:
        """Accuracy, TAR and rank-1: means over the benchmarks, and each benchmark's own."""
        plain = [*VERIFICATION, *(f"rank1_at_{size}" for size in config.task.parameters["distractors"])]
        own = [f"{figure}_{name}" for name in _validating_sets(config) for figure in plain]
        return [f"val/{name}" for name in [*plain, *own]]

    @classmethod
    def problems(cls, sections: Mapping[str, Any]) -> list[Problem]:
        """Benchmarks must be known, and not both validate and test unless that is said aloud."""
        found, task = super().problems(sections), sections["task"].parameters
        known = sorted(name for name, kind in DATASETS.items() if "pairs" in kind.expected)
        sets = {half: task[half] for half in ("validation_sets", "test_sets")}
        for half, name in [(half, name) for half, names in sets.items() for name in names]:
            if name not in DATASETS:
                remedy = nearest(name, known, what="verification set")
                found.append(Problem(f"task.{half}", "unknown verification set", name, remedy))
        if task["pairs"] < 2 * task["folds"]:
            rule = f"{task['folds']} folds need at least {2 * task['folds']} pairs"
            found.append(Problem("task.pairs", rule, task["pairs"]))
        selected = getattr(sections.get("data"), "split", "") == "paper_test_selection"
        both = sorted(set(sets["validation_sets"]) & set(sets["test_sets"]))
        if selected and sets["validation_sets"]:
            rule = "paper_test_selection validates on what tests"
            found.append(Problem("task.validation_sets", rule, list(sets["validation_sets"]), "Leave it empty."))
        elif both:
            remedy = "Leave task.validation_sets empty, or set data.split=paper_test_selection."
            found.append(Problem("task.validation_sets", "a test set must not validate", both, remedy))
        return found

    @classmethod
    def data_problems(cls, config: TrialConfig, pictures: Pictures) -> list[Problem]:
        """Whether pairs, probes and strangers can be drawn from the classes held out."""
        found = super().data_problems(config, pictures)
        tested = config.task.parameters["test_sets"]
        if not (pictures.test_classes or tested):
            rule = f"{pictures.name} has no test classes, so benchmarks must test"
            found.append(Problem("task.test_sets", rule, [], 'Set task.test_sets=["lfw_bin"] or the like.'))
        try:
            cls.further_datasets(config, None)
        except ConfigError as error:
            found += error.problems
        if found:
            return found
        split = cls.split_of(config, pictures)
        drawn = [] if tested else [(split.test, 0)]
        if not _validating_sets(config) and config.data.split != "paper_test_selection":
            drawn.append((split.validation, config.seed))
        for part, seed in drawn:
            try:
                _half(config, pictures, part, (), {}, seed=seed)
            except ConfigError as error:
                found += error.problems
        return list(dict.fromkeys(found))

    @classmethod
    def further_datasets(cls, config: TrialConfig, cache_dir: Path | None) -> list[DataSet]:
        """The benchmarks, and the distractors where benchmarks need them. Raises ConfigError where no folder is given."""
        task = config.task.parameters
        names = list(dict.fromkeys([*task["validation_sets"], *task["test_sets"]]))
        if names and task["distractors"]:
            names.append(DISTRACTORS)
        root: str | None = task["evaluation_root"] or config.data.root
        if not names:
            return []
        if root is None:
            rule, remedy = "benchmarks need the folder they lie in", "Set task.evaluation_root=DIR."
            raise ConfigError(Problem("task.evaluation_root", rule, None, remedy))
        return [benchmark(name, Path(root), cache_dir, strict=task["strict"]) for name in names]

    def validate(self) -> dict[str, float]:
        """Figures of the validation exams, `val/...`, with the mean pairwise cosine and norm statistics."""
        return {f"val/{name}": value for name, value in self._examine(self.validation_half, show=True).items()}

    def test(self) -> dict[str, float]:
        """The same of the test exams, `test/...`: sealed."""
        return {f"test/{name}": value for name, value in self._examine(self.test_half).items()}

    def _examine(self, half: Half, *, show: bool = False) -> dict[str, float]:
        """Each exam's figures under its name, their means under plain names, statistics of the raw embeddings.

        `show`: leave evidence, with the pairs of the first exam that were judged wrong with most confidence.
        """
        strangers = self._describe(half.gallery, half.strangers)[0] if len(half.strangers) else None
        results, raw = [], []
        sheet = None
        for exam in half.exams:
            needed = np.unique(np.concatenate([exam.pairs.couples.reshape(-1), exam.probes]))
            descriptors, embeddings = self._describe(exam.pictures, needed)
            raw.append(embeddings)
            if bool(torch.isfinite(descriptors).all()):
                of = _lookup(needed, descriptors)
                first, second = (of(part) for part in exam.pairs.couples.T)
                found = verification_metrics(first, second, exam.pairs.same, folds=self.folds, far=FAR)
                results.append(self._marks(exam, found, of, strangers))
                if show and sheet is None:
                    sheet = self._confused(exam, found, first, second)
        figures = self._statistics(torch.cat(raw))
        if show:
            self.evidence = self._evidence(torch.cat(raw), sheet)
        if math.isnan(figures["mean_cosine"]) or len(results) < len(half.exams):
            return figures
        means = {name: float(np.mean([marks[name] for marks in results])) for name in results[0]}
        own = {
            f"{name}_{exam.name}": value
            for exam, marks in zip(half.exams, results, strict=True)
            if exam.name
            for name, value in marks.items()
        }
        return {**means, **own, **figures}

    def _marks(
        self,
        exam: Exam,
        found: VerificationMetrics,
        of: Callable[[Indices], Tensor],
        strangers: Tensor | None,
    ) -> dict[str, float]:
        """The figures of one exam; `of` gives the descriptors of pictures."""
        marks = dict(zip(VERIFICATION, (found.accuracy, found.tar_at_far), strict=True))
        if strangers is not None:
            ranked = rank_1_with_distractors(of(exam.probes), exam.probe_labels, strangers, self.sizes)
            marks |= {f"rank1_at_{size}": value for size, value in ranked.items()}
        return marks

    def _confused(self, exam: Exam, found: VerificationMetrics, first: Tensor, second: Tensor) -> Sheet | None:
        """The pairs judged wrong with most confidence; None where there are none, or none are wanted."""
        similarity = (normalise(first) * normalise(second)).sum(dim=1).double().cpu().numpy()
        rows = hardest_pairs(
            similarity,
            exam.pairs.same,
            found.thresholds,
            exam.pairs.couples,
            exam.pictures,
            count=self.config.evaluation.sheet_queries,
        )
        titles = (0, "two classes, told one"), (3, "one class, told two")
        return Sheet(titles, rows, exam.pictures) if rows else None

    def _describe(self, pictures: Pictures, indices: Indices) -> tuple[Tensor, Tensor]:
        """Descriptors and raw embeddings of pictures, (N, d) each."""
        views = self._views.setdefault(id(pictures), self._views_of(pictures))

        def both(part: Indices) -> Tensor:
            images = views.evaluation(part)
            embeddings = self.network(images)
            if not self.mirror:
                return torch.stack([embeddings, embeddings], dim=1)
            return torch.stack([embeddings + self.network(images.flip(-1)), embeddings], dim=1)

        rows = self._rows(both, indices)
        return rows[:, 0], rows[:, 1]

    def _views_of(self, pictures: Pictures) -> Views:
        return Views(pictures.images, self.augmentation(self.config), seed=self.config.seed, device=self.context.device)

    def _misfits(self, pictures: Pictures) -> list[Problem]:
        """Whether the network can see these pictures as it sees those it trains on."""
        mine = self.pictures
        found = []
        if pictures.in_channels != mine.in_channels:
            rule = f"{pictures.name} must have the {mine.in_channels} channels of {mine.name}"
            found.append(Problem("task", rule, pictures.in_channels))
        size, wanted = self.picture_size(self.config, pictures), self.picture_size(self.config, mine)
        if size != wanted:
            rule = f"{pictures.name} must be shown at the {wanted} pixels of {mine.name}"
            found.append(Problem("augment.name", rule, size, "Set augment.name=crop_flip, augment.crop=..."))
        return found


def _lookup(needed: Indices, descriptors: Tensor) -> Callable[[Indices], Tensor]:
    """The descriptors of pictures among the `needed`, whose descriptors these are."""

    def of(pictures: Indices) -> Tensor:
        return descriptors[torch.from_numpy(np.searchsorted(needed, pictures)).to(descriptors.device)]

    return of


def _validating_sets(config: TrialConfig) -> Names:
    """The benchmarks that validate: empty where held-out classes do."""
    half = "test_sets" if config.data.split == "paper_test_selection" else "validation_sets"
    sets: Names = config.task.parameters[half]
    return sets


def _half(
    config: TrialConfig,
    pictures: Pictures,
    part: Indices,
    sets: Names,
    opened: Mapping[str, Pictures],
    *,
    seed: int,
) -> Half:
    """Exams on named benchmarks, else on the held-out classes of `part`."""
    sizes = config.task.parameters["distractors"]
    if sets:
        return benchmark_half([opened[name] for name in sets], opened.get(DISTRACTORS), sizes)
    return held_out_half(pictures, part, pairs=config.task.parameters["pairs"], sizes=sizes, seed=seed)
