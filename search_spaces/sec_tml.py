"""SEC beside the tuplet margin loss, as the rebuttal adds it."""

from search_spaces.papers import RETRIEVAL, SEC
from search_spaces.protocols.ours import GLYPHS_TRIPLET_LONG
from search_spaces.protocols.sec import SEC_TML
from tune_dml.space import Arm, Grid, Knob, Space

SPACE = Space(
    name="sec_tml",
    title="SEC beside the tuplet margin loss: weight eta",
    question="Does the tuplet margin loss gain from SEC as the other losses do?",
    citation=SEC.cite("rebuttal, Table 4; supplement, section B.1 (grid)"),
    scientific=(Knob("regularizer.eta", Grid((0.25, 0.5, 1.0), scale="log"), symbol="eta"),),
    fixed={"loss.name": "tuplet_margin"},
    arms=(
        Arm("TML", {"regularizer.name": "none"}, knobs=()),
        Arm("TML+SEC", {"regularizer.name": "sec", "regularizer.rho": 1.0}, against=("TML",)),
    ),
    baseline="TML",
    protocols=(GLYPHS_TRIPLET_LONG, *SEC_TML),
    published=tuple(SEC.table("4", "rebuttal").methods_on(dataset) for dataset in RETRIEVAL),
    identities=("17: without margin and variance term it is the mean of a log-sum-exp over negatives",),
    notes=("eta is not printed: the grid is that of the other losses.",),
)
