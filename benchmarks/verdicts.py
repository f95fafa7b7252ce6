"""Print error rates, coverage and cost of verdicts on simulated sweeps.

    python benchmarks/verdicts.py                 # 2,000 sweeps a row, about seven minutes
    python benchmarks/verdicts.py --quick         # 300 sweeps a row, about a minute
    python benchmarks/verdicts.py --only noise    # one section; --help lists all

Kinds of noise, of unit standard deviation: iid; Student's t with 3 degrees of freedom; a ramp from 1 to 5 over the
cells; one cell 5 times as noisy; a slope of the knob that varies between seeds (s.d. 10 between the outermost values);
a covariance with slope, curvature and ramp whose epsilon is the demo's (0.37); iid with 15 % of the trials missing. `!`
marks a rate that exceeds its goal by more than two Monte Carlo standard errors.
"""

import math
import time
from collections.abc import Callable, Iterable
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from program import run_program
from scipy.stats import kendalltau
from scipy.stats import t as student
from simulated_sweeps import KINDS, Array, excludes_zero, rate, simulate
from verdict_advice import advice
from verdict_atlas import atlas
from verdict_classes import classes
from verdict_contrasts import candidates, close_methods, contrasts, quiet_baselines, thin_cells
from verdict_convergence import convergence, grown_confirmations
from verdict_estimated_step import estimated_step
from verdict_failing_races import failing_trials
from verdict_importance import importance
from verdict_knob_kinds import knob_kinds, searched_knob, unequal_seeds
from verdict_looks import comparisons, confirmations, looks
from verdict_pages import confirmed_pages, ends, raced_pages
from verdict_paper import order
from verdict_races import race
from verdict_ranks import ranks
from verdict_retries import retries
from verdict_search_effects import search_effects
from verdict_steps import near_limits, steps
from verdict_stopping import stopping
from verdict_subsets import failed_of_one, failed_worst, own_noise
from verdict_tails import floors, tails
from verdict_tuned import tuned, tuned_baseline

from tune_dml.stats import SeedTable
from tune_dml.stats.intervals.contrasts import estimate_contrasts, interaction, main_effect
from tune_dml.stats.intervals.noise import fit_pairs
from tune_dml.stats.intervals.simultaneous import against, all_pairs, at_most
from tune_dml.stats.verdicts.best import compare_with_best, judge_best
from tune_dml.stats.verdicts.curve import fit_parabola
from tune_dml.stats.verdicts.equivalence import judge_equivalence, judge_order, judge_published
from tune_dml.stats.verdicts.selection import score_of_best
from tune_dml.stats.verdicts.sensitivity import compare_all_with, judge_sensitivity

PRINTED = (
    ("SEC, rho, Cars", (0.01, 0.1, 0.5, 0.9, 1.0), (74.57, 72.0, 68.54, 68.28, 67.89), 1),
    ("DRO, gamma, Cars", (0.001, 0.01, 0.1, 1.0), (75.0, 73.1, 72.5, 70.5), 1),
    ("DRO, gamma, CUB", (0.001, 0.01, 0.1, 1.0), (56.7, 57.0, 56.8, 56.4), 1),
    ("MPA, K, CUB", (1, 4, 8, 12, 16), (68.4, 69.0, 69.1, 69.3, 67.6), 3),
    ("MPA, K, Cars", (1, 4, 8, 12, 16), (86.0, 86.1, 86.6, 86.5, 86.4), 3),
)


def coverage(hits: NDArray[np.bool_]) -> str:
    """Format a coverage; `!` marks one significantly outside 93 to 97 %."""
    share, error = float(np.mean(hits)), math.sqrt(0.95 * 0.05 / np.size(hits))
    return f"{share:.3f}{'!' if not 0.93 - 2 * error <= share <= 0.97 + 2 * error else ' '}"


def any_claim(values: Array) -> NDArray[np.bool_]:
    """Return whether the intervals claim any difference between cells."""
    return np.asarray((all_pairs(values).low > 0).any((-2, -1)))


