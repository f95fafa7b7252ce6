"""Distractor pictures: a gallery of nobody we look for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from trainables.data.base import Contents, DataSet, Indices, Progress, digest_of
from trainables.data.formats.cache import Images
from trainables.data.formats.decoding import decode_fixed, judged, keep_or_raise
from trainables.data.formats.files import encoded_files, find_pictures, fingerprints, unreadable_files
from trainables.data.formats.on_demand import SquaresOnDemand
from trainables.data.formats.picture_files import SkipCorrupt, few
from trainables.errors import Problem


class Distractors(DataSet):
    """Every picture below `root`, at any depth, as one class; for rank-1 identification among distractors.

    MegaFace is retired by its authors; any folder of pictures that shows none of the probes will do.
    """

    name = "distractors"
    citation = "protocol of Kemelmacher-Shlizerman et al., The MegaFace Benchmark, CVPR 2016"
    licence = "the user's own"
    source = "root/**/*.png, .jpg, .jpeg, .webp or .bmp"
    dead = "MegaFace itself: retired by its authors, no download is left"

    def __init__(
        self,
        *,
        root: Path,
        cache_dir: Path,
        size: Annotated[int, Field(ge=16, le=512, description="height and width in pixels")] = 112,
        skip_corrupt: SkipCorrupt = False,
    ) -> None:
        super().__init__(cache_dir=cache_dir)
        self.root = root
        self.size = size
        self.skip_corrupt = skip_corrupt

    @cached_property
    def _names(self) -> list[str]:
        return [path.relative_to(self.root).as_posix() for path in find_pictures(self.root)[0]]

    def check(self) -> list[Problem]:
        """That there is a picture."""
        if not self.root.is_dir():
            return [Problem(str(self.root), "the data folder must exist", None, f"Expected {self.source}.")]
        if not self._names:
            return [Problem(str(self.root), "must hold pictures", None, f"Expected {self.source}.")]
        return []

    def verify(self, progress: Progress | None = None) -> list[Problem]:
        """`check`, and that every picture decodes."""
        if found := self.check():
            return found
        reasons = unreadable_files(self.root, self._names, self.cache_dir, progress)
        return judged(self, reasons, self._names, self.root, skip_corrupt=self.skip_corrupt)

    def counts(self) -> dict[str, int]:
        """Pictures."""
        return {"images": len(self._names)}

    def digest(self) -> str:
        """Names and content of the pictures, settings."""
        prints = fingerprints(self.root, self._names, self.cache_dir, verify=False)
        content = [(name, prints[name].sha256) for name in self._names]
        return digest_of(self.name, 1, self.size, self.skip_corrupt, content)

    def test_classes(self, class_names: Sequence[str]) -> tuple[int, ...]:
        """Nothing trains."""
        return (0,)

    def write(self, directory: Path, progress: Progress | None) -> Contents:
        """Decode in parallel, from where an interrupted call stopped."""
        failures = decode_fixed(directory, encoded_files(self.root, self._names), self.size, progress)
        return self._describe(directory, failures)[1]

    def on_demand(self, progress: Progress | None) -> tuple[Images, Contents]:
        """Straight from the files."""
        failures = unreadable_files(self.root, self._names, self.cache_dir, progress)
        kept, contents = self._describe(None, failures)
        return SquaresOnDemand(encoded_files(self.root, self._names), kept, self.size), contents

    def _describe(self, directory: Path | None, failures: Mapping[int, str]) -> tuple[Indices, Contents]:
        kept = keep_or_raise(directory, failures, self._names, skip_corrupt=self.skip_corrupt, folder=self.root)
        lost = [self._names[i] for i in sorted(failures)]
        notes = (f"{len(lost)} pictures cannot be decoded and were left out: {few(lost)}",) if lost else ()
        return kept, Contents(np.zeros(len(kept), dtype=np.int64), ("distractor",), notes)
