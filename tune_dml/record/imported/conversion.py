"""Convert imported rows to results for the report, with knobs, cells, seeds and a plan."""

import hashlib
import json
import math
import shlex
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

from trainables.errors import ConfigError, Problem, raise_if_any
from tune_dml.planning.cells import Cell, PlannedArm, with_own_label
from tune_dml.planning.grouping import grouped
from tune_dml.planning.plan import Plan
from tune_dml.planning.request import margin_problems
from tune_dml.planning.study import Search
from tune_dml.record.imported.rows import ImportedRows, ImportedTraining, ImportRequest, choose_metric
from tune_dml.record.results import ImportOrigin, Results, TrialResult
from tune_dml.space import Grid, Knob, Scale, Space, Value
from tune_dml.text import is_number, joined, level_key, one_line, value_text

_NO_PROTOCOL = 0  # protocol version of imported trials
_MAX_KNOBS = 20
_LOG_RATIO = 100  # a knob has a logarithmic axis from this ratio of its largest to its smallest value

Point = tuple[Hashable, ...]


def results_of_rows(data: ImportedRows, request: ImportRequest, folder: Path, *, keeps_seeds: bool = False) -> Results:
    """Return the results that a sweep would have; `folder` need not exist. Raise ConfigError with all problems.

    Settings that do not vary become fixed settings. Without seeds, trainings with equal settings are numbered in their
    order, which pairs them by chance. That is valid, but has less power than pairing by seed. So are configurations
    that share no seed, unless `keeps_seeds`, for comparisons with other results.
    """
    metric = choose_metric(data, request)
    seed_column = _seed_column(data, request)
    knobs, fixed = _knobs(data, request, seed_column)
    raise_if_any([*_margin_problems(data, request, metric), *margin_problems(request.margin)])
    points = [tuple(level_key(row.settings.get(knob.path)) for knob in knobs) for row in data.rows]
    seeds, notes = _seeds(data, points, seed_column, request.knobs)
    if not keeps_seeds:
        seeds, more_notes = _pair_groups(points, seeds)
        notes += more_notes
    if len(set(points)) == len(points) > 1 and not request.knobs:
        notes += _notes_on_single_trainings(data, knobs)
    goal = request.goal or data.goal or "maximize"
    if not request.goal and not data.goal:
        notes.append(f"A higher {metric} is taken as better; if a lower one is, pass --goal minimize.")
    dataset, data_digest = data.data_set or (data.source, "")
    space = Space(
        request.name, request.name, "", None, knobs, fixed, metric=metric, goal=goal, margin=request.margin or 1.0,
        default_dataset=dataset,
    )  # fmt: skip
    cells = _cells(data, knobs, fixed, points)
    is_grid = len(cells) == math.prod(len(knob.domain.values) for knob in knobs if isinstance(knob.domain, Grid))
    search = Search() if is_grid else Search("random", num_samples=len(cells))
    arm = PlannedArm("", fixed, dict.fromkeys(fixed, "the same in every training")).with_knobs_of(space)
    plan = Plan(
        request.name, space, dataset, tuple(sorted(set(seeds))), tuple(cells.values()) if is_grid else (), search, (arm,),
        data_digest=data_digest, protocol_version=_NO_PROTOCOL,
    )  # fmt: skip
    trials, histories = [], {}
    for index, (row, point, seed) in enumerate(zip(data.rows, points, seeds, strict=True)):
        key = f"{index:04d}-{hashlib.sha256(row.name.encode()).hexdigest()[:8]}"
        trials.append(_trial(key, row, cells[point], seed, metric))
        histories[key] = [dict(item) for item in row.history]
    imported = ImportOrigin(data.source, histories)
    return Results(folder, plan, tuple(trials), {}, (*data.notes, *notes), imported=imported)


def _trial(key: str, row: ImportedTraining, cell: Cell, seed: int, metric: str) -> TrialResult:
    status, reason = row.status, row.reason
    if status == "finished" and metric not in row.metrics:
        status, reason = "failed", reason or f"it has no finite {metric}"
    return TrialResult(
        key, cell, seed, status, one_line(reason), dict(row.metrics) if status == "finished" else {}, row.seconds,
        attempts=1, run_id=row.run_id,
    )  # fmt: skip


