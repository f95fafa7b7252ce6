"""SEC: the target of the norms. The batch's mean, a running mean, the mean before training, or zero."""

from search_spaces.papers import SEC
from search_spaces.protocols.ours import GLYPHS_TRIPLET, GLYPHS_TRIPLET_LONG
from search_spaces.protocols.sec import SEC_SEMIHARD, SEC_TRIPLET
from tune_dml.space import Arm, Grid, Knob, Space

_ETA = Knob("regularizer.eta", Grid((0.1, 0.5, 1.0), scale="log"), symbol="eta")
_SMALL = Knob("regularizer.eta", Grid((0.001, 0.005, 0.01, 0.1), scale="log"), symbol="eta")
_SMALLER = Knob("regularizer.eta", Grid((5e-5, 1e-4, 5e-4, 1e-3), scale="log"), symbol="eta")

_BATCH = ("batch mean",)


def _arms(zero: Knob) -> tuple[Arm, ...]:
    """Return one arm per target of the norms; the target zero has the etas that the paper prints for the loss."""
    return (
        Arm("no SEC", {"regularizer.name": "none", "regularizer.eta": 0.0}, knobs=()),
        Arm("batch mean", {"regularizer.name": "sec", "regularizer.rho": 1.0}, against=("no SEC",)),
        Arm("running mean", {"regularizer.name": "sec", "regularizer.rho": 0.01}, against=_BATCH),
        Arm("fixed mean", {"regularizer.name": "sec_fixed", "regularizer.mu": "initial_train_mean"}, against=_BATCH),
        Arm("zero", {"regularizer.name": "l2"}, own_knobs=(zero,), against=_BATCH),
    )


_IDENTITIES = ("1: rho = 1 is plain SEC at every step", "3: L2-reg is SEC with a fixed mean of 0")

SPACE = Space(
    name="sec_mu",
    title="SEC: the norm that embeddings are pulled to, with the semihard triplet loss",
    question="Does it matter to which norm embeddings are pulled, or only that they are pulled together?",
    citation=SEC.cite("rebuttal, Table 2"),
    scientific=(_ETA,),
    fixed={"loss.name": "semihard_triplet", "loss.margin": 0.2},
    arms=_arms(_SMALL),
    baseline="no SEC",
    protocols=(GLYPHS_TRIPLET_LONG, *SEC_SEMIHARD),
    published=(
        SEC.table("2", "rebuttal").curve(
            "Cars196", ("SemihardTriplet+L2-reg",), "eta", baseline="SemihardTriplet", note="mu = 0; one run per value."
        ),
        SEC.table("2", "rebuttal").curve(
            "Cars196", ("SemihardTriplet+SEC",), "eta", baseline="SemihardTriplet", note="mu is the batch's mean."
        ),
    ),
    identities=_IDENTITIES,
    notes=(
        "The table has SEC's mu only at its chosen eta, 0.5, and mu = 0 at 0.001 to 0.1. The other values are ours.",
    ),
)

WITH_TRIPLET = Space(
    name="sec_mu_triplet",
    title="SEC: the norm that embeddings are pulled to, with the triplet loss",
    question="With the triplet loss, is a mean fixed before training as good as the batch's own?",
    citation=SEC.cite("supplement, section C.1 and Figure 1"),
    scientific=(_ETA,),
    fixed={"loss.name": "triplet", "loss.margin": 1.0},
    arms=_arms(_SMALLER),
    baseline="no SEC",
    protocols=(GLYPHS_TRIPLET, *SEC_TRIPLET),
    published=(
        SEC.table("3", "supplement").curve(
            "Cars196", ("Triplet+L2-reg",), "eta", baseline="Triplet", note="mu = 0; other weights than the rebuttal's."
        ),
    ),
    identities=_IDENTITIES,
    notes=("The paper draws the fixed mean, 8.70 on Cars196, as a curve and prints no numbers of it.",),
)
