"""Messages between a driver and a trial's workers: a trial starts with all workers, and a failing rank ends it."""

import asyncio
import random
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from helpers.toys import plan_of
from ray.train.v2._internal import exceptions
from ray.train.v2.api.exceptions import ControllerError

from tune_dml.planning.request import Resources
from tune_dml.running import ray_internals
from tune_dml.running.search.groups import TrialGroups
from tune_dml.running.search.optuna_search import CellSearcher, Proposals
from tune_dml.running.trials import worker_group
from tune_dml.running.trials.messages import GroupOutbox, as_text, requests_of, split_messages
from tune_dml.running.trials.worker_group import _Mailbox
from tune_dml.space import Grid, Knob

FAILED, FINISHED = {"ended": {"status": "failed"}}, {"ended": {"status": "finished"}}


@pytest.fixture
def mailbox():
    mailbox = _Mailbox(workers=2)
    asyncio.run(mailbox.give({}))
    assert both_take(mailbox, 0, "place") == [(1, {})] * 2
    return mailbox


def both_take(mailbox, last, place):
    async def scene():
        return await asyncio.gather(*(mailbox.take(rank, last, place, f"node of {place}") for rank in range(2)))

    return asyncio.run(scene())


def say(mailbox, rank, message):
    asyncio.run(mailbox.post(1, rank, {**message, "by": rank}))


