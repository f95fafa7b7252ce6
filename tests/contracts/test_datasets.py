"""The contract of every data set and regularizer found, on small copies in their published formats."""

from functools import partial

import pytest
from helpers import drawn_views
from helpers import published_formats as fixtures
from helpers.costly import slow_after
from helpers.features import stored
from helpers.together import failing

from trainables.data import DATASETS, build_dataset
from trainables.regularizers import REGULARIZERS
from trainables.testing import dataset_checks, regularizer_checks


def pictures_in_folders(folder):
    for number in range(6):
        fixtures.picture(folder / str(number % 3) / f"{number}.png", number)
    return folder


def face_pairs(folder, name):
    fixtures.face_bin(folder / f"{name}.bin")
    return folder


COPIES = {
    "cub200": fixtures.cub,
    "cars196": fixtures.cars_original,
    "sop": fixtures.sop,
    "inshop": fixtures.inshop,
    "lfw": fixtures.lfw,
    "cifar10": fixtures.cifar10,
    "cifar100": fixtures.cifar100,
    "webface": fixtures.webface,
    "image_folder": pictures_in_folders,
    "distractors": pictures_in_folders,
    "features": partial(stored, classes=6, each=3),
    "lfw_bin": partial(face_pairs, name="lfw"),
    "agedb30": partial(face_pairs, name="agedb_30"),
    **{name: partial(face_pairs, name=name) for name in ("calfw", "cplfw", "cfp_ff", "cfp_fp")},
}


def test_every_data_set_that_reads_files_has_a_small_copy():
    assert set(COPIES) == {name for name, kind in DATASETS.items() if kind.needs_root}


@pytest.mark.parametrize("name", slow_after(len(DATASETS) - 1, sorted(DATASETS, key="glyphs".__eq__)))
def test_a_data_set_fulfils_its_contract(name, tmp_path, monkeypatch):
    drawn_views.use(monkeypatch, tmp_path / "meshes", meshes=6)
    root = COPIES[name](tmp_path / "files") if name in COPIES else None
    knobs = {"classes": 6, "views": 3, "size": 32} if name == "objects" else {}
    strict = (
        knobs if root is None or name in {"image_folder", "webface", "distractors", "features"} else {"strict": False}
    )
    checks = dataset_checks(lambda cache: build_dataset(name, root=root, cache_dir=cache, **strict), tmp_path / "cache")
    assert failing({str(check): check for check in checks}) == []


KNOBS = {
    "none": [{}],
    "l2": [{}],
    "sec": [{}, {"rho": 0.3}, {"rho": 0}],
    "sec_fixed": [{}, {"mu": 2.5}, {"mu": "first_batch"}],
}
CASES = [(name, knobs) for name in REGULARIZERS for knobs in KNOBS.get(name, [{}])]


@pytest.mark.parametrize(("name", "knobs"), CASES)
def test_a_regularizer_fulfils_its_contract(name, knobs):
    assert failing({str(check): check for check in regularizer_checks(REGULARIZERS[name], **knobs)}) == []
