"""Fit the values of a study's knobs: to the user's pictures, to the pairs of a batch, and around each arm's settings.

The sizes of the pictures come from their listing, before decoding.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.config import Settings
from trainables.errors import ConfigError, Problem
from trainables.files import expand_home
from trainables.option_names import option_place, option_problem, spell
from tune_dml.catalogue import RETRIEVAL
from tune_dml.planning.cells import StudyArm
from tune_dml.space import Arm, Grid, Knob, Space, Value
from tune_dml.text import is_number

if TYPE_CHECKING:
    from trainables.data.base import Labels

_CONTRASTIVE = "contrastive"
_FOLDER, _FEATURES = "image_folder", "features"
_SPLIT = ("validation_fraction", "folds", "fold", "split")
COUNT = "loss.k"
_BATCH, _PER_CLASS, _PICTURES = "batch.batch_size", "batch.instances_per_class", "data.pictures_per_class"
_MEASURED_SETTINGS = ("optim.lr", "training.steps")
_FACTORS = (1 / 3, 1.0, 3.0)
_Scales = Mapping[str, Callable[[Value], Value]]
"""Setting -> the function that scales its values."""


@dataclass(frozen=True)
class TrainingPart:
    """Sizes of the part of the data that a trial trains on."""

    classes: int  # number of classes, the same for every seed
    pictures: int  # number of pictures of the largest class
    fewest: int  # number of pictures of the smallest training part of any seed
    task: str = RETRIEVAL  # the task whose split this is


def part_of(space: Space, dataset: str, settings: Mapping[str, Value]) -> TrainingPart | None:
    """Return the sizes of a picture folder's part that trials of a space train on; None if unknown."""
    task = str({**space.fixed, **settings}.get("task.name", RETRIEVAL))
    return None if space.program else training_part(dataset, settings, task)


def training_part(dataset: str, settings: Mapping[str, Value], task: str = RETRIEVAL) -> TrainingPart | None:
    """Return the sizes of the part of a user's pictures or of stored features that a trial of a task trains on.

    Return None for other data sets, for wrong settings, and for pictures that cannot be listed or split: checks of
    settings and data report them.
    """
    root = settings.get("data.root")
    if dataset not in {_FOLDER, _FEATURES} or not root or not expand_home(str(root)).exists():
        return None
    import numpy as np

    from trainables.tasks.splits import class_disjoint_split, shared_class_split

    chosen = {name: value for name in _SPLIT if (value := settings.get(f"data.{name}")) is not None}
    if "split" in chosen:
        chosen["protocol"] = chosen.pop("split")
    try:
        labels, test = _classes(dataset, expand_home(str(root)), settings.get("data.split_file"))
        most = int(str(settings.get("data.pictures_per_class") or len(labels)))
        if task == _CONTRASTIVE:
            shared = {name: value for name, value in chosen.items() if name in {"validation_fraction", "protocol"}}
            split, test = shared_class_split(labels, seed=0, **shared), ()  # type: ignore[arg-type]
        else:
            split = class_disjoint_split(labels, test, seed=0, **chosen)  # type: ignore[arg-type]
    except (ConfigError, ValueError, TypeError, OSError):
        return None
    _, counts = np.unique(labels[split.train], return_counts=True)
    sizes = counts if task == _CONTRASTIVE else np.bincount(labels)[np.setdiff1d(labels, test)]
    fewest = int(np.sort(np.minimum(sizes, most))[: len(counts)].sum())
    return TrainingPart(len(counts), int(counts.max()), fewest, task)


def _classes(dataset: str, root: Path, split_file: Value) -> tuple[Labels, tuple[int, ...]]:
    """Return the class of each picture, and the test classes."""
    import numpy as np

    from trainables.data import default_cache_dir
    from trainables.data.features import Features
    from trainables.data.image_folder import ImageFolder

    if dataset == _FEATURES:
        stored = Features(root=root, cache_dir=default_cache_dir()).listed()
        return stored.labels, stored.test_classes
    folder = ImageFolder(
        root=root, cache_dir=default_cache_dir(), split_file=None if split_file is None else str(split_file)
    )
    contents = folder.contents(np.arange(folder.counts()["images"]))
    return contents.labels, folder.test_classes(contents.class_names)


def fitting_space(
    space: Space, part: TrainingPart | None, settings: Mapping[str, Value]
) -> tuple[Space, tuple[str, ...]]:
    """Return the space with its grids scaled to the size of the user's folder, and a note for each scaled grid.

    A user's own sweep file and settings stay as they are.
    """
    if part is None or space.origin or not _has_valid_sizes(space):
        return space, ()
    notes: list[str] = []
    for path in (_BATCH, _PER_CLASS, _PICTURES):
        values = _grid_values(space, path)
        if not values or path in settings or (path == _PER_CLASS and _BATCH in settings):
            continue
        by_class = path == _PER_CLASS
        if scales := _instance_scales(space, values, part) if by_class else _size_scales(space, path, values, part):
            space = _with_scaled_values(space, scales)
            batch = f", in batches of {space.fixed[_BATCH]}" if by_class else ""
            notes.append(
                f"{path} is {_listed(_grid_values(space, path))} in place of {_listed(values)}{batch}: there are "
                f"{part.classes} training classes of at most {part.pictures} pictures"
            )
    return space, tuple(notes)


