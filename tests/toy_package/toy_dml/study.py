"""A study of another package: which margin is best?"""

from tune_dml.space import Baseline, Citation, Grid, Knob, Protocol, Space

PROTOCOL = Protocol(
    name="toy/quick",
    dataset="toy_stripes",
    settings={
        "task.name": "toy_retrieval",
        "data.validation_fraction": 0.5,
        "model.embedding_dim": 4,
        "batch.batch_size": 8,
        "batch.instances_per_class": 2,
        "training.steps": 4,
        "training.eval_every": 2,
    },
)
SPACE = Space(
    name="toy_study",
    title="A toy",
    question="Does the margin of the toy matter?",
    citation=Citation("A. Author", "A Toy", "Toys", 2020, "Table 1"),
    scientific=(Knob("loss.margin", Grid((0.0, 0.5, 1.0)), "m"),),
    fixed={"loss.name": "toy_margin"},
    protocols=(PROTOCOL,),
    baseline=Baseline("triplet", {"loss.name": "triplet"}),
    default_dataset="toy_stripes",
)
