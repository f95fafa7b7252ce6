"""Many runs at once, straight into the tables of a SQLite store and out of them: MLflow's client takes 20 ms for each.

Only where the tables are those that were compared: `tests/unit/tracking/test_tables.py` writes, finds and reads the same runs by
either way and demands equal databases and answers. With any other version of MLflow, and any other store, all functions decline
and the client does it.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tune_dml.tracking.projection import Point, RunStatus
from tune_dml.tracking.store import local_database

_REVISION = "dc11669786a5"
"""Of the tables of MLflow 3.17, as their table alembic_version has it."""
_PATIENCE = 20.0  # seconds, as MLflow waits for another writer
LARGEST = 1.7976931348623157e308  # what MLflow stores for an infinity

Row = tuple[str | float | None, ...]


@dataclass(frozen=True)
class NewRun:
    """A run that the store does not have, whole; times in milliseconds."""

    id: str
    name: str
    status: RunStatus
    started: int
    ended: int | None
    files: str
    """The address of its artifacts."""
    tags: Mapping[str, str]
    params: Mapping[str, str]
    points: Sequence[Point]


@dataclass
class Run:
    """A run as MLflow has it, kept up to date by whoever tells it more."""

    id: str
    status: str
    tags: dict[str, str]
    params: frozenset[str]
    """Names alone: a logged parameter cannot change."""
    has_data: bool = False
    """Its data set is known."""


@dataclass(frozen=True)
class StoredRun:
    """A run as a store has it, to be compared with what it should be."""

    status: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    points: Sequence[Point]


def write_runs(uri: str, experiment_id: str, runs: Sequence[NewRun]) -> bool:
    """Add all runs in one transaction; False, with none added, where the client is to do it.

    That is where the store has other tables, the experiment is not active, or something of a run is refused: the client says of
    which. Raises sqlite3.Error where the database cannot be written, and has then added none.
    """
    database = _opened(uri)
    if database is None:
        return False
    with contextlib.closing(database):  # which rolls back what is not committed
        database.execute("PRAGMA foreign_keys = ON")
        database.execute("BEGIN IMMEDIATE")
        if not (_is_known(database) and _is_active(database, experiment_id)):
            return False
        try:
            _insert(database, experiment_id, runs)
        except (sqlite3.IntegrityError, OverflowError, UnicodeError):
            return False
        database.execute("COMMIT")
    return True


def find_runs(uri: str, experiment_id: str, tag: str, value: str) -> list[Run] | None:
    """Every active run that has a tag, the earliest first; None where the client is to find them. Raises sqlite3.Error."""
    with _read(uri) as database:
        if database is None:
            return None
        chosen = (
            " FROM runs JOIN tags AS chosen USING (run_uuid) {} WHERE chosen.key = ? AND chosen.value = ?"
            " AND runs.experiment_id = ? AND runs.lifecycle_stage = 'active' ORDER BY runs.start_time"
        )
        asked = (tag, value, int(experiment_id))
        found = {
            run_id: Run(run_id, status, {}, frozenset())
            for run_id, status in database.execute("SELECT run_uuid, runs.status" + chosen.format(""), asked)
        }
        tags = "SELECT run_uuid, every.key, every.value" + chosen.format("JOIN tags AS every USING (run_uuid)")
        for run_id, name, text in database.execute(tags, asked):
            found[run_id].tags[name] = text
        params = "SELECT run_uuid, params.key" + chosen.format("JOIN params USING (run_uuid)")
        names: dict[str, set[str]] = {}
        for run_id, name in database.execute(params, asked):
            names.setdefault(run_id, set()).add(name)
        shared: dict[frozenset[str], frozenset[str]] = {}  # the trials of a sweep have the same parameters
        for run_id, own in names.items():
            found[run_id].params = shared.setdefault(frozenset(own), frozenset(own))
        inputs = "JOIN inputs ON inputs.destination_id = run_uuid AND inputs.destination_type = 'RUN'"
        data = "SELECT run_uuid" + chosen.format(f"{inputs} AND inputs.source_type = 'DATASET'")
        for (run_id,) in database.execute(data, asked):
            found[run_id].has_data = True
        return list(found.values())


def read_runs(uri: str, run_ids: Sequence[str]) -> dict[str, StoredRun] | None:
    """Those of the runs that are not deleted, by their ids; None where the client is to read them. Raises sqlite3.Error."""
    with _read(uri) as database:
        if database is None:
            return None
        found: dict[str, StoredRun] = {}
        for run_id in run_ids:
            status = database.execute(
                "SELECT status, lifecycle_stage FROM runs WHERE run_uuid = ?", (run_id,)
            ).fetchone()
            if status is None or status[1] != "active":
                continue
            params = database.execute("SELECT key, value FROM params WHERE run_uuid = ?", (run_id,))
            tags = database.execute("SELECT key, value FROM tags WHERE run_uuid = ?", (run_id,))
            columns = "key, CASE is_nan WHEN 0 THEN value END, step, timestamp"
            points = database.execute(f"SELECT {columns} FROM metrics WHERE run_uuid = ?", (run_id,))  # noqa: S608
            found[run_id] = StoredRun(
                status[0],
                dict(params),
                dict(tags),
                tuple(Point(name, math.nan if value is None else value, *place) for name, value, *place in points),
            )
        return found


@contextlib.contextmanager
def _read(uri: str) -> Iterator[sqlite3.Connection | None]:
    """The database as it is at one moment; None where its tables are not known."""
    database = _opened(uri)
    if database is None:
        yield None
        return
    with contextlib.closing(database):
        database.execute("BEGIN")
        yield database if _is_known(database) else None


def _opened(uri: str) -> sqlite3.Connection | None:
    path = local_database(uri)
    if path is None or not uri.startswith("sqlite:///"):  # another driver's file may be encrypted
        return None
    return sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)


def _is_known(database: sqlite3.Connection) -> bool:
    return database.execute("SELECT version_num FROM alembic_version").fetchall() == [(_REVISION,)]


def _is_active(database: sqlite3.Connection, experiment_id: str) -> bool:
    query = "SELECT lifecycle_stage FROM experiments WHERE experiment_id = ?"
    return database.execute(query, (int(experiment_id),)).fetchall() == [("active",)]


def _insert(database: sqlite3.Connection, experiment_id: str, runs: Sequence[NewRun]) -> None:
    database.executemany(
        "INSERT INTO runs (run_uuid, name, source_type, source_name, entry_point_name, user_id, status, start_time, end_time,"
        " source_version, lifecycle_stage, artifact_uri, experiment_id, deleted_time)"
        " VALUES (?, ?, 'UNKNOWN', '', '', 'unknown', ?, ?, ?, '', 'active', ?, ?, NULL)",
        (
            (run.id, run.name, run.status, run.started, run.ended, run.files, int(experiment_id))
            for run in runs
        ),
    )  # fmt: skip
    named = ((run.id, {**run.tags, "mlflow.runName": run.name}) for run in runs)
    database.executemany("INSERT INTO tags (run_uuid, key, value) VALUES (?, ?, ?)", _pairs(named))
    params = ((run.id, run.params) for run in runs)
    database.executemany("INSERT INTO params (run_uuid, key, value) VALUES (?, ?, ?)", _pairs(params))
    columns = "(run_uuid, key, step, timestamp, value, is_nan) VALUES (?, ?, ?, ?, ?, ?)"
    points = (row for run in runs for row in _all(run))
    database.executemany(f"INSERT OR IGNORE INTO metrics {columns}", points)
    latest = (row for run in runs for row in _latest(run))
    database.executemany(f"INSERT INTO latest_metrics {columns}", latest)


def _pairs(texts: Iterator[tuple[str, Mapping[str, str]]]) -> Iterator[Row]:
    return ((run_id, name, value) for run_id, values in texts for name, value in values.items())


def _all(run: NewRun) -> Iterator[Row]:
    """Every point; NaN is a zero with a mark."""
    for point in run.points:
        nan = math.isnan(point.value)
        value = 0.0 if nan else min(max(point.value, -LARGEST), LARGEST)
        yield run.id, point.name, point.step, point.time, value, nan


def _latest(run: NewRun) -> Iterator[Row]:
    """The point of each metric with the largest step, time and value."""
    latest: dict[object, Row] = {}
    for row in _all(run):
        known = latest.get(row[1])
        if known is None or row[2:5] > known[2:5]:
            latest[row[1]] = row
    yield from latest.values()
