"""Between a trial's driver and its workers: nobody trains before all have come, and nobody where one cannot."""

import asyncio

import pytest

from tune_dml.running.group import _Mailbox


def test_a_trial_is_given_when_every_worker_has_come():
    async def scene():
        mailbox = _Mailbox(2)
        await mailbox.give({"key": "a"})
        first = asyncio.ensure_future(mailbox.take(0, 0, "here"))
        await asyncio.sleep(0)
        assert not first.done()
        assert await mailbox.take(1, 0, "here") == (1, {"key": "a"})
        return await first, mailbox.taken

    taken, counts = asyncio.run(scene())
    assert taken == (1, {"key": "a"})
    assert counts == {0: 1, 1: 1}


def test_workers_in_a_new_place_wait_for_each_other_again():
    async def scene():
        mailbox = _Mailbox(2)
        await mailbox.give({})
        await asyncio.gather(mailbox.take(0, 0, "here"), mailbox.take(1, 0, "here"))
        alone = asyncio.ensure_future(mailbox.take(1, 0, "there"))
        await asyncio.sleep(0)
        assert not alone.done()
        await mailbox.take(0, 0, "there")
        await alone
        return mailbox.taken

    assert asyncio.run(scene()) == {0: 2, 1: 2}


def test_where_one_worker_cannot_train_the_others_leave():
    async def scene():
        mailbox = _Mailbox(2)
        await mailbox.give({})
        waits = asyncio.ensure_future(mailbox.take(0, 0, "here"))
        await asyncio.sleep(0)
        await mailbox.refuse("lacks it", 1, "here")
        with pytest.raises(RuntimeError, match="lacks it"):
            await waits
        return await mailbox.next()

    assert asyncio.run(scene()) == (None, 0, "here", "lacks it")
