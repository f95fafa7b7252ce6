"""What a trial says on its way to the driver, engine `local`, with Tune's report in our hands."""

import json

import pytest
from ray import tune

from tune_dml.planning.request import Resources
from tune_dml.running import trial as trials


@pytest.fixture
def reported(monkeypatch, tmp_path):
    """What a trial of these rows, each at its second, reports."""
    said, now = [], [0.0]
    monkeypatch.setattr(tune, "report", lambda message: said.append(trials.read_message(message)))
    monkeypatch.setattr(trials.time, "monotonic", lambda: now[0])
    (tmp_path / "trials").mkdir()

    def run(seconds, note_before=None, stall_limit=None, rows=True):
        def train(settings, context, cache_dir):
            assert settings == {"seed": 0}
            for step, second in enumerate(seconds):
                now[0] = second
                if step == note_before:
                    context.say("storage is away")
                context.alive()
                if rows:
                    context.sink({"step": step})
            return {"status": "finished"}

        monkeypatch.setattr(trials, "run_trial", train)
        conduct = trials.Conduct(tmp_path, tmp_path / "trials", Resources(), stall_limit=stall_limit)
        trials.local_engine(conduct)({"key": "k", "settings": json.dumps({"seed": 0}), "until": None})
        return said

    return run


def steps(message):
    return [row["step"] for row in message.get("rows", ())]


def test_rows_that_come_fast_travel_together_and_all_arrive_in_order(reported):
    said = reported([0.0, 0.1, 0.9, 1.1, 1.2, 1.3])
    assert [steps(message) for message in said] == [[0], [1, 2, 3], [4, 5]]
    assert [message.get("ended") for message in said] == [None, None, {"status": "finished"}]


def test_rows_that_come_slowly_are_reported_at_once(reported):
    assert [steps(message) for message in reported([0.0, 30.0, 60.0])] == [[0], [1], [2], []]


def test_a_note_does_not_wait_and_takes_along_what_does(reported):
    said = reported([0.0, 0.1, 0.2], note_before=2)
    assert [(steps(message), message.get("note")) for message in said] == [
        ([0], None),
        ([1], "storage is away"),
        ([2], None),
    ]


def test_steps_without_rows_are_heard_of_several_times_within_the_limit(reported):
    """The first at once: from then on it is known to make steps."""
    said = reported([0.0, 10.0, 25.0, 26.0, 60.0], stall_limit=100.0, rows=False)
    assert said == [{}, {}, {}, {"ended": {"status": "finished"}}]


def test_steps_without_rows_are_nobody_s_business_without_a_limit(reported):
    assert reported([0.0, 100.0, 1000.0], rows=False) == [{"ended": {"status": "finished"}}]
