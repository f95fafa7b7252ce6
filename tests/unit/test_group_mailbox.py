"""Between a trial's driver and its workers: nobody begins before all have come, and a rank that fails alone ends the trial."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray.train.v2._internal import exceptions
from ray.train.v2.api.exceptions import ControllerError

from tune_dml.planning.request import Resources
from tune_dml.running import ray_internals
from tune_dml.running.trials import worker_group
from tune_dml.running.trials.worker_group import _Mailbox

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


@pytest.fixture
def _nobody_follows(monkeypatch):
    monkeypatch.setattr(worker_group, "_ALL_FAIL", 0.0)


@pytest.mark.usefixtures("_nobody_follows")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_alone_ends_the_trial_and_all_workers_begin_anew(mailbox, rank):
    """The other one waits in a collective, and would meet the next trial's first one there."""
    say(mailbox, rank, FAILED)
    assert hear(mailbox) == {**FAILED, "by": rank}
    asyncio.run(mailbox.give({"next": 1}))
    with pytest.raises(RuntimeError, match="one worker has failed"):
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
def test_workers_of_whom_one_can_train_no_more_begin_anew(mailbox, spent):
    """As after an index out of range on a GPU: the next trial there would fail for this one's fault."""
    for rank in range(2):
        say(mailbox, rank, {**FAILED, "spent": True} if rank in spent else FAILED)
    assert hear(mailbox) == {**FAILED, "by": 0}  # the driver's own process is not spent
    asyncio.run(mailbox.give({"next": 1}))
    with pytest.raises(RuntimeError, match="can train no more"):
        asyncio.run(mailbox.take(0, 1, "place", "n"))
    assert both_take(mailbox, 0, "another place") == [(2, {"next": 1})] * 2


def test_a_trial_is_given_when_every_worker_has_come():
    async def scene():
        mailbox = _Mailbox(2)
        await mailbox.give({"key": "a"})
        first = asyncio.ensure_future(mailbox.take(0, 0, "here", "n"))
        await asyncio.sleep(0)
        assert not first.done()
        assert await mailbox.take(1, 0, "here", "n") == (1, {"key": "a"})
        return await first, mailbox.taken

    taken, counts = asyncio.run(scene())
    assert taken == (1, {"key": "a"})
    assert counts == {0: 1, 1: 1}


def test_workers_in_a_new_place_wait_for_each_other_again():
    async def scene():
        mailbox = _Mailbox(2)
        await mailbox.give({})
        await asyncio.gather(mailbox.take(0, 0, "here", "n"), mailbox.take(1, 0, "here", "n"))
        alone = asyncio.ensure_future(mailbox.take(1, 0, "there", "n"))
        await asyncio.sleep(0)
        assert not alone.done()
        await mailbox.take(0, 0, "there", "n")
        await alone
        return mailbox.taken

    assert asyncio.run(scene()) == {0: 2, 1: 2}


def test_workers_that_lost_a_node_which_was_taken_away_with_notice_do_not_count(mailbox, monkeypatch):
    for place in ("second", "third"):
        both_take(mailbox, 0, place)
    asyncio.run(mailbox.take(1, 0, "fourth", "n"))  # not yet taken by all
    monkeypatch.setattr(ray_internals, "preempted_nodes", lambda: {"node of second", "of another sweep"})
    monkeypatch.setattr(ray, "get", asyncio.run)
    waiting = object.__new__(worker_group.WorkerGroup)
    waiting.mailbox = SimpleNamespace(nodes_left=SimpleNamespace(remote=mailbox.nodes_left))
    assert waiting._lost() == 2
    asyncio.run(mailbox.give({"next": 1}))
    assert waiting._lost() == 0


def test_room_is_waited_for_and_workers_that_cannot_begin_are_not(monkeypatch):
    """Ray Train counts both as failures of its controller, and tries either for ever where none is counted."""
    no_room = ControllerError(exceptions.WorkerGroupStartupTimeoutError(2))
    lacking = ControllerError(exceptions.WorkerGroupStartupFailedError("failed to import on the worker"))
    ends = iter([no_room, no_room, lacking])

    def fit():
        raise next(ends)

    begun = object.__new__(worker_group.WorkerGroup)
    begun.error, begun._trainer = None, lambda *given: SimpleNamespace(fit=fit)
    begun._fit(lambda config, post: None, Path(), Resources(workers=2), None)
    assert begun.error is lacking
    assert next(ends, None) is None


def test_where_one_worker_cannot_train_the_others_leave():
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
