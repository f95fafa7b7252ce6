"""SEC-EMA: weight and momentum together, since a slow mean acts longer in one direction."""

from search_spaces.papers import SEC
from search_spaces.protocols.ours import GLYPHS_TRIPLET
from search_spaces.protocols.sec import SEC_TRIPLET
from tune_dml.space import Baseline, Grid, Knob, Space

SPACE = Space(
    name="sec_eta_rho",
    title="SEC-EMA: weight eta and momentum rho",
    question="Does the best momentum depend on how strongly the norms are pulled together?",
    citation=SEC.cite("supplement, section B.1 (eta) and Table 4 (rho)"),
    scientific=(
        Knob("regularizer.eta", Grid((0.25, 0.5, 1.0), scale="log"), symbol="eta"),
        Knob("regularizer.rho", Grid((0.01, 0.1, 0.5, 1.0), scale="log"), symbol="rho"),
    ),
    fixed={"loss.name": "triplet", "loss.margin": 1.0, "regularizer.name": "sec"},
    baseline=Baseline("no SEC", {"regularizer.name": "none", "regularizer.eta": 0.0}),
    protocols=(GLYPHS_TRIPLET, *SEC_TRIPLET),
    identities=("1: rho = 1 is plain SEC at every step", "2: eta = 0 is the base loss, bit for bit"),
    notes=("The paper varies one at a time: rho at the eta chosen for plain SEC, eta at rho = 1.",),
)
