"""What travels with a loss to every data set: its batches, and the rate of its proxies. Protocols say the rest."""

from __future__ import annotations

from search_spaces.papers import DRO, MPA, SEC
from tune_dml.space import Recipe, Stated, Value

_SUPPLEMENT = SEC.says("supplement, section B.1")


def _by_class(pictures: int) -> dict[str, Value]:
    return {"batch.sampler": "m_per_class", "batch.instances_per_class": pictures}


TRIPLETS = Recipe(("triplet", "semihard_triplet"), Stated(f"{_SUPPLEMENT} (three images a class)", _by_class(3)))
NPAIR = Recipe(("npair",), Stated(f"{_SUPPLEMENT} (two images a class)", _by_class(2)))
MULTI_SIMILARITY = Recipe(("multi_similarity",), Stated(f"{_SUPPLEMENT} (five images a class)", _by_class(5)))
TUPLET = Recipe(("tuplet_margin",), Stated(f"{SEC.says('rebuttal, Table 4')} (four images a class)", _by_class(4)))
PAIRS = Recipe(
    (
        "dro_chi2",
        "contrastive",
        "margin_all",
        "binomial",
        "margin_semihard",
        "margin_dws",
        "lifted_structure",
        "hap2s",
        "dro_topk",
        "dro_topk_pn",
        "dro_kl",
        "dro_kl_grouped",
    ),
    Stated(f"{DRO.says('sections 4.2.2 and 4.2.3')} (five images a class)", _by_class(5)),
)
CONTRASTIVE = Recipe(
    ("nt_xent",),
    Stated(f"{SEC.says('supplement, section B.3')} (two-layer head)", {"batch.sampler": "random", "model.head": "mlp"}),
)
PROXIES = Recipe(
    ("mpa", "mpa_dw", "mpa_ap", "proxy_anchor", "proxy_nca", "proxy_nca_pp", "soft_triple"),
    Stated(f"{MPA.says('section 4.2')} (batches at random, proxies at 1e-2)", {"batch.sampler": "random"}),
    loss_lr=1e-2,
)
