"""Turn a setting into a nuisance knob around the value of each arm's protocol (`--tune optim.lr`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from trainables.errors import ConfigError, Problem, nearest
from trainables.option_names import option_problem, spell
from tune_dml.planning.cells import StudyArm
from tune_dml.space import Arm, Grid, Knob, Space, Value
from tune_dml.text import is_number

_FACTORS = (1 / 3, 1.0, 3.0)


def with_own_grids(space: Space, tune: Mapping[str, Sequence[Value]]) -> tuple[Space, dict[str, Sequence[Value]]]:
    """Return the space with the user's values for the knobs that it searches, and the other settings to tune."""
    own = {knob.path: tune[knob.path] for knob in space.scientific if tune.get(knob.path)}
    knobs = (
        replace(knob, origin="user", domain=Grid(tuple(own[knob.path]), knob.domain.scale))
        if knob.path in own
        else knob
        for knob in space.scientific
    )
    return replace(space, scientific=tuple(knobs)), {path: values for path, values in tune.items() if path not in own}


def with_tuned_knobs(
    space: Space, arms: Sequence[StudyArm], tuned: Mapping[str, Sequence[Value]]
) -> tuple[Space, list[StudyArm], list[Problem]]:
    """Return the space and its arms with a nuisance knob for each path, and the problems of these knobs.

    Args:
        space: the space before tuning.
        arms: all arms of the space.
        tuned: path -> values; an empty list means three values around the arm's own.
    """
    searched = {knob.path for arm in arms for knob in arm.knobs} | {tie.path for arm in arms for tie in arm.ties}
    problems = []
    for path in [path for path in tuned if path in searched]:
        remedy = f"Give the values to search instead: {spell('tune', {path: ['A', 'B']})}."
        problems.append(option_problem("tune", f"{space.name} searches {path} already", None, remedy))
    grids: dict[str, dict[str, Grid]] = {}
    settings: dict[str, Mapping[str, Value]] = {}
    for arm in arms:
        try:
            settings[arm.name] = arm.settings
        except ConfigError as error:
            problems += error.problems
    allowed = sorted(searched.union(set[str]().union(*settings.values()).intersection(*settings.values())))
    for name, own in settings.items():
        for path, values in tuned.items():
            if path in searched:
                continue
            if problem := _tuning_problem(path, values, own, allowed):
                problems.append(problem)
            else:
                grids.setdefault(name, {})[path] = Grid(tuple(values) or _values_around(own[path]), "log")
    problems = list(dict.fromkeys(problems))
    if problems:
        return space, list(arms), problems
    extended = _with_knobs(space, grids)
    return extended, [_with_declared_knobs(arm, extended, tuned.keys()) for arm in arms], []


def _with_declared_knobs(arm: StudyArm, space: Space, paths: Set[str]) -> StudyArm:
    """Return an arm with the knobs that the extended space declares for it, and without settings at these paths."""
    declared = space.arm(arm.name)
    layers = (
        replace(layer, settings={p: v for p, v in layer.settings.items() if p not in paths}) for layer in arm.layers
    )
    return replace(arm, knobs=space.knobs_of(declared), ties=space.ties_of(declared), layers=tuple(layers))


def _tuning_problem(
    path: str, values: Sequence[Value], own: Mapping[str, Value], allowed: Sequence[str]
) -> Problem | None:
    if path not in own:
        remedy = nearest(path, allowed, what="setting", dotted=True)
        return option_problem("tune", "must name a setting that every arm has", path, remedy)
    value = own[path]
    if not values and not (is_number(value) and value > 0):
        rule = f"three values around {path}={value} are not defined"
        return option_problem("tune", rule, None, f"Give the values: {spell('tune', {path: ['A', 'B', 'C']})}.")
    return None


def _values_around(value: Value) -> tuple[Value, ...]:
    """Return a third of a value, the value and three times the value, to two digits; integers stay integers."""
    assert is_number(value)  # noqa: S101 - checked before
    values = [value if factor == 1 else float(f"{factor * value:.1e}") for factor in _FACTORS]
    if isinstance(value, int):
        values = [max(1, round(number)) for number in values]
    return tuple(dict.fromkeys(values))


def _with_knobs(space: Space, grids: Mapping[str, Mapping[str, Grid]]) -> Space:
    """Add knobs to a space; an arm whose values differ from the first arm's gets its own knob."""
    first = next((arm for arm in space.every_arm if arm.name != space.baseline_name), space.every_arm[0])
    shared = grids[first.name]

    def extend_arm(arm: Arm) -> Arm:
        own = {path: grid for path, grid in grids[arm.name].items() if arm.knobs is not None or grid != shared[path]}
        settings = {path: value for path, value in arm.settings.items() if path not in shared}
        return replace(arm, settings=settings, own_knobs=(*arm.own_knobs, *_nuisance_knobs(own)))

    return replace(
        space,
        fixed={path: value for path, value in space.fixed.items() if path not in shared},
        nuisance=(*space.nuisance, *_nuisance_knobs(shared)),
        baseline=extend_arm(space.baseline) if isinstance(space.baseline, Arm) else space.baseline,
        arms=tuple(map(extend_arm, space.arms)),
    )


def _nuisance_knobs(grids: Mapping[str, Grid]) -> tuple[Knob, ...]:
    return tuple(Knob(path, grid, path.rpartition(".")[2], origin="ours") for path, grid in grids.items())
