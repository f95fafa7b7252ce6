"""Count the trials that a search needs to come within noise of a grid's best; time proposals and planning.

    python benchmarks/search.py            # 20 searches a row, about five minutes
    python benchmarks/search.py --quick    # 5 searches a row
    python benchmarks/search.py --atlas sweeps/atlas/atlas.parquet     # regret of searches replayed on an atlas

The surface has three knobs, an interior optimum, an interaction, noise of 1 and a seed effect of 1. Its grid has 5 x 4
x 5 cells with 3 paired seeds. "Within noise" means at most one standard error of a cell's mean below the grid's best
true value. Our searches (`gp`, `tpe`) run three paired seeds of each proposed cell and recommend the best mean. Plain
OptunaSearch (Ray Tune's, default sampler) runs one trial at a time, each with another seed, and recommends its best
number. Times are processor times.
"""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from program import run_program

from trainables.registries import methods_of
from tune_dml.planning.arms.settings import study_arm
from tune_dml.planning.plan import Plan, PlannedTrial, make_plan
from tune_dml.planning.stopping import rungs_of
from tune_dml.planning.study import Search, Study
from tune_dml.replay import Surface, surfaces
from tune_dml.running.search.optuna_search import Proposals
from tune_dml.running.search.stopping import StoppingProposals
from tune_dml.space import Grid, Knob, LogRange, Range, Space, Value
from tune_dml.stats.sequential.looks import race_level
from tune_dml.stats.sequential.racing import FIRST_LOOK, judge_race

SEEDS, NOISE = 3, 1.0
LR, MARGIN, RHO = "optim.lr", "loss.margin", "regularizer.rho"
RANGES = (Knob(LR, LogRange(1e-5, 1e-1)), Knob(MARGIN, Range(0.05, 0.45)), Knob(RHO, LogRange(0.01, 1.0)))
GRID: dict[str, tuple[float, ...]] = {
    LR: tuple(np.geomspace(1e-5, 1e-1, 5).tolist()),
    MARGIN: tuple(np.linspace(0.05, 0.45, 4).tolist()),
    RHO: tuple(np.geomspace(0.01, 1.0, 5).tolist()),
}
GRID_TRIALS = SEEDS * math.prod(map(len, GRID.values()))


def truth(knobs: Mapping[str, Any]) -> float:
    """Return the true value of a point: up to 4 points lost per knob, an interaction of learning rate and rho."""
    lr = math.log10(knobs[LR]) / 2 + 1.5
    margin = (knobs[MARGIN] - 0.25) / 0.2
    rho = math.log10(knobs[RHO]) + 1
    return float(70 - 4 * (lr - 0.2) ** 2 - 2 * (margin + 0.3) ** 2 - 4 * (rho - 0.3 * lr) ** 2)


ENOUGH = max(truth(dict(zip(GRID, point, strict=True))) for point in product(*GRID.values())) - NOISE / math.sqrt(SEEDS)


def trials_until_settled(recommendations: Iterator[tuple[int, float]], max_trials: int) -> float:
    """Return the trials after which the recommendation stays within noise of the grid's best; infinite if never."""
    since = math.inf
    for trials, true in recommendations:
        if trials > max_trials:
            break
        if true < ENOUGH:
            since = math.inf
        elif math.isinf(since):
            since = trials
    return since


def plan_of(knobs: tuple[Knob, ...], search: Search | None = None, loss: str = "triplet") -> Plan:
    """Return a plan on the digits; only its cells are used. It evaluates often enough for early stopping."""
    example = methods_of("loss")[loss].example  # type: ignore[attr-defined]
    needed = {f"loss.{name}": value for name, value in example.items()}
    fixed: dict[str, Value] = {"loss.name": loss, "regularizer.name": "sec", "training.eval_every": 20}
    fixed |= {path: value for path, value in needed.items() if path not in {knob.path for knob in knobs}}
    space = Space(name="surface", title="Surface", question="?", citation=None, scientific=knobs, fixed=fixed)
    arms = tuple(study_arm(space, arm, None, dataset="digits", settings={}) for arm in space.every_arm)
    study = Study("surface", space, "digits", tuple(range(SEEDS)), search=search or Search(), arms=arms)
    return make_plan(study, "d" * 64)


class Recommended:
    """The cell that a search recommends: the best mean of the cells with a result under every seed."""

    def __init__(self, truth_of: Callable[[Mapping[str, Value]], float]):
        self.truth, self._best, self._truth_of = math.nan, -math.inf, truth_of
        self._values = defaultdict[str, list[float]](list)

    def add(self, trial: PlannedTrial, value: float) -> bool:
        """Add the result of a trial; return whether it completes its cell."""
        values = self._values[trial.cell.digest]
        values.append(value)
        if len(values) == SEEDS and (mean := sum(values) / SEEDS) > self._best:
            self._best, self.truth = mean, self._truth_of(trial.cell.knobs)
        return len(values) == SEEDS


