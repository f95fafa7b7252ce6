"""Turn a request into a checked plan, or raise one error with every problem.

    request -> study (everything decided) -> plan (every cell) -> data and networks

All problems, including those of the caller's checks, are collected before any worker starts. Stored files stay
unchanged.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainables.config import FREE_SEEDS
from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.option_names import naming, option_problem, spell, values_from
from trainables.resolve import FOLLOWS_LENGTH
from tune_dml.papers.published import published_curve
from tune_dml.planning.arms.settings import CUT
from tune_dml.planning.checks.data import SweepData, data_problems
from tune_dml.planning.checks.dry_run import dry_run
from tune_dml.planning.checks.effects import equal_trial_problems, idle_value_notes, training_digests
from tune_dml.planning.plan import Plan, make_plan
from tune_dml.planning.request import Request, margin_problems, names_of
from tune_dml.planning.stopping import rungs_of
from tune_dml.planning.study import study_of
from tune_dml.space import Grid
from tune_dml.text import counted

DataProgress = Callable[[int, int], None]
Check = Callable[[], list[Problem]]
_PROGRAM_NOTE = (
    "Your program trains: its data, the split that its metric is measured on, and the effect of its seed are unknown."
)
"""Note on every plan of a program."""


@dataclass(frozen=True)
class CheckedPlan:
    """A plan that can run."""

    plan: Plan
    notes: tuple[str, ...] = ()  # notes for the user: protocols, data, dropped settings
    cautions: tuple[str, ...] = ()
    """Limits of these values and seeds. The sweep does not record them, because more values or seeds remove them."""
    kept_bytes: int | None = 0
    """Size of the files that each trial keeps on request; None until the pictures are decoded."""


def prepare(
    request: Request,
    *,
    cache_dir: Path | None = None,
    other_checks: Sequence[Check] = (),
    progress: DataProgress | None = None,
    decode: bool = True,
    micro_batch: int | None = None,
) -> CheckedPlan:
    """Resolve and check a request. Raise ConfigError with every problem, also those of `other_checks`.

    `decode=False` only checks and identifies the pictures. Classes are then checked only if the data set lists labels.
    Otherwise `progress` is called with (done, total) while they are decoded.
    """
    names, problems = names_of(request), margin_problems(request.margin)
    with naming(names), values_from("tune", request.tune or ()):
        study = study_of(request)
        problems += [problem for check in other_checks for problem in check()]
        try:
            plan = make_plan(study)
        except ConfigError as error:
            settings = {**study.space.fixed, **study.settings, "data.name": study.dataset}
            raise ConfigError([*error.problems, *problems, *data_problems(settings, cache_dir)]) from None
        problems += _comparison_problems(plan)
        if plan.space.program is not None:
            raise_if_any(problems)
            notes = [*study.notes, *plan.space.notes, *_comparison_notes(plan), _PROGRAM_NOTE]
            return CheckedPlan(plan, tuple(notes), _cautions(plan))
        own_notes = (_shortened_notes, _cut_batch_notes, _dropped_notes, _comparison_notes, _stopping_notes)
        notes = [*study.notes, *(note for notes_of in own_notes for note in notes_of(plan))]
        problems += [*_seed_problems(plan), *_published_problems(plan)]
        digest, pictures = "", None
        try:
            data = SweepData.of(plan, cache_dir)
            digest = data.digest()
            is_readable = decode or data.training.is_prepared()
            pictures = data.training.prepare(progress) if is_readable else data.training.listed()
        except ConfigError as error:
            problems += error.problems
        digests = training_digests(plan, pictures)
        notes += idle_value_notes(plan, digests)
        problems += equal_trial_problems(plan, digests)
        trial = dry_run(plan, pictures, build=decode and not problems, micro_batch=micro_batch)
        raise_if_any([*problems, *trial.problems])
        plan = replace(plan, data_digest=digest)
        return CheckedPlan(plan, (*notes, *trial.notes), _cautions(plan), trial.kept_bytes)


def _comparison_problems(plan: Plan) -> list[Problem]:
    """Return a problem if the sweep has one cell and nothing to compare it with."""
    if len(plan.cells) + plan.search.num_samples > 1:
        return []
    rule = "with one value and no baseline nothing can be compared"
    alone = "" if plan.space.program else ", or train it alone with `tune-dml train`"
    return [Problem(plan.space.location(), rule, None, f"List more values{alone}.")]


def _seed_problems(plan: Plan) -> list[Problem]:
    """Return a problem if the seeds change nothing, so that their trials would be equal."""
    equal_arms = [arm for arm in plan.arms if all(arm.base_settings.get(path) is not None for path in FREE_SEEDS)]
    if len(plan.seeds) == 1 or not equal_arms:
        return []
    rule = f"if {', '.join(sorted(FREE_SEEDS))} are all fixed, every seed trains the same trial"
    return [option_problem("seeds", rule, list(plan.seeds), "Name one seed, or fix at most two of them.")]


def _published_problems(plan: Plan) -> list[Problem]:
    """Return the problems of the space's references to printed numbers, for which the report would fail."""
    problems = list[Problem]()
    for reference in plan.space.published:
        try:
            published_curve(reference)
        except ConfigError as error:
            problems += error.problems
    return problems


