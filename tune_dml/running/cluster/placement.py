"""Reuse the placement groups of ended trials, and free those that a lost process leaves."""

import time
from collections.abc import Callable

from ray.air.execution import AcquiredResources, PlacementGroupResourceManager, ResourceRequest
from ray.tune import PlacementGroupFactory
from ray.util.placement_group import placement_group_table

from tune_dml.planning.request import Resources
from tune_dml.running.cluster.cluster import Capacity
from tune_dml.running.ray_internals import orphaned_placement_groups, remove_placement_groups, transfer_placement_group

_SEARCH_INTERVAL = 1.0  # seconds between two searches for orphaned placement groups


def trial_bundles(capacity: Capacity, resources: Resources) -> PlacementGroupFactory:
    """Return the resources that Tune reserves for a trial. Under engine `train` the workers reserve their own."""
    if resources.engine == "train":
        has_drivers = capacity.total("trial_driver") > 0
        return PlacementGroupFactory([{"trial_driver": 1} if has_drivers else {"memory": 1e6}])
    gpus = {"GPU": resources.gpus} if resources.gpus else {}
    return PlacementGroupFactory([{"CPU": resources.cpus, **gpus}])


class PlacementManager(PlacementGroupResourceManager):  # type: ignore[misc]
    """Gives a freed placement group to the next matching request of Tune.

    Ray takes 0.25 to 1.1 s to free a group and create a new one.
    """

    def __init__(self, update_interval_s: float = 0.1, *, may_reuse: Callable[[], bool] = lambda: True):
        """Create the manager. `may_reuse` returns whether freed groups may be reused; stalled processes keep theirs."""
        super().__init__(update_interval_s)
        self._may_reuse = may_reuse
        self._freed: list[AcquiredResources] = []
        """Groups of ended processes. They still count as acquired, so that `clear` frees them, too."""

    def free_resources(self, acquired_resource: AcquiredResources) -> None:
        """Hold a freed placement group until the next call of `get_resource_futures`."""
        if self._may_reuse():
            self._freed.append(acquired_resource)
        else:
            super().free_resources(acquired_resource)

    def request_resources(self, resource_request: ResourceRequest) -> None:
        """Give a request a freed placement group that still exists, or ask Ray for a new one."""
        group = next((group for group in self._freed if group.resource_request == resource_request), None)
        # Ray takes long to place a group that has lost its node on another one.
        if group is None or placement_group_table(group.placement_group).get("state") != "CREATED":
            super().request_resources(resource_request)
            return
        self._freed.remove(group)
        transfer_placement_group(self, group.placement_group, resource_request)

    def clear(self) -> None:
        """Free everything, but keep `may_reuse`, which Ray's method resets by calling the constructor."""
        may_reuse = self._may_reuse
        super().clear()
        self._may_reuse = may_reuse

    def get_resource_futures(self) -> list[object]:
        """Free the placement groups that no request claimed, then return Ray's futures."""
        unclaimed, self._freed = self._freed, []
        for group in unclaimed:
            super().free_resources(group)
        return list(super().get_resource_futures())


class OrphanedPlacements:
    """Frees placement groups of workers whose trial's process was lost before they started.

    Ray Train frees only those of started workers. The next workers would wait forever for the resources of the others.
    """

    def __init__(self, resources: Resources):
        self._is_needed = resources.engine == "train"
        self._searched_at = 0.0

    def remove_placement_groups(self) -> None:
        """Search for such groups, at most once a second, and free them."""
        if self._is_needed and time.monotonic() > self._searched_at + _SEARCH_INTERVAL:
            self._searched_at = time.monotonic()
            remove_placement_groups(orphaned_placement_groups())
