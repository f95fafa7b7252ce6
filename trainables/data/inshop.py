"""DeepFashion In-Shop Clothes Retrieval: queries against a gallery."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from trainables.data.formats.picture_files import (
    PictureFiles,
    PictureListing,
    ShorterSide,
    folder_remedy,
    number_ids,
    read_columns,
    read_list,
    wrong_root,
)
from trainables.data.formats.stored import SkipCorrupt, Strict, list_names
from trainables.errors import DataError, Problem, raise_if_any

_AGAIN = "Download the list again."
_TRIED = 100  # listed pictures that are looked for in a folder
_LISTS = ("list_eval_partition.txt", "Eval/list_eval_partition.txt")


class InShop(PictureFiles):
    """52,712 pictures of 7,982 items: 25,882 of 3,997 items train; 14,218 queries and 12,612 gallery pictures of 3,985.

    `extras["query"]` and `extras["gallery"]` number the test pictures: queries search the gallery only.
    """

    name = "inshop"
    citation = "Liu et al., DeepFashion: Powering Robust Clothes Recognition and Retrieval, CVPR 2016"
    licence = "non-commercial research, by agreement"
    source = "mmlab.ie.cuhk.edu.hk/projects/DeepFashion, In-shop Clothes Retrieval: img.zip and list_eval_partition.txt"
    dead = "no direct download: a Google Drive folder, by agreement with the authors"
    expected: ClassVar = {
        "images": 52_712,
        "classes": 7_982,
        "train_images": 25_882,
        "train_classes": 3_997,
        "test_images": 26_830,
        "query": 14_218,
        "gallery": 12_612,
        "test_classes": 3_985,
    }
    marker = ""

    def __init__(
        self,
        *,
        root: Path,
        cache_dir: Path,
        shorter_side: ShorterSide = 256,
        skip_corrupt: SkipCorrupt = False,
        strict: Strict = True,
        pictures: Annotated[
            Literal["img", "img_highres"], Field(description="which folder of pictures to read")
        ] = "img",
    ) -> None:
        super().__init__(
            root=root, cache_dir=cache_dir, shorter_side=shorter_side, skip_corrupt=skip_corrupt, strict=strict
        )
        self.pictures = pictures

    def read(self, folder: Path) -> PictureListing:
        """Read a count, a head line, then `image_name item_id evaluation_status`, padded with blanks."""
        lists = [name for name in _LISTS if (folder / name).exists()]
        lists += sorted(path.relative_to(folder).as_posix() for path in folder.glob(f"*/{_LISTS[0]}"))  # eval/, Anno/
        if not lists:
            rule = "must hold list_eval_partition.txt, directly or in Eval/"
            raise wrong_root(folder, rule, given=self.root, source=self.source, markers=_LISTS)
        path = folder / lists[0]
        rows = read_columns(path, 3, skip=2, head="image_name")
        pictures = self._pictures_folder(folder, [row[0].removeprefix("img/") for row in rows[:_TRIED]])
        parts = np.array([row[2] for row in rows])
        raise_if_any(_list_problems(path, rows, parts), DataError)
        labels, ids = number_ids([row[1] for row in rows])
        test_classes = np.unique(labels[parts != "train"])
        if shared := np.intersect1d(labels[parts == "train"], test_classes).tolist():
            rule = "no item may be in both train and query or gallery"
            raise DataError(Problem(str(path), rule, list_names([ids[c] for c in shared]), _AGAIN))
        query, gallery = (np.flatnonzero(parts == part) for part in ("query", "gallery"))
        lonely = np.setdiff1d(labels[query], labels[gallery])
        if len(lonely) == len(np.unique(labels[query])):
            rule = "no query has a gallery picture of its item"
            raise DataError(Problem(str(path), rule, f"{len(query)} queries, {len(gallery)} in the gallery", _AGAIN))
        notes = (f"query items without a gallery picture: {len(lonely)}",) if len(lonely) else ()
        return PictureListing(
            names=[pictures + row[0].removeprefix("img") for row in rows],
            labels=labels,
            class_names=ids,
            test_classes=tuple(test_classes.tolist()),
            extras={"query": query, "gallery": gallery},
            lists=lists[:1],
            notes=notes,
        )

    def _pictures_folder(self, folder: Path, names: Sequence[str]) -> str:
        """Return the folder of the pictures, in which some of the names lie: beside the lists, or in Img/."""
        usual = (self.pictures, f"Img/{self.pictures}")
        for path in (*usual, *_folders_called(folder, self.pictures)):
            if any((folder / path / name).is_file() for name in names):
                return path
        for path in usual:
            if (folder / path).is_dir():
                return path
        sibling = "img_highres" if self.pictures == "img" else "img"
        found = next((path for path in (sibling, f"Img/{sibling}") if (folder / path).is_dir()), None)
        remedy = folder_remedy(self.root, (self.pictures, f"Img/{self.pictures}")) or "Extract img.zip there."
        remedy = f"Pass --set data.pictures={sibling} to read {found}/." if found else remedy
        rule = f"must hold the pictures in {self.pictures}/ or Img/{self.pictures}/"
        raise DataError(Problem(str(folder), rule, found and f"only {found}/", remedy))


def _folders_called(folder: Path, name: str) -> list[str]:
    """Return folders of this name in any case, beside the lists or in Img/, also doubled as by some extractors."""
    found, level = [], [folder]
    for _ in range(3):
        below = [path for parent in level for path in sorted(parent.iterdir()) if path.is_dir()]
        level = [path for path in below if path.name.casefold() in ("img", name)]
        found += [path.relative_to(folder).as_posix() for path in level if path.name.casefold() == name]
    return found


def _list_problems(path: Path, rows: list[list[str]], parts: np.ndarray) -> list[Problem]:
    problems = []
    if unknown := sorted(set(parts.tolist()) - {"train", "query", "gallery"}):
        problems.append(Problem(str(path), "evaluation_status must be train, query or gallery", unknown[:5], _AGAIN))
    declared = read_list(path).split("\n", 1)[0].strip()
    if declared.isdecimal() and int(declared) != len(rows):
        remedy = "The list was cut short or changed: download it again."
        problems.append(Problem(str(path), f"line 1 declares {declared} pictures", len(rows), remedy))
    return problems
