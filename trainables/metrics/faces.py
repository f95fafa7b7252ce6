"""Metrics of face recognition: verification of pairs, and identification among distractors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.errors import Problem, raise_if_any
from trainables.metrics.inputs import (
    Array,
    checked_flags,
    checked_vectors,
    exact_arithmetic,
    labelled_vectors,
    unit_rows,
)
from trainables.metrics.search import STEP, bands, group_by_class, positive_similarities, tie_width

_THRESHOLDS = np.arange(400) / 100  # candidates for the squared distance of unit vectors, which is at most 4
_PROBES, _DISTRACTORS = 1024, 8192  # rows and columns compared at a time


@dataclass(frozen=True)
class VerificationMetrics:
    """Means over the folds, in percent, with each fold's threshold, which the other folds determine."""

    accuracy: float
    accuracy_std: float  # biased standard deviation over folds, as verification papers print it
    tar_at_far: float  # true accepts among pairs of one person, at the threshold for the target false accept rate
    far: float  # false accepts among pairs of two persons at that threshold, to compare with the target rate
    thresholds: tuple[float, ...]  # squared distances below which each fold accepted a pair, for the accuracy


def verification_metrics(
    first: Array, second: Array, same: Array, *, folds: int = 10, far: float = 1e-3
) -> VerificationMetrics:
    """Compute accuracy and TAR at FAR of pairs (first[i], second[i]) by their squared distance after normalisation.

    A pair is accepted when its squared distance is below a threshold, which is chosen on the other folds. For the
    accuracy it is the smallest of 0, 0.01, ..., 3.99 with the most right decisions. For TAR at FAR it is the largest
    distance with at most `far` of the other folds' different pairs below it. Folds are consecutive pairs in the
    benchmark's order (LFW, AgeDB-30 and CFP-FP; Huang et al., Labeled Faces in the Wild, 2007, image-restricted).

    `first` and `second` are (N, D) floats; `same` (N,) booleans or 0/1, true where both show one person. Raises
    ConfigError for wrong shapes, types or values (2 <= folds <= N, 0 <= far < 1), or pairs of only one kind outside
    some fold.
    """
    distance, positive, width = _distances_and_flags(first, second, same)
    n = len(distance)
    problems = []
    if not 2 <= folds <= n:
        problems.append(Problem("folds", f"must be between 2 and the {n} pairs", folds))
    if not 0 <= far < 1:
        problems.append(Problem("far", "must be at least 0 and below 1", far))
    raise_if_any(problems)
    fold = np.repeat(np.arange(folds), [len(part) for part in np.array_split(np.arange(n), folds)])
    for kind, members in (("same", positive), ("different", ~positive)):
        if (np.bincount(fold, members, folds) == members.sum()).any():
            rule = f"there must be {kind} pairs outside every fold"
            remedy = "Spread both kinds over the list."
            problems.append(Problem("same", rule, f"{int(members.sum())} {kind} pairs", remedy))
    raise_if_any(problems)
    correct = _count_correct(distance, positive, fold, folds)  # (folds, thresholds)
    best = (correct.sum(axis=0) - correct).argmax(axis=1)
    accuracy = correct[np.arange(folds), best] / np.bincount(fold)
    accepted = np.array([_rates_at_far(distance, positive, fold == i, far, width) for i in range(folds)])
    values = (accuracy.mean(), accuracy.std(), *np.nanmean(accepted, axis=0))
    thresholds = tuple(float(value) for value in _THRESHOLDS[best])
    mean, deviation, true_accepts, false_accepts = (100 * float(value) for value in values)
    return VerificationMetrics(mean, deviation, true_accepts, false_accepts, thresholds)


def _distances_and_flags(
    first: Array, second: Array, same: Array
) -> tuple[NDArray[np.float64], NDArray[np.bool_], float]:
    """Return squared distances (N,) of the unit vectors, the mask (N,) of positive pairs, and the `tie_width`."""
    a, problems = checked_vectors(first, "first")
    b, more = checked_vectors(second, "second")
    problems += more
    if not problems and a.shape != b.shape:
        problems.append(Problem("second", f"must have the shape of first {tuple(a.shape)}", tuple(b.shape)))
    flags, more = checked_flags(same, 0 if problems else len(a), "same")
    raise_if_any(problems + more)
    # Not 2 - 2 cos, which loses the digits of near pairs.
    unit = unit_rows(a)
    distance = (unit.double() - unit_rows(b).to(a.device).double()).square().sum(dim=1)
    return distance.cpu().numpy(), flags.cpu().numpy(), tie_width(unit)


