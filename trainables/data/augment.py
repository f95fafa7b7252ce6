"""Decide augmentation by counters: a pure function of (seed, step, position in the batch).

Every picture is cut and coloured the same way for any number of workers and after a resume. This module only makes
the decisions, in numpy; `trainables.models.views` applies them on the device.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from trainables.errors import Problem
from trainables.methods import build

Floats = NDArray[np.float64]
_ATTEMPTS = 10  # random windows tried before the largest centred one, as torchvision does
NEUTRAL = np.array([1.0, 1.0, 1.0, 0.0])  # factors that change nothing
_DRAWS = 2 * _ATTEMPTS + 2 + 1 + 10  # windows, corner, flip, colour


@dataclass(frozen=True)
class AugmentDecisions:
    """Augmentation of a batch, one row per picture."""

    windows: NDArray[np.int64]  # top, left, height, width in pixels, (B, 4)
    flips: NDArray[np.bool_]
    factors: Floats
    """Brightness, contrast and saturation factors and hue shift in turns, (B, 4); (1, 1, 1, 0) changes nothing."""
    order: NDArray[np.int64]  # order in which the four factors are applied, (B, 4)
    grey: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random resized crop, flip, colour jitter and grey, in that order.

    The window covers a uniform share `scale` of the area with a log-uniform `ratio` of width to height. Jitter of
    strength s draws factors from [1-0.8s, 1+0.8s] and hue shifts from [-0.2s, 0.2s] (SimCLR).
    """

    name = "crop_flip"

    crop: Annotated[int, Field(ge=8, description="height and width the network sees, in pixels")] = 227
    resize: Annotated[int, Field(ge=8, description="shorter side before the centre crop of evaluation")] = 256
    scale: Annotated[tuple[float, float], Field(description="share of the area a window covers")] = (0.16, 1.0)
    ratio: Annotated[tuple[float, float], Field(description="width over height of a window")] = (3 / 4, 4 / 3)
    flip: Annotated[float, Field(ge=0, le=1, description="probability of a mirror image")] = 0.5
    jitter: Annotated[float, Field(ge=0, le=1, description="strength s of colour jitter")] = 0.0
    jitter_probability: Annotated[float, Field(ge=0, le=1, description="probability of colour jitter")] = 0.8
    grey: Annotated[float, Field(ge=0, le=1, description="probability of losing the colours")] = 0.0

    @classmethod
    def check_parameters(cls, **knobs: object) -> list[Problem]:
        problems = []
        for key, text, top in (("scale", " <= 1", 1.0), ("ratio", "", float("inf"))):
            pair = knobs[key]
            if not (isinstance(pair, tuple) and 0 < pair[0] <= pair[1] <= top):
                problems.append(Problem(key, f"must satisfy 0 < low <= high{text}", pair))
        if knobs["resize"] < knobs["crop"]:  # type: ignore[operator]
            problems.append(Problem("resize", f"must not be smaller than crop={knobs['crop']}", knobs["resize"]))
        return problems

    def decide(
        self, sizes: NDArray[np.int64], *, seed: int, step: int, first: int = 0, view: int = 0
    ) -> AugmentDecisions:
        """Return the decisions for positions `first`, first + 1, ... of a batch; `sizes` (B, 2): height, width."""
        u = uniforms(seed, step, view, np.arange(first, first + len(sizes)), draws=_DRAWS)
        colour = u[:, 2 * _ATTEMPTS + 3 :]
        jittered = (colour[:, 0] < self.jitter_probability) & (self.jitter > 0)
        strength = np.array([0.8, 0.8, 0.8, 0.2]) * self.jitter
        factors = NEUTRAL + strength * (2 * colour[:, 1:5] - 1)
        return AugmentDecisions(
            windows=self._draw_windows(sizes, u[:, : 2 * _ATTEMPTS + 2]),
            flips=u[:, 2 * _ATTEMPTS + 2] < self.flip,
            factors=np.where(jittered[:, None], factors, NEUTRAL),
            order=np.argsort(colour[:, 5:9], axis=1),
            grey=colour[:, 9] < self.grey,
        )

    def _draw_windows(self, sizes: NDArray[np.int64], u: Floats) -> NDArray[np.int64]:
        """Return the first of ten random windows that fits, else the largest centred one; (B, 4)."""
        height, width = sizes[:, 0, None].astype(float), sizes[:, 1, None].astype(float)
        area = height * width * (self.scale[0] + (self.scale[1] - self.scale[0]) * u[:, :_ATTEMPTS])
        low, high = np.log(self.ratio)
        ratio = np.exp(low + (high - low) * u[:, _ATTEMPTS : 2 * _ATTEMPTS])
        w, h = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
        fits = (w >= 1) & (w <= width) & (h >= 1) & (h <= height)
        pick = fits.argmax(axis=1)[:, None]
        h, w = np.take_along_axis(h, pick, 1)[:, 0], np.take_along_axis(w, pick, 1)[:, 0]
        room = np.stack([height[:, 0] - h, width[:, 0] - w], axis=1)
        corner = np.floor(u[:, 2 * _ATTEMPTS : 2 * _ATTEMPTS + 2] * (room + 1))
        drawn = np.concatenate([corner, h[:, None], w[:, None]], axis=1).astype(np.int64)
        return np.where(fits.any(axis=1)[:, None], drawn, self._largest_windows(sizes))

    def _largest_windows(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        height, width = sizes[:, 0], sizes[:, 1]
        w = np.clip(width, 1, np.maximum(np.rint(height * self.ratio[1]), 1)).astype(np.int64)
        h = np.clip(height, 1, np.maximum(np.rint(width / self.ratio[0]), 1)).astype(np.int64)
        return np.stack([(height - h) // 2, (width - w) // 2, h, w], axis=1)


AUGMENTATIONS: dict[str, dict[str, object]] = {
    # Spherical embedding and DRO (docs/specification.md, section 8).
    "crop_flip": {},
    # Multi-proxy, Proxy-Anchor, SoftTriple.
    "crop_flip_224": {"crop": 224, "scale": (0.08, 1.0)},
    # SimCLR without blur, for pictures of 32 pixels.
    "simclr": {"crop": 32, "resize": 32, "scale": (0.08, 1.0), "jitter": 0.5, "grey": 0.2},
}
"""Preset name -> knobs that differ from the defaults."""


def build_augmentation(name: str, **knobs: object) -> Augmentation | None:
    """Return the augmentation `name` with some knobs changed; None for "none". Raises ConfigError for a wrong one."""
    if name == "none" and not knobs:
        return None
    registry = dict.fromkeys(AUGMENTATIONS, Augmentation)
    return build(registry, "augmentation", name, {**AUGMENTATIONS.get(name, {}), **knobs}, {}, "augmentation")


def windows_at_centre(sizes: NDArray[np.int64], resize: int, crop: int) -> NDArray[np.float64]:
    """Return the window (top, left, height, width), (B, 4), that resizing and cropping the centre keeps.

    It is in pixels of the stored picture, hence fractional. Rounding follows torchvision.
    """
    resized, offset = resized_sizes(sizes, resize, crop)
    scale = sizes / resized
    return np.concatenate([offset * scale, crop * scale], axis=1)


def resized_sizes(sizes: NDArray[np.int64], resize: int, crop: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return height and width after resizing, and top and left of the centre crop, (B, 2) each."""
    resized = np.maximum(resize * sizes // sizes.min(axis=1, keepdims=True), resize)
    return resized, np.rint((resized - crop) / 2)


def uniforms(*key: int | NDArray[np.int64], draws: int) -> Floats:
    """Return uniform numbers in [0, 1) that depend only on the key, (B, draws).

    SplitMix64's finaliser, chained over the key and the draw's number (Steele et al., OOPSLA 2014).
    """
    state = np.zeros((1, 1), dtype=np.uint64)
    for part in (*key, np.arange(draws)[None]):
        column = np.atleast_1d(np.asarray(part)).astype(np.int64).view(np.uint64)
        state = _mix(state ^ (column if column.ndim == 2 else column[:, None]))
    return np.asarray((state >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
