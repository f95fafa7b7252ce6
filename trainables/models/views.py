"""Make views of pictures: cut, resize, mirror and colour them in batches, as trainables.data.augment decides.

The CPU cuts and resizes bytes picture by picture, which is twenty times faster there than the batched matrix products
of other devices. The numbers agree up to rounding to grey levels.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from trainables.data.augment import NEUTRAL, Augmentation, AugmentDecisions, resized_sizes, uniforms, windows_at_centre
from trainables.data.base import Indices
from trainables.data.formats.cache import Images, RaggedImages, Squares
from trainables.data.formats.feature_store import FeatureRows
from trainables.models.base import constant, to_device

_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601-2, as Pillow and torchvision


class Views:
    """Batches of stored pictures as the network sees them.

    Without an augmentation they are shown as stored (uint8, one size). With one, training sees random crops and
    evaluation the resized centre crop, as uint8 or as floats in 0..1. Of stored features, training sees one stored view
    drawn at random and evaluation view 0, as float16 (B, D, 1, 1).
    """

    def __init__(
        self, images: Images, augmentation: Augmentation | None, *, seed: int, device: torch.device | str = "cpu"
    ) -> None:
        if augmentation is None and isinstance(images, RaggedImages):
            raise ValueError("pictures of different sizes need an augmentation, which sets the size of the crop")
        self.images, self.augmentation = images, augmentation
        self.seed, self.device = seed, torch.device(device)
        self.on_host = self.device.type == "cpu"

    def train(self, indices: Indices, *, step: int, first: int = 0, view: int = 0) -> Tensor:
        """Return one training view, (B, C, S, S); `first` is the position of `indices[0]` in the global batch."""
        if isinstance(self.images, FeatureRows):
            rows = self.images.rows[self.feature_rows(indices, step=step, first=first, view=view)]
            return self._show(self._pinned(rows[:, None, None]))
        if self.augmentation is None:
            return self._as_stored(indices)
        sizes = self._sizes(indices)
        decisions = self.augmentation.decide(sizes, seed=self.seed, step=step, first=first, view=view)
        crop = self.augmentation.crop
        if self.on_host:
            pixels = self._train_on_host(indices, decisions, crop)
        else:
            pixels = self._cut(indices, decisions.windows.astype(np.float64), decisions.flips, crop, margin=False)
        # All views of a batch need one type, independent of the draws.
        coloured = self.augmentation.jitter > 0 or self.augmentation.grey > 0
        return _colour_jitter(pixels, decisions) if coloured else pixels

    def evaluation(self, indices: Indices) -> Tensor:
        """Return the deterministic view, (B, C, S, S)."""
        if self.augmentation is None:
            return self._as_stored(indices)
        resize, crop = self.augmentation.resize, self.augmentation.crop
        if self.on_host:
            return self._evaluation_on_host(indices, resize, crop)
        if not isinstance(self.images, RaggedImages) and min(self.images.shape[1:3]) == resize:
            _, (corner, *_) = resized_sizes(self._sizes(indices[:1]), resize, crop)
            top, left = corner.astype(int).tolist()
            return self._as_stored(indices)[:, :, top : top + crop, left : left + crop].contiguous()
        windows = windows_at_centre(self._sizes(indices), resize, crop)
        return self._cut(indices, windows, np.zeros(len(indices), dtype=bool), crop, margin=True)

    def _as_stored(self, indices: Indices) -> Tensor:
        return self._show(self._read(indices))

    def feature_rows(self, indices: Indices, *, step: int, first: int = 0, view: int = 0) -> Indices:
        """Draw the stored view that training sees of each picture, as a row number of the features.

        A second view (`view=1`) is never the first one, because equal rows are a trivial positive pair. The draw is
        equal for any number of workers, like `Augmentation.decide`.
        """
        stored = cast("FeatureRows", self.images).views
        if stored == 1:
            return indices
        positions = first + np.arange(len(indices))
        chosen = (uniforms(self.seed, step, 0, positions, draws=1)[:, 0] * stored).astype(np.int64)
        if view:  # any but the first view's own
            others = uniforms(self.seed, step, view, positions, draws=1)[:, 0] * (stored - 1)
            chosen = (chosen + 1 + others.astype(np.int64)) % stored
        return indices * stored + chosen

    def _read(self, indices: Indices) -> Tensor:
        """Copy pictures of one size from the memory map, (B, H, W, C)."""
        images = cast("Squares", self.images)
        if self.device.type != "cuda" or not isinstance(images, np.ndarray):
            return self._pinned(images[indices])
        batch = torch.empty(len(indices), *images.shape[1:], dtype=torch.uint8, pin_memory=True)
        np.take(images, indices, axis=0, out=batch.numpy(), mode="clip")  # "raise" would copy twice
        return batch

    def _pinned(self, stored: NDArray[Any]) -> Tensor:
        pixels = torch.from_numpy(np.ascontiguousarray(stored))
        return pixels.pin_memory() if self.device.type == "cuda" else pixels

    def _show(self, stored: Tensor) -> Tensor:
        return stored.to(self.device, non_blocking=True).permute(0, 3, 1, 2)

    def _sizes(self, indices: Indices) -> Indices:
        if isinstance(self.images, RaggedImages):
            return self.images.sizes[indices].astype(np.int64)
        return np.tile(np.array(self.images.shape[1:3], dtype=np.int64), (len(indices), 1))

    def _cut(
        self, indices: Indices, windows: NDArray[np.float64], flips: NDArray[np.bool_], size: int, *, margin: bool
    ) -> Tensor:
        """Read only the rows and columns each window needs, pad to a common size, resize on the device.

        With `margin` the filter also reads beyond the window, as in resizing before cutting.
        """
        reach = np.maximum(windows[:, 2:] / size, 1) if margin else np.zeros((len(windows), 2))
        start = np.maximum(np.floor(windows[:, :2] - reach), 0).astype(int)
        stop = np.ceil(windows[:, :2] + windows[:, 2:] + reach).astype(int)
        parts = [
            self.images[index][top:bottom, left:right]
            for index, (top, left), (bottom, right) in zip(indices.tolist(), start, stop, strict=True)
        ]
        local = windows - np.pad(start, ((0, 0), (0, 2)))
        limits = np.array([[0, 0, *part.shape[:2]] for part in parts], dtype=np.float64).reshape(-1, 4)
        padded = _pad(parts, self.images.shape[-1], pinned=self.device.type == "cuda")
        return _cut_and_resize(padded.to(self.device, non_blocking=True), local, flips, size, limits=limits)

    def _train_on_host(self, indices: Indices, decisions: AugmentDecisions, size: int) -> Tensor:
        batch = torch.empty(len(indices), self.images.shape[-1], size, size, dtype=torch.uint8)
        rows = zip(indices.tolist(), decisions.windows.tolist(), decisions.flips.tolist(), strict=True)
        for row, (index, (top, left, height, width), flip) in enumerate(rows):
            cut = _resize(self.images[index][top : top + height, left : left + width], (size, size))
            batch[row] = cut.flip(2) if flip else cut
        return batch

    def _evaluation_on_host(self, indices: Indices, resize: int, size: int) -> Tensor:
        batch = torch.empty(len(indices), self.images.shape[-1], size, size, dtype=torch.uint8)
        shapes, offsets = resized_sizes(self._sizes(indices), resize, size)
        rows = zip(indices.tolist(), shapes.tolist(), offsets.astype(int).tolist(), strict=True)
        for row, (index, shape, (top, left)) in enumerate(rows):
            batch[row] = _resize(self.images[index], shape)[:, top : top + size, left : left + size]
        return batch


def _resize(picture: NDArray[np.uint8], shape: Sequence[int]) -> Tensor:
    """Resize a picture (H, W, C) to (C, height, width), bilinear with antialiasing, rounded to bytes."""
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    if tuple(pixels.shape[1:]) == tuple(shape):
        return pixels
    return functional.interpolate(pixels[None], tuple(shape), mode="bilinear", antialias=True)[0]


def _cut_and_resize(
    pictures: Tensor, windows: NDArray[np.float64], flips: NDArray[np.bool_], size: int, *, limits: NDArray[np.float64]
) -> Tensor:
    """Resize each picture's window to `size` x `size`, and mirror it where `flips`: (B, H, W, C) to (B, C, S, S).

    Bytes become floats in 0..1. Bilinear with antialiasing, as in Pillow: output = A picture B^T with triangular
    weights A (size, H) and B (size, W) per picture, so two batched matrix products. `windows` and `limits` (usable
    pixels) are top, left, height, width, (B, 4); `flips` (B,).
    """
    count, height, width, channels = pictures.shape
    window = to_device(windows, pictures.device)
    valid = to_device(limits, pictures.device)
    rows = _filter_weights(window[:, 0::2], valid[:, 0::2], size, height)
    columns = _filter_weights(window[:, 1::2], valid[:, 1::2], size, width)
    mirrored = to_device(flips, pictures.device)[:, None, None]
    columns = torch.where(mirrored, columns.flip(1), columns)
    pixels = pictures.float() / 255
    shrunk = torch.bmm(rows, pixels.reshape(count, height, width * channels)).view(count, size, width, channels)
    planes = shrunk.permute(0, 3, 1, 2).reshape(count, channels * size, width)
    return torch.bmm(planes, columns.transpose(1, 2)).view(count, channels, size, size)


def _filter_weights(window: Tensor, valid: Tensor, size: int, available: int) -> Tensor:
    """Return the triangle filter of output pixels over valid inputs, row-stochastic (B, size, available).

    `window` and `valid` hold start and length along one axis, (B, 2).
    """
    start, length = window[:, 0, None, None], window[:, 1, None, None]
    step = length / size
    width = step.clamp_min(1).float()  # enlarging interpolates, shrinking averages
    centres = start + (torch.arange(size, device=window.device)[None, :, None] + 0.5) * step
    pixels = torch.arange(available, device=window.device)[None, None] + 0.5
    integer_part = centres.floor()  # subtracting integer parts first is precise in float32
    distance = ((pixels.float() - integer_part.float()) - (centres - integer_part).float()).abs_()
    weights = distance.div_(width).neg_().add_(1).clamp_min_(0)
    first, count = valid[:, 0, None, None], valid[:, 1, None, None]
    weights *= (pixels > first) & (pixels < first + count)
    return weights.div_(weights.sum(dim=2, keepdim=True).clamp_min(1e-12))


def _colour_jitter(images: Tensor, decisions: AugmentDecisions) -> Tensor:
    """Apply brightness, contrast, saturation and hue in each picture's order, then grey; floats in 0..1.

    Pictures of one channel get brightness and contrast only; bytes become floats.
    """
    images = images.float() / 255 if images.dtype == torch.uint8 else images
    if (decisions.factors != NEUTRAL).any():
        factors = to_device(decisions.factors, images.device).to(images.dtype)[..., None, None, None]
        for turn in range(4):
            for kind in range(4 if images.shape[1] == 3 else 2):
                chosen = to_device(np.flatnonzero(decisions.order[:, turn] == kind), images.device)
                images = images.index_copy(0, chosen, _ADJUST[kind](images[chosen], factors[chosen, kind]))
    if decisions.grey.any() and images.shape[1] == 3:
        mask = to_device(decisions.grey, images.device)[:, None, None, None]
        images = torch.where(mask, _grey(images), images)
    return images


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] == 1:
        return images
    return (images * constant(_LUMA, images)[:, None, None]).sum(dim=1, keepdim=True)


def _brightness(images: Tensor, factor: Tensor) -> Tensor:
    return (images * factor).clamp(0, 1)


def _contrast(images: Tensor, factor: Tensor) -> Tensor:
    mean = _grey(images).mean(dim=(1, 2, 3), keepdim=True)
    return (mean + factor * (images - mean)).clamp(0, 1)


def _saturation(images: Tensor, factor: Tensor) -> Tensor:
    grey = _grey(images)
    return (grey + factor * (images - grey)).clamp(0, 1)


def _hue(images: Tensor, shift: Tensor) -> Tensor:
    """Shift HSV's hue by turns: c = v - v s max(0, min(k, 4-k, 1)) with k = (n + 6h) mod 6, n = 5, 3, 1."""
    value, channel = images.max(dim=1, keepdim=True)
    span = value - images.amin(dim=1, keepdim=True)
    red, green, blue = images.unbind(dim=1)
    sector = torch.stack([(green - blue), (blue - red), (red - green)], dim=1).gather(1, channel)
    hue = (sector / span.clamp_min(1e-12) + 2 * channel) / 6 + shift
    n = constant((5.0, 3.0, 1.0), images)[:, None, None]
    k = (n + 6 * hue) % 6
    return value - span * torch.minimum(k, 4 - k).clamp(0, 1)


_ADJUST = (_brightness, _contrast, _saturation, _hue)


def _pad(parts: Sequence[NDArray[np.uint8]], channels: int, *, pinned: bool) -> Tensor:
    """Join pictures of different sizes to one batch (B, H, W, C), with arbitrary padding.

    Pinned memory transfers asynchronously; other memory would wait for earlier steps.
    """
    height = max((part.shape[0] for part in parts), default=1)
    width = max((part.shape[1] for part in parts), default=1)
    batch = torch.empty(len(parts), height, width, channels, dtype=torch.uint8, pin_memory=pinned)
    rows = batch.numpy()
    for row, part in enumerate(parts):
        rows[row, : part.shape[0], : part.shape[1]] = part
    return batch
