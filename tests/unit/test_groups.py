"""Short trials in groups: none is lost, none is given twice, and the messages arrive in order with their ages."""

import random
from collections import deque
from types import SimpleNamespace

from helpers.toys import plan_of

from tune_dml.running.search.groups import TrialGroups
from tune_dml.running.search.optuna_search import CellSearcher, Proposals
from tune_dml.running.trials.messages import GroupOutbox, as_text, messages_of, requests_of
from tune_dml.space import Grid, Knob


def grid(values=12):
    return plan_of(Knob("loss.margin", Grid(tuple(round(0.1 * n, 1) for n in range(1, values + 1)))))


def measured(groups, seconds):
    for _ in range(40):
        groups.close("nobody", seconds)


def test_long_trials_go_alone_and_short_ones_together():
    for seconds, together, size in ((3.0, True, 1), (0.6, True, 6), (0.6, False, 1)):
        groups = TrialGroups(Proposals(grid(), known={}), together=together, slots=2)
        assert len(groups.next_group()) == 1  # nothing is known yet
        measured(groups, seconds)
        assert len(groups.next_group()) == size


def test_whatever_is_lost_every_trial_ends_once_and_the_searcher_finishes_last():
    """A process may be lost at any trial of a group: that one is tried again, the later ones come back alone."""
    for seed in range(30):
        chance, plan = random.Random(seed), grid()
        proposals = Proposals(plan, known={})
        groups = TrialGroups(proposals, together=True, slots=2)
        searcher, running, ended, sizes = CellSearcher(groups), {}, [], []
        measured(groups, 0.1)
        for call in range(1000):
            asked = searcher.suggest(str(call)) if len(running) < 2 else None
            if asked == "FINISHED":
                break
            if asked is not None:
                running[str(call)] = deque(requests_of(asked))
                sizes.append(len(running[str(call)]))
            if not running:
                continue
            name = chance.choice(sorted(running))
            trials = running[name]
            if chance.random() < 0.2:  # its process is lost: as `Recorder.on_trial_recover`
                first, *later = trials
                groups.give_back([request["key"] for request in later], alone=True)
                running[name] = deque([first])
                continue
            key, over = trials.popleft()["key"], not trials
            if over:
                last = as_text({"several": [{"key": key, "ended": {}}], "over": True})
                searcher.on_trial_complete(name, last)
                del running[name]
            groups.close(key, 0.1)
            proposals.ended(key, 1.0)
            ended.append(key)
        assert sorted(ended) == sorted(trial.key for trial in plan.trials())
        assert max(sizes) > 1


def test_what_a_spent_process_left_is_handed_out_again_one_by_one():
    groups = TrialGroups(Proposals(grid(), known={}), together=True)
    searcher = CellSearcher(groups)
    measured(groups, 0.1)
    requests = requests_of(searcher.suggest("0"))
    over = {"several": [{"key": requests[0]["key"], "ended": {}}], "over": True, "spent": True}
    searcher.on_trial_complete("0", as_text(over))
    groups.close(requests[0]["key"], 0.1)
    again = [requests_of(searcher.suggest(str(call))) for call in range(1, len(requests))]
    assert [len(each) for each in again] == [1] * len(again)
    assert [each["key"] for (each,) in again] == [request["key"] for request in requests[1:]]


def test_a_call_that_ends_without_a_word_fails_its_trial_and_gives_back_the_others():
    proposals = Proposals(grid(), known={})
    groups = TrialGroups(proposals, together=True)
    searcher = CellSearcher(groups)
    measured(groups, 0.1)
    first, *others = requests_of(searcher.suggest("0"))
    searcher.on_trial_complete("0", None, error=True)
    assert list(proposals.known) == [first["key"]]
    assert [requests_of(searcher.suggest("1"))[0]["key"]] == [others[0]["key"]]


def test_ends_wait_for_the_next_message_and_say_how_long(monkeypatch):
    now, sent = [100.0], []
    monkeypatch.setattr("tune_dml.running.trials.messages.time", SimpleNamespace(monotonic=lambda: now[0]))
    outbox = GroupOutbox(sent.append, "b")
    outbox.post("a", {"rows": [{"step": 1}]})  # at once: the trial is alive
    now[0] += 0.4
    outbox.post("a", {"ended": {"status": "finished"}})
    assert len(sent) == 1
    outbox.begin("b")
    now[0] += 0.4
    outbox.post("b", {"rows": [{"step": 1}]})
    assert len(sent) == 1  # not yet a second
    now[0] += 0.4
    assert outbox.post("b", {"ended": {"status": "finished"}})
    first, second = sent
    assert second["over"]
    assert [each["key"] for each in messages_of(second)] == ["a", "b", "b"]
    assert [each["age"] for each in messages_of(second)] == [0.8, 0.4, 0.0]
    assert [each.get("begun") for each in messages_of(second)] == [None, 0.8, None]
    assert "over" not in first


def test_a_note_and_a_spent_process_are_said_at_once():
    sent = []
    outbox = GroupOutbox(sent.append, "c")
    outbox.post("a", {"rows": [{"step": 1}]})
    outbox.post("a", {"note": "the disk is full"})
    assert len(sent) == 2
    assert outbox.post("a", {"ended": {"status": "failed"}, "spent": True})
    assert sent[2]["over"]
    assert sent[2]["spent"]
