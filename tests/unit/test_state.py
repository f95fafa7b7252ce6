"""The fold of the ledger: equal at once and incrementally; and the effect of each event."""

import dataclasses
import json
from dataclasses import replace

import pytest
from helpers.toys import event_of, plan_of

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
from tune_dml.space import Grid, Knob


@pytest.fixture
def plan():
    return plan_of(Knob("loss.margin", Grid((0.1, 1.0))))


def everything(state: SweepState) -> list[object]:
    return [
        *(state.trial_states, list(state.trials), [cell.digest for cell in state.cells]),
        *(state.sessions, list(state.notes), state.created, state.resources),
    ]


def test_state_folded_incrementally_equals_state_folded_at_once(tmp_path, plan):
    folder = tmp_path / "toy"
    grown = SweepState(folder, plan)
    first, second, *_ = [trial.key for trial in plan.trials()]
    cell = dataclasses.asdict(dataclasses.replace(plan.cells[0], index=2, digest="another"))
    events = [
        (("session",), {"provenance": {}, "resources": {"workers": 2}}),
        (("started", first), {"host": "a"}),
        (("retry", first), {}),
        (("started", first), {"host": "b"}),
        (("note",), {"text": "said"}),
        (("ended", first), {"status": "finished", "metrics": {}, "seconds": 3.0}),
        (("started", second), {"host": "a"}),
        (("cell",), {"cell": cell}),
        (("note",), {"text": "said"}),
        (("session",), {"provenance": {}, "resources": {"workers": 3}}),
    ]
    with Ledger(folder) as ledger:
        plan.save(folder / "plan.json")
        for arguments, body in events:
            ledger.write(event_of(*arguments, **body))
            grown.update()
            assert everything(grown) == everything(read_state(folder))
    assert (grown.trial(first).status, grown.trial(first).attempts, grown.trial(first).host) == ("finished", 2, "b")
    assert (grown.trial(second).status, grown.trial(second).is_live) == ("running", False)  # it died with its driver
    assert grown.resources == Resources(workers=3)
    assert list(grown.notes) == ["said"]
    assert len(grown.trials) == 6


def test_notes_of_an_ended_session_are_not_repeated(tmp_path, plan):
    """A finished sweep stated in every table and report that it had stopped after its hours."""
    state, seen = SweepState(tmp_path / "toy", plan), []
    spent = ("note", {"text": "stopped after 2 of 2 hours, resumable", "of_session": True})
    with Ledger(state.folder) as ledger:
        plan.save(state.folder / "plan.json")
        for kind, body in (("session", {}), ("note", {"text": "said"}), spent, ("session", {}), spent):
            ledger.write(event_of(kind, **body))
            state.update()
            seen.append(len(state.notes))
    assert seen == [0, 1, 2, 1, 2]


def test_the_reason_of_waiting_ends_with_the_wait_or_the_session(tmp_path, plan):
    state, seen = SweepState(tmp_path / "toy", plan), []
    with Ledger(tmp_path / "toy") as ledger:
        waits = ("waits", {"text": "room: the nodes are full"})
        for kind, body in (("session", {}), waits, ("waits", {"text": ""}), waits, ("session", {})):
            ledger.write(event_of(kind, **body))
            state.update()
            seen.append(state.waits_for)
    assert seen == ["", "room: the nodes are full", "", "room: the nodes are full", ""]


def write_events(folder, events):
    names = ("time", "kind", "key", "body")
    with (folder / "ledger.jsonl").open("a") as file:
        file.writelines(json.dumps(dict(zip(names, event, strict=True))) + "\n" for event in events)


def test_time_of_a_lost_trial_counts_until_its_last_row(tmp_path, plan):
    """90 s to its last row, without the 10 s before its retry, and 50 s of the next driver a night later."""
    plan.save(tmp_path / "plan.json")
    key = plan.trials()[0].key
    before = [(1000.0, "session", "", {}), (1000.0, "started", key, {"host": "a"}), (1010.0, "retry", key, {})]
    before += [(1020.0, "started", key, {"host": "a"})]
    write_events(tmp_path, before)
    with Ledger(tmp_path) as ledger:
        ledger.report(key, {"step": 1, "time": 1100.0})
        heard = last_row_time(read_state(tmp_path))
        ledger.report(key, {"step": 2, "time": 9050.0})
    after = [(9000.0, "session", "", {"heard": heard}), (9010.0, "started", key, {"host": "a"})]
    write_events(tmp_path, [*after, (9060.0, "ended", key, {"status": "finished", "seconds": 80.0})])
    assert last_row_time(read_state(tmp_path)) == {}
    assert read_state(tmp_path).trial(key).worker_seconds == 140.0


