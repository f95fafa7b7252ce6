"""How many trials run at once, without a cluster."""

import pytest
from ray.tune.search import ConcurrencyLimiter, Searcher

from tune_dml.planning.request import Resources
from tune_dml.running.cluster import cluster
from tune_dml.running.cluster.cluster import Capacity
from tune_dml.running.scheduler import GrowingConcurrency


class Endless(Searcher):
    """Proposes for ever."""

    def suggest(self, trial_id):
        return {"key": trial_id}

    def on_trial_complete(self, trial_id, result=None, error=False):
        """Nothing."""


@pytest.fixture
def nodes(monkeypatch):
    """What the cluster's nodes have."""
    nodes = [{"CPU": 1.0}]
    monkeypatch.setattr(cluster, "_node_resources", lambda: tuple(nodes))
    return nodes


def proposed(limiter):
    return sum(limiter.suggest(str(number)) is not None for number in range(100, 110))


def test_nodes_that_join_are_used_and_those_that_go_take_nothing_back(nodes):
    told = []
    limiter = ConcurrencyLimiter(Endless(), max_concurrent=1)
    room = GrowingConcurrency(
        limiter, lambda: cluster.trials_that_fit_now(Capacity(()), Resources(), None), told.append
    )
    nodes += [{"CPU": 2.0}]
    room.on_step_begin(1, [])
    assert limiter.max_concurrent == 1, "nobody has looked"
    room.look()
    room.on_step_begin(2, [])
    room.on_step_begin(3, [])
    assert (limiter.max_concurrent, told, proposed(limiter)) == (3, [3], 3)
    nodes.clear()
    room.look()
    room.on_step_begin(4, [])
    assert (limiter.max_concurrent, told) == (3, [3])


def test_never_more_than_the_user_allows_and_as_many_as_may_come(nodes):
    grown = Capacity(({"CPU": 1.0},), to_come=({"CPU": 1.0},) * 4)
    assert cluster.trials_that_fit_now(grown, Resources(), None) == 4
    nodes += [{"CPU": 8.0}]
    assert cluster.trials_that_fit_now(grown, Resources(), None) == 9
    assert cluster.trials_that_fit_now(grown, Resources(), 2) == 2


def test_a_head_that_is_away_ends_nothing(monkeypatch):
    asked = []

    def away():
        asked.append(1)
        if len(asked) > 1:
            room._over.set()
        raise ConnectionError("the head is away")

    monkeypatch.setattr("tune_dml.running.scheduler._PACE", 0.001)
    room = GrowingConcurrency(ConcurrencyLimiter(Endless(), max_concurrent=2), away, asked.append)
    with room:
        room._thread.join(5)
    assert len(asked) == 2
    room.on_step_begin(1, [])
    assert room.limiter.max_concurrent == 2