def recommend(
    proposals: Proposals, result_of: Callable[[PlannedTrial], float], truth_of: Callable[[Mapping[str, Value]], float]
) -> Iterator[tuple[int, float]]:
    """Yield (trials so far, truth of the recommended cell) after each cell of a search."""
    recommended, trials = Recommended(truth_of), 0
    while (trial := proposals.next_trial()) is not None:
        value = float(result_of(trial))
        proposals.record_value(trial.key, value)
        trials += 1
        if recommended.add(trial, value):
            yield trials, recommended.truth


def our_search(method: str, number: int, cells: int) -> Iterator[tuple[int, float]]:
    """Search the surface with one of our methods."""
    rng = np.random.default_rng(number)
    shifts = rng.standard_normal(SEEDS)
    search = Search(method, num_samples=cells, seed=number, window=1)  # type: ignore[arg-type]
    return recommend(
        Proposals(plan_of(RANGES, search), trial_values={}),
        lambda trial: truth(trial.cell.knobs) + shifts[trial.seed] + NOISE * rng.standard_normal(),
        truth,
    )


def optuna_search(number: int, max_trials: int) -> Iterator[tuple[int, float]]:
    """Search the surface with Ray Tune's OptunaSearch, one seed per trial."""
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    logging.getLogger("ray.tune.search.optuna").setLevel(logging.ERROR)
    rng = np.random.default_rng(number)
    space = {LR: tune.loguniform(1e-5, 1e-1), MARGIN: tune.uniform(0.05, 0.45), RHO: tune.loguniform(0.01, 1.0)}
    searcher = OptunaSearch(space=space, metric="value", mode="max", seed=number)
    best, true = -math.inf, math.nan
    for trials in range(1, max_trials + 1):
        knobs = searcher.suggest(str(trials))
        value = truth(knobs) + rng.standard_normal() + NOISE * rng.standard_normal()
        searcher.on_trial_complete(str(trials), {"value": float(value)})
        if value > best:
            best, true = float(value), truth(knobs)
        yield trials, true


