"""SEC in face recognition: its weight beside ArcFace, and the momentum of SEC-EMA."""

from __future__ import annotations

from search_spaces.papers import SEC
from search_spaces.protocols.faces import DIGITS_FACE, FACES_ARCFACE, GLYPHS_FACE
from tune_dml.space import Baseline, Grid, Knob, Published, Space

CITATION = SEC.at("supplement, face recognition (grid .5 to 10) and Table 6")
FIXED = {"task.name": "face_recognition", "regularizer.name": "sec"}
PLAIN = Baseline("no SEC", {"regularizer.name": "none", "regularizer.eta": 0.0})
PROTOCOLS = (GLYPHS_FACE, DIGITS_FACE, FACES_ARCFACE)
TABLE = (
    ("LFW", "verification_acc"),
    ("AgeDB30", "verification_acc"),
    ("CFPFP", "verification_acc"),
    ("MegaFace", "rank1@1e6"),
)
OTHER_LOSSES = "Table 6 has the same rows for SphereFace and CosFace: --set loss.name=cosface (or sphereface)."


def _printed(method: str, knob: str) -> tuple[Published, ...]:
    return tuple(
        SEC.table("6", "supplement").curve(
            dataset,
            (method,),
            knob,
            metric=metric,
            baseline="Arcface",
            note=f"Only the chosen {knob} is printed. Trained on CASIA-WebFace; the embedding size is not stated.",
        )
        for dataset, metric in TABLE
    )


SPACE = Space(
    name="sec_face",
    title="SEC for face recognition: weight eta beside ArcFace",
    question="Does pulling the norms together help to recognise people, and how strongly should it?",
    citation=CITATION,
    scientific=(Knob("regularizer.eta", Grid((0.5, 1.0, 5.0, 10.0), scale="log"), symbol="eta"),),
    fixed={**FIXED, "regularizer.rho": 1.0, "regularizer.schedule": "epoch_ramp"},
    baseline=PLAIN,
    protocols=PROTOCOLS,
    published=_printed("Arcface+SEC", "eta"),
    metric="val/verification_accuracy",
    margin=0.5,
    identities=("10: eta is 0 for three epochs: until then every cell is the baseline, bit for bit",),
    notes=("eta is 0 in the first three epochs and grows during the fourth.", OTHER_LOSSES),
)

EMA = Space(
    name="sec_face_ema",
    title="SEC-EMA for face recognition: momentum rho beside ArcFace",
    question="Does the momentum of the running mean norm matter for faces?",
    citation=CITATION,
    scientific=(Knob("regularizer.rho", Grid((0.1, 0.2, 0.4, 0.7, 1.0), scale="log"), symbol="rho", origin="ours"),),
    fixed={**FIXED, "regularizer.eta": 1.0, "regularizer.schedule": "capped_linear"},
    baseline=PLAIN,
    protocols=PROTOCOLS,
    published=_printed("Arcface+SEC-EMA", "rho"),
    metric="val/verification_accuracy",
    margin=0.5,
    identities=("1: rho = 1 is plain SEC at every step",),
    notes=("The paper prints rho = 0.4 with eta = min(1, 500 t/T); the other values are ours.", OTHER_LOSSES),
)
