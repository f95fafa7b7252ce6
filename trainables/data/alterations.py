"""Training data made harder on purpose: fewer pictures, classes of unequal size, wrong labels. Never validation or test.

Everything is drawn by the trial's seed alone, and less is part of more: the pictures kept at 5 a class are among those kept at
10, the labels wrong at 10 % are wrong at 20 % too. Cells of a sweep therefore differ by the knob and nothing else.
docs/specification.md, section 8.1.
"""

from __future__ import annotations

import numpy as np

from trainables.data.base import Indices, Labels

LEAST = 2  # pictures that a class keeps, as far as it has them: one alone has no positive
# Keep these generators apart from each other and from the samplers' for equal seeds.
KEEP_STREAM, TAIL_STREAM, NOISE_STREAM = 0xDA7A_0001, 0xDA7A_0002, 0xDA7A_0003


def thinned(
    labels: Labels, train: Indices, *, pictures_per_class: int | None, long_tail: float | None, seed: int
) -> Indices:
    """Those of the pictures `train` (n,), ascending, that are kept; `labels` (N,) are of the whole data set.

    Of each class at most `pictures_per_class` stay. Then, with `long_tail` the factor f between the first and the last of C
    classes in random order, class c keeps the share f^(-c / (C - 1)) of what it has (Cui et al., Class-Balanced Loss Based
    on Effective Number of Samples, CVPR 2019), rounded, at least 2 pictures. None leaves all.
    """
    if pictures_per_class is None and long_tail is None:
        return train
    shuffled = np.random.default_rng((KEEP_STREAM, seed)).permutation(train)
    shuffled = shuffled[np.argsort(labels[shuffled], kind="stable")]
    _, start, number, sizes = np.unique(labels[shuffled], return_index=True, return_inverse=True, return_counts=True)
    kept = sizes if pictures_per_class is None else np.minimum(sizes, pictures_per_class)
    if long_tail is not None:
        place = np.random.default_rng((TAIL_STREAM, seed)).permutation(len(sizes))
        share = float(long_tail) ** (-place / max(len(sizes) - 1, 1))
        kept = np.minimum(kept, np.maximum(np.rint(share * kept), LEAST)).astype(np.int64)
    return np.sort(shuffled[np.arange(len(shuffled)) - start[number] < kept[number]])


def relabelled(labels: Labels, *, noise: float, seed: int) -> Labels:
    """The training labels (n,) with a share `noise` of them, rounded, replaced by another training class.

    Which pictures, and which of the other classes each is taken for, is drawn uniformly (symmetric noise). 0 leaves all.
    """
    if not noise:
        return labels
    generator = np.random.default_rng((NOISE_STREAM, seed))
    wrong = generator.permutation(len(labels))[: round(noise * len(labels))]
    classes, own = np.unique(labels, return_inverse=True)
    further = generator.integers(1, max(len(classes), 2), len(labels))
    noisy = labels.copy()
    noisy[wrong] = classes[(own + further) % len(classes)][wrong]
    return noisy