def untuned_notes(space: Space, dataset: str, settings: Mapping[str, Value]) -> tuple[str, ...]:
    """Note settings that keep general values, because no brief training on the user's pictures has chosen them."""
    chosen = {*space.fixed, *settings, *(knob.path for knob in space.knobs)}
    missing = [path for path in _MEASURED_SETTINGS if path not in chosen]
    if dataset != "image_folder" or "data.root" not in settings or not missing:
        return ()
    verb = "have general values" if len(missing) > 1 else "has a general value"
    command = shlex.join(["tune-dml", "init", str(settings["data.root"])])
    probe = f"`{command}` trains briefly and proposes values for {spell('settings')}"
    if "task.name" in chosen:  # `init` trains for retrieval
        probe = f"Compare a few values with {spell('settings')}"
    return (f"{' and '.join(missing)} {verb} for small networks: nothing was measured on these pictures. {probe}",)


def _has_valid_sizes(space: Space) -> bool:
    """Return whether the sizes that depend on each other are whole numbers above 0; others are reported in the plan."""
    paths = (_BATCH, _PER_CLASS, _PICTURES, COUNT)
    grids = [knob.domain.values for knob in space.knobs if knob.path in paths and isinstance(knob.domain, Grid)]
    sizes = [*(space.fixed[path] for path in paths if path in space.fixed), *(size for grid in grids for size in grid)]
    return all(isinstance(size, int) and size > 0 for size in sizes)


def _size_scales(space: Space, path: str, values: Sequence[int], part: TrainingPart) -> _Scales:
    """Scale batch sizes so that the largest holds every class, or pictures per class to those of the largest class."""
    step = int(space.fixed.get(_PER_CLASS, 1)) if path == _BATCH else 1
    largest = part.classes * step if path == _BATCH else part.pictures
    return {path: _scaler(largest / max(values), step, 2)} if max(values) > largest else {}


