"""Placement groups of trials: reused when a trial's process is lost, freed when its workers' creator is gone."""

from __future__ import annotations

import time
from collections.abc import Callable

from ray.air.execution import AcquiredResources, PlacementGroupResourceManager, ResourceRequest
from ray.tune import PlacementGroupFactory
from ray.util.placement_group import placement_group_table

from tune_dml.planning.request import Resources
from tune_dml.running.cluster.cluster import Capacity
from tune_dml.running.ray_internals import orphaned_placement_groups, remove_placement_groups, transfer_placement_group

_LOOK = 1.0
"""Seconds between two searches for orphaned placement groups."""


def trial_bundles(capacity: Capacity, resources: Resources) -> PlacementGroupFactory:
    """Return what Tune reserves for a trial. Under engine `train` the workers reserve their own CPUs."""
    if resources.engine == "train":
        has_drivers = capacity.total("trial_driver") > 0
        return PlacementGroupFactory([{"trial_driver": 1} if has_drivers else {"memory": 1e6}])
    bundle: dict[str, float] = {"CPU": resources.cpus}
    if resources.gpus:
        bundle["GPU"] = resources.gpus
    return PlacementGroupFactory([bundle])


class PlacementManager(PlacementGroupResourceManager):  # type: ignore[misc]
    """Tune's resource manager, but a freed placement group goes to the next matching request.

    Freeing a group and requesting a new one takes Ray 0.25 to 1.1 s.
    """

    def __init__(self, update_interval_s: float = 0.1, *, keeps: Callable[[], bool] = lambda: True):
        """Take a function that returns whether freed groups may be reused; a hanging process holds its group."""
        super().__init__(update_interval_s)
        self._keeps = keeps
        self._left: list[AcquiredResources] = []
        """Groups of ended processes; still counted as acquired, so that `clear` frees them too."""

    def free_resources(self, acquired_resource: AcquiredResources) -> None:
        """Keep a freed placement group until the next call of `get_resource_futures`."""
        if self._keeps():
            self._left.append(acquired_resource)
        else:
            super().free_resources(acquired_resource)

    def request_resources(self, resource_request: ResourceRequest) -> None:
        """Give a request a kept placement group that still exists, or ask Ray for a new one."""
        left = next((left for left in self._left if left.resource_request == resource_request), None)
        if left is None or not _is_there(left):
            super().request_resources(resource_request)
            return
        self._left.remove(left)
        transfer_placement_group(self, left.placement_group, resource_request)

    def clear(self) -> None:
        """Free everything and keep our setting: Ray's own method calls the constructor."""
        keeps = self._keeps
        super().clear()
        self._keeps = keeps

    def get_resource_futures(self) -> list[object]:
        """Free the placement groups that no request claimed, then return Ray's futures."""
        left, self._left = self._left, []
        for place in left:
            super().free_resources(place)
        return list(super().get_resource_futures())


def _is_there(place: AcquiredResources) -> bool:
    """Return whether a placement group still has its node; Ray takes long to place one again."""
    return bool(placement_group_table(place.placement_group).get("state") == "CREATED")


class OrphanedPlacements:
    """Frees placement groups of workers whose trial's process was lost before they started.

    Ray Train frees only those of started workers; the next workers would wait for these resources for ever.
    """

    def __init__(self, resources: Resources):
        self._exist = resources.engine == "train"
        self._looked = 0.0

    def remove_placement_groups(self) -> None:
        """Search for these groups, at most once a second, and free them."""
        if self._exist and time.monotonic() > self._looked + _LOOK:
            self._looked = time.monotonic()
            remove_placement_groups(orphaned_placement_groups())
