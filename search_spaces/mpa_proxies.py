"""MPA: how many proxies a class has."""

from __future__ import annotations

from search_spaces.papers import MPA
from search_spaces.protocols.mpa import MPA_CARS196, MPA_CUB200, MPA_SOP
from search_spaces.protocols.ours import GLYPHS_PROXY
from tune_dml.space import Baseline, Grid, Knob, Space

SPACE = Space(
    name="mpa_proxies",
    title="MPA: proxies per class",
    question="Do several proxies a class help, and how many?",
    citation=MPA.at("section 5.4, Tables 7 and 8"),
    scientific=(Knob("loss.proxies_per_class", Grid((1, 4, 8, 12, 16)), symbol="K"),),
    fixed={
        "loss.name": "mpa",
        "loss.alpha": 32.0,
        "loss.delta": 0.1,
        "loss.gamma": 0.1,
        "loss.tau": 0.2,
    },
    baseline=Baseline("Proxy-Anchor", {"loss.name": "proxy_anchor", "loss.alpha": 32.0, "loss.delta": 0.1}),
    protocols=(GLYPHS_PROXY, MPA_CUB200, MPA_CARS196, MPA_SOP),
    published=tuple(
        MPA.table(table).curve(
            dataset,
            ("MPA",),
            "proxies_per_class",
            note="Mean of three runs; no spread is printed; selected on the test classes.",
        )
        for table, dataset in (("7", "CUB200-2011"), ("8", "Cars196"))
    ),
    margin=1.0,
    identities=("42: K = 1 is Proxy-Anchor",),
    notes=("alpha is not stated in the paper; 32 as in Proxy-Anchor.",),
)