def _instance_scales(space: Space, values: Sequence[int], part: TrainingPart) -> _Scales:
    """Reduce the batch to the existing classes, and replace each value by the nearest divisor of the batch size."""
    batch = int(space.fixed.get(_BATCH, 0))
    if not batch or batch <= min(values) * part.classes:
        return {}

    def nearest_divisors(size: int) -> dict[int, int]:
        allowed = [d for d in range(2, size // 2 + 1) if size % d == 0 and size // d <= part.classes]
        return {value: min(allowed, key=lambda d: (abs(d - value), d)) for value in values} if allowed else {}

    sizes = range(2, min(values) * part.classes + 1)
    chosen = max(sizes, key=lambda size: (len(set(nearest_divisors(size).values())), size))
    if not (divisors := nearest_divisors(chosen)):
        return {}
    counts = _scaler(chosen / batch, 2, 1)
    return {_PER_CLASS: lambda value: divisors[int(str(value))], COUNT: counts, _BATCH: lambda _: chosen}


def _scaler(factor: float, step: int, fewest: int) -> Callable[[Value], Value]:
    return lambda value: step * max(fewest, round(float(str(value)) * factor / step))


def _grid_values(space: Space, path: str) -> list[int]:
    domains = [knob.domain for knob in space.knobs if knob.path == path]
    return [int(str(value)) for domain in domains if isinstance(domain, Grid) for value in domain.values]


def _listed(values: Iterable[Value]) -> str:
    return ", ".join(map(str, values))


def positive_pairs(settings: Settings) -> int | None:
    """Return the number of unordered same-class pairs of a batch; None if batches are not drawn by class."""
    if settings.get("batch.sampler") != "m_per_class":
        return None
    return int(settings[_BATCH]) * (int(settings[_PER_CLASS]) - 1) // 2


def with_scaled_counts(space: Space, arms: Sequence[StudyArm]) -> tuple[Space, list[StudyArm], list[str]]:
    """Return space and arms with each K scaled to the paper's share of the positive pairs, and a note if that changes K.

    K does not change under a paper's protocol, or if batches are not drawn by class. It also does not change if the
    space states no number of pairs, or if the batches have that number.
    """
    printed = space.positive_pairs
    pairs = _pairs_of(space, arms) if printed else None
    if not printed or pairs is None or pairs == printed:
        return space, [*arms], []
    # even: half of the pairs are positive
    scales: _Scales = {COUNT: lambda value: max(2, 2 * round(int(str(value)) * pairs / printed / 2))}
    # positive_pairs=pairs keeps a stored space from being scaled again
    scaled = replace(_with_scaled_values(space, scales), positive_pairs=pairs)
    note = (
        f"K counts pairs: {_listed(_counts(space))}, for {printed} positive pairs in the paper's batches, become "
        f"{_listed(_counts(scaled))} for the {pairs} in these batches"
    )
    scaled_arms = [_with_changes(arm, scaled, lambda settings: _scaled(settings, scales)) for arm in arms]
    return scaled, scaled_arms, [note]


def _pairs_of(space: Space, arms: Sequence[StudyArm]) -> int | None:
    """Return the positive pairs of a batch in the first arm with a K; None if its cells differ in their number."""
    for arm in arms:
        try:
            settings = arm.settings
        except ConfigError:
            return None  # reported when the arm is planned
        if COUNT in settings:
            if arm.protocol is not None and arm.protocol.origin == "paper":
                return None
            searched = {knob.path for knob in arm.knobs}
            return None if searched & {_BATCH, _PER_CLASS} else positive_pairs(settings)
    return None


def _with_scaled_values(space: Space, scales: _Scales) -> Space:
    """Return the space with every value of some settings scaled; equal values of a grid merge."""

    def scale_knob(knob: Knob) -> Knob:
        if knob.path not in scales or not isinstance(knob.domain, Grid):
            return knob
        values = dict.fromkeys(map(scales[knob.path], knob.domain.values))
        return replace(knob, domain=replace(knob.domain, values=tuple(values)))

    space = replace(space, fixed=_scaled(space.fixed, scales))
    return space.map_knobs(scale_knob).map_arms(lambda arm: replace(arm, settings=_scaled(arm.settings, scales)))


def _scaled(settings: Settings, scales: _Scales) -> dict[str, Value]:
    return {path: scales[path](value) if path in scales else value for path, value in settings.items()}


def _counts(space: Space) -> list[Value]:
    """Return the distinct values of K in a space."""
    found = [space.fixed[COUNT]] if COUNT in space.fixed else []
    found += [arm.settings[COUNT] for arm in space.every_arm if COUNT in arm.settings]
    domains = [knob.domain for arm in space.every_arm for knob in space.knobs_of(arm) if knob.path == COUNT]
    found += [value for domain in domains if isinstance(domain, Grid) for value in domain.values]
    return list(dict.fromkeys(found))


def with_tuned_knobs(
    space: Space, arms: Sequence[StudyArm], tune: Mapping[str, Sequence[Value]]
) -> tuple[Space, list[StudyArm], list[Problem]]:
    """Return the space and its arms with a nuisance knob for each path, and the problems of these knobs.

    Without values, each arm has three around its own. Values for a knob of the space or its arms replace its domain.
    """
    knobs, tied = {knob.path for arm in arms for knob in arm.knobs}, {tie.path for arm in arms for tie in arm.ties}
    searched, own_grids = knobs | tied, {path for path in knobs if tune.get(path)}
    tuned = {path: values for path, values in tune.items() if path not in own_grids}
    problems = []
    for path in [path for path in tuned if path in searched]:
        rule, remedy = f"{space.name} ties {path} to another knob", "Leave it out."
        if path in knobs:
            rule = f"{space.name} searches {path} already"
            remedy = f"Give the values to search instead: {spell('tune', {path: ['A', 'B']})}."
        problems.append(option_problem("tune", rule, None, remedy))
    grids: dict[str, dict[str, Grid]] = {arm.name: {} for arm in arms}
    settings: dict[str, Mapping[str, Value]] = {}
    for arm in arms if tuned else ():
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
                grids[name][path] = Grid(tuple(values) or _values_around(own[path]), "log")
    problems = list(dict.fromkeys(problems))
    if problems:
        return space, list(arms), problems

    def with_own_grid(knob: Knob) -> Knob:
        if knob.path not in own_grids:
            return knob
        return replace(knob, origin="user", domain=Grid(tuple(tune[knob.path]), knob.domain.scale))

    extended = _with_knobs(space.map_knobs(with_own_grid), grids)

    def without_knobs(settings: Settings) -> dict[str, Value]:
        return {path: value for path, value in settings.items() if path not in tuned}

    return extended, [_with_changes(arm, extended, without_knobs) for arm in arms], []


def _with_changes(arm: StudyArm, space: Space, change: Callable[[Settings], dict[str, Value]]) -> StudyArm:
    """Return an arm of a changed space, with the same change of its settings."""
    layers = (replace(layer, settings=change(layer.settings)) for layer in arm.layers)
    return replace(arm, space=space, layers=tuple(layers))


def _tuning_problem(
    path: str, values: Sequence[Value], own: Mapping[str, Value], allowed: Sequence[str]
) -> Problem | None:
    if path not in own:
        rule = "must name a setting that every arm has"
        return Problem(option_place("tune"), rule, path, known=allowed, kind="setting", dotted=True)
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

    fixed = {path: value for path, value in space.fixed.items() if path not in shared}
    return replace(space.map_arms(extend_arm), fixed=fixed, nuisance=(*space.nuisance, *_nuisance_knobs(shared)))


def _nuisance_knobs(grids: Mapping[str, Grid]) -> tuple[Knob, ...]:
    return tuple(Knob(path, grid, path.rpartition(".")[2], origin="ours") for path, grid in grids.items())