def noise(sweeps: int) -> Iterable[str]:
    """Print false claims and power by noise, cells and seeds."""
    yield "Any false claim (all pairs); P(found) for one cell 6/sqrt(n) s.d. off"
    yield f"{'k':>3} {'n':>3}  " + "  ".join(f"{kind:>14}" for kind in KINDS)
    for cells in (2, 5, 10, 20, 40):
        for seeds in (3, 5, 10):
            row = []
            for index, kind in enumerate(KINDS):
                values = simulate(kind, cells, seeds, sweeps, np.random.default_rng([cells, seeds, index]))
                shifted = values.copy()
                shifted[:, 0] += 6 / math.sqrt(seeds)
                row.append(f"{rate(any_claim(values))} {np.mean(any_claim(shifted)):.2f}")
            yield f"{cells:3d} {seeds:3d}  " + "  ".join(f"{text:>14}" for text in row)
    yield "Slope, 10 cells, seeds 2/3/5/10: all pairs; against the baseline"
    for seeds in (2, 3, 5, 10):
        values = simulate("slope", 10, seeds, sweeps, np.random.default_rng(seeds))
        yield f"{seeds:6d}   {rate(any_claim(values))}   {rate(excludes_zero(against(values, 0)).any(1))}"
    yield "Against the baseline, 10 cells; baseline: first cell / last (noisiest ramp) / noisy cell"
    for seeds in (3, 5, 10):
        row = []
        for kind in KINDS:
            values = simulate(kind, 10, seeds, sweeps, np.random.default_rng(seeds))
            found = [against(values, baseline) for baseline in (0, 9, 5)]
            row.append(f"{kind} " + " ".join(rate(excludes_zero(bounds).any(1)) for bounds in found))
        yield f"{seeds:6d}   " + "  ".join(row)
    yield "Departure from equal noise (Box's epsilon), 10 cells, 10 seeds, mean of the estimates"
    for kind in KINDS:
        values = simulate(kind, 10, 10, sweeps, np.random.default_rng(0))
        yield f"{kind:>14}  {float(fit_pairs(values).epsilon.mean()):.2f}"


