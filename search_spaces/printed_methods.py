"""Our settings for the methods of the papers' tables, under the tables' names.

Together with the authors' protocol and the hyperparameters of a row, they give the conditions of a printed number.
`papers.py` assigns them to tables.
"""

from tune_dml.space import PrintedMethod, Value

_SIZES = {
    "embedding_dim": "model.embedding_dim",
    "batch_size": "batch.batch_size",
    "instances_per_class": "batch.instances_per_class",
}
_NORMS = {"eta": "regularizer.eta", "rho": "regularizer.rho"}
_NONE: dict[str, Value] = {"regularizer.name": "none"}
_L2: dict[str, Value] = {"regularizer.name": "l2"}
SEC: dict[str, Value] = {"regularizer.name": "sec", "regularizer.rho": 1.0}
_EMA: dict[str, Value] = {"regularizer.name": "sec"}


def _with_norms(
    name: str,
    settings: dict[str, Value],
    protocol: str,
    knobs: dict[str, str],
    *,
    plain: str | None = None,
    schedules: tuple[str, str] = ("constant", "constant"),
) -> tuple[PrintedMethod, ...]:
    """Return the methods of a loss: without a regularizer, with L2-reg, with SEC and with SEC-EMA.

    `plain` is the protocol without a regularizer, if it is another one. `schedules` are the schedules of eta: first that of
    L2-reg and SEC, then that of SEC-EMA.
    """
    columns = {**knobs, **_NORMS}
    schedule: dict[str, Value] = {"regularizer.schedule": schedules[0]}
    ema_schedule: dict[str, Value] = {"regularizer.schedule": schedules[1]}
    return (
        # A table writes eta = 0 for the plain loss; without a regularizer there is nothing to weigh.
        PrintedMethod(name, {**settings, **_NONE}, plain or protocol, columns),
        PrintedMethod(f"{name}+L2-reg", {**settings, **_L2, **schedule}, protocol, columns),
        PrintedMethod(f"{name}+SEC", {**settings, **SEC, **schedule}, protocol, columns),
        PrintedMethod(f"{name}+SEC-EMA", {**settings, **_EMA, **ema_schedule}, protocol, columns),
    )


_SEMIHARD: dict[str, Value] = {"loss.name": "semihard_triplet"}
_MARGIN = {**_SIZES, "m": "loss.margin"}

SPHERICAL = (
    *_with_norms("Triplet", {"loss.name": "triplet"}, "sec/{}", _MARGIN),
    *_with_norms("SemihardTriplet", _SEMIHARD, "sec/{}-semihard", _MARGIN),
    *_with_norms("NormalizedNPair", {"loss.name": "npair"}, "sec/{}-npair", {**_SIZES, "s": "loss.scale"}),
    *_with_norms(
        "MultiSimilarity",
        {"loss.name": "multi_similarity"},
        "sec/{}-ms",
        {**_SIZES, "alpha": "loss.alpha", "beta": "loss.beta", "lambda": "loss.base", "epsilon": "loss.epsilon"},
        plain="sec/{}-ms-plain",
    ),
)

_TUPLET = {**_SIZES, "beta": "loss.margin", "lambda": "loss.ipv_weight", "epsilon": "loss.ipv_epsilon"}
TUPLET = (
    PrintedMethod("TML", {"loss.name": "tuplet_margin", **_NONE}, "sec/{}-tml", _TUPLET),
    PrintedMethod(
        "TML+SEC", {"loss.name": "tuplet_margin", **SEC}, "sec/{}-tml", _TUPLET, unprinted=("regularizer.eta",)
    ),
)

WITH_HEADS = (
    PrintedMethod("SemihardTriplet+SEC", {**_SEMIHARD, **SEC}, "sec/{}-semihard", {**_MARGIN, **_NORMS}),
    *(
        PrintedMethod(
            f"SemihardTriplet+{letters}{suffix}",
            {**_SEMIHARD, **norms, "model.head": head},
            "sec/{}-semihard",
            {**_MARGIN, **_NORMS},
        )
        for letters, head in (("BN", "fc_bn"), ("WN", "wn_fc"))
        for suffix, norms in (("", _NONE), ("+SEC", SEC))
    ),
)

FACE = (
    PrintedMethod("Softmax", {"loss.name": "softmax", **_NONE}, "sec/webface-softmax"),
    *(
        method
        for name, protocol in (
            ("Sphereface", "sec/webface-sphereface"),
            ("Cosface", "sec/webface-cosface"),
            ("Arcface", "sec/webface"),
        )
        for method in _with_norms(
            name, {"loss.name": name.lower()}, protocol, {}, schedules=("epoch_ramp", "capped_linear")
        )
    ),
)

_CONTRASTIVE = {
    "epochs": "training.epochs",
    "batch_size": "batch.batch_size",
    "dim": "model.embedding_dim",
    "temperature": "loss.temperature",
}
CONTRASTIVE = _with_norms("NT-Xent", {"loss.name": "nt_xent"}, "sec/{}", _CONTRASTIVE, schedules=("linear", "linear"))
LINEAR_HEAD = _with_norms(
    "NT-Xent", {"loss.name": "nt_xent"}, "sec/{}-linear", _CONTRASTIVE, schedules=("linear", "linear")
)

_DRO = {**_SIZES, "m": "loss.margin", "lambda": "loss.threshold"}
_TOPK = {**_DRO, "K": "loss.k"}
_KL = {**_DRO, "gamma": "loss.gamma"}

PAIRWISE = (
    *(
        PrintedMethod(f"{name}_{letter}", {"loss.name": loss, "loss.base": base, **_NONE}, "dro/{}", _TOPK)
        for name, loss in (("DRO-TopK", "dro_topk"), ("DRO-TopK-PN", "dro_topk_pn"))
        for letter, base in (("M", "margin"), ("B", "binomial"))
    ),
    PrintedMethod(
        "DRO-KL_M",
        {"loss.name": "dro_kl", "loss.base": "margin", **_NONE},
        "dro/{}",
        _KL,
        unprinted=("loss.samples",),  # its pairs are sampled; how many is not printed
    ),
    PrintedMethod("DRO-KL-G", {"loss.name": "dro_kl_grouped", "loss.drop_zeros": True, **_NONE}, "dro/{}-64", _KL),
    PrintedMethod(
        "LS", {"loss.name": "lifted_structure", **_NONE}, "dro/{}-64", {**_SIZES, "lambda": "loss.threshold"}
    ),
    PrintedMethod(
        "MS",
        {"loss.name": "multi_similarity", **_NONE},
        "dro/{}-64",
        {**_SIZES, "alpha": "loss.alpha", "beta": "loss.beta", "lambda": "loss.base"},
    ),
)

_PROXIES = {
    **_SIZES,
    "gamma": "loss.gamma",
    "tau": "loss.tau",
    "delta": "loss.delta",
    "proxies_per_class": "loss.proxies_per_class",
}
PROXY = (
    PrintedMethod("SoftTriple (our)", {"loss.name": "soft_triple", **_NONE}, "mpa/{}-soft-triple", _PROXIES),
    PrintedMethod("ProxyAnchor (our)", {"loss.name": "proxy_anchor", **_NONE}, "mpa/{}-proxy-anchor", _PROXIES),
    PrintedMethod("MPA", {"loss.name": "mpa", **_NONE}, "mpa/{}", _PROXIES),
    PrintedMethod("MPA-DW", {"loss.name": "mpa_dw", **_NONE}, "mpa/{}-dw", _PROXIES),
    PrintedMethod("MPA-AP", {"loss.name": "mpa_ap", **_NONE}, "mpa/{}-ap", _PROXIES),
)
