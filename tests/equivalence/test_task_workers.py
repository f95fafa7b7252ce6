"""Contract 2 for the tasks beside retrieval: W workers give the losses, metrics and weights of one, in double precision.

One start of the ranks runs every case. Batches do not divide by the number of workers, so that ranks hold different
numbers of pictures, and the projection head's batch statistics span all of them.
"""

import pytest
from workers import assert_alike, train_on_one_and_two

COMMON = {
    "data.name": "digits",
    "model.embedding_dim": 8,
    "batch.sampler": "random",
    "batch.batch_size": 9,
    "training.steps": 6,
    "training.eval_every": 3,
    "training.precision": "float64",
    "regularizer.name": "sec",
    "regularizer.eta": 0.5,
    "regularizer.rho": 0.4,
}
VIEWS = {
    "task.name": "contrastive",
    "task.linear_epochs": 2,
    "data.split": "shared_classes",
    "augment.name": "simclr",
    "augment.crop": 16,
    "augment.resize": 16,
    "model.head": "mlp",
    "regularizer.schedule": "linear",
}
CASES = {
    "faces": {
        "task.name": "face_recognition",
        "task.pairs": 100,
        "task.distractors": [20],
        "data.validation_fraction": 0.4,
        "loss.name": "cosface",
        "regularizer.schedule": "capped_linear",
    },
    "views": {**VIEWS, "loss.name": "nt_xent"},
    "views, a loss that heeds their order": {**VIEWS, "loss.name": "npair"},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_on_one_and_two(tmp_path_factory, COMMON, CASES)


@pytest.mark.parametrize("case", CASES)
def test_identity_61_two_workers_equal_one_in_every_task(trained, case):
    one, two = (trained[world_size][case] for world_size in (1, 2))
    assert [row["step"] for row in one["rows"]] == [3, 6]
    # Adam divides by the root of tiny second moments: it enlarges rounding in the weights, not in the losses
    assert_alike(one, two, weights_atol=1e-8)
