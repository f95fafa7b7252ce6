"""L2-reg for faces: its weight beside ArcFace."""

from __future__ import annotations

from search_spaces.papers import SEC
from search_spaces.protocols.faces import DIGITS_FACE, FACES_ARCFACE, GLYPHS_FACE
from tune_dml.space import Baseline, Grid, Knob, Space

SPACE = Space(
    name="sec_face_l2",
    title="L2-reg for face recognition: weight eta beside ArcFace",
    question="How sensitive is face recognition to the weight of the L2 norm penalty?",
    citation=SEC.at("supplement, face recognition (grid) and Table 6"),
    scientific=(Knob("regularizer.eta", Grid((5e-4, 1e-3, 5e-3, 1e-2, 5e-2), scale="log"), symbol="eta"),),
    fixed={"task.name": "face_recognition", "regularizer.name": "l2", "regularizer.schedule": "epoch_ramp"},
    baseline=Baseline("no L2-reg", {"regularizer.name": "none", "regularizer.eta": 0.0}),
    protocols=(GLYPHS_FACE, DIGITS_FACE, FACES_ARCFACE),
    published=tuple(
        SEC.table("6", "supplement").curve(
            dataset,
            ("Arcface+L2-reg",),
            "eta",
            metric="verification_acc",
            baseline="Arcface",
            note="Only the chosen eta is printed. Trained on CASIA-WebFace.",
        )
        for dataset in ("LFW", "AgeDB30", "CFPFP")
    ),
    metric="val/verification_accuracy",
    margin=0.5,
    identities=("3: L2-reg is SEC with a fixed mean of 0",),
)
