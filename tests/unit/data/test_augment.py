"""Decisions of augmentation: counters, distributions, windows."""

import numpy as np
import pytest
from helpers.costly import slow_after
from helpers.together import drawn

from trainables.data.augment import AUGMENTATIONS, build_augmentation, uniforms, windows_at_centre

SIZES = np.tile([256, 341], (40, 1))


def test_augmentation_does_not_depend_on_the_split_of_a_batch():
    augmentation = build_augmentation("simclr", crop=64, resize=64)
    whole = augmentation.decide(SIZES, seed=1, step=7)
    for start, stop in [(0, 13), (13, 14), (14, 40)]:
        part = augmentation.decide(SIZES[start:stop], seed=1, step=7, first=start)
        assert all(np.array_equal(decided, vars(whole)[name][start:stop]) for name, decided in vars(part).items())


@pytest.mark.parametrize("changed", [{"seed": 2}, {"step": 8}, {"view": 1}, {"first": 1}])
def test_every_part_of_the_random_key_matters(changed):
    augmentation = build_augmentation("crop_flip")
    key = {"seed": 1, "step": 7, "view": 0, "first": 0}
    one, other = (augmentation.decide(SIZES, **k) for k in (key, {**key, **changed}))
    assert (one.windows != other.windows).any(axis=1).mean() > 0.9


def test_uniforms_are_uniform_and_independent():
    u = uniforms(3, 0, np.arange(20_000), draws=4)
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.stack([np.histogram(u[:, d], bins=20, range=(0, 1))[0] for d in range(4)])
    assert ((counts - 1000) ** 2 / 1000).sum(axis=1).max() < 50  # chi-squared, 19 degrees: 99.99 %
    correlation = np.corrcoef(
        np.vstack([u.T, uniforms(4, 0, np.arange(20_000), draws=1).T, u[1:, :1].T.repeat(2, 1)[:, :20_000]])
    )
    assert np.abs(correlation[~np.eye(6, dtype=bool)]).max() < 0.04


@drawn(80)
def test_windows_lie_inside_every_picture(random):
    height, width = random.integers(1, random.choice([2, 5, 401], 2)).tolist()
    low, step = random.choice([0.01, random.uniform(0.01, 1.0)]), int(random.integers(10_001))
    augmentation = build_augmentation("crop_flip", scale=(low, 1.0))
    top, left, h, w = augmentation.decide(np.tile([height, width], (8, 1)), seed=0, step=step).windows.T
    assert (np.stack([top, left, h - 1, w - 1]) >= 0).all()
    assert (top + h <= height).all()
    assert (left + w <= width).all()


def test_a_window_that_never_fits_is_the_largest_centred_one():
    augmentation = build_augmentation("crop_flip", scale=(1.0, 1.0), ratio=(0.75, 4 / 3))
    windows = augmentation.decide(np.array([[100, 1000], [1000, 100], [100, 100]]), seed=0, step=0).windows
    assert windows[0].tolist() == [0, 433, 100, 133]
    assert windows[1].tolist() == [433, 0, 133, 100]


def test_flips_grey_and_jitter_have_the_set_probabilities():
    augmentation = build_augmentation("simclr", flip=0.3)
    made = augmentation.decide(np.tile([32, 32], (20_000, 1)), seed=0, step=0)
    assert abs(made.flips.mean() - 0.3) < 0.015
    assert abs(made.grey.mean() - 0.2) < 0.015
    jittered = (made.factors != [1, 1, 1, 0]).any(axis=1)
    assert abs(jittered.mean() - 0.8) < 0.015
    assert np.allclose(made.factors[jittered].min(axis=0), [0.6, 0.6, 0.6, -0.1], atol=0.01)
    assert np.allclose(made.factors[jittered].max(axis=0), [1.4, 1.4, 1.4, 0.1], atol=0.01)
    first = np.bincount(made.order[:, 0], minlength=4) / len(made.order)
    assert np.allclose(first, 0.25, atol=0.015)


def test_augmentation_defaults_equal_the_papers():
    assert AUGMENTATIONS["crop_flip"] == {}
    sec, mpa = build_augmentation("crop_flip"), build_augmentation("crop_flip_224")
    assert (sec.crop, sec.resize, sec.scale, sec.ratio, sec.flip) == (227, 256, (0.16, 1.0), (3 / 4, 4 / 3), 0.5)
    assert (mpa.crop, mpa.resize, mpa.scale) == (224, 256, (0.08, 1.0))
    assert build_augmentation("none") is None


def test_the_centre_window_is_resize_then_crop():
    assert windows_at_centre(np.array([[256, 341], [512, 512]]), 256, 224).tolist() == [
        [16.0, 58.0, 224.0, 224.0],  # halves are rounded to even, as torchvision does
        [32.0, 32.0, 448.0, 448.0],
    ]


def _torchvisions_window(random, height, width, scale, ratio):
    """Repeat torchvision's `RandomResizedCrop.get_params`; its fallback is the largest centred window."""
    for _ in range(10):
        area = height * width * random.uniform(*scale)
        aspect = np.exp(random.uniform(*np.log(ratio)))
        w, h = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return random.integers(0, height - h + 1), random.integers(0, width - w + 1), h, w
    shape = width / height
    w = width if shape <= ratio[1] else round(height * ratio[1])
    h = height if shape >= ratio[0] else round(width / ratio[0])
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize("name", slow_after(1, ["crop_flip", "crop_flip_224", "simclr"]))
@pytest.mark.parametrize(("height", "width"), [(256, 341), (256, 256), (600, 256), (32, 32)])
def test_windows_have_the_distribution_of_torchvision(name, height, width):
    """Two-sample Kolmogorov-Smirnov tests on position and size of 4000 windows each."""
    from scipy.stats import ks_2samp

    augmentation = build_augmentation(name)
    random = np.random.default_rng(11)
    reference = np.array(
        [_torchvisions_window(random, height, width, augmentation.scale, augmentation.ratio) for _ in range(4000)]
    )
    ours = augmentation.decide(np.full((4000, 2), (height, width)), seed=5, step=0).windows
    for column in range(4):
        assert ks_2samp(ours[:, column], reference[:, column]).pvalue > 1e-4
    areas = [windows[:, 2] * windows[:, 3] for windows in (ours, reference)]
    assert ks_2samp(*areas).pvalue > 1e-4
    assert ks_2samp(ours[:, 0] + ours[:, 2], reference[:, 0] + reference[:, 2]).pvalue > 1e-4
