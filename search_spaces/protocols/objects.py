"""Our own protocols for the rendered objects: small and large networks, and the batches that the papers' losses want."""

from __future__ import annotations

from search_spaces.protocols.ours import _PAIRS
from tune_dml.space import Protocol

OBJECTS_TRIPLET = Protocol(
    name="objects/triplet",
    dataset="objects",
    default=True,
    settings={
        "data.size": 64,
        "model.backbone": "small_conv",
        "model.pooling": "avg",
        "model.head": "fc",
        "model.embedding_dim": 64,
        "batch.sampler": "m_per_class",
        "batch.batch_size": 90,
        "batch.instances_per_class": 3,
        "optim.name": "adamw",
        "optim.lr": 2e-3,
        "optim.weight_decay": 1e-4,
        "training.steps": 2000,
        "training.eval_every": 500,
    },
    methods=("triplet", "semihard_triplet", "npair", "multi_similarity", "tuplet_margin"),
    note="Ours.",
)