def hear(mailbox):
    return asyncio.run(mailbox.next())[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failing_rank_ends_the_trial_and_restarts_all_workers(mailbox, rank, monkeypatch):
    """The other rank waits in a collective, where it would meet the next trial."""
    monkeypatch.setattr(worker_group, "_JOINT_FAILURE_SECONDS", 0.0)
    say(mailbox, rank, FAILED)
    assert hear(mailbox) == {**FAILED, "by": rank}
    asyncio.run(mailbox.give({"next": 1}))
    with pytest.raises(RuntimeError, match="one worker failed"):
        asyncio.run(mailbox.take(rank, 1, "place", "n"))
    assert both_take(mailbox, 0, "another place") == [(2, {"next": 1})] * 2
    assert mailbox.taken == {0: 1, 1: 1}


@pytest.mark.parametrize("of_rank_0", [FAILED, FINISHED])
def test_rank_0_decides_and_the_workers_stay_when_all_have_ended(mailbox, of_rank_0):
    say(mailbox, 1, FAILED)
    say(mailbox, 0, of_rank_0)
    assert hear(mailbox) == {**of_rank_0, "by": 0}
    asyncio.run(mailbox.give({"next": 1}))
    assert asyncio.run(mailbox.take(1, 1, "place", "n")) == (2, {"next": 1})


@pytest.mark.parametrize("spent", [{0}, {1}, {0, 1}])
def test_workers_restart_if_one_can_no_longer_train(mailbox, spent):
    """As after an index out of range on a GPU: the next trial there would fail too."""
    for rank in range(2):
        say(mailbox, rank, {**FAILED, "spent": True} if rank in spent else FAILED)
    assert hear(mailbox) == {**FAILED, "by": 0}  # the driver's own process is not spent
    asyncio.run(mailbox.give({"next": 1}))
    with pytest.raises(RuntimeError, match="must not train again"):
        asyncio.run(mailbox.take(0, 1, "place", "n"))
    assert both_take(mailbox, 0, "another place") == [(2, {"next": 1})] * 2


def test_a_trial_starts_when_every_worker_is_ready_on_a_new_node_too():
    async def scene():
        mailbox = _Mailbox(2)
        await mailbox.give({"key": "a"})
        for times, node in enumerate(("here", "there"), 1):
            alone = asyncio.ensure_future(mailbox.take(0, 0, node, "n"))
            await asyncio.sleep(0)
            assert not alone.done()
            assert await mailbox.take(1, 0, node, "n") == await alone == (1, {"key": "a"})
            assert mailbox.taken == {0: times, 1: times}

    asyncio.run(scene())


def test_losses_of_preempted_nodes_do_not_count_as_failures(mailbox, monkeypatch):
    for place in ("second", "third"):
        both_take(mailbox, 0, place)
    asyncio.run(mailbox.take(1, 0, "fourth", "n"))  # not yet taken by all
    monkeypatch.setattr(ray_internals, "preempted_nodes", lambda: {"node of second", "of another sweep"})
    monkeypatch.setattr(ray, "get", asyncio.run)
    waiting = object.__new__(worker_group.WorkerGroup)
    waiting.mailbox = SimpleNamespace(get_lost_nodes=SimpleNamespace(remote=mailbox.get_lost_nodes))
    assert waiting._count_losses() == 2
    asyncio.run(mailbox.give({"next": 1}))
    assert waiting._count_losses() == 0


def test_workers_wait_for_resources_but_not_for_failing_workers(monkeypatch):
    """Ray Train counts both as failures of its controller, and without a limit retries both for ever."""
    no_room = ControllerError(exceptions.WorkerGroupStartupTimeoutError(2))
    lacking = ControllerError(exceptions.WorkerGroupStartupFailedError("failed to import on the worker"))
    ends = iter([no_room, no_room, lacking])

    def fit():
        raise next(ends)

    begun = object.__new__(worker_group.WorkerGroup)
    begun.error, begun._trainer = None, lambda *given: SimpleNamespace(fit=fit)
    begun._fit(lambda config: None, Path(), Resources(workers=2))
    assert begun.error is lacking
    assert next(ends, None) is None


def test_if_a_worker_cannot_train_the_others_end():
    async def scene():
        mailbox = _Mailbox(2)
        await mailbox.give({})
        waits = asyncio.ensure_future(mailbox.take(0, 0, "here", "n"))
        await asyncio.sleep(0)
        await mailbox.refuse("lacks it", 1, "here")
        with pytest.raises(RuntimeError, match="lacks it"):
            await waits
        return await mailbox.next()

    assert asyncio.run(scene()) == (None, 0, "here", "lacks it")


PLAN = plan_of(Knob("loss.margin", Grid(tuple(round(0.1 * n, 1) for n in range(1, 13)))))


def groups_of(seconds, **options):
    """Return groups that know how long a trial takes."""
    groups = TrialGroups(Proposals(PLAN, trial_values={}), **{"may_share": True, **options})
    for _ in range(40):
        groups.close("nobody", seconds)
    return groups


def test_long_trials_go_alone_and_short_ones_together():
    assert (
        len(TrialGroups(Proposals(PLAN, trial_values={}), may_share=True, slots=2).next_group()) == 1
    )  # none is known
    for seconds, together, size in ((3.0, True, 1), (0.6, True, 6), (0.6, False, 1)):
        assert len(groups_of(seconds, may_share=together, slots=2).next_group()) == size


def test_after_any_loss_every_trial_ends_once_and_the_searcher_last():
    """A process may be lost at any trial of a group: that trial is retried, and the later ones run singly."""
    for seed in range(30):
        chance, groups = random.Random(seed), groups_of(0.1, slots=2)
        searcher, running, ended, sizes = CellSearcher(groups), {}, [], []
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
                groups.requeue([request["key"] for request in later], alone=True)
                running[name] = deque([first])
                continue
            key, over = trials.popleft()["key"], not trials
            if over:
                last = as_text({"several": [{"key": key, "ended": {}}], "over": True})
                searcher.on_trial_complete(name, last)
                del running[name]
            groups.close(key, 0.1)
            groups.proposals.record_value(key, 1.0)
            ended.append(key)
        assert sorted(ended) == sorted(trial.key for trial in PLAN.trials())
        assert max(sizes) > 1


def test_remaining_trials_of_a_spent_process_run_one_by_one():
    groups = groups_of(0.1)
    searcher = CellSearcher(groups)
    requests = requests_of(searcher.suggest("0"))
    over = {"several": [{"key": requests[0]["key"], "ended": {}}], "over": True, "spent": True}
    searcher.on_trial_complete("0", as_text(over))
    groups.close(requests[0]["key"], 0.1)
    again = [requests_of(searcher.suggest(str(call))) for call in range(1, len(requests))]
    assert [len(each) for each in again] == [1] * len(again)
    assert [each["key"] for (each,) in again] == [request["key"] for request in requests[1:]]


def test_a_silently_ending_call_fails_its_trial_and_returns_the_others():
    groups = groups_of(0.1)
    searcher = CellSearcher(groups)
    first, *others = requests_of(searcher.suggest("0"))
    searcher.on_trial_complete("0", None, error=True)
    assert list(groups.proposals.trial_values) == [first["key"]]
    assert [requests_of(searcher.suggest("1"))[0]["key"]] == [others[0]["key"]]


def test_ends_are_sent_with_the_next_message(monkeypatch):
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
    assert [each["key"] for each in split_messages(second)] == ["a", "b", "b"]
    assert [each["age"] for each in split_messages(second)] == [0.8, 0.4, 0.0]
    assert [each.get("begun") for each in split_messages(second)] == [None, 0.8, None]
    assert "over" not in first


def test_notes_and_spent_processes_are_reported_at_once():
    sent = []
    outbox = GroupOutbox(sent.append, "c")
    outbox.post("a", {"rows": [{"step": 1}]})
    outbox.post("a", {"note": "the disk is full"})
    assert len(sent) == 2
    assert outbox.post("a", {"ended": {"status": "failed"}, "spent": True})
    assert sent[2]["over"] is sent[2]["spent"] is True