def _shortened_notes(plan: Plan) -> list[str]:
    """Note that the first evaluation moves to the end of a training that is shorter than its interval."""
    shorter = [arm for arm in plan.main_arms if arm.origins.get("training.eval_every") == FOLLOWS_LENGTH]
    every = {arm.base_settings["training.eval_every"] for arm in shorter}
    why = "one evaluation cannot show whether training had converged"
    return [f"training.eval_every={value}, where training ends: {why}" for value in sorted(every)]


def _cut_batch_notes(plan: Plan) -> list[str]:
    """Note batches that are smaller than their protocol's, with the reason."""
    cut = [(arm.base_settings, arm.origins.get("batch.batch_size", "")) for arm in plan.arms]
    return list(dict.fromkeys(f"batch.batch_size={own['batch.batch_size']}, {why}" for own, why in cut if CUT in why))


def _comparison_notes(plan: Plan) -> list[str]:
    """Note sources of randomness that the seeds do not vary, and arms that share cells."""
    notes = []
    fixed = [path for path in sorted(FREE_SEEDS) if plan.base_settings.get(path) is not None]
    if fixed:
        settings = ", ".join(f"{path}={plan.base_settings[path]}" for path in fixed)
        notes.append(f"the same for every seed: {settings}; verdicts hold only for these")
    for arm in plan.arms if plan.space.arms else ():  # cells that arms share belong to the earlier arm
        grids = [len(knob.domain.values) for knob in arm.knobs if isinstance(knob.domain, Grid)]
        planned = sum(cell.arm == arm.name for cell in plan.cells)
        missing = math.prod(grids) - planned
        if missing > 0 and planned:
            notes.append(f"{arm.name}: {missing} of its cells equal cells of earlier arms, and count as theirs")
    return notes


def _cautions(plan: Plan) -> tuple[str, ...]:
    """Return the limits of the planned values and seeds."""
    values: dict[str, set[str]] = {}
    for knob in [knob for arm in plan.main_arms for knob in arm.knobs]:
        if isinstance(knob.domain, Grid):
            values.setdefault(knob.path, set()).update(map(str, knob.domain.values))
    single = [path for path, choices in values.items() if len(choices) == 1]
    cautions = [f"{path} has one value: nothing can be compared along it" for path in single]
    grids = [[len(knob.domain.values) for knob in arm.knobs if isinstance(knob.domain, Grid)] for arm in plan.main_arms]
    cells, listed = sum(map(math.prod, grids)), [len(arm.knobs) for arm in plan.main_arms] == list(map(len, grids))
    if listed and cells < plan.search.num_samples:
        cautions.append(f"the listed values have {counted(cells, 'combination')}: no further cells can be proposed")
    own_seeds = {tuple(arm.base_settings.get(path) for path in FREE_SEEDS) for arm in plan.arms}
    if len(plan.seeds) == 1 and len(own_seeds) == 1:
        cautions.append(f"one seed gives no estimate of noise: no verdict is possible; use {spell('seeds', 3)} or more")
    return tuple(cautions)


def _stopping_notes(plan: Plan) -> list[str]:
    """Note the steps at which cells may be stopped, and the limits of the verdicts."""
    if plan.search.stopping is None:
        return []
    settings = plan.main_arms[0].base_settings
    steps = f"steps {' and '.join(map(str, rungs_of(settings)))} of {settings['training.steps']}"
    several = plan.search.stopping == "hyperband"
    who, where = ("each bracket's cells", f"{steps}, at the latter or at none,") if several else ("the cells", steps)
    return [
        f"{spell('stopping', plan.search.stopping)}: of {who}, compared at {where} the best third continues. This costs less "
        "than training all cells, and verdicts compare only the cells that finish"
    ]


def _dropped_notes(plan: Plan) -> list[str]:
    """Note settings of the space or protocol that do not apply to the user's method."""
    notes: dict[str, None] = {}
    for arm in plan.main_arms:
        declared = {**(arm.protocol.settings if arm.protocol else {}), **plan.space.fixed}
        resolved: Mapping[str, object] = {**arm.base_settings, **{knob.path: None for knob in arm.knobs}}
        for path, value in sorted(declared.items()):
            section = path.partition(".")[0]
            renamed = f"{section}.name" in plan.settings
            if renamed and path not in plan.settings and resolved.get(path, object()) != value:
                method = plan.settings[f"{section}.name"]
                now = f"its own default {resolved[path]!r} is used" if path in resolved else "it has no such knob"
                notes[f"{path}={value!r} of {plan.space.name} is not kept for {method!r}: {now}"] = None
    return list(notes)
