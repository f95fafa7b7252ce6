"""Contract 2, through the whole training loop: W workers give the losses, metrics and weights of one."""

import pytest
from workers import assert_alike, train_on_one_and_two

SETTINGS = {
    "data.name": "digits",
    "data.validation_fraction": 0.4,
    "model.embedding_dim": 8,
    "batch.batch_size": 9,  # does not divide by 2: ranks hold 5 and 4 pictures
    "training.steps": 12,
    "training.eval_every": 6,
    "training.precision": "float64",
}
VARIANTS = {
    "sec-ema": {"regularizer.name": "sec", "regularizer.eta": 0.5, "regularizer.rho": 0.1},
    "bn head and proxies": {"model.head": "bn_fc", "loss.name": "proxy_anchor", "optim.name": "sgd"},
    "crops, micro-batches, a backbone that thaws, the initial mean norm": {
        "augment.name": "crop_flip",
        "augment.crop": 16,
        "augment.resize": 16,
        "training.micro_batch": 2,
        "optim.freeze_backbone_steps": 5,
        "optim.clip_norm": 1.0,
        "optim.lr_schedule": "cosine",
        "optim.backbone_lr_multiplier": 0.5,
        "model.head": "bn_fc",
        "regularizer.name": "sec_fixed",
        "regularizer.eta": 0.5,
    },
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_on_one_and_two(tmp_path_factory, SETTINGS, VARIANTS)


@pytest.mark.parametrize("variant", VARIANTS)
def test_identity_61_two_workers_equal_one_through_training(trained, variant):
    one, two = (trained[world_size][variant] for world_size in (1, 2))
    assert [row["step"] for row in one["rows"]] == [6, 12]
    assert_alike(one, two, weights_atol=1e-10)
