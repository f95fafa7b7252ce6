"""Labeled Faces in the Wild: verification of 6,000 pairs."""

from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from trainables.data.formats import archives
from trainables.data.formats.files import find_pictures
from trainables.data.formats.picture_files import (
    PictureFiles,
    PictureListing,
    ShorterSide,
    folder_remedy,
    read_list,
    require_root,
    wrong_root,
)
from trainables.data.formats.stored import SkipCorrupt, Strict, list_names
from trainables.errors import DataError, Problem, raise_if_any

_PUBLISHED = "Use the published pairs.txt, which begins with 10 and 300."
_PICTURE_FOLDERS = ("lfw", "lfw_funneled", "lfw-deepfunneled")


class LabeledFaces(PictureFiles):
    """13,233 pictures of 5,749 people, NAME/NAME_0001.jpg; pairs.txt has ten folds of 300 same and 300 different pairs.

    `extras`: `pairs` (6000, 2), `same` (6000,), `fold` (6000,). All people belong to the test half: the set only
    evaluates.
    """

    name = "lfw"
    citation = "Huang et al., Labeled Faces in the Wild, University of Massachusetts, Technical Report 07-49, 2007"
    licence = "research"
    source = "lfw.tgz, lfw-funneled.tgz or lfw-deepfunneled.tgz, with pairs.txt beside or inside the folder"
    dead = "vis-www.cs.umass.edu/lfw (does not resolve); scikit-learn keeps a copy on figshare, Kaggle has others"
    expected: ClassVar = {"images": 13_233, "classes": 5_749, "pairs": 6_000}
    marker = "pairs.txt"
    list_digests: ClassVar = {"pairs.txt": "9f1ba174e4e1c508ff7cdf10ac338a7d"}
    archives: ClassVar = {
        "lfw.tgz": "a17d05bd522c52d84eca14327a23d494",
        "lfw-funneled.tgz": "1b42dfed7d15c9b2dd63d5e5840c86ad",
        "lfw-deepfunneled.tgz": "68331da3eb755a505a502b5aacb3c201",
    }

    def __init__(
        self,
        *,
        root: Path,
        cache_dir: Path,
        shorter_side: ShorterSide = 112,
        skip_corrupt: SkipCorrupt = False,
        strict: Strict = True,
    ) -> None:
        super().__init__(
            root=root, cache_dir=cache_dir, shorter_side=shorter_side, skip_corrupt=skip_corrupt, strict=strict
        )

    @cached_property
    def folder(self) -> Path:
        """Return the folder that holds the people's folders, or its parent."""
        require_root(self.root, self.source)
        return archives.unpacked_folder(self.root, self.cache_dir).resolve()

    def _pairs_file(self) -> Path:
        """Return the path of pairs.txt, in the folder or beside it. The archives do not contain it."""
        for folder in (self.folder, self.root, self.root.parent):
            if (folder / self.marker).is_file():
                return (folder / self.marker).resolve()
        rule = "must hold pairs.txt, or lie beside it"
        remedy = "Download pairs.txt, which the archives of pictures do not hold, and put it there."
        remedy = folder_remedy(self.root, [self.marker]) or remedy
        raise DataError(Problem(str(self.root), rule, None, remedy))

    def read(self, folder: Path) -> PictureListing:
        list_file = self._pairs_file()
        top = next((name for name in _PICTURE_FOLDERS if (folder / name).is_dir()), ".")
        files = [path for path in find_pictures(folder / top, linked=True)[0] if path.parent != folder / top]
        if not files:
            rule = "must hold the folders of the people, NAME/NAME_0001.jpg"
            raise wrong_root(folder, rule, given=self.root, source=self.source, archives=self.archives)
        people = sorted({path.parent.name for path in files})
        label = {name: i for i, name in enumerate(people)}
        number = {path.stem: i for i, path in enumerate(files)}
        pairs, same, fold = _read_pairs(list_file, number)
        return PictureListing(
            names=[path.relative_to(folder).as_posix() for path in files],
            labels=np.array([label[path.parent.name] for path in files], dtype=np.int64),
            class_names=tuple(people),
            test_classes=tuple(range(len(people))),
            extras={"pairs": pairs, "same": same, "fold": fold},
            lists=(str(list_file),),
        )


def _read_pairs(path: Path, pictures: dict[str, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read `folds<TAB>n`, then per fold n lines `NAME i j` and n lines `NAME1 i NAME2 j`."""
    numbered = enumerate(read_list(path).splitlines(), start=1)
    lines = [(number, line.strip().split("\t")) for number, line in numbered if line.strip()]
    try:
        folds, per_fold = (int(cell) for cell in lines[0][1])
    except (IndexError, ValueError):
        got = "\t".join(lines[0][1]) if lines else "an empty file"
        rule = "must hold the number of folds and of pairs, separated by a tab"
        raise DataError(Problem(f"{path}:1", rule, got, _PUBLISHED)) from None
    problems, missing, pairs, same = [], [], [], []
    for i, row in lines[1:]:
        if len(row) not in (3, 4):
            rule = "must have 3 or 4 columns, separated by tabs"
            problems.append(Problem(f"{path}:{i}", rule, "\t".join(row), _PUBLISHED))
            continue
        if not (row[1].isdecimal() and row[-1].strip().isdecimal()):
            rule = "pictures must be given by their numbers"
            problems.append(Problem(f"{path}:{i}", rule, "\t".join(row), _PUBLISHED))
            continue
        second_person = row[0] if len(row) == 3 else row[2]
        stems = (f"{row[0]}_{int(row[1]):04d}", f"{second_person}_{int(row[-1]):04d}")
        missing += [stem for stem in stems if stem not in pictures]
        pairs.append([pictures.get(stem, -1) for stem in stems])
        same.append(len(row) == 3)
    if missing:
        lost = list(dict.fromkeys(missing))
        remedy = "Extract the archive again; the pairs of another copy do not fit."
        problems.append(Problem(str(path), f"{len(lost)} pictures of pairs are missing", list_names(lost), remedy))
    if not problems and len(pairs) != 2 * folds * per_fold:
        rule = f"line 1 declares {2 * folds * per_fold} pairs"
        problems.append(Problem(str(path), rule, len(pairs), _PUBLISHED))
    raise_if_any(problems[:10], DataError)
    return np.array(pairs, dtype=np.int64), np.array(same), np.repeat(np.arange(folds), 2 * per_fold)
