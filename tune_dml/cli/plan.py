"""`tune-dml plan`: show the cells, finished trials, cost and power of a sweep."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainables.errors import ConfigError, Problem
from trainables.files import free_bytes
from tune_dml.cli._preview import Cost, Power, Preview
from tune_dml.cli.options import Json, engine_of, final_request, verb
from tune_dml.cli.screen import print_result
from tune_dml.planning.request import OwnCommand, Request, Resources, Session, file_problems
from tune_dml.programs.command import SETTING
from tune_dml.space import Arm, Grid, Knob
from tune_dml.text import counted

if TYPE_CHECKING:
    from tune_dml.planning.plan import Plan
    from tune_dml.record.results import Results

ORDER = 30
EXAMPLES = """
tune-dml plan sec_rho                                 # cells, cost, power of a study
tune-dml plan mine.yaml --all                         # every setting, and where it comes from
tune-dml plan sec_eta --dataset cub200 --data-root /data/CUB_200_2011
"""
_DIFFERENCES = (0.0, 1.0, 2.0, 4.0)  # true differences for which verdicts are simulated, in units of the margin
_MAX_POINTS = 100.0  # largest possible difference of two percentages


@verb
def plan(
    request: Request,
    *,
    own: OwnCommand,
    storage: Path,
    resources: Annotated[Resources, "workers", "cpus_per_worker", "gpus_per_worker"],
    cache_dir: Path | None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Measure cost and memory: train each kind of cell for a few steps.")
    ] = False,
    whole: Annotated[
        bool,
        typer.Option("--all", help="Also list every cell, every setting with its origin, and the expected verdicts."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the cells, finished trials, cost and power of a sweep; runs and changes nothing."""
    resources = replace(resources, engine=engine_of(resources.workers))
    preview = _preview(final_request(request, own), resources, Session(storage, cache_dir=cache_dir), probe=probe)
    print_result(preview.data(), preview.full_text() if whole else preview.text(), as_json)


def _preview(request: Request, resources: Resources, session: Session, *, probe: bool = False) -> Preview:
    """Check a request and look up its cost. With `probe`, train each kind of cell for a few steps.

    Raise ConfigError with every problem.
    """
    from tune_dml.planning.checks.prepare import prepare
    from tune_dml.planning.plan import name_problems
    from tune_dml.running.cluster.cluster import address_of, capacity_at, resource_problems
    from tune_dml.running.trials.gpu_sharing import resolve_gpus, resources_of

    address, requested = address_of(session.address), resources
    resources = resolve_gpus(requested, None)
    checks = [lambda: resource_problems(resources, address), lambda: file_problems("--storage", session.sweeps)]
    checked = prepare(request, cache_dir=session.cache, other_checks=checks, decode=probe)
    plan = checked.plan
    resources = resources_of(plan, requested, resources)
    concurrent = capacity_at(*address).trials_that_fit(resources)
    if probe and plan.space.program is not None:
        raise ConfigError(Problem("--probe", "the steps of a program are not known", None, "Leave it out."))
    stored = [results for path in sorted(session.sweeps.glob("*/plan.json")) if (results := _readable(path.parent))]
    same_name = next((item for item in stored if item.name == plan.name), None)
    in_use = name_problems(session.sweeps / plan.name, plan) if same_name else []
    done = _done(plan, same_name, bool(in_use)) if same_name else 0
    may_probe = probe and plan.cells  # a search may have yet to propose every cell
    cost = _probe_cost(plan, resources, session, concurrent) if may_probe else _cost(plan, stored, concurrent)
    return Preview(
        plan, (*checked.cautions, *checked.notes), done, cost, _power(plan, stored), checked.kept_bytes, resources.gpus,
        free_bytes(session.sweeps), in_use="".join(map(str, in_use)),
    )  # fmt: skip


def _done(plan: Plan, same_name: Results, other_plan: bool) -> int:
    """Return how many of the plan's trials the stored sweep of the same name has finished.

    A race may have added seeds, and a search has proposed cells that are not in the plan.
    """
    keys = {trial.key for trial in plan.trials()} if other_plan else set[str]()
    finished = (trial for trial in same_name.trials if trial.status == "finished")
    return sum(trial.key in keys if other_plan else trial.seed in plan.seeds for trial in finished)


def _readable(folder: Path) -> Results | None:
    """Return a sweep's results; None if its files are unreadable, which the sweep's own verbs report."""
    from tune_dml.record.results import results_of

    try:
        return results_of(folder)
    except (ConfigError, OSError):
        return None


def _probe_cost(plan: Plan, resources: Resources, session: Session, concurrent: int) -> Cost:
    """Return the cost measured here with one worker."""
    from tune_dml.running.trials.probe import probe_plan

    probe, shapes = probe_plan(plan, resources, session.cache)
    source = f"probed: a few steps of {counted(shapes, 'kind')} of cells with one worker"
    return Cost(probe.seconds, source, concurrent, probe)


def _is_comparable(plan: Plan, results: Results) -> bool:
    keys = (SETTING, "training.steps", "training.epochs", "batch.batch_size", "model.backbone", "model.embedding_dim")
    stored_plan = results.plan
    return stored_plan.dataset == plan.dataset and all(
        stored_plan.base_settings.get(key) == plan.base_settings.get(key) for key in keys
    )


