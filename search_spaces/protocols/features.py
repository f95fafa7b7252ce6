"""Our protocols for stored features: a linear head on a frozen backbone, half a second a trial."""

from search_spaces.protocols import ours  # as a module: discovery would find imported protocols in this file first
from search_spaces.protocols.shared import our_protocol
from tune_dml.space import Value

_HEADS: dict[str, Value] = {
    "model.backbone": "identity", "model.pooling": "avg", "model.head": "fc", "model.embedding_dim": 64,
    "optim.name": "adamw", "optim.lr": 1e-3, "optim.lr_schedule": "cosine", "optim.weight_decay": 1e-4,
    "training.steps": 400, "training.eval_every": 400,
    "evaluation.clustering": False, "evaluation.sheet_queries": 0,
}  # fmt: skip

FEATURES_TRIPLET = our_protocol(
    "features/triplet",
    default=True,
    settings={**_HEADS, "batch.batch_size": 90},
    methods=ours.GLYPHS_TRIPLET.methods,
    note="a linear head. Knobs that act only on the backbone cannot matter here.",
)

FEATURES_PROXY = our_protocol(
    "features/proxy",
    settings={**_HEADS, "batch.batch_size": 90, "optim.lr": 1e-2, "training.steps": 800, "training.eval_every": 800},
    methods=ours.GLYPHS_PROXY.methods,
    note="as features/triplet, with ten times the learning rate and twice the steps: at 1e-3 proxies still gain with "
    "more steps.",
)

FEATURES_DRO = our_protocol(
    "features/dro",
    settings={**_HEADS, "batch.batch_size": 80},
    methods=ours.GLYPHS_DRO.methods,
    note="as features/triplet, 16 classes of 5 a batch, so that K of the DRO losses means the same.",
)
