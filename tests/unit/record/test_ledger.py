"""The ledger: complete lines, one writer, rows once, and results that follow from them."""

import errno
import fcntl
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.toys import METRIC, PROVENANCE, Driver, event_of, plan_of, space_of

from trainables.errors import ConfigError
from tune_dml.planning.request import Resources
from tune_dml.record.events import (
    BlockAdded,
    CellProposed,
    CellSettled,
    Note,
    Opened,
    RaceEnded,
    RaceStarted,
    SessionStarted,
    TrialEnd,
    TrialEnded,
    TrialRescored,
    TrialStarted,
)
from tune_dml.record.judging.race import RaceRule, SettledCell
from tune_dml.record.ledger import READ_ONLY, Ledger, is_running, read_events, read_history
from tune_dml.record.results import results_of
from tune_dml.space import Baseline, Grid, Knob


@pytest.fixture
def driver(tmp_path):
    """Three cells (the baseline and two values) by two seeds."""
    off = Baseline("off", {"regularizer.name": "none"})
    rho = Knob("regularizer.rho", Grid((0.1, 1.0)))
    return Driver(tmp_path / "toy", plan_of(space=space_of(rho, fixed={"regularizer.name": "sec"}, baseline=off)))


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_truncated_last_line_is_moved_to_another_file_and_reported(tmp_path, cut):
    with Ledger(tmp_path) as ledger:
        for number in range(3):
            ledger.write(event_of("note", text=str(number)))
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    rest = path.read_bytes().rpartition(b"\n")[2]
    assert [event.body()["text"] for event in read_events(tmp_path)] == ["0", "1"]
    with Ledger(tmp_path) as ledger:
        ledger.write(event_of("note", text="again"))
    first, second, said, last = [event.body()["text"] for event in read_events(tmp_path)]
    assert [first, second, last] == ["0", "1", "again"]
    assert "incomplete" in said
    assert (tmp_path / "ledger.unreadable").read_bytes() == rest + b"\n"