def _cost(plan: Plan, stored: list[Results], concurrent: int) -> Cost:
    for results in stored:
        seconds = [trial.seconds for trial in results.trials if trial.status == "finished"]
        if seconds and _is_comparable(plan, results):
            return Cost(sum(seconds) / len(seconds), f"measured in {results.name}", concurrent)
    same = "has the same data set, batch, network and length" if plan.space.program is None else "ran this program"
    return Cost(None, f"no stored sweep {same}", concurrent)


def _power(plan: Plan, stored: list[Results]) -> Power:
    from tune_dml.stats.power import detectable_difference, half_width, seeds_range, verdict_chances
    from tune_dml.stats.sequential.looks import level_left

    seeds, cells = len(plan.seeds), max(len(plan.cells) + plan.search.num_samples, 2)
    comparable = (item for item in stored if _is_comparable(plan, item) and item.plan.metric == plan.metric)
    noise, df, source = next(filter(None, map(_noise, comparable)), (None, 0, "not known yet"))
    unit, level = 1.0 if noise is None else noise, level_left([seeds], planned=seeds)
    declared = sum(map(len, plan.space.contrasts_among({arm.name for arm in plan.arms})))
    if declared:  # only declared contrasts share the error, and they compare arms
        cells = len(plan.arms)
    power = Power(
        noise,
        detectable_difference(seeds=seeds, sd=unit, cells=cells, alpha=level, comparisons=declared or None),
        half_width(seeds=seeds, sd=unit, cells=cells, alpha=level, comparisons=declared or None),
        source,
        declared=declared,
    )
    if noise is None or seeds < 2:
        return power
    from tune_dml.report.naming import metric_name

    (levels, settings), margin = _hardest_question(plan), float(plan.margin)
    if metric_name(plan.metric).percent and power.detectable > _MAX_POINTS:
        for_margin = _seeds_for_margin(plan, noise, cells, power.declared)
        power = replace(power, beyond_percent=True, seeds_for_margin=for_margin)
    level /= max(1, len(_questions(plan)))  # the knobs share the error, as in the report
    chances = tuple(
        verdict_chances(
            levels=levels, seeds=seeds, sd=noise, margin=margin, difference=margins * margin, alpha=level,
            settings=settings,
        )
        for margins in _DIFFERENCES
    )  # fmt: skip
    needed = seeds_range(margin=margin, sd=noise, df=df, levels=levels, alpha=level, settings=settings)
    return replace(power, chances=chances, seeds=needed, settings=settings)


def _hardest_question(plan: Plan) -> tuple[int, int]:
    """Return the number of levels, and of settings per level, of the question with most comparisons.

    Arms are levels too. A range has as many values as are proposed; each is tried once, so nothing is tuned for a value.
    """
    questions = [(2, 1)]
    for arm, knob in _questions(plan):
        nuisance = [k.domain for k in plan.space.knobs_of(arm) if plan.space.is_nuisance(k.path) and k is not knob]
        grids = [len(domain.values) for domain in (knob.domain, *nuisance) if isinstance(domain, Grid)]
        crossed = len(grids) == 1 + len(nuisance)
        questions.append((grids[0], math.prod(grids[1:])) if crossed else (plan.search.num_samples, 1))
    if plan.space.arms:
        cells = Counter(cell.arm for cell in plan.cells)
        questions.append((len(plan.arms), max(cells.values(), default=1)))
    return max(questions, key=lambda question: question[0] * (question[0] - 1) * question[1])


def _seeds_for_margin(plan: Plan, noise: float, cells: int, declared: int) -> int | None:
    """Return the fewest seeds, planned at once, that detect a difference of the margin; None beyond a thousand."""
    from tune_dml.stats.power import MAX_SEEDS, detectable_difference
    from tune_dml.stats.sequential.looks import level_left

    level = level_left([1.0], planned=1)

    def is_detected(seeds: int) -> bool:
        limit = detectable_difference(seeds=seeds, sd=noise, cells=cells, alpha=level, comparisons=declared or None)
        return limit <= float(plan.margin)

    seed_counts = range(2, MAX_SEEDS + 1)
    index = bisect_left(seed_counts, True, key=is_detected)
    return seed_counts[index] if index < len(seed_counts) else None


def _questions(plan: Plan) -> list[tuple[Arm, Knob]]:
    """Return each knob of each arm that the report analyses."""
    arms = [plan.space.arm(arm.name) for arm in plan.main_arms]
    return [(arm, knob) for arm in arms for knob in plan.space.scientific_of(arm)]


def _noise(results: Results) -> tuple[float, int, str] | None:
    """Return the noise of one trial without the seed's effect, its degrees of freedom and its source."""
    from tune_dml.report.analysis import analyse
    from tune_dml.stats.intervals.noise import typical_noise

    estimate = typical_noise(analyse(results).table.noise)
    return None if estimate is None else (*estimate, f"noise {estimate[0]:.2f} measured in {results.name}")
