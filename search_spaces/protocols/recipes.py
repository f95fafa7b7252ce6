"""Settings that a loss has on every data set: its batches and the learning rate of its proxies. Protocols set the rest."""

from search_spaces.papers import DRO, MPA, SEC
from tune_dml.space import Recipe, SourcedSettings, Value

_SUPPLEMENT = SEC.source("supplement, section B.1")


def _class_batches(pictures: int, start: str) -> dict[str, Value]:
    return {"batch.sampler": "m_per_class", "batch.instances_per_class": pictures, "model.head_init": start}


def _sec_batches(source: str, pictures: int, number: str) -> SourcedSettings:
    """Return the SEC paper's batches for a loss, and its code's start of the head, which is torch's default."""
    return SourcedSettings(
        f"{source} ({number} images a class); code: {SEC.code} (start of the head)", _class_batches(pictures, "torch")
    )


TRIPLETS = Recipe(("triplet", "semihard_triplet"), _sec_batches(_SUPPLEMENT, 3, "three"))
NPAIR = Recipe(("npair",), _sec_batches(_SUPPLEMENT, 2, "two"))
MULTI_SIMILARITY = Recipe(("multi_similarity",), _sec_batches(_SUPPLEMENT, 5, "five"))
TUPLET = Recipe(("tuplet_margin",), _sec_batches(SEC.source("rebuttal, Table 4"), 4, "four"))
PAIRS = Recipe(
    (
        *("dro_chi2", "contrastive", "margin_all", "binomial", "margin_semihard", "margin_dws", "lifted_structure"),
        *("hap2s", "dro_topk", "dro_topk_pn", "dro_kl", "dro_kl_grouped"),
    ),
    SourcedSettings(
        f"{DRO.source('sections 4.2.2 and 4.2.3')} (five images a class); its code (start of the head)",
        _class_batches(5, "torch_zero_bias"),
    ),
)
CONTRASTIVE = Recipe(
    ("nt_xent",),
    SourcedSettings(
        f"{SEC.source('supplement, section B.3')} (two-layer head)", {"batch.sampler": "random", "model.head": "mlp"}
    ),
)
PROXIES = Recipe(
    ("mpa", "mpa_dw", "mpa_ap", "proxy_anchor", "proxy_nca", "proxy_nca_pp", "soft_triple"),
    SourcedSettings(
        f"{MPA.source('section 4.2')} (batches at random, proxies at 1e-2); Proxy-Anchor's code (start of the head)",
        {"batch.sampler": "random", "model.head_init": "he_fan_out"},
    ),
    loss_lr=1e-2,
)
