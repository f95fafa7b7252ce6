"""L2-reg for faces: its weight beside ArcFace."""

from __future__ import annotations

from search_spaces.protocols.faces import DIGITS_FACE, FACES_ARCFACE, GLYPHS_FACE
from tune_dml.space import Baseline, Citation, Grid, Knob, Published, Space

SPACE = Space(
    name="sec_face_l2",
    title="L2-reg for face recognition: weight eta beside ArcFace",
    question="How sensitive is face recognition to the weight of the L2 norm penalty?",
    citation=Citation(
        authors="Zhang, Li, Zhang",
        title="Deep Metric Learning with Spherical Embedding",
        venue="NeurIPS",
        year=2020,
        place="supplement, face recognition (grid) and Table 6",
    ),
    scientific=(Knob("regularizer.eta", Grid((5e-4, 1e-3, 5e-3, 1e-2, 5e-2), scale="log"), symbol="eta"),),
    fixed={"task.name": "face_recognition", "regularizer.name": "l2", "regularizer.schedule": "epoch_ramp"},
    baseline=Baseline("no L2-reg", {"regularizer.name": "none", "regularizer.eta": 0.0}),
    protocols=(GLYPHS_FACE, DIGITS_FACE, FACES_ARCFACE),
    published=tuple(
        Published(
            paper="SEC-supplement",
            table="6",
            dataset=dataset,
            methods=("Arcface+L2-reg",),
            hyperparameter="eta",
            metric="verification_acc",
            baseline_method="Arcface",
            backbone="not stated",
            note="Only the chosen eta is printed. Trained on CASIA-WebFace.",
        )
        for dataset in ("LFW", "AgeDB30", "CFPFP")
    ),
    metric="val/verification_accuracy",
    margin=0.5,
    identities=("L2-reg is SEC with a fixed mean of 0",),
)
