"""MPA: number of proxies and the weight of the term that pulls them together."""

from search_spaces.mpa_proxies import ALPHA, MPA_SETTINGS, PROXIES
from search_spaces.papers import MPA
from search_spaces.protocols.mpa import MPA_ANCHOR
from search_spaces.protocols.ours import GLYPHS_PROXY
from tune_dml.space import Grid, Knob, Space

SPACE = Space(
    name="mpa_proxies_tau",
    title="MPA: proxies per class and the weight tau that pulls them together",
    question="Does the best number of proxies depend on how strongly they are pulled together?",
    citation=MPA.cite("section 3.1 (equation 3) and section 4.4"),
    scientific=(PROXIES, Knob("loss.tau", Grid((0.0, 0.2, 1.0)), symbol="tau", origin="ours")),
    fixed=MPA_SETTINGS,
    protocols=(GLYPHS_PROXY, *MPA_ANCHOR),
    identities=("43: equal proxies without tau are one proxy", "42: K = 1 is Proxy-Anchor"),
    notes=(ALPHA, "The paper varies K at tau = 0.2 alone. At K = 1 tau has no effect."),
)
