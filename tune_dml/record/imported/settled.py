"""Turn imported rows into results for the report: knobs, cells, seeds and a plan."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trainables.errors import ConfigError, Problem, nearest, raise_if_any
from tune_dml.planning.cells import Cell, PlannedArm
from tune_dml.planning.plan import Plan
from tune_dml.planning.request import margin_problems
from tune_dml.planning.study import Search
from tune_dml.record.imported.rows import ImportedRows, ImportedTraining, ImportRequest, chosen_metric
from tune_dml.record.results import Imported, Results, TrialResult
from tune_dml.space import Grid, Knob, Scale, Space, Value
from tune_dml.text import is_number, joined, one_line, value_text

_NO_PROTOCOL = 0
"""Protocol version of imported trials."""
_MOST_KNOBS = 20
_LOG_FROM = 100
"""Ratio of largest to smallest value from which a knob has a logarithmic axis."""

Point = tuple[Hashable, ...]


def results_of_rows(data: ImportedRows, request: ImportRequest, folder: Path) -> Results:
    """Return results as of a sweep; `folder` need not exist. Raise ConfigError with all problems.

    Settings that do not vary become fixed settings. Without a seed, trainings of equal settings are numbered in their order,
    which pairs them by chance: valid, but weaker than pairing by seed.
    """
    metric = chosen_metric(data, request)
    seed_column = _seed_column(data, request)
    knobs, fixed = _knobs(data, request, seed_column)
    raise_if_any([*_margin_problems(data, request, metric), *margin_problems(request.margin)])
    points = [tuple(_key(row.settings.get(knob.path)) for knob in knobs) for row in data.rows]
    seeds, notes = _seeds(data, points, seed_column)
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
    crossed = len(cells) == math.prod(len(knob.domain.values) for knob in knobs if isinstance(knob.domain, Grid))
    search = Search() if crossed else Search("random", num_samples=len(cells))
    arm = PlannedArm("", fixed, dict.fromkeys(fixed, "the same in every training")).with_knobs_of(space)
    plan = Plan(
        request.name, space, dataset, tuple(sorted(set(seeds))), tuple(cells.values()) if crossed else (), search, (arm,),
        data_digest=data_digest, protocol_version=_NO_PROTOCOL,
    )  # fmt: skip
    trials, histories = [], {}
    for index, (row, point, seed) in enumerate(zip(data.rows, points, seeds, strict=True)):
        key = f"{index:04d}-{hashlib.sha256(row.name.encode()).hexdigest()[:8]}"
        trials.append(_trial(key, row, cells[point], seed, metric))
        histories[key] = [dict(item) for item in row.history]
    imported = Imported(data.source, histories)
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
    """Name the columns that may be results, names or times: because of them no two trainings share a configuration."""
    tried = {knob.path: len(knob.domain.values) for knob in knobs if isinstance(knob.domain, Grid)}
    own = [name for name, values in tried.items() if 2 * values > len(data.rows)]
    rest = [name for name in tried if name not in own]
    if not own or not rest:
        return []
    flags = " ".join(shlex.join(["--knob", name]) for name in rest)
    return [
        f"No configuration was trained twice: nearly every training has its own {joined(own)}. "
        f"If that is a result, a name or a time and no setting, choose the settings: {flags}"
    ]


def _seed_column(data: ImportedRows, request: ImportRequest) -> str | None:
    known = sorted({name for row in data.rows for name in row.settings})
    if request.seed_column is None:
        named = [name for name in known if name.lower() == "seed"]
        return named[0] if len(named) == 1 else next((name for name in named if name == "seed"), None)
    if request.seed_column not in known:
        rule = f"must be a setting of {data.source}"
        raise ConfigError(Problem("--seed-column", rule, request.seed_column, nearest(request.seed_column, known)))
    return request.seed_column


def _knobs(data: ImportedRows, request: ImportRequest, seed: str | None) -> tuple[tuple[Knob, ...], dict[str, Value]]:
    """Return the knobs that vary and the settings that do not."""
    names = list(dict.fromkeys(name for row in data.rows for name in row.settings if name != seed))
    problems = [
        Problem("--knob", f"must be a setting of {data.source}", name, nearest(name, names, what="setting"))
        for name in request.knobs
        if name not in names
    ]
    raise_if_any(problems)
    values = {name: _tried(data, name) for name in request.knobs or names}
    varying = {name: tried for name, tried in values.items() if len(tried) > 1}
    if not varying:
        rule = f"some setting of {data.source} must vary"
        remedy = f"Its settings are {', '.join(names)}." if names else "It has no settings: name them in columns."
        raise ConfigError(Problem("--knob", rule, None, remedy))
    if len(varying) > _MOST_KNOBS:
        rule = f"at most {_MOST_KNOBS} settings can be analysed together"
        remedy = f"Name the settings to analyse; {', '.join(list(varying)[:8])} ... vary."
        raise ConfigError(Problem("--knob", rule, len(varying), remedy))
    ends = [name.rpartition(".")[2] for name in varying]
    knobs = tuple(
        Knob(name, Grid(tried, _scale(tried)), symbol="" if ends.count(end) == 1 else name, origin="user")
        for (name, tried), end in zip(varying.items(), ends, strict=True)
    )
    return knobs, {name: tried[0] for name, tried in values.items() if len(tried) == 1}


def _tried(data: ImportedRows, name: str) -> tuple[Value, ...]:
    """Return each value once, numbers in order."""
    distinct = {_key(row.settings.get(name)): row.settings.get(name) for row in data.rows}
    values = list(distinct.values())
    numbers = [value for value in values if is_number(value)]
    return tuple(sorted(numbers)) if len(numbers) == len(values) else tuple(values)


def _key(value: Value) -> Hashable:
    """Return a value's key: 1 and 1.0 are equal, yes differs."""
    return ("number", float(value)) if is_number(value) else ("name", repr(value))