def equivalence(sweeps: int) -> Iterable[str]:
    """Print 'does not matter' when one value is exactly the margin off, and when all are equal."""
    yield "'Does not matter', margin 3: false (one value is 3 off) / found (all equal), found by intervals of all pairs"
    yield f"{'k':>3} {'n':>3}  " + "  ".join(f"{kind:>22}" for kind in KINDS)
    for cells in (2, 5, 10, 20, 40):
        for seeds in (3, 5, 10):
            row = []
            for kind in KINDS:
                values = simulate(kind, cells, seeds, sweeps, np.random.default_rng([cells, seeds]))
                shifted = values.copy()
                shifted[:, cells // 2] += 3
                false, found = ((at_most(table) < 3).all((1, 2)) for table in (shifted, values))
                bounds = all_pairs(values)
                by_pairs = (np.maximum(bounds.high, -bounds.low) < 3).all((1, 2))
                row.append(f"{rate(false)} / {np.mean(found):.2f}, {np.mean(by_pairs):.2f}")
            yield f"{cells:3d} {seeds:3d}  " + "  ".join(f"{text:>22}" for text in row)


def optimum(sweeps: int) -> Iterable[str]:
    """Print false and true claims of an interior optimum, and coverage of the set of candidates."""
    yield "Equal cells, 5 seeds: 'interior optimum'; the true best left out of the candidates"
    repeats = max(30, sweeps // 10)
    for cells in (5, 10, 20, 40, 60):
        found = compare_with_best(simulate("iid", cells, 5, sweeps, np.random.default_rng(cells))).candidates
        yield f"{cells:6d}   {rate(~found[:, 0] & ~found[:, -1])}   {rate(~found[:, cells // 2])}"
    yield "P('interior') by comparisons / by a parabola, 9 values, noise 1, 3, 5, 10 seeds (false for the last two)"
    x = np.linspace(0, 1, 9)
    for name, curve in (
        ("12 deep", -12 * (x - 0.5) ** 2),
        ("8 deep, off centre", -8 * (x - 0.3) ** 2),
        ("saturating", 4 * (1 - np.exp(-5 * x))),
        ("rising", 4 * x),
    ):
        rates = []
        for seeds in (3, 5, 10):
            values = simulate("iid", 9, seeds, repeats, np.random.default_rng(1)) + curve[:, None]
            positions = [judge_best(table, x.tolist(), 1.0).place == "interior" for table in values]
            fits = [fit_parabola(table, x).verdict == "interior" for table in values]
            rates.append(f"{np.mean(positions):.2f} / {np.mean(fits):.2f}")
        yield f"{name:>20}  " + "   ".join(rates)


def paper(sweeps: int) -> Iterable[str]:
    """Print verdicts on the papers' curves, false 'matches', and coverage of Kendall's tau."""
    for name, knob, scores, runs in PRINTED:
        yield f"{name:>20}: {judge_published(knob, scores, runs=runs).sentence}"
    repeats = max(100, sweeps // 5)
    yield "Paper 5 points above, noise 1, seed effect 3, margin 1: 'matches'; equal, margin 4"
    means = np.array([60.0, 62, 64, 63, 61])
    for seeds in (3, 10):
        rng = np.random.default_rng(seeds)
        same, apart = [], []
        for _ in range(repeats):
            ours = means[:, None] + rng.standard_normal((5, seeds)) + 3 * rng.standard_normal(seeds)
            printed = means + rng.standard_normal(5) + 3 * rng.standard_normal(5)
            apart.append(judge_equivalence(ours, (printed + 5).tolist(), 1.0).verdict == "matches")
            quiet = means[:, None] + rng.standard_normal((5, seeds))
            nearby = means + 0.5 * rng.standard_normal(5)
            same.append(judge_equivalence(quiet, nearby.tolist(), 4.0, run_sd=0.5).verdict == "matches")
        yield f"{seeds:6d}   {rate(np.array(apart))}   {np.mean(same):.2f}"
    yield "Kendall's tau with a published order, 6 values 1 s.d. apart: coverage (95 %), width"
    for seeds in (3, 10):
        rng = np.random.default_rng(seeds)
        hits, widths = [], []
        for _ in range(repeats):
            truth = rng.standard_normal(6)
            printed = truth + 0.5 * rng.standard_normal(6)
            bounds = all_pairs(truth[:, None] + rng.standard_normal((6, seeds)) + rng.standard_normal(seeds))
            judged = judge_order(bounds.estimate, bounds.low, bounds.high, printed.tolist(), run_sd=0.5)
            hits.append(judged.low - 1e-9 <= kendalltau(truth, printed).statistic <= judged.high + 1e-9)
            widths.append(judged.high - judged.low)
        yield f"{seeds:6d}   {np.mean(hits):.3f}   {np.mean(widths):.2f}"


def selection(sweeps: int) -> Iterable[str]:
    """Print coverage for the selected best cell, and bias of its gain over the default."""
    yield "Selected best of k cells: coverage naive / current; gain over a default: bias naive / current, coverage"
    for cells in (2, 5, 20, 50):
        for seeds in (3, 5, 10):
            for spread in (0.0, 0.5, 1.0, 2.0):
                rng = np.random.default_rng([cells, seeds, int(10 * spread)])
                truth = spread * rng.standard_normal((sweeps, cells))
                values = rng.standard_normal((sweeps, cells, seeds)) + truth[..., None]
                found, gain = score_of_best(values), score_of_best(values, 0)
                row = np.arange(sweeps)
                target, draws = truth[row, found.best], values[row, found.best]
                reach = student.isf(0.025, seeds - 1) * draws.std(-1, ddof=1) / math.sqrt(seeds)
                naive = np.abs(draws.mean(-1) - target) <= reach
                current = (found.low <= target) & (target <= found.high)
                true_gain = target - truth[:, 0]
                yield (
                    f"{cells:4d} cells {seeds:3d} seeds, cells' spread {spread:.1f}:  "
                    f"{coverage(naive)} / {coverage(current)}"
                    f"   {np.mean(gain.naive - true_gain):+.2f} / {np.mean(gain.mean - true_gain):+.2f}"
                    f"   {coverage((gain.low <= true_gain) & (true_gain <= gain.high))}"
                )
    values = simulate("iid", 18, 3, 10 * sweeps, np.random.default_rng(0))
    gain = score_of_best(values, 0)
    bias = f"naive {gain.naive.mean():+.2f}, cross-fitted {gain.mean.mean():+.3f} (goal 0.1)"
    yield f"18 equal cells, 3 seeds, gain over the default: {bias}"


def effects(sweeps: int) -> Iterable[str]:
    """Print false claims and power of main effects and interactions of full grids."""
    yield "Full grid without effects: false claims of main effects A, B, interaction; P(found) of an effect of 2 s.d.;"
    yield "'do not interact', margin 3: false (one cell is 3 off)"
    for rows, columns in ((2, 2), (3, 3), (5, 4)):
        first, second = np.repeat(np.arange(rows), columns), np.tile(np.arange(columns), rows)
        families = [main_effect(first.tolist()), main_effect(second.tolist())]
        families.append(interaction(first.tolist(), second.tolist()))
        for seeds in (3, 5, 10):
            for kind in ("iid", "ramp", "one cell 5x", "slope in A", "15 % holes"):
                rng = np.random.default_rng([rows, seeds])
                values = simulate(kind, rows * columns, seeds, sweeps, rng)
                if kind == "slope in A":
                    values += 5 * (first / rows)[:, None] * rng.standard_normal((sweeps, 1, seeds))
                found = [estimate_contrasts(values, weights) for weights in families]
                rates = [rate(excludes_zero(estimates).any(1)) for estimates in found]
                moved = estimate_contrasts(values + 2.0 * (first == 0)[:, None], families[0])
                power = excludes_zero(moved).any(1).mean()
                single = estimate_contrasts(
                    values + 3.0 * (first + second == 0)[:, None], families[2], 0.1, comparisons=1
                )
                rates.append(f"  {power:.2f}   {rate((np.maximum(-single.low, single.high) < 3).all(1))}")
                yield f"{rows} x {columns} {seeds:3d} seeds {kind:>12}:  " + " ".join(rates)


def speed(sweeps: int) -> Iterable[str]:
    """Print the time of all verdicts of 100 cells x 10 seeds."""
    table = _table(simulate("15 % holes", 100, 10, 1, np.random.default_rng(0))[0])
    start = time.perf_counter()
    judge_sensitivity(table, 1.0)
    compare_all_with(table, "0")
    judge_best(table.values, list(range(100)), 1.0)
    score_of_best(table.values, 0)
    yield f"Verdicts of 100 cells x 10 seeds: {time.perf_counter() - start:.2f} s (goal 2)"


def _table(values: Array) -> SeedTable:
    return SeedTable(tuple(map(str, range(len(values)))), tuple(range(values.shape[1])), values)


SECTIONS: dict[str, Callable[[int], Iterable[str]]] = {
    section.__name__: section
    for section in (
        *(
            noise,
            own_noise,
            failed_worst,
            failed_of_one,
            steps,
            near_limits,
            estimated_step,
            tails,
            floors,
            equivalence,
            looks,
            confirmations,
            comparisons,
            tuned,
            tuned_baseline,
        ),
        *(
            optimum,
            paper,
            order,
            selection,
            effects,
            importance,
            ranks,
            advice,
            race,
            failing_trials,
            stopping,
            retries,
        ),
        *(
            candidates,
            search_effects,
            contrasts,
            close_methods,
            quiet_baselines,
            thin_cells,
            convergence,
            grown_confirmations,
        ),
        *(knob_kinds, searched_knob, unequal_seeds, ends, confirmed_pages, raced_pages, classes, atlas, speed),
    )
}


def main(
    quick: Annotated[bool, typer.Option(help="simulate 300 sweeps per row instead of 2,000")] = False,
    only: Annotated[list[str] | None, typer.Option(help=f"section; repeatable: {', '.join(SECTIONS)}")] = None,
) -> None:
    """Print the sections."""
    for name in only or SECTIONS:
        start = time.perf_counter()
        print(f"\n== {name}")
        for line in SECTIONS[name](300 if quick else 2000):
            print(line, flush=True)
        print(f"({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    run_program(main, __doc__)
