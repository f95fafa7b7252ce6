"""Distractor pictures for identification among strangers."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from trainables.data.base import Contents, Indices, digest_of, problems_raised
from trainables.data.formats.decoding import EncodedPictures, SquarePictures
from trainables.data.formats.files import KINDS, encoded_files, find_pictures
from trainables.data.formats.stored import FaceSize, SkipCorrupt, StoredPictures, other_file_notes
from trainables.errors import Problem


class Distractors(StoredPictures):
    """Every picture below `root` as one class, for rank-1 identification among distractors.

    MegaFace is retired; use any folder of pictures that shows none of the probes.
    """

    name = "distractors"
    citation = "protocol of Kemelmacher-Shlizerman et al., The MegaFace Benchmark, CVPR 2016"
    licence = "the user's own"
    source = f"root/**/*{KINDS}"
    dead = "MegaFace itself: retired by its authors, without a download"

    def __init__(self, *, root: Path, cache_dir: Path, size: FaceSize = 112, skip_corrupt: SkipCorrupt = False) -> None:
        super().__init__(cache_dir=cache_dir, form=SquarePictures(size), skip_corrupt=skip_corrupt)
        self.root = root
        self.size = size

    @property
    def folder(self) -> Path:
        return self.root

    @cached_property
    def _files(self) -> tuple[list[Path], list[Path]]:
        return find_pictures(self.root, linked=True)

    @cached_property
    def encoded(self) -> EncodedPictures:
        return encoded_files(self.root, [path.relative_to(self.root).as_posix() for path in self._files[0]])

    def passed_over(self) -> list[str]:
        return other_file_notes(self.root, self._files[1])

    def check(self) -> list[Problem]:
        if not self.root.is_dir():
            return [Problem(str(self.root), "the data folder must exist", None, f"Expected {self.source}.")]
        if problems := problems_raised(lambda: self.encoded):
            return problems
        if not self.encoded.names:
            return [Problem(str(self.root), "must hold pictures", None, f"Expected {self.source}.")]
        return []

    def counts(self) -> dict[str, int]:
        return {"images": len(self.encoded.names)}

    def digest(self) -> str:
        return digest_of(self.name, 1, self.size, self.skip_corrupt, self.digests(self.encoded.names))

    def test_classes(self, class_names: Sequence[str]) -> tuple[int, ...]:
        return (0,)

    def contents(self, indices: Indices) -> Contents:
        return Contents(np.zeros(len(indices), dtype=np.int64), ("distractor",))