def _scale(values: Sequence[Value]) -> Scale:
    numbers = [value for value in values if is_number(value)]
    if len(numbers) < len(values):
        return "category"
    positive = [number for number in numbers if number > 0]
    wide = len(positive) == len(numbers) and max(positive) >= _LOG_FROM * min(positive)
    return "log" if wide else "linear"


def _seeds(data: ImportedRows, points: Sequence[Point], column: str | None) -> tuple[list[int], list[str]]:
    """Return a seed for each row, and notes. Raise ConfigError if a configuration repeats a seed."""
    counted: dict[Point, int] = {}
    if column is None:
        seeds = []
        for point in points:
            seeds.append(counted.get(point, 0))
            counted[point] = seeds[-1] + 1
        if max(seeds) == 0:
            return seeds, [
                "No setting is the seed and every configuration was trained once: nothing says how noisy it is."
            ]
        return seeds, [
            "No setting is the seed: trainings of equal settings are numbered in their order, and so paired by chance."
        ]
    written = [row.settings.get(column) for row in data.rows]
    names = sorted({value for value in written if not _whole(value)}, key=str)
    first = 1 + max((int(value) for value in written if _whole(value)), default=-1)  # type: ignore[arg-type]
    numbers = {name: first + index for index, name in enumerate(names)}
    seeds = [int(value) if _whole(value) else numbers[value] for value in written]  # type: ignore[arg-type]
    shown = ", ".join(value_text(name) for name in names[:6])
    notes = [f"Seeds that are no whole numbers were numbered in order, from {first}: {shown}."] if names else []
    places: dict[tuple[Point, Value], list[str]] = {}
    for row, point, seed in zip(data.rows, points, written, strict=True):
        if row.status == "finished":
            places.setdefault((point, seed), []).append(row.name)
    twice = [(seed, rows) for (_, seed), rows in places.items() if len(rows) > 1]
    rule = "a configuration may have each seed only once"
    remedy = "Remove the repeat; where other settings tell them apart, leave --knob out or name those too."
    raise_if_any(Problem(f"{data.source}, {' and '.join(rows[:3])}", rule, seed, remedy) for seed, rows in twice[:5])
    return seeds, notes


def _whole(value: Value) -> bool:
    return is_number(value) and float(value).is_integer() and value >= 0


def _margin_problems(data: ImportedRows, request: ImportRequest, metric: str) -> list[Problem]:
    """Ask for a margin, and name the range of the metric."""
    if request.margin is not None:
        return []
    numbers = [row.metrics[metric] for row in data.rows if metric in row.metrics]
    rule = f"name the largest difference of {metric} that does not matter: every verdict depends on it"
    seen = f"It lies between {value_text(min(numbers))} and {value_text(max(numbers))}; " if numbers else ""
    return [Problem("--margin", rule, None, f"{seen}give the largest difference that you would ignore.")]


def _cells(
    data: ImportedRows, knobs: Sequence[Knob], fixed: Mapping[str, Value], points: Sequence[Point]
) -> dict[Point, Cell]:
    cells: dict[Point, Cell] = {}
    trainings: dict[Point, list[str]] = {}
    for row, point in zip(data.rows, points, strict=True):
        trainings.setdefault(point, []).append(row.name)
    for row, point in zip(data.rows, points, strict=True):
        if point in cells:
            continue
        values = {knob.path: row.settings.get(knob.path) for knob in knobs}
        parts = (f"{knob.symbol or knob.path.rpartition('.')[2]}={value_text(values[knob.path])}" for knob in knobs)
        body = json.dumps([data.source, trainings[point]])  # equal settings of another source may have other code
        digest = hashlib.sha256(body.encode()).hexdigest()
        cells[point] = Cell(len(cells), ", ".join(parts), values, {**fixed, **values}, digest)
    labels = [cell.label for cell in cells.values()]
    return {  # number labels that rounding made equal
        point: cell if labels.count(cell.label) == 1 else replace(cell, label=f"{cell.label} (#{cell.index + 1})")
        for point, cell in cells.items()
    }
