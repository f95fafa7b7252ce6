"""Wang et al., Multi-Similarity Loss with General Pair Weighting, CVPR 2019: the released code."""

from search_spaces.papers import MULTI_SIMILARITY
from search_spaces.protocols.shared import BN_INCEPTION, CROP_227, KS_TO_32, LAST
from tune_dml.space import Protocol, SourcedSettings

_CODE = f"code: {MULTI_SIMILARITY.code}"

MS_CUB200 = Protocol.from_paper(
    "ms/cub200",
    "cub200",
    *BN_INCEPTION,
    SourcedSettings(_CODE, {
        "loss.name": "multi_similarity", "loss.alpha": 2.0, "loss.beta": 40.0, "loss.base": 0.5, "loss.epsilon": 0.1,
        "model.pooling": "max", "model.head": "fc", "model.embedding_dim": 512, "model.freeze_bn": True,
        "optim.name": "adam", "optim.lr": 3e-5, "optim.weight_decay": 5e-4, "optim.weight_decay_on": "all",
        "optim.lr_schedule": "milestones", "optim.lr_milestones": [1199, 2399], "optim.lr_decay": 0.1,
        "batch.sampler": "m_per_class", "batch.batch_size": 80, "batch.instances_per_class": 5,
        "training.steps": 3000,
    }),
    SourcedSettings(
        f"{_CODE}, ret_benchmark/solver: the backbone's `lr_mul` of 0.1 is read by neither torch's Adam nor the schedule",
        {"optim.backbone_lr_multiplier": 1.0},
    ),
    SourcedSettings(f"{_CODE}, ret_benchmark/utils/init_methods.py, lines 14 to 16", {"model.head_init": "he_fan_out"}),
    SourcedSettings("open: the code judges every 200 steps on test", {"training.eval_every": 600}),
    CROP_227,
    KS_TO_32,
    LAST,
)  # fmt: skip
