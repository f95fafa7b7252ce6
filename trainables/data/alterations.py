"""Make training data harder: fewer pictures, unbalanced classes, wrong labels. Validation and test stay as they are.

Every draw depends only on the trial's seed and is nested: the pictures kept at 5 per class are also kept at 10, and
labels that are wrong at 10 % are wrong at 20 %. So cells differ only by the knob. See docs/specification.md, 8.1.
"""

import numpy as np

from trainables.data.base import Indices, Labels

_MIN_PICTURES = 2  # pictures per class: a single one has no positive
# Separate these generators from each other and from the samplers' for equal seeds.
_KEEP_STREAM, _TAIL_STREAM, _NOISE_STREAM = 0xDA7A_0001, 0xDA7A_0002, 0xDA7A_0003


def thin_out(
    labels: Labels, train: Indices, *, pictures_per_class: int | None, long_tail: float | None, seed: int
) -> Indices:
    """Return the training pictures that stay, ascending. `train` (n,) are all of them; `labels` (N,) are all labels.

    Each class keeps at most `pictures_per_class`. With `long_tail` = f, class c of C in random order then keeps the
    share f^(-c / (C - 1)) (Cui et al., Class-Balanced Loss Based on Effective Number of Samples, CVPR 2019), at least 2
    pictures.
    """
    if pictures_per_class is None and long_tail is None:
        return train
    shuffled = np.random.default_rng((_KEEP_STREAM, seed)).permutation(train)
    shuffled = shuffled[np.argsort(labels[shuffled], kind="stable")]
    _, start, number, sizes = np.unique(labels[shuffled], return_index=True, return_inverse=True, return_counts=True)
    counts = sizes if pictures_per_class is None else np.minimum(sizes, pictures_per_class)
    if long_tail is not None:
        position = np.random.default_rng((_TAIL_STREAM, seed)).permutation(len(sizes))
        share = float(long_tail) ** (-position / max(len(sizes) - 1, 1))
        counts = np.minimum(counts, np.maximum(np.rint(share * counts), _MIN_PICTURES)).astype(np.int64)
    return np.sort(shuffled[np.arange(len(shuffled)) - start[number] < counts[number]])


def relabel(labels: Labels, *, noise: float, seed: int) -> Labels:
    """Replace a share `noise` of the training labels (n,) by other training classes.

    Pictures and new classes are drawn uniformly (symmetric noise).
    """
    if not noise:
        return labels
    generator = np.random.default_rng((_NOISE_STREAM, seed))
    wrong = generator.permutation(len(labels))[: round(noise * len(labels))]
    classes, own = np.unique(labels, return_inverse=True)
    further = generator.integers(1, max(len(classes), 2), len(labels))
    noisy = labels.copy()
    noisy[wrong] = classes[(own + further) % len(classes)][wrong]
    return noisy
