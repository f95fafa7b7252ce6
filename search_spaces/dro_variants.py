"""The five variants of DRO: hardest pairs, half of them positive, and KL weights; with margin and binomial losses."""

from search_spaces.papers import BIRDS_CARS, DRO
from search_spaces.protocols.dro import DRO_CARS196, DRO_CUB200, DRO_INSHOP
from search_spaces.protocols.ours import GLYPHS_DRO_LARGE, GLYPHS_DRO_LONG
from tune_dml.space import Arm, CurveReference, Grid, Knob, Protocol, Space, Value

_MARGIN: dict[str, Value] = {"loss.base": "margin", "loss.margin": 0.2, "loss.threshold": 0.5}
_BINOMIAL: dict[str, Value] = {"loss.base": "binomial", "loss.threshold": 0.5}
_GAMMA = Knob("loss.gamma", Grid((0.1, 0.3, 0.5, 0.7, 0.9)), symbol="gamma")
_MEANS = (
    Arm("mean of margin losses", {"loss.name": "margin_all", "loss.denominator": "nonzero"}),
    Arm("mean of binomial losses", {"loss.name": "binomial"}),
)


def _space(
    name: str,
    title: str,
    ks: tuple[int, ...],
    protocols: tuple[Protocol, ...],
    published: tuple[CurveReference, ...],
    *,
    positive_pairs: int,
) -> Space:
    knob = Knob("loss.k", Grid(ks), symbol="K", unit="unordered pairs")
    return Space(
        name=name,
        title=title,
        question="Which way of preferring hard pairs is best, and does it beat the mean of all pairs?",
        citation=DRO.cite("section 4.1, Tables 1 and 3"),
        arms=(
            *_MEANS,
            *(
                Arm(f"{printed}_{letter}", {"loss.name": loss, **term}, own_knobs=(knob,), against=(mean.name,))
                for printed, loss in (("DRO-TopK", "dro_topk"), ("DRO-TopK-PN", "dro_topk_pn"))
                for letter, term, mean in (("M", _MARGIN, _MEANS[0]), ("B", _BINOMIAL, _MEANS[1]))
            ),
            Arm(
                "DRO-KL_M",
                {"loss.name": "dro_kl", "loss.drop_zeros": True, **_MARGIN},
                own_knobs=(_GAMMA,),
                against=(_MEANS[0].name,),
            ),
        ),
        baseline="mean of margin losses",
        positive_pairs=positive_pairs,
        protocols=protocols,
        published=published,
        identities=(
            "19: K >= the number of pairs is the mean of all pairs, K = 1 the largest loss",
            "23: K twice the smaller group of two equal groups is the mean of all pairs",
            "26: gamma to infinity is the mean of all pairs, gamma to 0 the largest loss",
        ),
        differs="the study compares the K hardest pairs with all pairs by weight, and margin with binomial losses",
        notes=(
            "The paper prints each variant at its best K or gamma, chosen on test, without naming it.",
            "The mean of margin losses and DRO-KL are over the pairs that have a loss: over all pairs their gradient, and with "
            "Adam's coupled weight decay the outcome, would depend on how many pairs are easy.",
            "The paper has no mean of all pairs; its rivals are cited from other papers.",
        ),
    )


SPACE = _space(
    "dro_variants",
    "DRO: five variants, with the means of all pairs",
    (160, 200, 240, 280),
    (GLYPHS_DRO_LONG, DRO_CUB200, DRO_CARS196),
    tuple(DRO.table("1").methods_on(dataset) for dataset in BIRDS_CARS),
    positive_pairs=160,
)
INSHOP = _space(
    "dro_variants_inshop",
    "DRO in batches of 640: five variants, with the means of all pairs",
    (640, 960, 1280, 1600, 1920),
    (GLYPHS_DRO_LARGE, DRO_INSHOP),
    (DRO.table("3").methods_on("In-Shop"),),
    positive_pairs=1280,
)
