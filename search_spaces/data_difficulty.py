"""Harder training data: wrong labels, few pictures per class, a long tail of classes."""

from __future__ import annotations

from search_spaces.protocols.dro import DRO_CARS196, DRO_CUB200, DRO_INSHOP
from search_spaces.protocols.ours import GLYPHS_DRO
from search_spaces.protocols.recipes import PAIRS
from search_spaces.protocols.sec import SEC_TRIPLET
from tune_dml.space import Arm, Grid, Knob, Space

_ARMS = (
    Arm("triplet", {"loss.name": "triplet"}),
    Arm("multi-similarity", {"loss.name": "multi_similarity"}),
    Arm("DRO-TopK", {"loss.name": "dro_topk", "loss.base": "margin", "loss.k": 160}),
)
_SOP = next(protocol for protocol in SEC_TRIPLET if protocol.dataset == "sop")  # DRO's paper has none there
_ONE_A_DATA_SET = (GLYPHS_DRO, DRO_CUB200, DRO_CARS196, DRO_INSHOP, _SOP)
_DIFFERS = "three losses are compared as they are, on one protocol"


def _space(name: str, title: str, question: str, knob: Knob, note: str) -> Space:
    return Space(
        name=name,
        title=title,
        question=question,
        citation=None,
        scientific=(knob,),
        fixed={},
        arms=_ARMS,
        baseline="triplet",
        stated=(PAIRS.stated,),
        positive_pairs=160,
        protocols=_ONE_A_DATA_SET,
        margin=1.0,
        differs=_DIFFERS,
        notes=(note,),
    )


NOISE = _space(
    "label_noise",
    "Wrong labels: their share among the training pictures",
    "Which losses stand wrong labels? Those that prefer hard pairs prefer wrong ones.",
    Knob("data.label_noise", Grid((0.0, 0.1, 0.3)), symbol="noise", origin="ours"),
    "Drawn by the seed; validation and test keep their labels.",
)
PICTURES = _space(
    "pictures_per_class",
    "Few pictures a class in training",
    "Which losses need many pictures a class?",
    Knob("data.pictures_per_class", Grid((5, 10, 20)), symbol="pictures", unit="a class", origin="ours"),
    "Drawn by the seed; validation and test keep their pictures.",
)
TAIL = _space(
    "long_tail",
    "A long tail of classes in training: most over fewest pictures",
    "Which losses stand classes of very different size?",
    Knob("data.long_tail", Grid((1.0, 2.0, 4.0), scale="log"), symbol="imbalance", origin="ours"),
    "Sizes fall exponentially from the largest class to the smallest; drawn by the seed.",
)
