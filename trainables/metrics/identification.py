"""Face identification: is the other picture of a person nearer than any of many strangers?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainables.errors import Problem, raise_if_any
from trainables.metrics.arithmetic import exact_arithmetic
from trainables.metrics.grouping import group_by_class
from trainables.metrics.inputs import Array, checked_vectors, labelled_vectors, unit_rows
from trainables.metrics.positives import STEP, bands, positive_similarities, tie_width

PROBES, STRANGERS = 1024, 8192  # compared at a time


def rank_1_with_distractors(
    embeddings: Array, labels: Array, distractors: Array, sizes: Sequence[int] | None = None
) -> dict[int, float]:
    """Rank-1 identification rate in percent for each number of distractors, as in MegaFace's first challenge.

    Every ordered pair (i, j) of pictures of one person is a trial: i is the probe, j is hidden among the distractors, and
    the trial succeeds when s_ij exceeds the probe's similarity to every distractor. A tie (within rounding) is a failure.

    Kemelmacher-Shlizerman et al., The MegaFace Benchmark, CVPR 2016.

    Args:
        embeddings: (N, D) floats: the probe set.
        labels: (N,) integers: its persons.
        distractors: (M, D) floats, of none of these persons.
        sizes: how many distractors, the first so many of them; all M by default.

    Returns:
        size -> percent of the pairs.

    Raises:
        ConfigError: wrong shapes, types, sizes outside 1..M, NaN, or no person with two pictures.
    """
    probes = labelled_vectors(embeddings, labels)
    strangers, problems = checked_vectors(distractors, "distractors")
    wanted = (len(strangers),) if sizes is None else tuple(sizes)
    if not problems:
        theirs, ours = strangers.shape[1], probes.vectors.shape[1]
        if theirs != ours:
            problems.append(Problem("distractors", f"must have the probes' dimension {ours}", theirs))
        rule = f"must be between 1 and the {len(strangers)} distractors"
        problems += [Problem("sizes", rule, size) for size in wanted if not 1 <= size <= len(strangers)]
    raise_if_any(problems)
    with exact_arithmetic(probes.vectors.device):
        search = group_by_class(probes, None)
        nearest = _nearest_stranger(search.rows.vectors, strangers, sorted(set(wanted)))
        relevant = search.relevant()
        margin = tie_width(search.rows.vectors)
        trials, hits = int(relevant.sum()), dict.fromkeys(wanted, 0)
        for first, last in bands(relevant, STEP):
            positives = positive_similarities(search, (first, last), int(relevant[first:last].max()))
            for size in hits:
                hits[size] += int((positives - margin > nearest[size][first:last, None]).sum())
    raise_if_any([] if trials else [Problem("labels", "at least one person must have two pictures")])
    return {size: 100 * count / trials for size, count in hits.items()}


def _nearest_stranger(probes: Tensor, strangers: Tensor, sizes: Sequence[int]) -> dict[int, Tensor]:
    """For each size (ascending), the highest similarity of each probe (N,) to the first so many distractors."""
    best = probes.new_full((len(probes),), -torch.inf)
    found: dict[int, Tensor] = {}
    start = 0
    for size in sizes:
        for left in range(start, size, STRANGERS):
            block = unit_rows(strangers[left : min(left + STRANGERS, size)].to(probes))
            for top in range(0, len(probes), PROBES):
                rows = slice(top, top + PROBES)
                best[rows] = torch.maximum(best[rows], (probes[rows] @ block.T).amax(dim=1))
        start = size
        found[size] = best.clone()
    return found
