"""Figures of the statistics for fixed tables, against their recorded values: no release changes a verdict unnoticed.

Other tests check the formulas, by oracles and by simulation. This one notices any change of a figure, also a small one.

    python tests/unit/stats/test_recorded_figures.py      write the recorded figures, after an intended change
"""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from tune_dml.stats import (
    SeedTable,
    compare_all_with,
    compare_all_with_best_of,
    judge_best,
    judge_sensitivity,
    screening,
)
from tune_dml.stats.atlas import effects_of_values, judge_knob
from tune_dml.stats.intervals.components import difference_spread, trial_spread
from tune_dml.stats.intervals.contrasts import FullGrid, estimate_contrasts, estimate_gains, interaction, main_effect
from tune_dml.stats.intervals.noise import cell_variances, fit_pairs, typical_noise
from tune_dml.stats.intervals.paired import cell_interval, paired_difference
from tune_dml.stats.intervals.resolution import resolution_shown
from tune_dml.stats.intervals.simultaneous import against, all_pairs, at_most, comparison_bars, own_half_widths
from tune_dml.stats.intervals.tuned import TunedLevels
from tune_dml.stats.power import detectable_difference, fewest_seeds, half_width, seeds_range, verdict_chances
from tune_dml.stats.sequential.looks import error_spent, level_left
from tune_dml.stats.sequential.racing import Outcomes, judge_race
from tune_dml.stats.verdicts.best import compare_with_best
from tune_dml.stats.verdicts.classes import judge_generalization
from tune_dml.stats.verdicts.curve import fit_parabola
from tune_dml.stats.verdicts.equivalence import judge_equivalence, judge_order, judge_published
from tune_dml.stats.verdicts.importance import importance_of_grid, levels_per_knob
from tune_dml.stats.verdicts.ranks import agree_in_rank
from tune_dml.stats.verdicts.search_effect import judge_search_effect
from tune_dml.stats.verdicts.selection import expected_best, score_of_best

RECORDED = Path(__file__).with_name("recorded_figures.json")
NAN = math.nan


def _drawn(means, seeds, holes=(), step=0.001, seed=0):
    """Draw a table with shared and unequal noise, in steps."""
    draw, cells = np.random.default_rng(seed), len(means)
    values = np.add.outer(means, 3 * draw.standard_normal(seeds))
    values += np.linspace(0.5, 2, cells)[:, None] * draw.standard_normal((cells, seeds))
    for hole in holes:
        values[hole] = NAN
    return 60 + np.round(values / step) * step


TABLES = {
    "whole": (_drawn([0, 1, 4, 5, 3, 0], 5), 0.0),
    "two seeds": (_drawn([0, 1, 40, 2], 2, seed=1), 0.0),
    "two cells": (_drawn([0, 3], 6, seed=2), 0.0),
    "three cells": (_drawn([0, 1, 9], 4, [(0, 3), (2, np.s_[:2])], seed=3), 0.0),
    "holes": (_drawn([0, 1, 4, 5, 3, 0], 6, [(0, np.s_[3:]), (1, np.s_[1:5]), (4, np.s_[::2])], seed=4), 0.0),
    "steps": (_drawn([0, 12, 0, 25], 4, step=12.5, seed=5), 12.5),
    "one seed": (_drawn([0, 1, 2], 1), 0.0),
}


