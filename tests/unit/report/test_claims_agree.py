"""No two sentences of a report contradict each other, in simulated sweeps of every shape."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers.claims import BLOCKS, contradictions, raced, results_with
from helpers.costly import slow_after
from helpers.toys import plan_of, space_of

from tune_dml.report.analysis import analyse
from tune_dml.report.questions import answers
from tune_dml.space import Arm, Baseline, Grid, Knob

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from simulated_sweeps import simulate

RHO = Knob("regularizer.rho", Grid((0.01, 0.1, 0.5, 0.9, 1.0), "log"), symbol="rho")
THREE = Knob("regularizer.eta", Grid((0.1, 0.3, 1.0), "log"), symbol="eta")
LR = Knob("optim.lr", Grid((0.001, 0.01, 0.1), "log"), symbol="lr")
OFF = Baseline("off", {"regularizer.name": "none"})
ARMS = (
    *(Arm(f"margin {margin}", {"loss.margin": margin}, knobs=()) for margin in (0.1, 0.2, 0.4, 0.8)),
    Arm("rho", {"loss.margin": 1.0}, own_knobs=(RHO,)),
)
FIXED = {"loss.name": "triplet", "regularizer.name": "sec"}
SHAPES = {
    "one knob": {"scientific": (RHO,)},
    "beside a baseline": {"scientific": (RHO,), "baseline": OFF},
    "less is better": {"scientific": (RHO,), "baseline": OFF, "goal": "minimize"},
    "grid": {"scientific": (THREE, LR)},
    "grid beside a baseline": {"scientific": (THREE, LR), "baseline": OFF},
    "arms": {"scientific": (), "arms": ARMS[:4], "baseline": "margin 0.1"},
    "arms of several cells": {"scientific": (), "arms": ARMS, "baseline": "margin 0.1"},
}
KINDS = ("iid", "one cell 5x", "slope", "15 % holes")


def drawn(shape: str, kind: str, count: int, sizes=(1.5, 4.0), seeds=(3, 5, 8), race=False):
    """Sweeps of a shape whose cells truly differ."""
    number = max(BLOCKS) if race else 0
    for planned in (number,) if race else seeds:
        plan = plan_of(space=space_of(**{"fixed": FIXED, **SHAPES[shape]}, name="toy"), seeds=planned)
        random = np.random.default_rng([len(shape), KINDS.index(kind), planned])
        for draw in range(count):
            truth = sizes[draw % len(sizes)] * random.standard_normal(len(plan.cells))
            values = 60 + truth[:, None] + simulate(kind, len(plan.cells), planned, 1, random)[0]
            yield raced(plan, values, 1.0) if race else results_with(plan, values)


@pytest.mark.parametrize(("kind", "sd", "number"), [("slope", 0.2, 1), ("iid", 3.0, 5)])
def test_a_chance_under_a_slope_that_differs_from_seed_to_seed_may_be_lower(kind, sd, number):
    """Under such noise a promised chance of 63 % was kept in 46 % (`benchmarks/verdict_advice.py`)."""
    plan = plan_of(space=space_of(fixed=FIXED, **SHAPES["one knob"], name="toy"), seeds=5)
    noise = simulate(kind, 5, 5, 1, np.random.default_rng(number))[0]
    analysis = analyse(results_with(plan, 60 + np.linspace(0, 6, 5)[:, None] + sd * noise))
    sentences = " ".join(map(repr, answers(analysis, traces=False)))
    assert "would decide it with a chance" in sentences
    assert ("The chance may be lower, because seeds seem to react differently to rho" in sentences) == (kind == "slope")


def test_bars_beside_a_quiet_baseline_show_no_difference_that_the_table_of_the_knob_does_not():
    """With the baseline, the noise of all cells is taken as less than that of the knob's values."""
    plan = plan_of(space=space_of(fixed=FIXED, **SHAPES["beside a baseline"], name="toy"), seeds=10)
    spread = np.array([[0.1 if cell.baseline else 1.0] for cell in plan.cells])
    for number in range(5):
        values = 60 + spread * np.random.default_rng(number).standard_normal((len(plan.cells), 10))
        [knob] = analyse(results_with(plan, values)).knobs
        bars, bounds = np.array([point.half_bar for point in knob.points]), knob.sensitivity.bounds
        half_widths = (bounds.high - bounds.low) / 2
        off_diagonal = ~np.eye(len(bars), dtype=bool)
        assert (np.add.outer(bars, bars) >= half_widths - 1e-9)[off_diagonal].all()


@pytest.mark.parametrize("shape", slow_after(3, SHAPES))
def test_claims_of_a_report_do_not_contradict_each_other(shape):
    found = Counter()
    for kind in KINDS:
        for results in drawn(shape, kind, 4):
            found.update(contradictions(analyse(results)))
    assert not found


@pytest.mark.parametrize("shape", slow_after(1, ["beside a baseline", "one knob"]))
def test_claims_after_a_race_do_not_contradict_each_other(shape):
    found = Counter()
    for kind in KINDS[:3]:
        for results in drawn(shape, kind, 6, race=True):
            found.update(contradictions(analyse(results)))
    assert not found


def test_the_search_finds_a_contradiction():
    """A value that is significantly worse and named among the best, as in earlier reports of grids."""
    from helpers.claims import _LowerBounds, _of_knob

    ahead = _LowerBounds()
    ahead.add("low", "high", 1.6)
    data, at = (
        {"verdict": "sensitive", "margin": 1.0},
        {"verdict": "undecided", "candidates": ("low", "high"), "best": "low"},
    )
    at |= {"within": (), "behind": (("low", 0.0), ("high", 2.0)), "side": ""}
    assert _of_knob("lr", data, at, {"low": "low", "high": "high"}, ahead) == ["lr: high may be the best, and is worse"]