def search_efficiency(searches: int) -> Iterable[str]:
    """Compare methods by the trials until the recommended point is within noise of the grid's best."""
    yield f"Trials until the recommendation stays within noise of a grid's best, in % of its {GRID_TRIALS} (goal 35 %)"
    rows: list[tuple[str, Callable[[int], Iterator[tuple[int, float]]]]] = [
        (f"ours, {name}", partial(our_search, method, cells=GRID_TRIALS // SEEDS))
        for name, method in (("GP", "gp"), ("TPE", "tpe"), ("quasi-random", "qmc"))
    ]
    rows.append(("plain OptunaSearch", partial(optuna_search, max_trials=GRID_TRIALS)))
    for name, search in rows:
        trials = np.array([trials_until_settled(search(number), GRID_TRIALS) for number in range(searches)])
        within = float((trials <= 0.35 * GRID_TRIALS).mean())
        median = 100 * np.median(trials) / GRID_TRIALS
        yield f"{name:>20}: median {median:4.0f} %, within 35 % in {100 * within:3.0f} % of searches"


METHODS = ("random", "qmc", "tpe", "gp", "cmaes")
BUDGETS = (12, 24, 48, 72)
"""Trials, or parts of trials that add up to so many, after which regrets are printed."""
RACE_CELLS, MARGIN_THAT_MATTERS = 16, 1.0


def replay_knobs(surface: Surface) -> tuple[Knob, ...]:
    """Return the knobs that searches vary: a loss's knobs that are not integers, over their measured ranges."""
    return tuple(
        Knob(f"loss.{name}", Range(low, high, scale="log" if knob.is_log else "linear"))
        for name, knob in surface.knobs.items()
        for low, high in [(float(knob.values[0]), float(knob.values[-1]))]
        if not (knob.values == knob.values.round()).all()
    )


def replay_search(surface: Surface, number: int, method: str) -> Iterator[tuple[float, float]]:
    """Yield (trials, regret of the recommended cell) of a search in which every trial runs to its end."""
    search = Search(method, num_samples=BUDGETS[-1] // SEEDS, seed=number, window=1)  # type: ignore[arg-type]
    proposals = Proposals(plan_of(replay_knobs(surface), search, surface.loss), trial_values={})
    result_of = lambda trial: surface.value(trial.cell.knobs, 3 * number + trial.seed)  # noqa: E731
    return recommend(proposals, result_of, surface.regret)  # type: ignore[arg-type]


def replay_race(surface: Surface, number: int) -> Iterator[tuple[float, float]]:
    """Yield the same of a race between quasi-random cells, over at most the seeds of the atlas."""
    search = Search("qmc", num_samples=RACE_CELLS, seed=number, window=1)
    proposals = Proposals(plan_of(replay_knobs(surface), search, surface.loss), trial_values={})
    points: dict[str, Mapping[str, Any]] = {}
    while (trial := proposals.next_trial()) is not None:
        points[trial.cell.digest] = trial.cell.knobs
        proposals.record_value(trial.key, 0.0)
    regrets = [surface.regret(point) for point in points.values()]
    values, runs = np.full((len(points), surface.seeds), math.nan), np.ones(len(points), dtype=bool)
    race, looks, trials = None, [], 0
    for seeds in range(1, surface.seeds + 1):
        running = [point for point, runs_on in zip(points.values(), runs, strict=True) if runs_on]
        values[runs, seeds - 1] = [surface.value(point, seeds - 1) for point in running]
        trials += len(running)
        leader = int(values[:, :seeds].mean(axis=1).argmax())
        if seeds >= FIRST_LOOK:
            looks.append(seeds)
            level = race_level(looks, planned=surface.seeds)
            race = judge_race(values[:, :seeds], MARGIN_THAT_MATTERS, level, race)
            leader, runs = int(race.leader), race.runs
        yield trials, regrets[leader]
        if not runs.any():
            return


def replay_stopping(surface: Surface, number: int, at_rungs: tuple[Surface, Surface]) -> Iterator[tuple[float, float]]:
    """Yield the same of a random search with early stopping (ASHA); `at_rungs` has the results at its two rungs."""
    search = Search("random", num_samples=2 * BUDGETS[-1] // SEEDS, seed=number, window=1, stopping="asha")
    reported = defaultdict[str, dict[int, float]](dict)
    plan = plan_of(replay_knobs(surface), search, surface.loss)
    proposals = StoppingProposals(
        plan, trial_values={}, stopped={}, values=reported.__getitem__, on_stop=lambda key, end: None
    )
    recommended, trials = Recommended(surface.regret), 0.0  # type: ignore[arg-type]
    while (trial := proposals.next_trial()) is not None:
        steps, rungs = trial.cell.settings["training.steps"], rungs_of(trial.cell.settings)
        rung, rows = proposals.until(trial), reported[trial.key]
        measured = at_rungs[rungs.index(rung)] if rung else surface
        trials += ((rung or steps) - max(rows, default=0)) / steps
        rows[rung or steps] = value = measured.value(trial.cell.knobs, 3 * number + trial.seed)
        if rung:
            proposals.record_pause(trial.key)
            continue
        proposals.record_value(trial.key, value)
        if recommended.add(trial, value):
            yield trials, recommended.truth


def at_budgets(recommendations: Iterable[tuple[float, float]], unknown: float) -> list[float]:
    """Return the regret of the last recommendation within each budget; `unknown` before the first."""
    steps = [(0.0, unknown), *recommendations]
    return [[regret for trials, regret in steps if trials <= budget][-1] for budget in BUDGETS]


def atlas_regret(searches: int, table: Path) -> Iterable[str]:
    """Print mean regret and interval over the losses of each data set of an atlas that have several knobs."""
    ninth, third = (surfaces(table, at=part) for part in ("ninth", "third"))  # type: ignore[arg-type]
    chosen = {
        key: surface
        for key, surface in surfaces(table).items()
        if sum(knob.is_log for knob in surface.knobs.values()) > 1
    }
    for dataset in sorted({surface.dataset for surface in chosen.values()}):
        own = {key: surface for key, surface in chosen.items() if key[0] == dataset}
        budgets = ", ".join(map(str, BUDGETS))
        yield f"Regret in points of R@1 after {budgets} trials; {len(own)} losses, {dataset}"
        methods: dict[str, Callable[[Surface, int], Iterable[tuple[float, float]]]] = {
            **{method: partial(replay_search, method=method) for method in METHODS},
            "race": replay_race,
        }
        if own.keys() <= ninth.keys() & third.keys():
            methods["random, ASHA"] = lambda surface, number: replay_stopping(
                surface, number, (ninth[surface.dataset, surface.loss], third[surface.dataset, surface.loss])
            )
        for name, method in methods.items():
            means = np.array([mean_regrets(method, surface, searches) for surface in own.values()])
            half = 2.0 * means.std(axis=0, ddof=1) / math.sqrt(len(means))
            points = [f"{mean:5.2f} +- {width:.2f}" for mean, width in zip(means.mean(axis=0), half, strict=True)]
            yield f"{name:>20}: {', '.join(points)}"


def mean_regrets(
    method: Callable[[Surface, int], Iterable[tuple[float, float]]], surface: Surface, searches: int
) -> list[float]:
    """Return the mean regret at each budget over a fifth as many searches as the other sections have."""
    regrets = [at_budgets(method(surface, n), surface.regret({})) for n in range(max(1, searches // 5))]
    return np.mean(regrets, axis=0).tolist()


def divergence_share(searches: int) -> Iterable[str]:
    """Print the share of proposed cells that diverge: the upper half of a log range of rates."""
    yield "Share of cells 13 to 30 that diverge (rates above 10^-2.5); best at 10^-3 / at 10^-2.5; one knob, two knobs"
    for method in ("gp", "tpe"):
        shares = []
        for knobs in ((Knob(LR, LogRange(1e-4, 1e-1)),), (Knob(LR, LogRange(1e-4, 1e-1)), RANGES[1])):
            for best in (-3.0, -2.5):
                found = [_diverging(method, knobs, best, number) for number in range(searches)]
                shares.append(f"{np.mean(found):.2f}")
        yield f"{method:>20}: {shares[0]} / {shares[1]}, {shares[2]} / {shares[3]}"


def _diverging(method: str, knobs: tuple[Knob, ...], best: float, number: int) -> float:
    search = Search(method, num_samples=30, seed=number, window=4)  # type: ignore[arg-type]
    proposals = Proposals(plan_of(knobs, search), trial_values={})
    while (trial := proposals.next_trial()) is not None:
        point: Mapping[str, Any] = trial.cell.knobs
        rate, margin = math.log10(point[LR]), point.get(MARGIN, 0.2)
        value = 60 - (rate - best) ** 2 - 10 * (margin - 0.2) ** 2
        proposals.record_value(trial.key, math.inf if rate > -2.5 else value)
    later = proposals.pending_cells[proposals.given_count + 12 :]
    rates = np.array([pending.cell.knobs[LR] for pending in later], dtype=float)
    return float((rates > 10**-2.5).mean())


def proposal_time(searches: int) -> Iterable[str]:
    """Print processor time of a proposal after 1,000 cells: the median, and the first, which fits the model."""
    for method in ("gp", "tpe", "qmc", "random"):
        plan = plan_of(RANGES, Search(method, num_samples=1016, seed=0, window=1))
        draws, arm = np.random.default_rng(0), plan.arms[0].name
        points = 10 ** draws.uniform((-5, math.log10(0.05), -2), (-1, math.log10(0.45), 0), (1000, 3))
        proposed = [plan.cell(n, dict(zip(GRID, point, strict=True)), arm) for n, point in enumerate(points.tolist())]
        proposals = Proposals(plan, trial_values={}, proposed=proposed)
        spent = []
        while True:
            for asked in proposals.waiting:
                proposals.record_value(asked.key, truth(asked.cell.knobs) + draws.normal())
            proposals.waiting.clear()
            start = time.process_time()
            if (trial := proposals.next_trial()) is None:
                break
            spent.append(1000 * (time.process_time() - start))
            proposals.waiting.append(trial)
        median = np.median(spent[2:])
        yield f"A proposal by {method} after 1,000 cells: {median:.1f} ms (goal 50), the first {spent[0]:.0f} ms"


def planning_time(searches: int) -> Iterable[str]:
    """Print processor time to plan 10,000 cells, and to resume with half of their trials done."""
    knobs = (
        Knob(LR, Grid(tuple(np.geomspace(1e-5, 1e-1, 25).tolist()))),
        Knob(MARGIN, Grid(tuple(np.linspace(0.05, 0.45, 20).tolist()))),
        Knob(RHO, Grid(tuple(np.geomspace(0.01, 1.0, 20).tolist()))),
    )
    plan_of(RANGES, Search("random", num_samples=1))  # imports
    start = time.process_time()
    plan = plan_of(knobs)
    yield f"A grid of {len(plan.cells):,} cells is planned in {time.process_time() - start:.1f} s (goal 3)"
    results = {plan.trial(cell, seed).key: 1.0 for cell in plan.cells[::2] for seed in range(SEEDS)}
    start = time.process_time()
    proposals = Proposals(plan, trial_values=results)
    proposals.next_trial()
    spent = time.process_time() - start
    yield f"and, half done, resumed in {spent:.1f} s (goal 10), {len(proposals.waiting) + 1:,} trials left"


def main(quick: bool = False, atlas: Path | None = None) -> None:
    """Print the sections, or only searches that are replayed on the table of an atlas."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sections = (planning_time, proposal_time, divergence_share, search_efficiency)
    searches = 5 if quick else 20
    for lines in [atlas_regret(searches, atlas)] if atlas else (section(searches) for section in sections):
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    run_program(main, __doc__)
