"""DRO-TopK on In-Shop: the number of hardest pairs in batches of 640."""

from __future__ import annotations

from search_spaces.papers import DRO
from search_spaces.protocols.dro import DRO_INSHOP
from search_spaces.protocols.ours import GLYPHS_DRO_LARGE
from tune_dml.space import Baseline, Grid, Knob, Space

SPACE = Space(
    name="dro_topk_inshop",
    title="DRO-TopK in large batches: number K of hardest pairs",
    question="How many of the hardest pairs of a large batch should the loss see, and does it matter?",
    citation=DRO.at("section 4.1 (grid), Table 3 (best K only) and the sensitivity study of the supplement"),
    scientific=(Knob("loss.k", Grid((640, 960, 1280, 1600, 1920, 2560)), symbol="K", unit="unordered pairs"),),
    fixed={"loss.name": "dro_topk", "loss.base": "margin", "loss.margin": 0.2, "loss.threshold": 0.5},
    baseline=Baseline("mean of all pairs", {"loss.name": "margin_all"}),
    protocols=(GLYPHS_DRO_LARGE, DRO_INSHOP),
    margin=1.0,
    identities=("19: K >= the number of pairs is the mean of all pairs, K = 1 the largest loss",),
    notes=(
        "Batches of 640 with 5 pictures a class hold 1280 positive pairs (the paper's best K) and 203,200 negative ones; "
        "the paper prints 198,080.",
        "2560 comes from the sensitivity study. The paper prints only the best K: R@1 91.0, selected on test.",
    ),
)
