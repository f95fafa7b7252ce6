"""The fold of the ledger: equal at once and incrementally; and the effect of each event."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from helpers.toys import MARGINS, event_of, plan_of

from trainables.errors import ConfigError
from tune_dml.planning.request import Resources
from tune_dml.planning.study import Search
from tune_dml.record.events import CellProposed
from tune_dml.record.ledger import Ledger
from tune_dml.record.results import Results
from tune_dml.record.session import last_row_time
from tune_dml.record.state import SweepState, load_state, read_state, sweep_names
from tune_dml.running.screen.progress import Progress
from tune_dml.running.search.proposals import proposals_for


@pytest.fixture
def plan():
    return plan_of(MARGINS)


def everything(state: SweepState) -> list[object]:
    return [
        *(state.trial_states, list(state.trials), [cell.digest for cell in state.cells]),
        *(state.sessions, list(state.notes), state.created, state.resources),
    ]


@pytest.fixture
def state(tmp_path, plan):
    plan.save(tmp_path / "toy" / "plan.json")
    return SweepState(tmp_path / "toy", plan)


@pytest.fixture
def keys(plan):
    return [trial.key for trial in plan.trials()]


def seen_after(state, events, read):
    """Return what `read` sees after each event (kind, key, body) of one writer."""
    seen = []
    with Ledger(state.folder) as ledger:
        for kind, key, body in events:
            ledger.write(event_of(kind, key, **body))
            state.update()
            seen.append(read(state))
    return seen


def test_state_folded_incrementally_equals_state_folded_at_once(state, plan, keys):
    first, second, *_ = keys
    cell = asdict(replace(plan.cells[0], index=2, digest="another"))
    events = [
        ("session", "", {"provenance": {}, "resources": {"workers": 2}}),
        ("started", first, {"host": "a"}),
        ("retry", first, {}),
        ("started", first, {"host": "b"}),
        ("note", "", {"text": "said"}),
        ("ended", first, {"status": "finished", "metrics": {}, "seconds": 3.0}),
        ("started", second, {"host": "a"}),
        ("cell", "", {"cell": cell}),
        ("note", "", {"text": "said"}),
        ("session", "", {"provenance": {}, "resources": {"workers": 3}}),
    ]
    assert all(seen_after(state, events, lambda grown: everything(grown) == everything(read_state(state.folder))))
    assert (state.trial(first).status, state.trial(first).attempts, state.trial(first).host) == ("finished", 2, "b")
    assert (state.trial(second).status, state.trial(second).is_live) == ("running", False)  # it died with its driver
    assert state.resources == Resources(workers=3)
    assert list(state.notes) == ["said"]
    assert len(state.trials) == 6


SESSION = ("session", "", {})


def test_notes_of_an_ended_session_are_not_repeated(state):
    """A finished sweep stated in every table and report that it had stopped after its hours."""
    said, spent = (("note", "", {"text": text, "of_session": text == "spent"}) for text in ("said", "spent"))
    assert seen_after(state, [SESSION, said, spent, SESSION, spent], lambda state: len(state.notes)) == [0, 1, 2, 1, 2]


def test_the_reason_of_waiting_ends_with_the_wait_or_the_session(state):
    waits, goes_on = (("waits", "", {"text": text}) for text in ("room", ""))
    seen = seen_after(state, [SESSION, waits, goes_on, waits, SESSION], lambda state: state.waits_for)
    assert seen == ["", "room", "", "room", ""]


def write_events(folder, events):
    names = ("time", "kind", "key", "body")
    with (folder / "ledger.jsonl").open("a") as file:
        file.writelines(json.dumps(dict(zip(names, event, strict=True))) + "\n" for event in events)


def test_time_of_a_lost_trial_counts_until_its_last_row(state, keys):
    """90 s to its last row, without the 10 s before its retry, and 50 s of the next driver a night later."""
    key, folder = keys[0], state.folder
    before = [(1000.0, "session", "", {}), (1000.0, "started", key, {"host": "a"}), (1010.0, "retry", key, {})]
    before += [(1020.0, "started", key, {"host": "a"})]
    write_events(folder, before)
    with Ledger(folder) as ledger:
        ledger.report(key, {"step": 1, "time": 1100.0})
        heard = last_row_time(read_state(folder))
        ledger.report(key, {"step": 2, "time": 9050.0})
    after = [(9000.0, "session", "", {"heard": heard}), (9010.0, "started", key, {"host": "a"})]
    write_events(folder, [*after, (9060.0, "ended", key, {"status": "finished", "seconds": 80.0})])
    assert last_row_time(read_state(folder)) == {}
    assert read_state(folder).trial(key).worker_seconds == 140.0


def test_a_trial_to_retry_is_missing_but_keeps_its_attempts(state, keys):
    failed = ("ended", keys[0], {"status": "failed", "reason": "x", "metrics": {}, "seconds": 4.0})
    trial = seen_after(state, [("started", keys[0], {}), failed, ("reset", keys[0], {})], lambda s: s.trial(keys[0]))[
        -1
    ]
    assert (trial.status, trial.ended, trial.attempts, trial.seconds) == ("missing", None, 1, 4.0)
    assert state.trial("unknown").status == "missing"


def test_every_event_about_a_trial_raises_its_version(state, keys):
    one, two = keys[:2]
    events = [("started", one, {}), ("started", two, {}), ("retry", one, {}), ("note", "", {"text": ""}), SESSION]
    versions = seen_after(state, events, lambda state: (state.trial(one).version, state.trial(two).version))
    assert versions == [(1, 0), (1, 1), (2, 1), (2, 1), (3, 2)]


def test_a_search_is_complete_when_it_has_proposed_all_or_found_no_further_cell(tmp_path):
    plan = plan_of(MARGINS, seeds=2, search=Search("tpe", 3, window=4))
    state = SweepState(tmp_path, replace(plan, cells=()))

    def left():
        results = Results.of(state)
        assert results.is_incomplete == state.is_incomplete
        return state.is_incomplete, state.to_propose, results.count("missing"), results.planned_trials

    with Ledger(tmp_path) as ledger:
        assert left() == (True, 6, 6, 6)  # its driver died before it proposed any
        while True:
            state.update()
            proposals = proposals_for(state, state.plan, ledger.write, Progress(state), lambda key, end: None)
            trial = proposals.next_trial()
            if trial is None:
                break
            assert left()[0]
            ledger.write(event_of("ended", trial.key, status="finished", metrics={plan.metric: 1.0}, seconds=1.0))
        state.update()
        assert left() == (False, 0, 0, 4)
    state = read_state(tmp_path, replace(state.plan, search=Search("tpe", 5, window=4)))  # extended: it tries again
    assert left() == (True, 6, 6, 10)


def test_a_proposal_that_is_read_twice_counts_once(tmp_path):
    """A doubled line of the ledger, or a ledger that is read again after another program truncated it."""
    plan = plan_of(MARGINS, search=Search("random", 3))
    state = SweepState(tmp_path, plan)
    with Ledger(tmp_path) as ledger:
        for margin in (0.1, 1.0, 0.1):
            ledger.write(CellProposed(cell=plan.cell(0, {"loss.margin": margin})))
    state.update()
    assert [cell.label for cell in state.proposed_cells] == ["loss.margin=0.1", "loss.margin=1"]
    assert state.to_propose == len(plan.seeds)


def test_an_extended_plan_knows_its_new_trials(state, plan):
    extended = read_state(state.folder, plan.extend(seeds=[5]))
    assert [trial.seed for trial in extended.trials.values()] == [0, 1, 5, 0, 1, 5]


@pytest.mark.parametrize("name", ["none", "x" * 300, "a\0b"])
def test_an_unknown_sweep_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="unknown sweep under"):
        load_state(tmp_path, name)


def test_a_moved_folder_sets_the_name_of_the_sweep(tmp_path, plan, state):
    """Otherwise every suggested command would name a missing sweep."""
    state.folder.rename(tmp_path / "after")
    assert load_state(tmp_path, "after").plan.name == "after"
    assert read_state(tmp_path / "after").stored_plan.identity() == plan.identity()


def test_a_sweep_without_its_plan_is_reported(tmp_path, plan):
    with Ledger(tmp_path / "toy") as ledger:
        ledger.write(event_of("session", resources={}))
    assert sweep_names(tmp_path) == ["toy"]
    with pytest.raises(ConfigError, match=r"plan\.json: a sweep's plan must be readable .*No such file") as refusal:
        load_state(tmp_path, "toy")
    assert "Put a copy in its place" in str(refusal.value)


def test_a_folder_without_events_is_no_sweep(tmp_path):
    """After Ctrl-C at the start, every verb, even `list` and `rm`, asked for a copy of a plan that never existed."""
    with Ledger(tmp_path / "toy"):
        pass
    assert not sweep_names(tmp_path)
    with pytest.raises(ConfigError, match="unknown sweep"):
        load_state(tmp_path, "toy")


@pytest.mark.parametrize("lose", [lambda file: file.write_bytes(b""), Path.unlink], ids=["empty", "gone"])
def test_a_lost_ledger_is_reported(state, lose):
    assert not read_state(state.folder).notes  # before anything has run
    with Ledger(state.folder) as ledger:
        ledger.write(event_of("session", resources={}))
        ledger.report("a", {"step": 1})
    assert not read_state(state.folder).notes
    lose(state.folder / "ledger.jsonl")
    (said,) = read_state(state.folder).notes
    assert "ledger.jsonl is empty or gone" in said
    assert "1 trial(s)" in said


def test_an_incomplete_event_is_skipped_and_reported(state, keys):
    """A flipped bit can leave valid JSON."""
    first, second, *_ = keys
    seen_after(state, [("ended", key, {"status": "finished", "metrics": {}}) for key in (first, second)], str)
    path = state.folder / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"status"', b'"stadus"', 1))
    again = read_state(state.folder)
    assert (again.trial(first).ended, again.trial(second).status) == (None, "finished")
    assert any("are skipped" in text and "status" in text for text in again.notes)


def test_a_ledger_truncated_during_a_sweep_is_read_on_with_a_note(state, keys):
    first, second, *_ = keys
    with Ledger(state.folder) as ledger:
        ledger.write(event_of("ended", first, status="finished", metrics={}))
        state.update()
        (state.folder / "ledger.jsonl").write_bytes(b"")
        state.update()
        ledger.write(event_of("ended", second, status="finished", metrics={}))
    state.update()
    assert (state.trial(first).status, state.trial(second).status) == ("finished", "finished")  # as it was seen
    later = read_state(state.folder)
    assert (later.trial(first).status, later.trial(second).status) == ("missing", "finished")
    (said,) = later.notes
    assert "bytes were lost while it was written" in said
