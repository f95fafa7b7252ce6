"""SEC with another optimizer: does Adam already balance what SEC balances?"""

from search_spaces.papers import SEC
from search_spaces.protocols.ours import GLYPHS_TRIPLET_LONG
from search_spaces.protocols.sec import SEC_SEMIHARD
from tune_dml.space import Arm, Grid, Knob, Space, Value

_SEC_ON: dict[str, Value] = {"regularizer.name": "sec", "regularizer.rho": 1.0, "regularizer.eta": 0.5}
_OFF: dict[str, Value] = {"regularizer.name": "none"}
_SGD: dict[str, Value] = {"optim.name": "sgd", "optim.momentum": 0.9}
_SLOW = Knob("optim.lr", Grid((0.01, 0.03, 0.1), scale="log"), symbol="lr", origin="ours")
_FAST = Knob("optim.lr", Grid((5e-4, 2e-3, 5e-3), scale="log"), symbol="lr", origin="ours")

SPACE = Space(
    name="sec_optimizer",
    title="SEC under SGD and under Adam",
    question="Is SEC's gain larger under SGD, which does not adapt its steps to the size of gradients?",
    citation=SEC.cite("rebuttal (reviewer 5, R2: suspected, not measured)"),
    nuisance=(_FAST,),
    fixed={"loss.name": "semihard_triplet", "loss.margin": 0.2},
    arms=(
        Arm("Adam", {"optim.name": "adam", **_OFF}),
        Arm("Adam+SEC", {"optim.name": "adam", **_SEC_ON}, against=("Adam",)),
        Arm("SGD", {**_SGD, **_OFF}, own_knobs=(_SLOW,)),
        Arm("SGD+SEC", {**_SGD, **_SEC_ON}, own_knobs=(_SLOW,), against=("SGD",)),
    ),
    gain_differences=(("SGD+SEC", "Adam+SEC"),),
    baseline="Adam",
    protocols=(GLYPHS_TRIPLET_LONG, *SEC_SEMIHARD),
    identities=("2: eta = 0 is the base loss, bit for bit",),
    notes=(
        "The two optimizers need different learning rates, so each arm tunes its own over three values. These suit glyphs: "
        "on the paper's data use `--set` or a sweep file with rates around the printed ones.",
        "The paper prints no numbers: its authors suspect that Adam relieves the problem and does not remove it.",
    ),
)