def _notes_on_single_trainings(data: ImportedRows, knobs: Sequence[Knob]) -> list[str]:
    """Return a note on columns that may be results, names or times, because nearly all their values differ."""
    counts = {knob.path: len(knob.domain.values) for knob in knobs if isinstance(knob.domain, Grid)}
    suspects = [name for name, count in counts.items() if 2 * count > len(data.rows)]
    other_names = [name for name in counts if name not in suspects]
    if not suspects or not other_names:
        return []
    flags = " ".join(shlex.join(["--knob", name]) for name in other_names)
    return [
        f"No configuration was trained twice: nearly every training has its own {joined(suspects)}. "
        f"If that is a result, a name or a time, not a setting, choose the settings: {flags}"
    ]


def _seed_column(data: ImportedRows, request: ImportRequest) -> str | None:
    names = sorted({name for row in data.rows for name in row.settings})
    if request.seed_column is None:
        candidates = [name for name in names if name.lower() == "seed"]
        return candidates[0] if len(candidates) == 1 else next((name for name in candidates if name == "seed"), None)
    if request.seed_column not in names:
        rule = f"must be a setting of {data.source}"
        raise ConfigError(Problem("--seed-column", rule, request.seed_column, known=names))
    return request.seed_column


def _knobs(data: ImportedRows, request: ImportRequest, seed: str | None) -> tuple[tuple[Knob, ...], dict[str, Value]]:
    """Return a knob for each setting that varies, and the settings that do not vary."""
    names = list(dict.fromkeys(name for row in data.rows for name in row.settings if name != seed))
    problems = [
        Problem("--knob", f"must be a setting of {data.source}", name, known=names, kind="setting")
        for name in request.knobs
        if name not in names
    ]
    raise_if_any(problems)
    values_by_name = {name: _distinct_values(data, name) for name in request.knobs or names}
    varying = {name: values for name, values in values_by_name.items() if len(values) > 1}
    if not varying:
        rule = f"some setting of {data.source} must vary"
        remedy = f"Its settings are {', '.join(names)}." if names else "It has no settings: name them in columns."
        raise ConfigError(Problem("--knob", rule, None, remedy))
    if len(varying) > _MAX_KNOBS:
        rule = f"at most {_MAX_KNOBS} settings can be analysed together"
        remedy = f"Name the settings to analyse; {', '.join(list(varying)[:8])} ... vary."
        raise ConfigError(Problem("--knob", rule, len(varying), remedy))
    last_parts = [name.rpartition(".")[2] for name in varying]
    knobs = tuple(
        Knob(name, Grid(values, _scale(values)), symbol="" if last_parts.count(last_part) == 1 else name, origin="user")
        for (name, values), last_part in zip(varying.items(), last_parts, strict=True)
    )
    return knobs, {name: values[0] for name, values in values_by_name.items() if len(values) == 1}


def _distinct_values(data: ImportedRows, name: str) -> tuple[Value, ...]:
    distinct = {level_key(row.settings.get(name)): row.settings.get(name) for row in data.rows}
    values = list(distinct.values())
    numbers = [value for value in values if is_number(value)]
    return tuple(sorted(numbers)) if len(numbers) == len(values) else tuple(values)


def _scale(values: Sequence[Value]) -> Scale:
    numbers = [value for value in values if is_number(value)]
    if len(numbers) < len(values):
        return "category"
    positive = [number for number in numbers if number > 0]
    is_wide = len(positive) == len(numbers) and max(positive) >= _LOG_RATIO * min(positive)
    return "log" if is_wide else "linear"


