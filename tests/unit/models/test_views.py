"""Pixels of augmented views against Pillow and against colour formulas, picture by picture."""

import colorsys

import numpy as np
import pytest
import torch
from PIL import Image

from trainables.data.augment import build_augmentation
from trainables.data.formats import cache
from trainables.models.views import Views, _colour_jitter, _cut_and_resize


def _noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def _pillow(picture, window, size, flip):
    top, left, height, width = window
    image = Image.fromarray(picture).crop((left, top, left + width, top + height))
    image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image).astype(float)


@pytest.mark.parametrize("size", [5, 16, 40])
@pytest.mark.parametrize("flip", [False, True])
def test_cutting_and_resizing_equals_pillow_within_its_rounding(size, flip):
    pictures = np.stack([_noise(30, 50, seed) for seed in range(4)])
    windows = np.array([[0, 0, 30, 50], [3, 7, 20, 21], [29, 49, 1, 1], [5, 0, 11, 50]])
    exact = windows.astype(float)
    ours = _cut_and_resize(torch.from_numpy(pictures), exact, np.full(4, flip), size, limits=exact)
    for row in range(4):
        expected = _pillow(pictures[row], windows[row], size, flip)
        assert np.abs(ours[row].permute(1, 2, 0).numpy() * 255 - expected).max() <= 1.01  # it rounds twice


@pytest.fixture
def ragged(tmp_path):
    shapes = np.array([[40, 60], [64, 40], [50, 50], [40, 90]], dtype=np.int32)
    images = cache.create_ragged(tmp_path, shapes, channels=3)
    for i, (height, width) in enumerate(shapes):
        images[i][:] = _noise(height, width, seed=i)
    images.pixels.flush()
    return cache.open_images(tmp_path)


def test_views_do_not_depend_on_the_batch_or_the_number_of_workers(ragged):
    views = Views(ragged, build_augmentation("simclr", crop=24, resize=24), seed=3)
    indices = np.array([2, 0, 3, 1, 1, 2])
    whole = views.train(indices, step=5)
    parts = [views.train(indices[a:b], step=5, first=a) for a, b in [(0, 1), (1, 4), (4, 6)]]
    assert torch.allclose(torch.cat(parts), whole, atol=1e-6)
    assert not torch.equal(whole[3], whole[4])  # the same picture twice in a batch is seen twice
    assert not torch.equal(views.train(indices, step=5, view=1), whole)


def test_the_type_of_a_view_does_not_depend_on_what_was_drawn(ragged):
    views = Views(ragged, build_augmentation("simclr", crop=16, resize=16, jitter_probability=0.5), seed=0)
    assert {views.train(np.array([0]), step=step).dtype for step in range(12)} == {torch.float32}
    plain = Views(ragged, build_augmentation("crop_flip", crop=16, resize=16), seed=0)
    assert plain.train(np.array([0]), step=0).dtype == torch.uint8


def test_training_views_are_the_decided_windows(ragged):
    augmentation = build_augmentation("crop_flip", crop=16, resize=20)
    views = Views(ragged, augmentation, seed=0)
    indices = np.arange(4)
    made = augmentation.decide(ragged.sizes[indices].astype(np.int64), seed=0, step=9)
    ours = views.train(indices, step=9)
    assert ours.shape == (4, 3, 16, 16)
    for row in range(4):
        expected = _pillow(np.asarray(ragged[row]), made.windows[row], 16, made.flips[row])
        assert np.abs(ours[row].permute(1, 2, 0).numpy() - expected).max() <= 2


@pytest.mark.parametrize(("resize", "crop"), [(32, 28), (32, 32), (40, 31), (64, 56)])
def test_evaluation_is_resize_then_centre_crop(ragged, resize, crop):
    ours = Views(ragged, build_augmentation("crop_flip", crop=crop, resize=resize), seed=0).evaluation(np.arange(4))
    for row in range(4):
        picture = Image.fromarray(np.asarray(ragged[row]))
        small = picture.resize(
            tuple(int(resize * side / min(picture.size)) for side in picture.size), Image.Resampling.BILINEAR
        )
        left, top = round((small.width - crop) / 2), round((small.height - crop) / 2)
        expected = np.asarray(small.crop((left, top, left + crop, top + crop))).astype(float)
        assert np.abs(ours[row].permute(1, 2, 0).numpy() - expected).max() <= 2  # bytes are rounded twice


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("crop", [9, 24])
def test_bytes_on_the_host_and_matrix_products_cut_alike(ragged, channels, crop):
    """Views on the CPU equal those of other devices, up to rounding to grey levels."""
    images = ragged if channels == 3 else np.stack([_noise(40, 60, seed)[..., :1] for seed in range(4)])
    augmentation = build_augmentation("crop_flip", crop=crop, resize=crop + 4)
    on_host = Views(images, augmentation, seed=0)
    by_products = Views(images, augmentation, seed=0)
    by_products.on_host = False
    for one, two in (
        (on_host.train(np.arange(4), step=3), by_products.train(np.arange(4), step=3)),
        (on_host.evaluation(np.arange(4)), by_products.evaluation(np.arange(4))),
    ):
        assert one.shape == two.shape == (4, channels, crop, crop)
        assert (one.float() - two * 255).abs().max() <= 2


