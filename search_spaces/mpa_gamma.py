"""MPA: how strongly a picture prefers its nearest proxy of a class."""

from search_spaces.mpa_proxies import ALPHA, MPA_SETTINGS
from search_spaces.papers import MPA
from search_spaces.protocols.mpa import MPA_ANCHOR
from search_spaces.protocols.ours import GLYPHS_PROXY
from tune_dml.space import Grid, Knob, Space

SPACE = Space(
    name="mpa_gamma",
    title="MPA: temperature gamma of the proxies' weights",
    question="Does it matter how sharply a picture prefers its nearest proxy of a class?",
    citation=MPA.cite("section 3.1 and section 4.2 (gamma = .1)"),
    scientific=(Knob("loss.gamma", Grid((0.02, 0.05, 0.1, 0.3, 1.0), scale="log"), symbol="gamma", origin="ours"),),
    fixed={path: value for path, value in {**MPA_SETTINGS, "loss.tau": 0.2}.items() if path != "loss.gamma"},
    protocols=(GLYPHS_PROXY, *MPA_ANCHOR),
    identities=("44: small gamma is the nearest proxy, large gamma the mean of all",),
    notes=(ALPHA, "The paper keeps SoftTriple's 0.1; the range is ours."),
)