def _of_table(values, step):
    """Return the figures of one table by name."""
    m, n = values.shape
    rows = tuple(row * 2 // m for row in range(m))  # two levels, of several settings each
    table = SeedTable(tuple("abcdef"[:m]), tuple(range(n)), values, resolution=step)
    noise, tuned = fit_pairs(values, step), TunedLevels(values, rows, step)
    pairs = all_pairs(values, 0.04, noise)
    first = judge_race(values[:, :3], 1.5, 0.02, resolution=step)
    raced = first.of(range(m), 1.5)
    return {
        "noise": noise,
        "pairs": pairs,
        "at most": at_most(values, 0.04, noise),
        "against": against(values, 1, 0.04, noise),
        "own": own_half_widths(noise, 0.04),
        "bars": comparison_bars(pairs, np.nanmean(values, 1)),
        "cells": cell_variances(values, step),
        "typical": typical_noise(noise),
        "best": compare_with_best(values, 0.04, noise),
        "place": judge_best(values, range(m), 1.5, resolution=step),
        "sensitive": judge_sensitivity(table, 1.5),
        "sensitive, averaged": judge_sensitivity(
            table.without("abcdef"[2:m]), 1.5, crossed=FullGrid(values, (0, 1) * (m // 2) + (0,) * (m % 2))
        ),
        "sensitive, tuned": judge_sensitivity(table.without("abcdef"[1 : m - 1]), 1.5, tuned=tuned, sign=-1),
        "sensitive, raced": judge_sensitivity(table, 1.5, raced=raced),
        "best, averaged": compare_with_best(values, 0.04, pairs=pairs, crossed=FullGrid(values, tuple(range(m)), step)),
        "place, raced": judge_best(values, range(m), 1.5, resolution=step, raced=raced),
        "place, tuned": judge_best(values[:2], (1, 0), 1.5, tuned=tuned),
        "with b": [compare_all_with(table, "b", raced=race) for race in (raced, None)],
        "with the best": [
            compare_all_with_best_of(table, "ab", sign=sign, raced=race) for sign in (-1, 1) for race in (raced, None)
        ],
        "main effect": estimate_contrasts(values, main_effect(rows), 0.04, resolution=step),
        "alone": estimate_contrasts(values, main_effect(range(m)), 0.04, comparisons=1, resolution=step),
        "gains": estimate_gains(values, [(1, 0), (m - 1, 0)], [(0, 1)], 0.04, resolution=step),
        "tuned": tuned.pairs(0.04),
        "tuned at most": tuned.at_most(0.04),
        "tuned against": tuned.against(0, 0.04),
        "tuned gains": tuned.gains([(1, 0), (0, 1)], [(0, 1)], 0.04),
        "score": score_of_best(values, alpha=0.04, resolution=step),
        "gain": score_of_best(values, 0, 0.04, resolution=step),
        "agreement": judge_equivalence(values, [61.0] * m, 1.5, runs=3, resolution=step),
        "agreement, known": judge_equivalence(values, values.max(1).tolist(), 6.0, run_sd=0.5, runs=2, resolution=step),
        "order": judge_order(pairs.estimate, pairs.low, pairs.high, range(m, 0, -1), run_sd=0.3, runs=2),
        "parabola": fit_parabola(values, np.arange(1, m + 1), scale="log", resolution=step),
        "race": first,
        "race, second look": judge_race(values, 1.5, 0.02, first, resolution=step),
        "race, baseline": judge_race(values, 1.5, 0.02, compared=np.arange(m) > 0, resolution=step),
        "trial": trial_spread(values),
        "difference": difference_spread(values),
        "cell": cell_interval(table, 0),
        "pair": paired_difference(table, 1, 0),
        "shown": resolution_shown(values.tolist()),
        "atlas": judge_knob(list(range(m)), 0, effects_of_values([values], 7)[0], 1.5),
    }


def _of_plans():
    """Return the figures that need no table."""
    counts = np.random.default_rng(6).integers(2, 9, (7, 3)).astype(float)
    hits = np.minimum(np.random.default_rng(7).integers(-2, 5, (7, 3)), counts)
    plan = {"levels": 4, "seeds": 6, "sd": 0.7, "margin": 1.0, "runs": 100}
    places, curve = np.random.default_rng(8).random((24, 3)), np.linspace(0, 1, 7)
    ends = np.random.default_rng(10).integers(0, 4, (9, 5))
    grid = _drawn(np.arange(12) ** 1.5, 4).reshape(3, 4, 4)
    return {
        "classes": [judge_generalization(hits[:, :s], counts[:, :s], (9, 2), alpha=0.04) for s in (1, 2, 3)],
        "classes, one absent": judge_generalization(hits, counts * (np.arange(7) > 0)[:, None], (2, 2), alpha=0.04),
        "classes, two": judge_generalization(hits[:2], counts[:2], (2, 2), alpha=0.04),
        "levels a knob": [levels_per_knob(knobs) for knobs in (1, 2, 3, 9)],
        "looks": [level_left(range(3, k), planned=5, grown=grown) for k in (4, 6, 9) for grown in ((), (1,))],
        "spent": [error_spent(looks, planned=4) for looks in ((), (3,), (3, 8))],
        "half width": [half_width(seeds=s, sd=0.7, cells=c) for s, c in ((1, 3), (2, 2), (2, 5), (6, 5))],
        "tuned half width": [half_width(seeds=s, sd=0.7, cells=3, settings=k) for s, k in ((2, 2), (6, 4))],
        "detectable": [detectable_difference(seeds=s, sd=0.7, cells=c) for s, c in ((2, 2), (3, 5), (9, 2))],
        "least seeds": [fewest_seeds(resolution=step, margin=1.0) for step in (0.1, 1.0, 5.0)],
        "seeds": [seeds_range(margin=1.0, sd=0.8, df=9, levels=k, settings=s) for k, s in ((1, 1), (4, 1), (4, 3))],
        "chances": [verdict_chances(**plan, difference=d, settings=s) for d in (0.0, 0.8, 1.5, 2.5) for s in (1, 3)],
        "chances of few": verdict_chances(levels=2, seeds=2, sd=0.01, margin=1.0, difference=1.5),
        "chances of many": verdict_chances(levels=99, seeds=4, sd=0.5, margin=1.0, difference=2.0, settings=9, runs=50),
        "published": [judge_published(range(4), y, runs=3, goal=g) for y in ([9, 5, 4, 3], [3, 9, 8, 4], [1, 2, 3, 9])
                      for g in ("maximize", "minimize")],
        "importance": [importance_of_grid(values) for values in (grid, grid[:, :, :2], np.zeros((2, 2, 3)))],
        "interaction": interaction((0, 0, 1, 1, 2, 2), (0, 1, 0, 1, 0, 1)),
        "search": [judge_search_effect(places[:, k : k + 1], places[:, :k], 3 * places[:, 0] + places[:, 1]) for k in (0, 1)],
        "failed": Outcomes(np.where(ends > 1, NAN, 1.0), ends == 2, ends == 3).failed_in_succession,
        "expected best": [expected_best(TABLES["whole"][0][:, :s], k) for s in (2, 5) for k in (1, 2, 5)],
        "rank": agree_in_rank(grid[0], grid[1] + grid[2][::-1]),
        "log parabola": fit_parabola(_drawn(-20 * (curve - 0.9) ** 2, 5, seed=9), 10**curve, scale="log"),
        "linear parabola": fit_parabola(_drawn(-30 * (curve - 0.6) ** 2, 5, seed=10), curve),
    }  # fmt: skip


def _of_audits():
    """Return the figures of screenings: two settings without noise to speak of, twelve with much."""
    draw, found = np.random.default_rng(11), {}
    for name, factors, effect, noise in (
        *(
            ("alone", 1, (0, 0, 0), 1.0),
            ("nothing", 2, (0, 0, 0), 1.0),
            ("both", 2, (2, -1, 0), 0.3),
            ("only together", 2, (1, 1, 1), 0.3),
        ),
        *(("hardly", 2, (0.4, 0.4, 0), 1.0), ("either", 12, (1, 1, -1), 0.5), ("many", 12, (1, 0.6, 0.3), 1.0)),
    ):

        def run(design, effect=effect, noise=noise):
            first, second = design.levels[:, 0], design.levels[:, -1]
            seeds = draw.standard_normal(design.blocks.max() + 1)[design.blocks]
            return effect @ np.stack([first, second, first * second]) + seeds + noise * draw.standard_normal(len(first))

        first = screening.screening_design(factors)
        values = run(first)
        values[3] = NAN
        found[f"{name}, suspects"] = chosen = screening.choose_suspects(first, values)
        second = screening.confirmation_design(factors, chosen)
        if factors <= 2:  # thresholds of more take long
            found[name] = screening.judge_screening(first, values, second, run(second), chosen)
    simulated = [screening._simulate_evidence(factors, 1, 0.5, 20) for factors in (1, 3, 12)]
    return {**found, "simulated": simulated, "critical": [screening._critical(1), screening._critical(2)]}


FREE = {"plans": _of_plans, "audits": _of_audits}


def _plain(found):
    """Return a result as lists, numbers and words; numbers with five digits."""
    if dataclasses.is_dataclass(found):
        names = [
            field.name for field in dataclasses.fields(found) if field.name not in {"noise", "differences", "tuned"}
        ]
        properties = [name for name in dir(type(found)) if isinstance(getattr(type(found), name), property)]
        return {name: _plain(getattr(found, name)) for name in names + properties}
    if isinstance(found, dict):
        return {name: _plain(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [_plain(each) for each in found]
    if isinstance(found, np.ndarray | np.generic):
        return _plain(found.tolist())
    return float(f"{found:.5g}") if isinstance(found, float) else found


def _flat(found, name=""):
    """Yield the name and the value of each figure."""
    if isinstance(found, dict | list):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from _flat(value, f"{name}/{key}")
    else:
        yield name, found


def figures(name):
    """Return the figures of a table, or of a function that needs none."""
    return _plain(FREE[name]() if name in FREE else _of_table(*TABLES[name]))


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
@pytest.mark.parametrize("name", [*TABLES, *FREE])
def test_figures_equal_the_recorded_ones(name):
    found, recorded = (dict(_flat(each)) for each in (figures(name), json.loads(RECORDED.read_text())[name]))
    assert found.keys() == recorded.keys()
    changed = {
        key: (recorded[key], value)
        for key, value in found.items()
        if value
        != (
            pytest.approx(recorded[key], rel=1e-4, abs=1e-9, nan_ok=True) if isinstance(value, float) else recorded[key]
        )
    }
    assert not changed, f"(recorded, now); if this is on purpose, run `python {Path(__file__).name}`"


if __name__ == "__main__":
    lines = [
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in figures(name).items())
        + "\n}"
        for name in [*TABLES, *FREE]
    ]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
