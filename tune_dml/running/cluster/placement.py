"""Room for a trial's process on the cluster, which stays a trial's when its process is lost; what its workers held does not."""

from __future__ import annotations

import time
from collections.abc import Callable

from ray.air.execution import AcquiredResources, PlacementGroupResourceManager, ResourceRequest
from ray.tune import PlacementGroupFactory
from ray.util.placement_group import placement_group_table

from tune_dml.planning.request import Resources
from tune_dml.running.cluster.cluster import Capacity
from tune_dml.running.ray_internals import orphaned_placement_groups, remove_placement_groups

_LOOK = 1.0
"""Seconds between two looks at what the dead hold."""


def trial_bundles(capacity: Capacity, resources: Resources) -> PlacementGroupFactory:
    """What Tune reserves for a trial. Under engine `train` the workers reserve their own; the driver must not take their CPU."""
    if resources.engine == "train":
        has_drivers = capacity.total("trial_driver") > 0
        return PlacementGroupFactory([{"trial_driver": 1} if has_drivers else {"memory": 1e6}])
    bundle: dict[str, float] = {"CPU": resources.cpus}
    if resources.gpus:
        bundle["GPU"] = resources.gpus
    return PlacementGroupFactory([bundle])


class PlacementManager(PlacementGroupResourceManager):  # type: ignore[misc]
    """Tune's own, but what a process leaves is kept for the next one that asks for as much, if that asks before Tune waits.

    Given back and asked for anew, room takes Ray .25 to 1.1 s: it hears of the one late, and tries the other again and again.
    """

    def __init__(self, update_interval_s: float = 0.1, *, keeps: Callable[[], bool] = lambda: True):
        """`keeps`: whether what a process leaves now is free; one that hangs is gone only seconds after it was killed."""
        super().__init__(update_interval_s)
        self._keeps = keeps
        self._left: list[AcquiredResources] = []
        """By processes that are no more; still counted as acquired, so that `clear` gives them back too."""

    def free_resources(self, acquired_resource: AcquiredResources) -> None:
        """A process is no more; what becomes of its place is seen when Tune waits the next time."""
        if self._keeps():
            self._left.append(acquired_resource)
        else:
            super().free_resources(acquired_resource)

    def request_resources(self, resource_request: ResourceRequest) -> None:
        """Room for a process: what another has left, where that is still there, else new room."""
        left = next((left for left in self._left if left.resource_request == resource_request), None)
        if left is None or not _is_there(left):
            super().request_resources(resource_request)
            return
        self._left.remove(left)
        self._acquired_pgs.remove(left.placement_group)
        self._request_to_ready_pgs[resource_request].add(left.placement_group)

    def clear(self) -> None:
        """Give all back, and begin anew: Ray's own calls the constructor, with what it knows of."""
        keeps = self._keeps
        super().clear()
        self._keeps = keeps

    def get_resource_futures(self) -> list[object]:
        """What Tune waits for. Whoever wanted what was left has asked by now: the rest is given back."""
        left, self._left = self._left, []
        for place in left:
            super().free_resources(place)
        return list(super().get_resource_futures())


def _is_there(place: AcquiredResources) -> bool:
    """Whether its node is: the places of a lost one are to be found anew, for which Ray takes its time."""
    return bool(placement_group_table(place.placement_group).get("state") == "CREATED")


class OrphanedPlacements:
    """What workers of engine `train` were to be placed on whose trial's process was lost first.

    The next group of workers would wait for that room for ever: Ray Train frees it only where they had begun.
    """

    def __init__(self, resources: Resources):
        self._exist = resources.engine == "train"
        self._looked = 0.0

    def remove_placement_groups(self) -> None:
        """Free what is there; looks once a second at most."""
        if self._exist and time.monotonic() > self._looked + _LOOK:
            self._looked = time.monotonic()
            remove_placement_groups(orphaned_placement_groups())
