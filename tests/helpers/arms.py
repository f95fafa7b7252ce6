"""A toy space of three methods and two batch sizes. The method SEC also has a knob of its own, rho."""

from helpers.toys import space_of
from tune_dml.space import Arm, Grid, Knob, Space

SEC = Arm("SEC", {"regularizer.name": "sec"}, own_knobs=(Knob("regularizer.rho", Grid((0.1, 1.0), "log"), "rho"),))
L2 = Arm("L2", {"regularizer.name": "l2"})
PLAIN = Arm("plain", {"regularizer.name": "none", "regularizer.eta": 0.0}, knobs=())
SIZES = Knob("batch.batch_size", Grid((6, 9), "log"), symbol="B")
MEANS = {"SEC: B=6, rho=0.1": 74.0, "SEC: B=6, rho=1": 70.0, "SEC: B=9, rho=0.1": 74.5, "SEC: B=9, rho=1": 70.5,
         "L2: B=6": 66.0, "L2: B=9": 66.2, "plain": 60.0}  # fmt: skip
"""A true mean of each cell."""


def space_of_arms(arms: tuple[Arm, ...] = (SEC, L2, PLAIN), baseline: str = "plain", **fields: object) -> Space:
    """Return a space of arms that differ in the batch size."""
    fields = {"fixed": {"batch.instances_per_class": 3}, **fields}
    return space_of(SIZES, arms=arms, baseline=baseline, **fields)