def test_a_row_reported_twice_counts_once_as_first_written(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.report("k", {"step": 10, "train/loss": 1.0})
        ledger.report("k", {"step": 5, "train/loss": float("nan")})
        ledger.report("k", *({"step": step, "train/loss": loss} for step, loss in ((10, 9.0), (15, 3.0), (15, 9.0))))
    rows = read_history(tmp_path, "k")
    assert str([(row["step"], row["train/loss"]) for row in rows]) == "[(5, nan), (10, 1.0), (15, 3.0)]"


def test_a_removed_history_is_reported_and_restarted(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.report("k", {"step": 10}, {"step": 15})
        shutil.rmtree(tmp_path / "trials" / "k")
        ledger.report("k", {"step": 20})
        ledger.report("k", {"step": 10})  # a lost process, whose checkpoint has gone too
    assert [row["step"] for row in read_history(tmp_path, "k")] == [10, 20]
    (said,) = [event.body()["text"] for event in read_events(tmp_path)]
    assert said == "trials/k/history.jsonl was deleted, with the rows of 2 steps"


def test_an_invalid_row_is_skipped_and_reported(tmp_path):
    """Half a row, from a kill or a full disk, must not replace the row that is written again."""
    whole = {"step": 10, "train/loss": 1.0}
    with Ledger(tmp_path) as ledger:
        ledger.report("k", whole)
    spoilt = [{"time": 1.0}, {"step": "x"}, {"step": None}, {"step": 15}, {"step": float("nan"), "time": 1.0}]
    spoilt += [{"step": 10**400, "time": 1.0}, {"step": 15, "time": 1.0, METRIC: 10**400}]
    spoilt += [{"step": 15, "time": "now"}, {"step": 15, "time": 1.0, METRIC: None}, [15], "15"]
    with (tmp_path / "trials" / "k" / "history.jsonl").open("ab") as file:
        file.write(b"\x00" * 50 + b"\n" + b"".join(json.dumps(row).encode() + b"\n" for row in spoilt))
        file.write(b'\xff\xfe torn {"step": 15, "val/re')
    with Ledger(tmp_path) as ledger:
        ledger.report("k", whole, {"step": 15, "train/loss": 2.0})
        ledger.report("k", {"step": 20, "train/loss": 3.0})
    rows = read_history(tmp_path, "k")
    assert [(row["step"], row["train/loss"]) for row in rows] == [(10, 1.0), (15, 2.0), (20, 3.0)]
    (said,) = [event.body()["text"] for event in read_events(tmp_path)]
    assert said == "trials/k/history.jsonl: 12 lines cannot be read and are skipped"


@pytest.mark.parametrize(("storage", "says"), [("sweeps", "status toy`"), ("my sweeps", "status toy --storage '")])
def test_a_second_writer_is_refused_with_the_pid_of_the_first_and_the_status_command(tmp_path, storage, says):
    """A reader on a cluster has another working directory."""
    with Ledger(tmp_path / storage / "toy"), pytest.raises(ConfigError) as told, Ledger(tmp_path / storage / "toy"):
        pytest.fail("opened")
    assert f"process {os.getpid()}" in str(told.value)
    assert f"Follow it with `tune-dml {says}" in str(told.value)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_without_file_locks_no_sweep_runs(tmp_path, monkeypatch, number):
    """There filelock uses the existence of the file as lock, which stays after a killed process."""

    def refused(file, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(ConfigError) as told, Ledger(tmp_path / "toy"):
        pytest.fail("opened")
    (problem,) = told.value.problems
    assert (problem.place, problem.value) == ("storage", str(tmp_path))
    assert os.strerror(number) in problem.rule
    assert not is_running(tmp_path / "toy")
    monkeypatch.undo()
    with Ledger(tmp_path / "toy"):
        assert is_running(tmp_path / "toy")


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_an_unwritable_sweep_is_refused_with_a_remedy(tmp_path, monkeypatch, number):
    """As with `sync`, `mv` and `rm` of a read-only copy."""

    def refused(path, mode):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(ConfigError) as told, Ledger(tmp_path):
        pytest.fail("opened")
    rule = f"name: must be a folder that can be written: {os.strerror(number)}, but got '{tmp_path}'."
    assert str(told.value) == f"{rule} {READ_ONLY}"


def test_a_full_disk_at_the_start_is_reported_with_the_folder_and_releases_the_sweep(tmp_path, monkeypatch):
    def full(path, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # an error of `write` has no file name

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left") as told, Ledger(tmp_path):
            pytest.fail("opened")
    assert told.value.filename == str(tmp_path)
    assert not is_running(tmp_path)


def test_a_second_writer_is_refused_although_the_lock_file_was_deleted(tmp_path):
    """People delete a lock that they take for stale."""
    with Ledger(tmp_path / "toy"):
        (tmp_path / "toy" / "lock").unlink()
        assert is_running(tmp_path / "toy")
        with pytest.raises(ConfigError, match="one process at a time"), Ledger(tmp_path / "toy"):
            pytest.fail("opened")
    assert not is_running(tmp_path / "toy")
    with Ledger(tmp_path / "toy"):
        assert (tmp_path / "toy" / "lock").read_text() == str(os.getpid())


@pytest.mark.parametrize("kept", [None, 0, 1, 2])
def test_lines_of_a_replaced_ledger_are_restored(tmp_path, kept):
    """Editors and backups write a new file. `kept`: its number of lines, None if the ledger was deleted."""
    path = tmp_path / "ledger.jsonl"
    (tmp_path / "plan.json").touch()
    with Ledger(tmp_path) as ledger:
        for text in ("first", "second"):
            ledger.write(event_of("note", text=text))
        lines = path.read_bytes().splitlines(keepends=True)
        path.unlink()
        if kept is not None:
            (tmp_path / "copy").write_bytes(b"".join(lines[:kept]))
            (tmp_path / "copy").rename(path)
        ledger.write(event_of("note", text="third"))
        assert is_running(tmp_path)
        ledger.write(event_of("note", text="last"))
    first, second, said, third, last = [event.body()["text"] for event in read_events(tmp_path)]
    assert [first, second, third, last] == ["first", "second", "third", "last"]
    lost = 2 - (kept or 0)
    assert (
        said == f"ledger.jsonl was replaced or deleted while it was written; the {lost} lines that it lost are restored"
    )
    assert path.stat().st_mode & 0o77 == 0 or kept


def test_nothing_is_written_into_an_empty_folder_below_a_mount(tmp_path, monkeypatch):
    monkeypatch.setattr("trainables.files.PATIENCE", 0.0)
    with Ledger(tmp_path / "toy") as ledger:
        ledger.write(event_of("note", text="first"))
        (tmp_path / "toy").rename(tmp_path / "away")
        (tmp_path / "toy").mkdir()
        ledger.write(event_of("note", text="second"))
        ledger.restore_trials()
        with pytest.raises(OSError, match="folder is gone"):
            ledger.report("k", {"step": 1, "train/loss": 1.0})
    assert not list((tmp_path / "toy").iterdir())
    assert [event.body()["text"] for event in read_events(tmp_path / "away")] == ["first", "second"]


def test_a_deleted_folder_of_all_trials_is_created_again(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.write(event_of("note", text="first"))
        ledger.restore_trials()
        assert (tmp_path / "trials").is_dir()


def test_no_row_reaches_another_sweep_of_the_same_name(tmp_path, monkeypatch):
    """The sweep's folder was renamed while it ran, and the sweep was started again."""
    monkeypatch.setattr("trainables.files.PATIENCE", 0.0)
    old, new = Ledger(tmp_path / "toy"), Ledger(tmp_path / "toy")
    with old:
        (tmp_path / "toy").rename(tmp_path / "renamed")
        with new:
            new.write(event_of("note", text="first"))
            new.report("k", {"step": 1, "train/loss": 1.0})
            with pytest.raises(OSError, match="folder is gone"):
                old.report("k", {"step": 2, "train/loss": 2.0})
            old.write(event_of("note", text="old"))
            new.write(event_of("note", text="new"))
    assert [row["step"] for row in read_history(tmp_path / "toy", "k")] == [1]
    assert [event.body()["text"] for event in read_events(tmp_path / "toy")] == ["first", "new"]
    assert [event.body()["text"] for event in read_events(tmp_path / "renamed")] == ["old"]


def test_a_damaged_lock_file_is_ignored_and_only_the_owner_reads_the_ledger(tmp_path):
    (tmp_path / "lock").write_bytes(b"\xff\xfe\x00")
    with Ledger(tmp_path) as ledger:
        ledger.write(event_of("note", text="said"))
    assert (tmp_path / "lock").read_text() == str(os.getpid())
    assert (tmp_path / "ledger.jsonl").stat().st_mode & 0o777 == 0o600


def test_results_show_every_state(driver):
    finished, diverged, failed, *_ = driver.trials
    driver.session()
    for trial in driver.trials[:4]:
        driver.started(trial)
    driver.ended(finished, metrics={METRIC: 50.0, "test/recall_at_1": 40.0}, seconds=3.0, step=40)
    driver.ended(diverged, "diverged", reason="nan at 3")
    driver.ended(failed, "failed", reason="bug")
    for _ in range(2):
        driver.event("note", text="said")
    results = results_of(driver.folder)
    statuses = {trial.key: trial.status for trial in results.trials}
    expected = ["finished", "diverged", "failed", "running", "missing", "missing"]
    assert [statuses[trial.key] for trial in driver.trials] == expected
    assert results.notes == ("said",)
    assert results.provenance == PROVENANCE
    first = next(trial for trial in results.trials if trial.key == finished.key)
    assert first.metrics == {METRIC: 50.0}
    assert not [column for column in results.table().columns if column.startswith("test/")]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"kind": "note", "time": 1.0, "key": "", "body": 5}', "it is no event"),
        (b'{"kind": "unheard of", "time": 1.0, "key": "", "body": {}}', "knows no event 'unheard of'"),
        *((line, "") for line in (b"[" * 100_000, b"\x00\xff\x00 torn by a full disk", b"[1, 2]")),
        (b'{"kind": "opened", "time": 1.0, "key": "", "body": {}}', "user: Field required"),
        (b'{"kind": "ended", "time": 1.0, "key": "", "body": {"status": "finished"}}', "it names no trial"),
        (b'{"kind": "ended", "time": 1.0, "key": "a", "body": {"status": "grand"}}', "end.status: Input should be"),
        (b'{"kind": "started", "time": "late", "key": "a", "body": {}}', "time: Input should be a valid number"),
        (b'{"kind": "session", "time": 1.0, "key": "", "body": {"provenance": {"argv": -1}}}', "provenance.argv"),
        (b'{"kind": "session", "time": 1.0, "key": "", "body": {"provenance": {"argv": ["a", 1]}}}', "provenance.argv"),
        (b'{"kind": "session", "time": 1.0, "key": "", "body": {"provenance": {"git": []}}}', "provenance.git"),
    ],
    ids=range(12),
)
def test_a_line_of_another_shape_is_skipped_and_named(tmp_path, line, why):
    with Ledger(tmp_path) as ledger:
        ledger.write(Note(text="before"))
    with (tmp_path / "ledger.jsonl").open("ab") as file:
        start = file.tell()
        file.write(line + b"\n")
    with Ledger(tmp_path) as ledger:
        ledger.write(Note(text="after"))
    said = []
    assert [event.text for event in read_events(tmp_path, on_garbage=said.append)] == ["before", "after"]
    (text,) = said
    assert text.startswith(f"ledger.jsonl: the {len(line) + 1} bytes from {start} cannot be read")
    assert why in text


def test_an_event_behind_a_torn_one_in_its_line_is_read(tmp_path):
    whole = b'{"kind": "note", "time": 1.0, "key": "", "body": {"text": "whole"}}'
    (tmp_path / "ledger.jsonl").write_bytes(b'\x00\x00{"ki' + whole + b"\n")
    assert [event.text for event in read_events(tmp_path)] == ["whole"]


def test_an_incomplete_character_is_replaced(tmp_path):
    """No terminal, report or MLflow accepts it."""
    with Ledger(tmp_path) as ledger:
        for text in ("pic\udcff.png", "\N{GRINNING FACE}"):
            ledger.write(Note(text=text))
    assert [event.text for event in read_events(tmp_path)] == ["pic?.png", "\N{GRINNING FACE}"]


def test_every_kind_of_event_reads_back(tmp_path):
    cell = plan_of(Knob("loss.margin", Grid((0.1, 1.0)), "m")).cells[1]
    end = TrialEnd("stopped", "third", {"val/queries": 3, "val/x": 1.5}, 3, 2.0, at_rung=7.5, code={"m": "d"})
    written = [
        SessionStarted(provenance={"host": "h"}, resources=Resources(workers=2), heard={"a": 1.0}),
        CellProposed(cell=cell),
        TrialStarted(key="a", host="h"),
        TrialEnded(key="a", end=end),
        TrialRescored(key="a", metrics={"val/x": 2.0}),
        Note(text="said", of_session=True),
        Opened(user="u", host="h", cell="c"),
        RaceStarted(rule=RaceRule(1.0, 9)),
        BlockAdded(seeds=(0, 1), cells=("d",)),
        CellSettled(settled=SettledCell("d", 2, "worse", "m=1", 1.0, 0.01)),
        RaceEnded(why="decided"),
    ]
    with Ledger(tmp_path) as ledger:
        for event in written:
            ledger.write(event)
    assert [replace(event, time=0.0) for event in read_events(tmp_path)] == written
