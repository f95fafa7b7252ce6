"""Pictures decoded anew at each use: for a disk on which the decoded ones do not fit. The pixels are the same."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainables.data.formats.cache import Pixels, RaggedImages
from trainables.data.formats.decoding import Encoded, fit, shrink, to_rgb


class WholeOnDemand(RaggedImages):
    """Whole pictures with one shorter side, as `decode_ragged` writes them.

    Args:
        encoded: where the pictures come from.
        kept: which of them count, in order.
        sizes: height and width of each of those once shrunk, (N, 2).
        shorter: the shorter side; None leaves pictures as they are.
    """

    def __init__(
        self, encoded: Encoded, kept: NDArray[np.int64], sizes: NDArray[np.int32], shorter: int | None
    ) -> None:
        nothing, nowhere = np.zeros(0, dtype=np.uint8), np.zeros(len(kept), dtype=np.int64)
        super().__init__(nothing, nowhere, sizes, channels=3)
        self.encoded, self.kept, self.shorter = encoded, kept, shorter

    def __getitem__(self, index: int | np.integer) -> Pixels:
        with self.encoded.open(int(self.kept[index])) as image:
            return np.asarray(shrink(to_rgb(image), self.shorter))


class SquaresOnDemand:
    """Squares of one size, as `decode_fixed` writes them; indexes like an array (N, size, size, 3)."""

    def __init__(self, encoded: Encoded, kept: NDArray[np.int64], size: int) -> None:
        self.encoded, self.kept = encoded, kept
        self.shape: tuple[int, ...] = (len(kept), size, size, 3)

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int | np.integer | NDArray[np.int64]) -> Pixels:
        if isinstance(index, int | np.integer):
            with self.encoded.open(int(self.kept[index])) as image:
                return np.asarray(fit(to_rgb(image), self.shape[1]))
        chosen = np.arange(len(self))[index]
        out = np.empty((len(chosen), *self.shape[1:]), dtype=np.uint8)
        for row, number in enumerate(chosen):
            out[row] = self[number]
        return out
