"""SEC for faces: its weight beside ArcFace."""

from __future__ import annotations

from search_spaces.protocols.faces import FACES_ARCFACE, GLYPHS_FACE
from tune_dml.space import Baseline, Citation, Grid, Knob, Published, Space

SPACE = Space(
    name="sec_face",
    title="SEC for face recognition: weight eta beside ArcFace",
    question="Does pulling the norms together help to recognise people, and how strongly should it?",
    citation=Citation(
        authors="Zhang, Li, Zhang",
        title="Deep Metric Learning with Spherical Embedding",
        venue="NeurIPS",
        year=2020,
        place="supplement, face recognition (grid .5 to 10) and Table 6",
    ),
    scientific=(Knob("regularizer.eta", Grid((0.5, 1.0, 5.0, 10.0), scale="log"), symbol="eta"),),
    fixed={"regularizer.name": "sec", "regularizer.rho": 1.0, "regularizer.schedule": "epoch_ramp"},
    baseline=Baseline("no SEC", {"regularizer.name": "none", "regularizer.eta": 0.0}),
    protocols=(GLYPHS_FACE, FACES_ARCFACE),
    published=tuple(
        Published(
            paper="SEC-supplement",
            table="6",
            dataset=dataset,
            methods=("Arcface+SEC",),
            hyperparameter="eta",
            metric="verification_acc",
            baseline_method="Arcface",
            backbone="not stated",
            note="Only the chosen eta is printed. Trained on CASIA-WebFace.",
        )
        for dataset in ("LFW", "AgeDB30", "CFPFP")
    ),
    metric="val/verification_accuracy",
    margin=0.2,
    identities=("eta = 0 is the base loss, bit for bit",),
    notes=("eta is 0 in the first three epochs and grows during the fourth.",),
)
