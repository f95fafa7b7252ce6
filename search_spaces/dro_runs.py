"""Variance of DRO over runs: the five variants at one value each, with five seeds."""

from search_spaces.papers import DRO
from search_spaces.protocols.dro import DRO_CARS196, DRO_CUB200
from search_spaces.protocols.multi_similarity import MS_CUB200
from search_spaces.protocols.ours import GLYPHS_DRO
from search_spaces.protocols.sec import SEC_MS_PLAIN
from tune_dml.space import Arm, Space, Value

_MARGIN: dict[str, Value] = {"loss.base": "margin", "loss.margin": 0.2, "loss.threshold": 0.5}
_BINOMIAL: dict[str, Value] = {"loss.base": "binomial", "loss.threshold": 0.5}
# The code of MS covers only CUB; for Cars196, SEC's README has the learning rates of the plain loss.
_MS = (GLYPHS_DRO, MS_CUB200, *(protocol for protocol in SEC_MS_PLAIN if protocol.dataset == "cars196"))

SPACE = Space(
    name="dro_runs",
    title="Spread over runs: five variants of DRO beside multi-similarity",
    question="Are the differences between the variants larger than those between two runs of one variant?",
    citation=DRO.cite("section 6.2, Figure 4"),
    arms=(
        Arm("MS", {"loss.name": "multi_similarity"}, protocols=_MS),
        *(
            Arm(f"{printed}_{letter}", {"loss.name": loss, "loss.k": 160, **term})
            for printed, loss in (("DRO-TopK", "dro_topk"), ("DRO-TopK-PN", "dro_topk_pn"))
            for letter, term in (("M", _MARGIN), ("B", _BINOMIAL))
        ),
        Arm("DRO-KL_M", {"loss.name": "dro_kl", "loss.gamma": 0.1, "loss.drop_zeros": True, **_MARGIN}),
    ),
    baseline="MS",
    positive_pairs=160,
    protocols=(GLYPHS_DRO, DRO_CUB200, DRO_CARS196),
    published=(DRO.table("Fig4 text").methods_on("CUB200-2011", note="The mean of five runs; K is not printed."),),
    identities=("19: K >= the number of pairs is the mean of all pairs, K = 1 the largest loss",),
    differs="the variants have margin or binomial losses, and multi-similarity is trained as by its authors, on Cars196 "
    "as by the SEC paper's",
    notes=("The paper has five runs: --seeds 5. Their K and gamma are not printed; ours are 160 = 2B and 0.1.",),
)
