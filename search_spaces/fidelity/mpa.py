"""MPA: the paper; its authors released no code."""

from search_spaces.fidelity import shared
from search_spaces.papers import MPA
from search_spaces.protocols.mpa import MPA_ANCHOR, MPA_AP, MPA_DW, MPA_PROXY_ANCHOR, MPA_PROXY_NCA, MPA_SOFT_TRIPLE
from tune_dml.space import Decision, FidelitySheet

_SECTION = "paper, section 4.2"
_NOT_STATED = "not stated (paper, section 4.2)"
_AS_PROXY_ANCHOR = "As in the released code of Proxy-Anchor, whose losses the paper extends."


def _unknown(part: str, ours: str, why: str, *protocols: str, theirs: str = "not stated") -> Decision:
    return shared.unknown(part, ours, why, *protocols, source=_NOT_STATED, theirs=theirs)


_FAMILY = ("mpa/cub200", "mpa/cars196", "mpa/sop", "*-dw", "*-ap")
_SMALL_WITH_SEVERAL = tuple(
    f"mpa/{name}{suffix}" for name in ("cub200", "cars196") for suffix in ("", "-dw", "-ap", "-soft-triple")
)
_SOP_WITH_SEVERAL = tuple(f"mpa/sop{suffix}" for suffix in ("", "-dw", "-ap", "-soft-triple"))

MPA_SHEET = FidelitySheet(
    "MPA",
    MPA,
    "Paper, sections 4.1 to 4.4; no code was released, and none was found under the paper's name.",
    shared.names_of(*MPA_ANCHOR, *MPA_DW, *MPA_AP, *MPA_SOFT_TRIPLE, *MPA_PROXY_ANCHOR, *MPA_PROXY_NCA),
    (
        Decision(
            "start of the backbone",
            "BN-Inception with ImageNet weights; which file is not stated",
            _SECTION,
            shared.WEIGHTS,
            ours="the file that every released code loads",
        ),
        Decision(
            "head",
            "generalised mean pooling with exponent 3, 512 dimensions",
            _SECTION,
            {"model.pooling": "gem", "model.p": 3.0, "model.head": "fc", "model.embedding_dim": 512},
        ),
        _unknown("start of the head", "He normal over the outputs, zero biases", _AS_PROXY_ANCHOR),
        Decision(
            "loss",
            "tau 0.2, gamma 0.1, delta 0.1",
            _SECTION,
            {"loss.tau": 0.2, "loss.gamma": 0.1, "loss.delta": 0.1},
            protocols=_FAMILY,
        ),
        _unknown("loss", "alpha 32", "The value of Proxy-Anchor's code.", *_FAMILY),
        *(
            Decision("loss", f"{word} proxies a class", _SECTION, {"loss.proxies_per_class": count}, protocols=about)
            for word, count, about in (("ten", 10, _SMALL_WITH_SEVERAL), ("two", 2, _SOP_WITH_SEVERAL))
        ),
        Decision(
            "loss",
            "the same settings as the family: tau 0.2, gamma 0.1",
            _SECTION,
            {"loss.tau": 0.2, "loss.gamma": 0.1},
            protocols=("*-soft-triple",),
        ),
        _unknown(
            "loss",
            "lambda 20, delta 0.01",
            "The values of SoftTriple's code.",
            "*-soft-triple",
            theirs="lambda is not stated; whether delta is the family's is not either",
        ),
        _unknown("loss", "alpha 32, delta 0.1", "The values of Proxy-Anchor's code.", "*-proxy-anchor"),
        _unknown(
            "loss",
            "squared distances of vectors of length 3, without the own proxy in the sum",
            "The form of Proxy-NCA's own paper.",
            "*-proxy-nca",
            theirs="cited, not rerun",
        ),
        _unknown(
            "start of proxies",
            "normal of variance 2 / (C K)",
            _AS_PROXY_ANCHOR,
            "mpa/cub200",
            "mpa/cars196",
            "mpa/sop",
            "*-dw",
            "*-ap",
            "*-proxy-anchor",
            "*-proxy-nca",
        ),
        _unknown(
            "start of proxies",
            "uniform within 1 / sqrt(C K)",
            "As in the released code of SoftTriple.",
            "*-soft-triple",
        ),
        shared.unknown(
            "weight decay",
            "1e-4 on every parameter, proxies among them",
            _AS_PROXY_ANCHOR,
            source=_SECTION,
            theirs="AdamW; how much is not stated",
        ),
        Decision(
            "learning rates",
            "backbone 1e-4, proxies 1e-2",
            _SECTION,
            {"optim.name": "adamw", "optim.lr": 1e-4, "optim.loss_lr_multiplier": 100.0},
        ),
        _unknown(
            "learning rates", "the head has the rate of the backbone", _AS_PROXY_ANCHOR, theirs="the head's: not stated"
        ),
        Decision(
            "schedule",
            "halved every 20 epochs",
            _SECTION,
            {"optim.lr_schedule": "every_epochs", "optim.lr_decay_epochs": 20, "optim.lr_decay": 0.5},
        ),
        _unknown(
            "schedule", "the first epoch trains only head and proxies", _AS_PROXY_ANCHOR, theirs="no warm-up is stated"
        ),
        _unknown("gradients", "each entry is clipped to 10", _AS_PROXY_ANCHOR, theirs="no limit is stated"),
        _unknown(
            "batch normalisation", "frozen on CUB and Cars, trains on SOP; gamma and beta train", _AS_PROXY_ANCHOR
        ),
        Decision(
            "training pictures",
            "resized and cropped at random to 224, mirrored at random",
            _SECTION,
            {"augment.crop": 224},
        ),
        _unknown(
            "training pictures",
            "windows of .08 to 1 of the area and ratio 3/4 to 4/3, mirrored half the time",
            "torchvision's defaults.",
            theirs="scale, ratio and share of mirrored pictures are not stated",
        ),
        _unknown(
            "training pictures",
            shared.AT_256,
            shared.CUT_AT_256,
            theirs="whether windows are cut from the original picture is not stated",
        ),
        Decision(
            "test pictures",
            "resized to 256 x 256, centre crop of 224",
            _SECTION,
            ours="shorter side 256, centre crop of 224",
            verdict="differs",
            why="Pictures keep their shape, as in the released codes of the other papers.",
        ),
        _unknown(
            "channels",
            "BGR from 0 to 255, less (104, 117, 128)",
            "As every released code that loads these weights, except SEC's.",
        ),
        *(
            Decision(
                "batches",
                f"{size} pictures at random",
                _SECTION,
                {"batch.sampler": "random", "batch.batch_size": size},
                protocols=(f"mpa/{dataset}*",),
            )
            for dataset, size in (("cub200", 180), ("cars196", 64), ("sop", 32))
        ),
        Decision("steps", "60 epochs", _SECTION, {"training.epochs": 60}, protocols=("mpa/cub200*", "mpa/cars196*")),
        Decision("steps", "100 epochs", _SECTION, {"training.epochs": 100}, protocols=("mpa/sop*",)),
        Decision(
            "published number",
            "the mean of three runs on test classes; there are no validation classes, and when a run is evaluated is not "
            "stated",
            "paper, sections 4.1 and 4.2",
            {"data.split": "paper_test_selection"},
            ours=shared.ON_VALIDATION,
            verdict="differs",
            why="Test classes stay sealed. Selection on test is a labelled mode here, not the default.",
        ),
    ),
)
