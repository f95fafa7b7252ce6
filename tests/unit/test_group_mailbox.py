"""Between a trial's driver and its workers: a rank that fails alone ends the trial, and its workers begin anew."""

import asyncio

import pytest

from tune_dml.running import group
from tune_dml.running.group import _Mailbox

FAILED, FINISHED = {"ended": {"status": "failed"}}, {"ended": {"status": "finished"}}


@pytest.fixture
def mailbox():
    mailbox = _Mailbox(workers=2)
    asyncio.run(mailbox.give({}))
    for rank in range(2):
        assert asyncio.run(mailbox.take(rank, 0, "place")) == (1, {})
    return mailbox


def say(mailbox, rank, message):
    asyncio.run(mailbox.post(1, rank, {**message, "by": rank}))


def hear(mailbox):
    return asyncio.run(mailbox.next())[0]


@pytest.fixture
def _nobody_follows(monkeypatch):
    monkeypatch.setattr(group, "_ALL_FAIL", 0.0)


@pytest.mark.usefixtures("_nobody_follows")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_alone_ends_the_trial_and_all_workers_begin_anew(mailbox, rank):
    """The other one waits in a collective, and would meet the next trial's first one there."""
    say(mailbox, rank, FAILED)
    assert hear(mailbox) == {**FAILED, "by": rank}
    asyncio.run(mailbox.give({"next": 1}))
    with pytest.raises(RuntimeError, match="one worker has failed"):
        asyncio.run(mailbox.take(rank, 1, "place"))
    for each in range(2):
        assert asyncio.run(mailbox.take(each, 0, "another place")) == (2, {"next": 1})
    assert mailbox.taken == {0: 1, 1: 1}


def test_workers_that_all_fail_stay(mailbox):
    for rank in (1, 0):
        say(mailbox, rank, FAILED)
    assert hear(mailbox) == {**FAILED, "by": 0}
    asyncio.run(mailbox.give({"next": 1}))
    assert asyncio.run(mailbox.take(1, 1, "place")) == (2, {"next": 1})


def test_the_first_rank_that_finishes_has_finished_whatever_the_other_met_afterwards(mailbox):
    say(mailbox, 1, FAILED)
    say(mailbox, 0, FINISHED)
    assert hear(mailbox) == {**FINISHED, "by": 0}
    asyncio.run(mailbox.give({"next": 1}))
    assert asyncio.run(mailbox.take(1, 1, "place")) == (2, {"next": 1})
