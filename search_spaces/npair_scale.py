"""Normalised N-pair: the scale of its logits."""

from search_spaces.papers import RETRIEVAL, SEC
from search_spaces.protocols.ours import DIGITS_QUICK, GLYPHS_TRIPLET_LONG
from search_spaces.protocols.sec import SEC_NPAIR, SEC_SEMIHARD
from tune_dml.space import Arm, Grid, Knob, Space

SPACE = Space(
    name="npair_scale",
    title="Normalised N-pair: scale s",
    question="How large should the scale of the cosines be, and does it matter?",
    citation=SEC.cite("supplement, section B.1 (25 chosen, 64 tried and worse); rebuttal (reviewer 3, R3)"),
    scientific=(Knob("loss.scale", Grid((5.0, 10.0, 25.0, 64.0, 100.0), scale="log"), symbol="s", origin="ours"),),
    arms=(
        Arm(
            "SemihardTriplet",
            {"loss.name": "semihard_triplet"},
            knobs=(),
            protocols=(GLYPHS_TRIPLET_LONG, DIGITS_QUICK, *SEC_SEMIHARD),
        ),
        Arm("NormalizedNPair", {"loss.name": "npair"}),
    ),
    baseline="SemihardTriplet",
    protocols=(GLYPHS_TRIPLET_LONG, DIGITS_QUICK, *SEC_NPAIR),
    published=tuple(
        SEC.table("5", "supplement").curve(
            dataset, ("NormalizedNPair",), "s", baseline="SemihardTriplet", note="Only the chosen scale is printed."
        )
        for dataset in RETRIEVAL
    ),
    identities=("13: N-pair is a cross entropy over the classes of the batch",),
    differs="N-pair and the semihard triplet loss each have the pictures a class and the learning rate printed for them",
    notes=("The paper tried 25 and 64 and prints no numbers of the comparison; the range around them is ours.",),
)
