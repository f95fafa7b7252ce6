"""A lost process's place goes to the next one that asks for as much at once; whatever nobody asks for is given back."""

from dataclasses import dataclass, field

import pytest
from ray.air.execution.resources import placement_group as rays

from tune_dml.running.cluster import placement
from tune_dml.running.cluster.placement import PlacementManager


@dataclass(eq=False)
class Room:
    """A placement group as far as its manager sees it."""

    state: str | None = "CREATED"

    def ready(self):
        return self


@dataclass(eq=False)
class Wish:
    """A request for room."""

    made: list = field(default_factory=list)

    def to_placement_group(self):
        self.made.append(Room())
        return self.made[-1]


@pytest.fixture
def given_back(monkeypatch):
    rooms = []
    monkeypatch.setattr(rays, "remove_placement_group", rooms.append)
    monkeypatch.setattr(rays.ray.util, "remove_placement_group", rooms.append)
    monkeypatch.setattr(rays.ray, "wait", lambda futures, **how: (futures, []))
    monkeypatch.setattr(rays.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(placement, "placement_group_table", lambda room: {"state": room.state} if room.state else {})
    return rooms


def acquired(manager, wish):
    manager.request_resources(wish)
    manager.update_state()
    return manager.acquire_resources(wish)


def test_what_a_lost_process_leaves_is_there_at_once_for_the_next(given_back):
    manager, wish = PlacementManager(), Wish()
    first = acquired(manager, wish)
    manager.free_resources(first)
    manager.request_resources(wish)
    assert manager.get_resource_futures() == []
    assert manager.acquire_resources(wish).placement_group is first.placement_group
    assert (len(wish.made), given_back) == (1, [])


def test_what_nobody_asks_for_before_the_next_wait_is_given_back(given_back):
    manager, wish = PlacementManager(), Wish()
    kept, left = acquired(manager, wish), acquired(manager, wish)
    manager.free_resources(left)
    manager.get_resource_futures()
    assert given_back == [left.placement_group]
    assert acquired(manager, wish).placement_group not in {kept.placement_group, left.placement_group}


@pytest.mark.parametrize("state", ["RESCHEDULING", "REMOVED", None])
def test_the_place_of_a_lost_node_is_given_back_and_another_asked_for(given_back, state):
    manager, wish = PlacementManager(), Wish()
    lost = acquired(manager, wish)
    manager.free_resources(lost)
    lost.placement_group.state = state
    manager.request_resources(wish)
    manager.get_resource_futures()
    assert (len(wish.made), given_back) == (2, [lost.placement_group])


def test_the_place_of_a_process_that_hangs_is_given_back_at_once(given_back):
    """Ray ends such a process with its place, and not before."""
    manager, wish = PlacementManager(keeps=lambda: False), Wish()
    for _ in range(2):
        left = acquired(manager, wish)
        manager.free_resources(left)
        assert given_back[-1] is left.placement_group
        manager.clear()


def test_who_asks_for_something_else_gets_new_room(given_back):
    manager, wish, other = PlacementManager(), Wish(), Wish()
    left = acquired(manager, wish)
    manager.free_resources(left)
    manager.request_resources(other)
    manager.get_resource_futures()
    assert (len(other.made), given_back) == (1, [left.placement_group])


def test_a_request_that_got_what_was_left_can_be_cancelled_and_clear_gives_back_the_rest(given_back):
    manager, wish = PlacementManager(), Wish()
    first = acquired(manager, wish)
    manager.free_resources(first)
    manager.request_resources(wish)
    manager.cancel_resource_request(wish)
    assert given_back == [first.placement_group]
    second = acquired(manager, wish)
    manager.free_resources(second)
    manager.clear()
    assert given_back == [first.placement_group, second.placement_group]
    assert manager.get_resource_futures() == []