def _count_correct(
    distance: NDArray[np.float64], positive: NDArray[np.bool_], fold: NDArray[np.int64], folds: int
) -> NDArray[np.int64]:
    """Return the number of right decisions in each fold at each threshold, (folds, T)."""
    # A pair is accepted from the first threshold above its distance.
    first_accepting = np.searchsorted(_THRESHOLDS, distance, side="right")
    steps = np.zeros((folds, len(_THRESHOLDS) + 1), dtype=np.int64)
    np.add.at(steps, (fold, first_accepting), np.where(positive, 1, -1))
    rejected = np.bincount(fold[~positive], minlength=folds)
    return steps[:, :-1].cumsum(axis=1) + rejected[:, None]


def _rates_at_far(
    distance: NDArray[np.float64], positive: NDArray[np.bool_], in_fold: NDArray[np.bool_], far: float, width: float
) -> tuple[float, float]:
    """Return a fold's true and false accept rates at the threshold for `far` of the other pairs; NaN without pairs.

    Distances that differ by at most `width`, so that rounding may explain it, tie with the threshold, and are rejected.
    """
    other_distances = np.sort(distance[~in_fold & ~positive])
    allowed = min(int(far * len(other_distances) + 1e-9), len(other_distances) - 1)  # 0.29 * 100 is 28.999...
    threshold = other_distances[allowed]  # `allowed` of them are nearer, or fewer when distances tie
    accepted = np.sqrt(distance) < np.sqrt(threshold) - width
    rates = [accepted[in_fold & kind].mean() if (in_fold & kind).any() else np.nan for kind in (positive, ~positive)]
    return float(rates[0]), float(rates[1])


def rank_1_with_distractors(
    embeddings: Array, labels: Array, distractors: Array, sizes: Sequence[int] | None = None
) -> dict[int, float]:
    """Return the rank-1 identification rate [%] for each number of distractors, as in MegaFace's first challenge.

    Every ordered pair (i, j) of pictures of one person is a trial: i is the probe, and j joins the distractors. The
    trial succeeds when s_ij exceeds the probe's similarity to every distractor. A tie (within rounding) is a failure.
    Kemelmacher-Shlizerman et al., The MegaFace Benchmark, CVPR 2016.

    Probes are (N, D) floats of persons `labels` (N,); `distractors` (M, D) are floats of other persons. A size counts
    distractors from the first; the default is all. Raises ConfigError for wrong shapes or types, sizes outside 1..M,
    NaN, or no person with two pictures.
    """
    probes = labelled_vectors(embeddings, labels)
    references, problems = checked_vectors(distractors, "distractors")
    requested = (len(references),) if sizes is None else tuple(sizes)
    if not problems:
        theirs, ours = references.shape[1], probes.vectors.shape[1]
        if theirs != ours:
            problems.append(Problem("distractors", f"must have the probes' dimension {ours}", theirs))
        rule = f"must be between 1 and the {len(references)} distractors"
        problems += [Problem("sizes", rule, size) for size in requested if not 1 <= size <= len(references)]
    raise_if_any(problems)
    with exact_arithmetic(probes.vectors.device):
        search = group_by_class(probes, None)
        nearest = _best_distractors(search.rows.vectors, references, sorted(set(requested)))
        relevant = search.relevant()
        margin = tie_width(search.rows.vectors)
        trials, hits = int(relevant.sum()), dict.fromkeys(requested, 0)
        for first, last in bands(relevant, STEP):
            positives = positive_similarities(search, (first, last), int(relevant[first:last].max()))
            for size in hits:
                hits[size] += int((positives - margin > nearest[size][first:last, None]).sum())
    raise_if_any([] if trials else [Problem("labels", "at least one person must have two pictures")])
    return {size: 100 * count / trials for size, count in hits.items()}


def _best_distractors(probes: Tensor, references: Tensor, sizes: Sequence[int]) -> dict[int, Tensor]:
    """Return for each size (ascending) the highest similarity of each probe (N,) to the first `size` distractors."""
    best = probes.new_full((len(probes),), -torch.inf)
    nearest: dict[int, Tensor] = {}
    start = 0
    for size in sizes:
        for begin in range(start, size, _DISTRACTORS):
            block = unit_rows(references[begin : min(begin + _DISTRACTORS, size)].to(probes))
            for row in range(0, len(probes), _PROBES):
                rows = slice(row, row + _PROBES)
                best[rows] = torch.maximum(best[rows], (probes[rows] @ block.T).amax(dim=1))
        start = size
        nearest[size] = best.clone()
    return nearest
