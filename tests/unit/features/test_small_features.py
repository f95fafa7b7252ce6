"""Studies on features of few classes: batches and knobs fit, and impossible ones are refused with a remedy."""

import pytest
from helpers.features import stored

from trainables.errors import ConfigError
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.request import Request

CLASSES, EACH = 12, 6  # 6 classes for training and validation, of which 5 train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("small") / "features", classes=CLASSES, each=EACH)


def planned(space, folder, **options):
    return prepare(Request(space, dataset="features", data_root=str(folder), seeds=2, **options), cache_dir=None)


@pytest.mark.parametrize(
    "space", ["sec_eta", "sec_losses", "dro_k", "dro_imbalance", "mpa_proxies", "pictures_per_class"]
)
def test_a_study_fits_its_batches_to_the_classes(space, folder):
    plan = planned(space, folder).plan
    assert len({cell.digest for cell in plan.cells}) == len(plan.cells) > 2
    for cell in plan.cells:
        batch = cell.config.batch
        random = batch.sampler != "m_per_class"
        assert batch.batch_size <= (CLASSES // 2 * EACH if random else 5 * batch.instances_per_class), cell.label


def test_batches_and_networks_that_do_not_fit_are_refused(folder):
    with pytest.raises(ConfigError, match="need as many training classes, and there are"):
        planned("sec_eta", folder, settings={"batch.batch_size": 90})
    with pytest.raises(ConfigError, match=r"need model\.backbone=identity"):
        planned("sec_face", folder)
