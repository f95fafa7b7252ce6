"""Stanford Online Products."""

from pathlib import Path
from typing import ClassVar

import numpy as np

from trainables.data.formats.picture_files import PictureFiles, PictureListing, number_ids, read_columns
from trainables.data.formats.stored import list_names
from trainables.errors import DataError, Problem


class StanfordOnlineProducts(PictureFiles):
    """120,053 pictures of 22,634 products; Ebay_train.txt trains (11,318 classes), Ebay_test.txt tests (11,316).

    The 12 super-classes are in `extras["super_labels"]`.
    """

    name = "sop"
    citation = "Song et al., Deep Metric Learning via Lifted Structured Feature Embedding, CVPR 2016"
    licence = "MIT (code); pictures for research"
    source = "Stanford_Online_Products.zip by the link in github.com/rksltnl/Deep-Metric-Learning-CVPR16"
    dead = "ftp://cs.stanford.edu/cs/cvgl"
    expected: ClassVar = {
        **{"images": 120_053, "classes": 22_634},
        **{"train_images": 59_551, "train_classes": 11_318, "test_images": 60_502, "test_classes": 11_316},
    }
    marker = "Ebay_train.txt"
    folders = (".", "Stanford_Online_Products")
    archives: ClassVar = {"Stanford_Online_Products.zip": "7f73d41a2f44250d4779881525aea32e"}

    def read(self, folder: Path) -> PictureListing:
        """Read rows `image_id class_id super_class_id path` after a head line."""
        lists = ("Ebay_train.txt", "Ebay_test.txt")
        train, test = (read_columns(folder / name, 4, skip=1, head="image_id") for name in lists)
        class_ids, super_ids = (
            _numbers(folder / lists[0], train, k) + _numbers(folder / lists[1], test, k) for k in (1, 2)
        )
        labels, ids = number_ids(class_ids)
        test_classes = np.unique(labels[len(train) :])
        if shared := np.intersect1d(labels[: len(train)], test_classes).tolist():
            rule = f"no class may be in both {lists[0]} and {lists[1]}, but {len(shared)} are"
            remedy = "Extract the archive again."
            raise DataError(Problem(str(folder), rule, list_names([ids[c] for c in shared]), remedy))
        return PictureListing(
            names=[row[3] for row in train + test],
            labels=labels,
            class_names=ids,
            test_classes=tuple(test_classes.tolist()),
            extras={"super_labels": np.array(super_ids, dtype=np.int64) - 1},
            lists=lists,
        )


def _numbers(path: Path, rows: list[list[str]], column: int) -> list[int]:
    if wrong := [row for row in rows if not row[column].isdecimal()]:
        rule = "columns 1 to 3 must be whole numbers"
        raise DataError(Problem(str(path), rule, " ".join(wrong[0]), "Extract the archive again."))
    return [int(row[column]) for row in rows]
