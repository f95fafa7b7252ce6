"""Imbalance of positive and negative pairs: by batch size, as in the DRO paper, and separately in two designs."""

from search_spaces.papers import DRO
from search_spaces.protocols.dro import DRO_INSHOP, DRO_INSHOP_64
from search_spaces.protocols.ours import GLYPHS_DRO
from tune_dml.space import Arm, CurveReference, Grid, Knob, Space, Tie, Value

_MARGIN: dict[str, Value] = {"loss.margin": 0.2, "loss.threshold": 0.5}
_BATCH = Knob("batch.batch_size", Grid((80, 160, 320, 480, 640), scale="log"), symbol="B", unit="pictures")
_DOUBLED = (Tie("loss.k", "batch.batch_size", 2),)
_QUESTION = "Which losses tolerate the imbalance of positive and negative pairs?"
_RATIOS = (
    "Positive to negative pairs = (M-1)/(B-M): 0.053, 0.026, 0.013, 0.008, 0.006. The paper prints 0.012 for the third."
)
_GAMMA = (
    "gamma = 0.1 is printed for the times of section 4.2.4, 'the same as previous experiments', not beside the figures."
)


def _arms(top_k: tuple[Tie, ...], fixed: dict[str, Value]) -> tuple[Arm, ...]:
    """Return one arm per loss; those of DRO-TopK have the ties `top_k` and the settings `fixed`."""
    return (
        Arm("SH", {"loss.name": "margin_semihard", **_MARGIN}),
        Arm("DWS", {"loss.name": "margin_dws", **_MARGIN}),
        Arm("DRO-TopK_M", {"loss.name": "dro_topk", "loss.base": "margin", **_MARGIN, **fixed}, ties=top_k),
        Arm("DRO-TopK-PN_M", {"loss.name": "dro_topk_pn", "loss.base": "margin", **_MARGIN, **fixed}, ties=top_k),
        Arm(
            "DRO-KL_M",
            {"loss.name": "dro_kl", "loss.base": "margin", "loss.gamma": 0.1, "loss.drop_zeros": True, **_MARGIN},
        ),
    )


def _published_curves(embedding_dim: int) -> tuple[CurveReference, ...]:
    return (
        DRO.table("Fig5 text").methods_on(
            "In-Shop",
            where={"embedding_dim": embedding_dim},
            note="The text gives the figure's values only at B = 640.",
        ),
    )


SPACE = Space(
    name="dro_imbalance",
    title="Imbalance by batch size: B varies, M = 5, K = 2B",
    question=_QUESTION,
    citation=DRO.cite("section 4.2.2, Figure 1"),
    scientific=(_BATCH,),
    fixed={"batch.instances_per_class": 5},
    arms=_arms(_DOUBLED, {}),
    baseline="SH",
    protocols=(GLYPHS_DRO, DRO_INSHOP),
    published=_published_curves(1024),
    identities=("19: K >= the number of pairs is the mean of all pairs, K = 1 the largest loss",),
    notes=(
        _RATIOS,
        "The steps are the same for every B, so a larger batch also sees more pictures: dro_imbalance_instances and "
        "dro_imbalance_updates separate the two effects.",
        "The paper prints that SH and DWS select some 2560 pairs at B = 640 (section 4.2.3), not how many negatives an anchor "
        "keeps: with SH, ours keeps as many as it has positives.",
        _GAMMA,
        "Batches of B need B/5 training classes, which CUB200-2011 and Cars196 do not have.",
    ),
)

SMALLER = Space(
    name="dro_imbalance_512",
    title="Imbalance by batch size in 512 dimensions",
    question=_QUESTION,
    citation=DRO.cite("section 6.2, Figure 5"),
    scientific=(_BATCH,),
    fixed={"batch.instances_per_class": 5, "model.embedding_dim": 512},
    arms=_arms(_DOUBLED, {}),
    baseline="SH",
    protocols=(GLYPHS_DRO, DRO_INSHOP),
    published=_published_curves(512),
    identities=SPACE.identities,
    notes=(_RATIOS, "The paper repeats Figure 1 with half the dimensions and finds little change.", _GAMMA),
)

INSTANCES = Space(
    name="dro_imbalance_instances",
    title="Imbalance by pictures per class: M varies, B = 80, K = 160",
    question="Does imbalance matter when every batch costs the same?",
    scientific=(Knob("batch.instances_per_class", Grid((2, 4, 5, 8, 10)), symbol="M", unit="pictures", origin="ours"),),
    fixed={"batch.batch_size": 80},
    arms=_arms((), {"loss.k": 160}),
    baseline="SH",
    protocols=(GLYPHS_DRO, DRO_INSHOP_64),
    notes=("Positive to negative pairs = (M-1)/(B-M): 0.013, 0.039, 0.053, 0.097, 0.129.",),
)

UPDATES = Space(
    name="dro_imbalance_updates",
    title="Imbalance by batch size at equal pictures seen: lr = B * 2.5e-5",
    question="Does imbalance matter when all batch sizes see equally many pictures, at a learning rate scaled to the batch?",
    scientific=(
        Knob(
            "batch.batch_size", Grid((80, 160, 320, 480, 640), scale="log"), symbol="B", unit="pictures", origin="ours"
        ),
    ),
    fixed={"batch.instances_per_class": 5, "training.eval_every": 66},
    ties=(Tie("optim.lr", "batch.batch_size", 2.5e-5), Tie("training.steps", "batch.batch_size", 63_360, divided=True)),
    arms=_arms(_DOUBLED, {}),
    baseline="SH",
    protocols=(GLYPHS_DRO,),
    notes=(
        "Steps times B and lr over B are the same in every cell (linear scaling); the rate at B = 80 is half that of glyphs.",
        _RATIOS,
    ),
)