def _seeds(
    data: ImportedRows, points: Sequence[Point], column: str | None, chosen: Sequence[str]
) -> tuple[list[int], list[str]]:
    counts: dict[Point, int] = {}
    if column is None:
        seeds = []
        for point in points:
            seeds.append(counts.get(point, 0))
            counts[point] = seeds[-1] + 1
        if max(seeds) == 0:
            return seeds, [
                "No setting is the seed and every configuration was trained once, so that the noise is unknown."
            ]
        return seeds, [
            "No setting is the seed: trainings with equal settings are numbered in order, and so paired by chance."
        ]
    written = [row.settings.get(column) for row in data.rows]
    names = sorted({value for value in written if not _is_whole_number(value)}, key=str)
    first = 1 + max((int(value) for value in written if _is_whole_number(value)), default=-1)  # type: ignore[arg-type]
    numbers = {name: first + index for index, name in enumerate(names)}
    seeds = [int(value) if _is_whole_number(value) else numbers[value] for value in written]  # type: ignore[arg-type]
    examples = ", ".join(value_text(name) for name in names[:6])
    notes = [f"Seeds that are not whole numbers were numbered in order, from {first}: {examples}."] if names else []
    finished = [index for index, row in enumerate(data.rows) if row.status == "finished"]
    by_seed = grouped(finished, lambda index: (points[index], written[index]))
    repeats = [(seed, [data.rows[i].name for i in same]) for (_, seed), same in by_seed.items() if len(same) > 1]
    rule = "a configuration may have each seed only once"
    remedy = data.repeat_remedy
    if chosen:
        remedy += " If other settings differ, leave --knob out or name these settings, too."
    unnamed = "Its seed is empty: give each training its seed, or leave this column out."
    raise_if_any(
        Problem(f"{data.source}, {' and '.join(rows[:3])}", rule, seed, unnamed if seed is None else remedy)
        for seed, rows in repeats[:5]
    )
    return seeds, notes


def _pair_groups(points: Sequence[Point], seeds: Sequence[int]) -> tuple[list[int], list[str]]:
    """Give each group of configurations that shares no seed with the others the seeds of the largest group, in order."""
    parents: dict[Hashable, Hashable] = {}

    def root_of(node: Hashable) -> Hashable:
        while (parent := parents.setdefault(node, node)) != node:
            parents[node] = node = parents[parent]
        return node

    for point, seed in zip(points, seeds, strict=True):
        parents[root_of(point)] = root_of(seed)
    groups = grouped(sorted(set(seeds)), root_of)
    largest = max(groups.values(), key=len)
    if len(groups) < 2 or (len(largest) == 1 and len(groups) < len(points)):
        return list(seeds), []
    if len(largest) == 1:
        return [largest[0]] * len(seeds), [
            "Every training has its own seed and settings, so that the noise is unknown."
        ]
    paired = {seed: other for own in groups.values() for seed, other in zip(own, largest, strict=False)}
    return [paired[seed] for seed in seeds], [
        f"The configurations form {len(groups)} groups that share no seed. Their seeds were numbered alike, in order, so "
        "that these groups are paired by chance."
    ]


def _is_whole_number(value: Value) -> bool:
    return is_number(value) and float(value).is_integer() and value >= 0


def _margin_problems(data: ImportedRows, request: ImportRequest, metric: str) -> list[Problem]:
    if request.margin is not None:
        return []
    numbers = [row.metrics[metric] for row in data.rows if metric in row.metrics]
    rule = f"name the largest difference of {metric} that does not matter: every verdict depends on it"
    range_text = f"It lies between {value_text(min(numbers))} and {value_text(max(numbers))}; " if numbers else ""
    return [Problem("--margin", rule, None, f"{range_text}give the largest difference that you would ignore.")]


def _cells(
    data: ImportedRows, knobs: Sequence[Knob], fixed: Mapping[str, Value], points: Sequence[Point]
) -> dict[Point, Cell]:
    cells, labels = dict[Point, Cell](), set[str]()
    for point, indices in grouped(range(len(points)), points.__getitem__).items():
        trainings = [data.rows[index] for index in indices]
        values = {knob.path: trainings[0].settings.get(knob.path) for knob in knobs}
        parts = (f"{knob.symbol or knob.path.rpartition('.')[2]}={value_text(values[knob.path])}" for knob in knobs)
        body = json.dumps([data.source, [row.name for row in trainings]])  # code may differ between sources
        digest = hashlib.sha256(body.encode()).hexdigest()
        cell = Cell(len(cells), ", ".join(parts), values, {**fixed, **values}, digest)
        cells[point] = with_own_label(cell, labels)
    return cells
