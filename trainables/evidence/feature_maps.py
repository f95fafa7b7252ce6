"""Draw feature maps: a few pictures, each beside its six most active channels of the last layer, as one small JPEG.

This follows Figure 3 of the supplement of Zhang et al., Deep Metric Learning with Spherical Embedding, NeurIPS 2020. It
shows the channels of the last convolutional layer with the largest mean activation, each scaled to its own range.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from trainables.data.base import Indices, Pictures
from trainables.evidence.sheet import CELL, FRAME, GAP, HEADER, INK, PAPER, SIDE, thumbnail, typeface, within_limit

_CHANNELS = 6
# From dark (least) to light (most), so that it is readable in grey too.
_SCALE = np.array([(20, 18, 60), (90, 30, 120), (200, 70, 80), (250, 165, 50), (252, 250, 190)], dtype=np.float64)


def _most_active(maps: Tensor) -> list[int]:
    """Return the six channels of one picture's maps (C, h, w) with the largest mean, in descending order."""
    order = torch.argsort(maps.double().mean(dim=(1, 2)), descending=True, stable=True)
    return order[:_CHANNELS].tolist()


def _heat(channel: NDArray[np.float64]) -> Image.Image:
    """Draw one channel (h, w), scaled from its smallest to its largest value; a constant one is dark."""
    low, high = float(channel.min()), float(channel.max())
    level = (channel - low) / (high - low) * (len(_SCALE) - 1) if high > low else np.zeros_like(channel)
    below = np.minimum(level.astype(np.int64), len(_SCALE) - 2)
    mixed = _SCALE[below] + (_SCALE[below + 1] - _SCALE[below]) * (level - below)[..., None]
    picture = Image.fromarray(mixed.round().astype(np.uint8))
    return picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def draw_feature_maps(maps: Tensor, numbers: Indices, pictures: Pictures) -> bytes:
    """Draw maps (n, C, h, w) of the pictures with indices `numbers` (n,), as a JPEG of at most 60 kB."""
    step = CELL + GAP
    canvas = Image.new("RGB", (GAP + (1 + _CHANNELS) * step, HEADER + GAP + len(numbers) * (step + 12)), PAPER)
    pen = ImageDraw.Draw(canvas)
    pen.text((GAP, GAP // 2), "picture", fill=INK, font=typeface(13))
    pen.text((GAP + step, GAP // 2), "most active channels, left to right", fill=INK, font=typeface(13))
    for row, (own, number) in enumerate(zip(maps.detach().float().cpu(), numbers.tolist(), strict=True)):
        top = HEADER + GAP + row * (step + 12)
        canvas.paste(thumbnail(np.asarray(pictures.images[number])), (GAP + FRAME, top + FRAME))
        for column, channel in enumerate(_most_active(own), start=1):
            left = GAP + column * step
            canvas.paste(_heat(own[channel].double().numpy()), (left + FRAME, top + FRAME))
            pen.text((left + FRAME, top + CELL), f"channel {channel}", fill=INK, font=typeface(10))
    return within_limit(canvas)
