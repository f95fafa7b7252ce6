"""DRO-TopK and DRO-TopK-PN: number of hardest pairs of a batch that count."""

from search_spaces.papers import DRO
from search_spaces.protocols.dro import DRO_CARS196, DRO_CUB200, DRO_INSHOP
from search_spaces.protocols.ours import GLYPHS_DRO_LARGE, GLYPHS_DRO_LONG
from tune_dml.space import Arm, Citation, Grid, Knob, Protocol, Space, Value

_MARGIN: dict[str, Value] = {"loss.margin": 0.2, "loss.threshold": 0.5}
_ARMS = (
    Arm("mean of all pairs", {"loss.name": "margin_all", **_MARGIN}, knobs=()),
    Arm("DRO-TopK_M", {"loss.name": "dro_topk", "loss.base": "margin", **_MARGIN}),
    Arm("DRO-TopK-PN_M", {"loss.name": "dro_topk_pn", "loss.base": "margin", **_MARGIN}),
)
_IDENTITIES = (
    "19: K >= the number of pairs is the mean of all pairs, K = 1 the largest loss",
    "23: K twice the smaller group of two equal groups is the mean of all pairs",
)


def _space(
    name: str,
    title: str,
    citation: Citation,
    ks: tuple[int, ...],
    protocols: tuple[Protocol, ...],
    *notes: str,
    positive_pairs: int,
) -> Space:
    return Space(
        name=name,
        title=title,
        question="How many of the hardest pairs of a batch should the loss see, and does it matter?",
        citation=citation,
        scientific=(Knob("loss.k", Grid(ks), symbol="K", unit="unordered pairs"),),
        arms=_ARMS,
        baseline="mean of all pairs",
        positive_pairs=positive_pairs,
        protocols=protocols,
        identities=_IDENTITIES,
        notes=notes,
    )


SPACE = _space(
    "dro_k",
    "DRO-TopK: number K of hardest pairs",
    DRO.cite("section 4.1 (grid) and Table 1 (at the best K only)"),
    (160, 200, 240, 280),
    (GLYPHS_DRO_LONG, DRO_CUB200, DRO_CARS196),
    "Batches of 80 with 5 pictures a class hold 160 positive pairs: K = 160 is their number.",
    "The paper prints R@1 at the best K of the grid without naming it: 67.4 and 67.3 on CUB200-2011, 86.0 and 86.1 on "
    "Cars196, selected on test.",
    "The paper's algorithm of TopK-PN gives a sum; text and code take the average over the selected pairs, as here.",
    "The binomial versions are arms of dro_variants.",
    positive_pairs=160,
)
INSHOP = _space(
    "dro_k_inshop",
    "DRO-TopK in large batches: number K of hardest pairs",
    DRO.cite("section 4.2.3, Figure 2; section 4.1 (grid) and Table 3"),
    (640, 960, 1280, 1600, 1920, 2560),
    (GLYPHS_DRO_LARGE, DRO_INSHOP),
    "Batches of 640 with 5 pictures a class hold 1280 positive pairs (the paper's best K) and 203,200 negative ones; "
    "the paper prints 198,080.",
    "2560 comes from the sensitivity study, whose figure has no numbers. At the best K the paper prints R@1 91.0, and 91.3 "
    "with half the pairs positive, selected on test.",
    positive_pairs=1280,
)
