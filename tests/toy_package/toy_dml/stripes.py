"""A data set of another package: drawn, not read."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainables.data.base import Contents, DataSet, Progress, digest_of
from trainables.data.formats import cache
from trainables.errors import Problem


class ToyStripes(DataSet):
    """Twelve classes of eight 16 x 16 grey pictures: a bright stripe at the class's height, in noise."""

    name = "toy_stripes"
    citation = "A. Author, A Toy, 2020"
    licence = "public domain"
    source = "this package"

    def check(self) -> list[Problem]:
        """Return no problem, because nothing can be missing."""
        return []

    def digest(self) -> str:
        """Return a constant, because the drawing never changes."""
        return digest_of(self.name, 1)

    def test_classes(self, class_names: Sequence[str]) -> tuple[int, ...]:
        """Return the last four classes."""
        return (8, 9, 10, 11)

    def write(self, directory: Path, progress: Progress | None) -> Contents:
        """Draw the stripes."""
        labels = np.repeat(np.arange(12), 8)
        images = cache.create_images(directory, (96, 16, 16, 1))
        images[:] = np.random.default_rng(0).integers(0, 100, images.shape)
        images[np.arange(96), labels + 2] = 255
        return Contents(labels, tuple(f"height {height}" for height in range(12)))
