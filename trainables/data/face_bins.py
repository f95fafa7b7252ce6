"""Face verification sets as one .bin file: lfw, agedb_30, cfp_fp, cfp_ff, calfw, cplfw."""

import io
from collections.abc import Sequence
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from trainables.data.base import Contents, DataSet, Progress, digest_of, problems_raised
from trainables.data.formats.archives import other_data_remedy
from trainables.data.formats.decoding import EncodedPictures, SquarePictures, decode, failure_problems, find_undecodable
from trainables.data.formats.files import digests
from trainables.data.formats.picture_files import differences
from trainables.data.formats.safe_pickle import load_pickle
from trainables.data.formats.stored import Strict
from trainables.errors import DataError, Problem

_SIZE = 112
_FOLDS = 10
_AGAIN = "Download the file again."


class _FaceBin(DataSet):
    """Aligned faces of 112 x 112 pixels in pairs; `root` is the .bin file or its folder.

    The file is a pickle of (encoded pictures, booleans "same"), read without running code. Consecutive pictures form
    pairs. `extras`: `pairs` (P, 2), `same` (P,), `fold` (P,), ten folds in order. Identities are unknown, so every
    picture has a separate class, and these sets measure only verification.
    """

    licence = "research; see the original data set"
    source = "the data-set zoo of github.com/deepinsight/insightface (Google Drive or Baidu)"
    dead = "links of the zoo, at times; other packs of the zoo (MS1M ...) hold the same .bin files"
    file: ClassVar[str]

    def __init__(self, *, root: Path, cache_dir: Path, strict: Strict = True) -> None:
        super().__init__(cache_dir=cache_dir)
        self.root, self.strict = root, strict

    @cached_property
    def path(self) -> Path:
        """Return the root, or the file in it or in a folder below; if the root is another set's file, the one beside it."""
        others = {kind.file for kind in _FaceBin.__subclasses__()} - {self.file}
        root = self.root.parent if self.root.name in others else self.root
        if root.is_file():
            return root
        below = sorted(root.glob(f"*/{self.file}"))
        return below[0] if len(below) == 1 and not (root / self.file).exists() else root / self.file

    def check(self) -> list[Problem]:
        if not self.path.is_file():
            return [Problem(str(self.path), "the verification file must exist", None, f"Get it from: {self.source}.")]
        return problems_raised(self._load)

    def verify(self, progress: Progress | None = None) -> list[Problem]:
        if problems := self.check():
            return problems
        source = self._encoded(self._load()[0])
        return failure_problems(find_undecodable(source, progress), source.names, remedy=_AGAIN)

    def counts(self) -> dict[str, int]:
        return {"pairs": len(self._load()[1])}

    def _encoded(self, encoded: Sequence[bytes]) -> EncodedPictures:
        names = [f"{self.path}[{i}]" for i in range(len(encoded))]
        return EncodedPictures(names, lambda i: Image.open(io.BytesIO(encoded[i])))

    def digest(self) -> str:
        [(_, sha256)] = digests(self.path.parent, [self.path.name], self.cache_dir)
        return digest_of(self.name, 1, sha256)

    def test_classes(self, class_names: Sequence[str]) -> tuple[int, ...]:
        return tuple(range(len(class_names)))

    def write(self, directory: Path, progress: Progress | None) -> Contents:
        encoded, same = self._load()
        source = self._encoded(encoded)
        if failures := decode(directory, source, SquarePictures(_SIZE), progress):
            raise DataError(failure_problems(failures, source.names, remedy=_AGAIN))
        extras = {
            "pairs": np.arange(len(encoded)).reshape(-1, 2),
            "same": np.array(same, dtype=bool),
            "fold": np.arange(len(same)) * _FOLDS // len(same),
        }
        notes = tuple(differences(self, {"pairs": len(same)}))
        return Contents(np.arange(len(encoded)), tuple(str(i) for i in range(len(encoded))), notes, extras)

    def _load(self) -> tuple[list[bytes], list[bool]]:
        data: Any = load_pickle(self.path, encoding="bytes")
        if not (
            isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(x, list | np.ndarray) for x in data)
        ):
            found = [type(x).__name__ for x in data] if isinstance(data, tuple | list) else type(data).__name__
            raise DataError(Problem(str(self.path), "must be a pair (pictures, same) of lists", found, _AGAIN))
        encoded = [item.tobytes() if isinstance(item, np.ndarray) else item for item in data[0]]
        if wrong := [type(item).__name__ for item in encoded if not isinstance(item, bytes)]:
            raise DataError(Problem(str(self.path), "pictures must be encoded bytes", wrong[0], _AGAIN))
        # Any text would count as the same person, also "False".
        if other := [item for item in data[1] if not (isinstance(item, Real | np.bool_) and item in (0, 1))]:
            rule = f"every answer must be True or False, but {len(other)} of {len(data[1])} are not"
            raise DataError(Problem(str(self.path), rule, other[:3], _AGAIN))
        same = [bool(item) for item in data[1]]
        if len(encoded) != 2 * len(same) or len(same) < _FOLDS:
            rule = f"must hold two pictures for each of at least {_FOLDS} answers"
            raise DataError(Problem(str(self.path), rule, (len(encoded), len(same)), _AGAIN))
        if self.strict and len(same) != self.expected["pairs"]:
            rule = f"{self.name} has {self.expected['pairs']} pairs"
            raise DataError(Problem(str(self.path), rule, len(same), other_data_remedy(self.strict_setting)))
        return encoded, same


class LfwBin(_FaceBin):
    """Labeled Faces in the Wild, aligned."""

    name = "lfw_bin"
    citation = "Huang et al., Labeled Faces in the Wild, University of Massachusetts, Technical Report 07-49, 2007"
    expected: ClassVar = {"pairs": 6_000}
    file = "lfw.bin"


class AgeDb30(_FaceBin):
    """AgeDB with an age gap of 30 years."""

    name = "agedb30"
    citation = "Moschoglou et al., AgeDB: the First Manually Collected, In-the-Wild Age Database, CVPR Workshops 2017"
    expected: ClassVar = {"pairs": 6_000}
    file = "agedb_30.bin"


class CfpFp(_FaceBin):
    """Celebrities in Frontal-Profile: frontal against profile."""

    name = "cfp_fp"
    citation = "Sengupta et al., Frontal to Profile Face Verification in the Wild, WACV 2016"
    expected: ClassVar = {"pairs": 7_000}
    file = "cfp_fp.bin"


class CfpFf(_FaceBin):
    """Celebrities in Frontal-Profile: frontal against frontal."""

    name = "cfp_ff"
    citation = "Sengupta et al., Frontal to Profile Face Verification in the Wild, WACV 2016"
    expected: ClassVar = {"pairs": 7_000}
    file = "cfp_ff.bin"


class CaLfw(_FaceBin):
    """Cross-Age LFW."""

    name = "calfw"
    citation = "Zheng et al., Cross-Age LFW, arXiv:1708.08197, 2017"
    expected: ClassVar = {"pairs": 6_000}
    file = "calfw.bin"


class CpLfw(_FaceBin):
    """Cross-Pose LFW."""

    name = "cplfw"
    citation = "Zheng and Deng, Cross-Pose LFW, Beijing University of Posts and Telecommunications, Report 18-01, 2018"
    expected: ClassVar = {"pairs": 6_000}
    file = "cplfw.bin"
