"""SEC in face recognition: three heads, each plain, with L2-reg, SEC and SEC-EMA."""

from search_spaces.papers import FACES, SEC
from search_spaces.protocols import faces
from search_spaces.protocols.faces import DIGITS_FACE, GLYPHS_FACE
from tune_dml.space import Arm, CurveReference, Grid, Knob, Space, Value

_HEADS: tuple[tuple[str, dict[str, Value]], ...] = (
    ("Sphereface", {"loss.name": "sphereface", "loss.margin": 3}),
    ("Cosface", {"loss.name": "cosface"}),
    ("Arcface", {"loss.name": "arcface"}),
)
_METRICS = (
    *((name, "verification_acc") for name in FACES[:3]),
    *(("MegaFace", f"rank1@1e{power}") for power in (6, 5, 4, 3)),
)
_ETA = Knob("regularizer.eta", Grid((0.5, 1.0, 5.0, 10.0), scale="log"), symbol="eta")
_L2_ETA = Knob("regularizer.eta", Grid((5e-4, 1e-3, 5e-3, 1e-2, 5e-2), scale="log"), symbol="eta")
_RHO = Knob("regularizer.rho", Grid((0.1, 0.2, 0.4, 0.7, 1.0), scale="log"), symbol="rho", origin="ours")
_FIXED: dict[str, Value] = {"task.name": "face_recognition"}
_PROTOCOLS = (GLYPHS_FACE, DIGITS_FACE, *faces.FACES)


def _curves(method: str, baseline: str, knob: str) -> tuple[CurveReference, ...]:
    return tuple(
        SEC.table("6", "supplement").curve(
            dataset,
            (method,),
            knob,
            metric=metric,
            baseline=baseline,
            note=f"Only the chosen {knob} is printed. Trained on CASIA-WebFace; the embedding size is not stated.",
        )
        for dataset, metric in _METRICS
    )


SPACE = Space(
    name="sec_face",
    title="SEC for face recognition: three heads, plain, with L2-reg, SEC and SEC-EMA",
    question="Does pulling the norms together help to recognise people, and how strongly should it?",
    citation=SEC.cite("supplement, section B.2 (grids) and Table 6"),
    fixed=_FIXED,
    arms=tuple(
        arm
        for name, head in _HEADS
        for arm in (
            Arm(name, {**head, "regularizer.name": "none"}),
            Arm(
                f"{name}+L2-reg",
                {**head, "regularizer.name": "l2", "regularizer.schedule": "epoch_ramp"},
                own_knobs=(_L2_ETA,),
                against=(name,),
            ),
            Arm(
                f"{name}+SEC",
                {**head, "regularizer.name": "sec", "regularizer.rho": 1.0, "regularizer.schedule": "epoch_ramp"},
                own_knobs=(_ETA,),
                against=(name,),
            ),
            Arm(
                f"{name}+SEC-EMA",
                {**head, "regularizer.name": "sec", "regularizer.eta": 1.0, "regularizer.schedule": "capped_linear"},
                own_knobs=(_RHO,),
                against=(name,),
            ),
        )
    ),
    baseline="Arcface",
    protocols=_PROTOCOLS,
    published=tuple(
        curve
        for name, _ in _HEADS
        for suffix, knob in (("L2-reg", "eta"), ("SEC", "eta"), ("SEC-EMA", "rho"))
        for curve in _curves(f"{name}+{suffix}", name, knob)
    ),
    metric="val/verification_accuracy",
    margin=0.5,
    identities=(
        "10: eta is 0 for three epochs: until then every cell is the baseline, bit for bit",
        "1: rho = 1 is plain SEC at every step",
        "3: L2-reg is SEC with a fixed mean of 0",
    ),
    differs="the three heads are different losses, each with the margin and scale that is printed or usual for it",
    notes=(
        "eta is 0 in the first three epochs and grows during the fourth; with SEC-EMA it is min(1, 500 t/T).",
        "On CASIA-WebFace SphereFace has m = 3 and ArcFace 0.4: the paper says that 4 and 0.5 do not converge, but not which m "
        "do.",
        "Our head for faces has a batch norm after the last layer, which ruins SEC in the rebuttal's Table 5: sec_face_head "
        "compares it with a plain last layer.",
        "The table's softmax has no margin to choose: --arm Arcface with --set loss.name=softmax trains it.",
    ),
)

WITH_HEADS = Space(
    name="sec_face_head",
    title="SEC for face recognition with and without a batch norm after the last layer",
    question="Does the batch norm after the last layer, usual for faces, ruin SEC as it does in retrieval?",
    citation=SEC.cite("rebuttal, Table 5 (in retrieval); supplement, section B.2"),
    fixed={**_FIXED, "loss.name": "arcface"},
    arms=tuple(
        Arm(f"{head}{suffix}", {"model.head": head, **norms}, against=(head,) if suffix else ())
        for head in ("fc", "fc_bn")
        for suffix, norms in (
            ("", {"regularizer.name": "none"}),
            (
                "+SEC",
                {
                    "regularizer.name": "sec",
                    "regularizer.rho": 1.0,
                    "regularizer.eta": 5.0,
                    "regularizer.schedule": "epoch_ramp",
                },
            ),
        )
    ),
    gain_differences=(("fc_bn+SEC", "fc+SEC"),),
    baseline="fc",
    protocols=_PROTOCOLS[:3],
    metric="val/verification_accuracy",
    margin=0.5,
    identities=("2: eta = 0 is the base loss, bit for bit",),
    notes=("The paper does not say what head its face networks have.",),
)
