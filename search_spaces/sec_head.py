"""SEC beside normalisation of the last layer: batch norm of the embedding, weight norm."""

from search_spaces.papers import SEC
from search_spaces.protocols.ours import GLYPHS_TRIPLET_LONG
from search_spaces.protocols.sec import SEC_SEMIHARD
from tune_dml.space import Arm, Space, Value

_SEC_ON: dict[str, Value] = {"regularizer.name": "sec", "regularizer.rho": 1.0, "regularizer.eta": 0.5}
_OFF: dict[str, Value] = {"regularizer.name": "none"}

SPACE = Space(
    name="sec_head",
    title="SEC beside batch and weight normalisation of the last layer",
    question="Can batch or weight normalisation replace SEC, and does SEC still help beside them?",
    citation=SEC.cite("rebuttal, Table 5"),
    fixed={"loss.name": "semihard_triplet", "loss.margin": 0.2},
    arms=tuple(
        arm
        for letters, head in (("", "bn_fc"), ("+BN", "fc_bn"), ("+WN", "wn_fc"))
        for arm in (
            Arm(
                f"SemihardTriplet{letters}",
                {"model.head": head, **_OFF},
                against=("SemihardTriplet",) if letters else (),
            ),
            Arm(
                f"SemihardTriplet{letters}+SEC", {"model.head": head, **_SEC_ON}, against=(f"SemihardTriplet{letters}",)
            ),
        )
    ),
    gain_differences=tuple((f"SemihardTriplet{letters}+SEC", "SemihardTriplet+SEC") for letters in ("+BN", "+WN")),
    baseline="SemihardTriplet",
    protocols=(GLYPHS_TRIPLET_LONG, *SEC_SEMIHARD),
    published=(SEC.table("5", "rebuttal").methods_on("Cars196"),),
    identities=("2: eta = 0 is the base loss, bit for bit",),
    notes=(
        "BN is a batch norm after the last layer, in addition to the one before it; its affine flag is not stated, ours trains.",
        "eta is not printed with the table; its row of SEC equals that of Table 2, where eta = 0.5.",
        "The paper finds that batch norm of the embedding ruins SEC: 62.46 against 85.19.",
    ),
)
