"""Stanford Online Products."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from trainables.data.picture_files import Listing, PictureFiles, contiguous, few, table
from trainables.errors import DataError, Problem

__all__ = ["StanfordOnlineProducts"]


class StanfordOnlineProducts(PictureFiles):
    """120,053 pictures of 22,634 products; Ebay_train.txt trains (11,318 classes), Ebay_test.txt tests (11,316).

    The 12 super-classes are in `extras["super_labels"]`.
    """

    name = "sop"
    citation = "Song et al., Deep Metric Learning via Lifted Structured Feature Embedding, CVPR 2016"
    licence = "MIT (code); pictures for research"
    source = "Stanford_Online_Products.zip from cvgl.stanford.edu/projects/lifted_struct"
    expected: ClassVar = {
        "images": 120_053,
        "classes": 22_634,
        "train_images": 59_551,
        "train_classes": 11_318,
        "test_images": 60_502,
        "test_classes": 11_316,
    }
    marker = "Ebay_train.txt"
    folders = (".", "Stanford_Online_Products")
    archives: ClassVar = {"Stanford_Online_Products.zip": "7f73d41a2f44250d4779881525aea32e"}

    def read(self, folder: Path) -> Listing:
        """Rows `image_id class_id super_class_id path` after one head line."""
        lists = ("Ebay_train.txt", "Ebay_test.txt")
        train, test = (table(folder / name, 4, skip=1) for name in lists)
        labels, ids = contiguous(_numbers(folder, train + test, 1))
        test_classes = np.unique(labels[len(train) :])
        if shared := np.intersect1d(labels[: len(train)], test_classes).tolist():
            rule = "no class may be in both lists"
            raise DataError(Problem(str(folder), rule, few([str(ids[c]) for c in shared])))
        return Listing(
            names=[row[3] for row in train + test],
            labels=labels,
            class_names=tuple(str(number) for number in ids),
            test_classes=tuple(test_classes.tolist()),
            extras={"super_labels": np.array(_numbers(folder, train + test, 2), dtype=np.int64) - 1},
            lists=lists,
        )


def _numbers(folder: Path, rows: list[list[str]], column: int) -> list[int]:
    try:
        return [int(row[column]) for row in rows]
    except ValueError as error:
        rule = "columns 1 to 3 must be whole numbers"
        raise DataError(Problem(str(folder / "Ebay_train.txt"), rule, str(error))) from error
