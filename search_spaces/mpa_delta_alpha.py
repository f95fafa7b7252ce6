"""MPA: margin and scale of the similarities to proxies."""

from search_spaces.mpa_proxies import MPA_SETTINGS
from search_spaces.papers import MPA
from search_spaces.protocols.mpa import MPA_ANCHOR
from search_spaces.protocols.ours import GLYPHS_PROXY
from tune_dml.space import Grid, Knob, Space

SPACE = Space(
    name="mpa_delta_alpha",
    title="MPA: margin delta and scale alpha",
    question="Do margin and scale matter, and does one undo the other?",
    citation=MPA.cite("section 3.2 and section 4.2 (delta = .1)"),
    scientific=(
        Knob("loss.delta", Grid((0.0, 0.1, 0.2, 0.3)), symbol="delta", origin="ours"),
        Knob("loss.alpha", Grid((16.0, 32.0, 64.0), scale="log"), symbol="alpha", origin="ours"),
    ),
    fixed={
        path: value
        for path, value in {**MPA_SETTINGS, "loss.tau": 0.2}.items()
        if path not in {"loss.delta", "loss.alpha"}
    },
    protocols=(GLYPHS_PROXY, *MPA_ANCHOR),
    identities=("42: K = 1 is Proxy-Anchor",),
    notes=(
        "The paper has delta = 0.1 and does not state alpha; both ranges are ours, around Proxy-Anchor's 0.1 and 32.",
    ),
)
