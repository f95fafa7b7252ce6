"""Whether a stored plan can be gone on with, or a name be used; the arms that files add to it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainables.config import PROTOCOL_VERSION
from trainables.errors import ConfigError, Problem, raise_if_any
from tune_dml.planning.data import SweepData
from tune_dml.planning.plan import Plan
from tune_dml.planning.request import SWEEP_FILES
from tune_dml.planning.sweep_file import read_sweep_file
from tune_dml.space import Arm, Grid, Space

_DIFFERENCES = 4  # that a message names


def continuation_problems(plan: Plan, cache_dir: Path | None) -> list[Problem]:
    """Why a stored plan cannot be gone on with: another protocol version, other data. Either would mix two studies."""
    problems = []
    if plan.protocol_version != PROTOCOL_VERSION:
        begun, now = plan.protocol_version, PROTOCOL_VERSION
        rule = f"the sweep was begun by protocol version {begun}; this program trains by {now}"
        remedy = "Start a new sweep under another --name; its report can still be written."
        problems.append(Problem("protocol version", rule, begun, remedy))
    try:
        digest = SweepData.of(plan, cache_dir).digest()
    except ConfigError as error:
        return [*problems, *error.problems]
    if digest != plan.data_digest:
        rule = "the data must be those the sweep began with; their content has changed"
        remedy = "Restore them, or start a new sweep under another --name."
        problems.append(Problem("data", rule, digest[:12], remedy))
    return problems


def with_arms_of_files(plan: Plan, arms: Sequence[str]) -> tuple[Plan, list[str]]:
    """The plan whose space has the arms that these sweep files declare too, and the names of all arms that are meant.

    Of a file only `arms` counts, and of those the ones that the space does not have. Raises ConfigError for a wrong file.
    """
    names: list[str] = []
    for name in arms:
        if not name.endswith(SWEEP_FILES):
            names.append(name)
            continue
        declared = read_sweep_file(Path(name)).space
        assert isinstance(declared, Space)  # noqa: S101 - a sweep file declares one
        known = {arm.name for arm in plan.space.every_arm}
        fresh = tuple(arm for arm in declared.arms if arm.name not in known)
        if not fresh:
            rule = "the file must declare an arm that the sweep's space does not have"
            raise ConfigError(Problem("--arm", rule, name, f"It has {', '.join(filter(None, sorted(known)))}."))
        space = replace(plan.space, arms=(*(plan.space.arms or (Arm(""),)), *fresh))
        raise_if_any(space.problems())
        plan = replace(plan, space=space)
        names += [arm.name for arm in fresh]
    return plan, names


def name_problems(folder: Path, plan: Plan) -> list[Problem]:
    """A name in use by another plan; the same plan again is a resume."""
    path = folder / "plan.json"
    if not path.exists() or (stored := Plan.load(path)).identity() == plan.identity():
        return []
    rule = f"the sweep {plan.name} is there already, with {_differences(stored, plan)}"
    numbers = itertools.count(2)
    free = next(name for number in numbers if not (folder.parent / (name := f"{plan.name}-{number}")).exists())
    remedy = f"Use --name {free}, or go on with that one: `tune-dml resume {plan.name}`."
    return [Problem("--name", rule, None, remedy)]


def _differences(stored: Plan, plan: Plan) -> str:
    """What differs first: `seeds 0,1 (asked for: 0,1,2) and training.steps=400 (asked for: 100)`."""
    then, now = _described(stored), _described(plan)
    texts = [
        f"{name} {then.get(name, 'not set')} (asked for: {now.get(name, 'not set')})"
        for name in dict.fromkeys([*then, *now])
        if then.get(name) != now.get(name)
    ]
    more = f", and {len(texts) - _DIFFERENCES} more differences" if len(texts) > _DIFFERENCES else ""
    return ", ".join(texts[:_DIFFERENCES]) + more if texts else "other cells"


def _described(plan: Plan) -> dict[str, str]:
    """What decides which trials a plan has, as text."""
    knobs = {
        f"values of {knob.path}": ",".join(map(str, knob.domain.values)) if isinstance(knob.domain, Grid) else "a range"
        for knob in plan.space.knobs
    }
    return {
        "data set": plan.dataset,
        "seeds": ",".join(map(str, plan.seeds)),
        "search": " ".join(map(str, filter(None, (plan.search.method, plan.search.num_samples)))),
        "metric": plan.metric,
        "margin": f"{plan.margin:g}",
        "arms": ",".join(arm.name for arm in plan.arms if arm.name) or "none",
        **knobs,
        **{path: str(value) for path, value in plan.base_settings.items()},
        "content of the data": plan.data_digest[:12],
        "protocol version": str(plan.protocol_version),
    }
