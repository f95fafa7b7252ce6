"""Which sweep goes first on a cluster that several share, and what the others may begin meanwhile."""

import itertools

import pytest

from tune_dml.running.priorities import Claim, Node, ahead, room


def claim(priority=0, *, waiting=0, workers=1, sweep="s", **needs):
    return Claim(sweep, priority, workers, needs or {"CPU": 1.0}, "job", waiting)


def node(free, **total):
    """`free`: amounts in the order of `total`."""
    return Node({name: float(has) for name, has in total.items()}, dict(zip(total, map(float, free), strict=True)))


@pytest.mark.parametrize(
    ("theirs", "waiting", "goes_first"), [(1, 1, True), (1, 0, False), (0, 1, False), (-1, 5, False), (99, 3, True)]
)
def test_only_a_higher_priority_that_waits_goes_first(theirs, waiting, goes_first):
    other = claim(theirs, waiting=waiting)
    assert ahead(claim(0, waiting=7), [other]) == ([other] if goes_first else [])


def test_of_several_the_highest_is_named_first():
    low, high = claim(1, waiting=1), claim(9, waiting=1)
    assert ahead(claim(), [low, high, claim(99)]) == [high, low]


def test_of_any_two_at_most_one_waits_for_the_other_and_the_highest_for_none():
    """Whatever they say of themselves, somebody begins: no ring of sweeps that wait for each other."""
    for priorities in itertools.product(range(3), repeat=3):
        claims = [claim(priority, waiting=1, sweep=str(number)) for number, priority in enumerate(priorities)]
        before = [ahead(mine, claims[:number] + claims[number + 1 :]) for number, mine in enumerate(claims)]
        assert not before[priorities.index(max(priorities))]
        assert all(
            other.priority > mine.priority for mine, others in zip(claims, before, strict=True) for other in others
        )


CPU, GPU = {"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}


@pytest.mark.parametrize(
    ("why", "mine", "theirs", "waiting", "nodes", "may_begin"),
    [
        ("alike: what comes free is theirs", CPU, CPU, 4, [node([1], CPU=4)], 0),
        ("alike: more is free than they wait for", CPU, CPU, 1, [node([3], CPU=4)], 2),
        ("theirs is large: single places are kept until a node is empty", CPU, {"CPU": 4.0}, 1, [node([3], CPU=4)], 0),
        ("theirs never fits there", CPU, {"CPU": 8.0}, 1, [node([3], CPU=4)], 3),
        ("theirs fits on another node alone", CPU, {"CPU": 8.0}, 1, [node([3], CPU=4), node([0], CPU=8)], 3),
        ("no GPU is free, so CPUs are of no use to them", CPU, GPU, 4, [node([4, 0], CPU=8, GPU=4)], 4),
        ("a GPU came free: its CPU is kept", CPU, GPU, 4, [node([1, 1], CPU=8, GPU=4)], 0),
        ("a GPU came free, and there are CPUs enough", CPU, GPU, 4, [node([5, 1], CPU=8, GPU=4)], 4),
        ("a node without GPUs beside a full one", CPU, GPU, 4, [node([0, 0], CPU=4, GPU=4), node([4, 0], CPU=4, GPU=0)], 4),
        ("Ray might take the kept CPU", CPU, GPU, 4, [node([1, 1], CPU=4, GPU=4), node([4], CPU=4)], 0),
        ("ours needs a GPU, theirs none: CPUs are shared", GPU, CPU, 8, [node([1, 1], CPU=4, GPU=1)], 0),
        ("shares of a GPU", {"CPU": 1.0, "GPU": 0.5}, {"CPU": 1.0, "GPU": 0.5}, 1, [node([4, 1], CPU=4, GPU=1)], 1),
        ("nothing fits, whoever waits", {"CPU": 2.0}, {"GPU": 1.0}, 1, [node([1], CPU=4)], 0),
        ("nothing is known of the nodes", CPU, CPU, 1, [], 0),
    ],
)  # fmt: skip
def test_what_the_higher_one_cannot_use_may_be_taken(why, mine, theirs, waiting, nodes, may_begin):
    assert room(claim(**mine), [claim(1, waiting=waiting, **theirs)], nodes) == may_begin, why


def test_without_anybody_before_us_it_is_all_that_fits():
    assert room(claim(), [], [node([3], CPU=4), node([2], CPU=2)]) == 5
    assert room(claim(workers=2), [], [node([3], CPU=4), node([2], CPU=2)]) == 2  # of five workers


def test_all_workers_of_a_trial_that_waits_are_kept_room_for():
    nodes = [node([4], CPU=4)]
    assert [room(claim(), [claim(1, waiting=1, workers=workers)], nodes) for workers in (1, 2, 4, 8)] == [3, 2, 0, 0]


def test_every_sweep_before_ours_is_kept_room_for_the_most_demanding_decides():
    others = [claim(1, waiting=1), claim(2, waiting=3)]
    assert room(claim(), others, [node([4], CPU=4)]) == 1


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("theirs", [1, 2, 3, 4])
def test_a_trial_that_waits_is_placed_in_the_end_however_many_small_ones_come_before_it(size, theirs):
    """One node of 4 CPUs, full of ours; each ends in turn, and we begin all that we may: theirs gets its place."""
    mine, other = claim(CPU=float(size)), claim(1, waiting=1, CPU=float(theirs))
    running = 4 // size
    for _ in range(20):
        free = 4 - running * size
        if free >= theirs:
            return
        running += room(mine, [other], [node([free], CPU=4)])
        running -= 1
    pytest.fail("it starves")
