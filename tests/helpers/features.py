"""Small folders of stored features whose classes a linear head separates better than raw features."""

import numpy as np

from trainables.data.formats.feature_store import FEATURES, RowTable, finish_store

HEAD = {
    **{"data.name": "features", "data.validation_fraction": 0.4, "evaluation.clustering": False},
    **{"model.backbone": "identity", "model.embedding_dim": 8, "loss.name": "npair"},
    **{"batch.batch_size": 12, "batch.instances_per_class": 2, "training.steps": 10, "training.eval_every": 10},
}
"""Settings of a small head on such features."""


def stored(folder, *, classes=24, each=8, dimension=16, views=1, noise=2.0, seed=0):
    """Write features: class centres in the first half of the axes, noise in all of them."""
    generator = np.random.default_rng(seed)
    centres = np.zeros((classes, dimension))
    centres[:, : dimension // 2] = generator.normal(size=(classes, dimension // 2))
    scale = np.where(np.arange(dimension) < dimension // 2, 0.3, noise)
    rows = centres.repeat(each * views, axis=0) + scale * generator.normal(size=(classes * each * views, dimension))
    folder.mkdir(parents=True)
    np.save(folder / FEATURES, rows.astype(np.float16))
    names = [f"class {number:03}" for number in range(classes) for _ in range(each)]
    splits = ["train" if number < classes // 2 else "test" for number in range(classes) for _ in range(each)]
    finish_store(folder, RowTable.of_pictures(names, splits, views), views, {"dataset": "toy", "backbone": "toy"})
    return folder