def test_a_trial_to_retry_is_missing_but_keeps_its_attempts(tmp_path, plan):
    key = plan.trials()[0].key
    state = SweepState(tmp_path, plan)
    with Ledger(tmp_path) as ledger:
        ledger.write(event_of("started", key, host="a"))
        ledger.write(event_of("ended", key, status="failed", reason="x", metrics={}, seconds=4.0))
        ledger.write(event_of("reset", key))
    state.update()
    trial = state.trial(key)
    assert (trial.status, trial.ended, trial.attempts, trial.seconds) == ("missing", None, 1, 4.0)
    assert state.trial("unknown").status == "missing"


def test_every_event_about_a_trial_raises_its_version(tmp_path, plan):
    first, second, *_ = [trial.key for trial in plan.trials()]
    state = SweepState(tmp_path, plan)
    versions = []
    with Ledger(tmp_path) as ledger:
        for kind, key in (("started", first), ("started", second), ("retry", first), ("note", ""), ("session", "")):
            ledger.write(event_of(kind, key, text=""))
            state.update()
            versions.append((state.trial(first).version, state.trial(second).version))
    assert versions == [(1, 0), (1, 1), (2, 1), (2, 1), (3, 2)]


def test_a_search_is_complete_when_it_has_proposed_all_or_found_no_further_cell(tmp_path):
    plan = plan_of(Knob("loss.margin", Grid((0.1, 1.0))), seeds=2, search=Search("tpe", 3, window=4))
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
    state.replan(replace(state.plan, search=Search("tpe", 5, window=4)))  # extended: it tries again
    assert left() == (True, 6, 6, 10)


def test_a_proposal_that_is_read_twice_counts_once(tmp_path):
    """A doubled line of the ledger, or a ledger that is read again after another program truncated it."""
    plan = plan_of(Knob("loss.margin", Grid((0.1, 1.0))), search=Search("random", 3))
    state = SweepState(tmp_path, plan)
    with Ledger(tmp_path) as ledger:
        for margin in (0.1, 1.0, 0.1):
            ledger.write(CellProposed(cell=plan.cell(0, {"loss.margin": margin})))
    state.update()
    assert [cell.label for cell in state.proposed_cells] == ["loss.margin=0.1", "loss.margin=1"]
    assert state.to_propose == len(plan.seeds)


def test_an_extended_plan_knows_its_new_trials(tmp_path, plan):
    state = SweepState(tmp_path, plan)
    state.replan(plan.extend(seeds=[5]))
    assert [trial.seed for trial in state.trials.values()] == [0, 1, 5, 0, 1, 5]


@pytest.mark.parametrize("name", ["none", "x" * 300, "a\0b"])
def test_an_unknown_sweep_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="unknown sweep under"):
        load_state(tmp_path, name)


def test_a_moved_folder_sets_the_name_of_the_sweep(tmp_path, plan):
    """Otherwise every suggested command would name a missing sweep."""
    plan.save(tmp_path / "before" / "plan.json")
    (tmp_path / "before").rename(tmp_path / "after")
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


@pytest.mark.parametrize("is_there", [True, False])
def test_a_lost_ledger_is_reported(tmp_path, plan, is_there):
    plan.save(tmp_path / "plan.json")
    assert not read_state(tmp_path).notes  # before anything has run
    with Ledger(tmp_path) as ledger:
        ledger.write(event_of("session", resources={}))
        ledger.report("a", {"step": 1})
    assert not read_state(tmp_path).notes
    if is_there:
        (tmp_path / "ledger.jsonl").write_bytes(b"")
    else:
        (tmp_path / "ledger.jsonl").unlink()
    (said,) = read_state(tmp_path).notes
    assert "ledger.jsonl is empty or gone" in said
    assert "1 trial(s)" in said


def test_an_incomplete_event_is_skipped_and_reported(tmp_path, plan):
    """A flipped bit can leave valid JSON."""
    plan.save(tmp_path / "plan.json")
    first, second, *_ = [trial.key for trial in plan.trials()]
    with Ledger(tmp_path) as ledger:
        for key in (first, second):
            ledger.write(event_of("started", key, host="here"))
            ledger.write(event_of("ended", key, status="finished", metrics={}, seconds=1.0))
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"status"', b'"stadus"', 1))
    state = read_state(tmp_path)
    assert (state.trial(first).ended, state.trial(second).status) == (None, "finished")
    assert any("are skipped" in text and "status" in text for text in state.notes)


def test_a_ledger_truncated_during_a_sweep_is_read_on_with_a_note(tmp_path, plan):
    plan.save(tmp_path / "plan.json")
    state = read_state(tmp_path)
    first, second, *_ = [trial.key for trial in plan.trials()]
    with Ledger(tmp_path) as ledger:
        ledger.write(event_of("ended", first, status="finished", metrics={}))
        state.update()
        (tmp_path / "ledger.jsonl").write_bytes(b"")
        state.update()
        ledger.write(event_of("ended", second, status="finished", metrics={}))
    state.update()
    assert (state.trial(first).status, state.trial(second).status) == ("finished", "finished")  # as it was seen
    later = read_state(tmp_path)
    assert (later.trial(first).status, later.trial(second).status) == ("missing", "finished")
    (said,) = later.notes
    assert "bytes were lost while it was written" in said