@pytest.mark.parametrize("crop", [9, 24, 40])
def test_a_centre_crop_without_resizing_is_equal_on_all_devices(crop):
    images = np.stack([_noise(40, 60, seed) for seed in range(4)])
    augmentation = build_augmentation("crop_flip", crop=crop, resize=40)
    on_host, on_device = (Views(images, augmentation, seed=0) for _ in range(2))
    on_device.on_host = False
    assert torch.equal(on_host.evaluation(np.array([3, 1])), on_device.evaluation(np.array([3, 1])))


def test_without_augmentation_and_for_a_whole_square_pictures_are_shown_as_stored(ragged):
    pictures = np.stack([_noise(8, 8, seed) for seed in range(3)])
    views = Views(pictures, None, seed=0)
    shown = views.train(np.array([2, 0]), step=0)
    assert shown.dtype == torch.uint8
    assert np.array_equal(shown.permute(0, 2, 3, 1).numpy(), pictures[[2, 0]])
    assert torch.equal(views.evaluation(np.array([2, 0])), shown)
    with pytest.raises(ValueError, match="need an augmentation"):
        Views(ragged, None, seed=0)
    squares = np.stack([_noise(32, 32, seed) for seed in range(3)])
    shown = Views(squares, build_augmentation("simclr"), seed=0).evaluation(np.arange(3))
    assert np.array_equal(shown.permute(0, 2, 3, 1).numpy(), squares)


def _oracle(pixels, made, row):
    """One picture, pixel by pixel, in Python floats."""
    grey = lambda p: 0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2]  # noqa: E731
    clip = lambda p: [min(1.0, max(0.0, v)) for v in p]  # noqa: E731
    for kind in made.order[row]:
        factor = made.factors[row, kind]
        mean = sum(grey(p) for p in pixels) / len(pixels)
        if kind == 0:
            pixels = [clip([v * factor for v in p]) for p in pixels]
        elif kind == 1:
            pixels = [clip([mean + factor * (v - mean) for v in p]) for p in pixels]
        elif kind == 2:
            pixels = [clip([grey(p) + factor * (v - grey(p)) for v in p]) for p in pixels]
        else:
            hsv = [colorsys.rgb_to_hsv(*p) for p in pixels]
            pixels = [colorsys.hsv_to_rgb((h + factor) % 1.0, s, v) for h, s, v in hsv]
    return [[grey(p)] * 3 for p in pixels] if made.grey[row] else pixels


def test_colour_jitter_equals_a_loop_over_pixels_and_changes_grey_pictures_too():
    augmentation = build_augmentation("simclr", jitter=1.0, jitter_probability=0.9, grey=0.3)
    made = augmentation.decide(np.tile([4, 4], (24, 1)), seed=2, step=0)
    images = torch.rand(24, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    images[0] = 0.5  # no colour at all: the hue is undefined
    ours = _colour_jitter(images, made)
    for row in range(24):
        expected = _oracle(images[row].flatten(1).T.tolist(), made, row)
        assert np.allclose(ours[row].flatten(1).T.numpy(), expected, atol=1e-9), row
    assert made.grey.any()
    assert (made.factors != [1, 1, 1, 0]).any(axis=1).sum() > 15
    augmentation = build_augmentation("simclr", jitter=1.0, jitter_probability=1.0)
    made = augmentation.decide(np.tile([4, 4], (5, 1)), seed=2, step=0)
    images = torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    changed = _colour_jitter(images, made)
    assert changed.shape == images.shape
    assert (changed - images).abs().max() > 0.1
    assert changed.min() >= 0
    assert changed.max() <= 1
