"""MPA: weight of the term that pulls a class's proxies together."""

from search_spaces.mpa_proxies import ALPHA, MPA_SETTINGS
from search_spaces.papers import MPA
from search_spaces.protocols.mpa import MPA_ANCHOR
from search_spaces.protocols.ours import GLYPHS_PROXY
from tune_dml.space import Grid, Knob, Space

SPACE = Space(
    name="mpa_tau",
    title="MPA: weight tau of the proxies' distances",
    question="Does it matter how strongly the proxies of a class are pulled together?",
    citation=MPA.cite("section 3.1 (equation 3) and section 4.2 (tau = .2)"),
    scientific=(Knob("loss.tau", Grid((0.0, 0.1, 0.2, 0.5, 1.0)), symbol="tau", origin="ours"),),
    fixed=MPA_SETTINGS,
    protocols=(GLYPHS_PROXY, *MPA_ANCHOR),
    identities=("43: equal proxies without tau are one proxy", "46: two opposite proxies cost 1"),
    notes=(ALPHA, "The paper keeps SoftTriple's 0.2; the range is ours."),
)
