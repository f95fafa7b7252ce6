"""Multi-similarity: the released code (research-ms-loss, commit 8db6c9c), whose configuration is for CUB."""

from search_spaces.fidelity import shared
from search_spaces.papers import MULTI_SIMILARITY
from search_spaces.protocols.multi_similarity import MS_CUB200
from tune_dml.space import Decision, FidelitySheet

MS_SHEET = FidelitySheet(
    "Multi-similarity",
    MULTI_SIMILARITY,
    "Released code at commit 8db6c9c. Paths are relative to ret_benchmark/; configs/ lies beside it.",
    shared.names_of(MS_CUB200),
    (
        shared.published_weights("modeling/build.py, lines 28 to 31"),
        Decision(
            "head",
            "maximum pooling and one linear layer to 512 dimensions",
            "modeling/backbone/bninception.py, lines 505 to 508; modeling/heads/linear_norm.py; config/defaults.py, line 28",
            {"model.pooling": "max", "model.head": "fc", "model.embedding_dim": 512},
        ),
        Decision(
            "start of the head",
            "He normal over the outputs, zero biases",
            "utils/init_methods.py, lines 14 to 16; modeling/heads/linear_norm.py, line 20",
            {"model.head_init": "he_fan_out"},
        ),
        Decision(
            "loss",
            "alpha 2, beta 40, lambda 0.5, epsilon 0.1; the paper prints beta 50",
            "config/defaults.py; losses/multi_similarity_loss.py",
            {"loss.alpha": 2.0, "loss.beta": 40.0, "loss.base": 0.5, "loss.epsilon": 0.1},
        ),
        Decision(
            "weight decay",
            "Adam's coupled decay of 5e-4 on every parameter",
            "solver/build.py, lines 8 to 18; configs/example.yaml, line 18",
            {"optim.name": "adam", "optim.weight_decay": 5e-4, "optim.weight_decay_on": "all"},
        ),
        Decision(
            "learning rates",
            "3e-5 for head and backbone: the backbone's groups have `lr_mul` 0.1, which torch's Adam and the schedule ignore",
            "solver/build.py, lines 11 to 17; solver/lr_scheduler.py, lines 35 to 49; configs/example.yaml, line 16",
            {"optim.lr": 3e-5, "optim.backbone_lr_multiplier": 1.0},
        ),
        Decision(
            "schedule",
            "divided by 10 at steps 1199 and 2399, counted from 0: the schedule moves before the optimizer; no warm-up",
            "engine/trainer.py, line 71; solver/lr_scheduler.py, lines 43 to 47; configs/example.yaml, lines 14 and 17",
            {"optim.lr_schedule": "milestones", "optim.lr_milestones": [1199, 2399], "optim.lr_decay": 0.1},
        ),
        shared.no_clipping("engine/trainer.py, lines 78 to 80"),
        Decision(
            "batch normalisation",
            "the backbone's stays in evaluation mode; its gamma and beta train and decay",
            "engine/trainer.py, lines 64 and 65; utils/freeze_bn.py; solver/build.py, lines 8 to 14",
            {"model.freeze_bn": True, "model.freeze_bn_affine": False},
        ),
        shared.random_crop_227("data/transforms/build.py, lines 15 to 24; config/defaults.py, lines 70 to 73"),
        shared.centre_crop(227, "data/transforms/build.py, lines 26 to 31"),
        shared.bgr("config/defaults.py, lines 66 to 68"),
        Decision(
            "batches",
            "80 pictures, five of a class",
            "configs/example.yaml, lines 23 and 26",
            {"batch.sampler": "m_per_class", "batch.batch_size": 80, "batch.instances_per_class": 5},
        ),
        Decision(
            "batches",
            "no picture repeats before its class has shown all of its pictures, and a class that has shown them all is not "
            "drawn again",
            "data/samplers/random_identity_sampler.py, lines 44 to 71",
            ours="classes and pictures are drawn independently at every step",
            verdict="differs",
            why="One sampler serves all protocols, as SEC's code draws.",
        ),
        Decision(
            "steps", "3000", "configs/example.yaml, line 13; data/build.py, lines 20 to 24", {"training.steps": 3000}
        ),
        shared.selected_on_test(
            "the best of the evaluations on test classes every 200 steps",
            "engine/trainer.py, lines 46 to 62; configs/example.yaml, line 29",
            epoch="best_validation",
        ),
    ),
)
