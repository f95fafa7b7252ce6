"""Keep Ray Train workers alive from trial to trial.

A Ray Train run takes at least 9 s to start: a controller, a placement group, processes with torch, a process group.
Tune reuses a trial's actor, which therefore keeps one TorchTrainer. Its training function takes one trial after another
from a mailbox. Ray Train places the workers together and replaces lost ones; their trial continues from its checkpoint.

    for message in get_worker_group(train_one, storage, resources, folders).run(config): ...    # the last has "ended"
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tune_dml.planning.request import Resources
from tune_dml.running.cluster.versions import PictureFolders, with_node_check
from tune_dml.running.failures import UNLIKE_DRIVER, WORKER_RETRIES
from tune_dml.running.trials.messages import Message, TrialRequest

TrainOne = Callable[[TrialRequest, Callable[[Message], None]], None]
"""Trains one trial in one worker and posts its messages, including the last one, which has "ended"."""
_Loop = Callable[[Mapping[str, Any]], None]
"""The function that Ray Train runs in each worker, with {"mailbox": the group's actor}."""

_LOOK = 1.0
"""Seconds after which a call to the mailbox returns even without an answer."""
_ALL_FAIL = 5.0
"""Seconds within which all ranks report a failure whose cause they share."""


class _Mailbox:
    """Passes trials to the workers and their messages back; an actor without CPU.

    It numbers the trials and hands out one at a time, when all workers have arrived, because they wait for each other.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.come: set[int] = set()
        """Ranks that have arrived in the current placement group."""
        self.number = 0
        self.config: TrialRequest | None = None
        self.taken: dict[int, int] = {}
        """Rank -> how often it took the current trial."""
        self.place = ""
        """The workers' placement group."""
        self.nodes: set[str] = set()
        """Nodes of the workers that took the current trial, in the current placement group."""
        self.left: list[set[str]] = []
        """Nodes of each group of workers that the current trial lost."""
        self.messages: deque[Message] = deque()
        self.refusal = ""
        """Reason why a worker's node cannot train; empty if all can."""
        self.failed: dict[int, Message] = {}
        """Rank -> its last message, if the trial failed there for good; in order of arrival."""
        self.failed_at = 0.0
        self.is_torn = False
        """Whether the workers must restart: one failed while the others wait for it, or a process can train no more."""

    async def give(self, config: TrialRequest) -> None:
        """Begin a trial."""
        self.number += 1
        self.config, self.taken, self.failed = config, {}, {}
        self.nodes, self.left = set(), []
        self.messages.clear()

    async def take(self, rank: int, last: int, place: str, node: str) -> tuple[int, TrialRequest] | None:
        """Return the trial that follows number `last` to a rank; None after `_LOOK` seconds without one.

        Raises:
            RuntimeError: A node cannot train, or one rank failed alone, so that Ray Train must restart all ranks.
        """
        self._enter(rank, place)
        for _ in range(100):
            if self.refusal:
                raise RuntimeError(self.refusal)
            if self.is_torn:
                self.is_torn = False
                raise RuntimeError("one worker failed while the others wait for it, or its process can train no more")
            if self.config is not None and self.number > last and len(self.come) == self.workers:
                self.taken[rank] = self.taken.get(rank, 0) + 1
                self.nodes.add(node)
                return self.number, self.config
            await asyncio.sleep(_LOOK / 100)
        return None

    async def post(self, number: int, rank: int, message: Message) -> None:
        """Add a message of a rank."""
        if number != self.number:
            return
        if message.get("ended", {}).get("status") != "failed":
            self.messages.append(message)
            return
        self.failed_at = self.failed_at if self.failed else time.monotonic()
        self.failed[rank] = message

    async def refuse(self, reason: str, rank: int, place: str) -> None:
        """Stop all workers, because the node of one cannot train."""
        self._enter(rank, place)
        self.refusal = reason

    def _enter(self, rank: int, place: str) -> None:
        if place != self.place:
            self.come, self.place = set(), place
            self.left += [self.nodes] if self.nodes else []
            self.nodes = set()
        self.come.add(rank)

    async def nodes_left(self) -> list[set[str]]:
        """Return the nodes of each group of workers that the current trial lost."""
        return self.left

    async def next(self) -> tuple[Message | None, int, str, str]:
        """Return the next message, the number of attempts, the placement group, and why a node cannot train."""
        for _ in range(100):
            if self.messages or self.refusal or self._has_failed():
                break
            await asyncio.sleep(_LOOK / 100)
        message = self.messages.popleft() if self.messages else None
        if message is None and self._has_failed():
            told = self.failed.get(0) or next(iter(self.failed.values()))
            message = told.copy()
            message.pop("spent", None)  # it concerns the worker's process, not the one that reads this message
            is_spent = any("spent" in failure for failure in self.failed.values())
            self.is_torn = is_spent or len(self.failed) < self.workers
        if message is not None and "ended" in message:
            self.config, self.failed = None, {}
        return message, max(self.taken.values(), default=0), self.place, self.refusal

    def _has_failed(self) -> bool:
        late = time.monotonic() > self.failed_at + _ALL_FAIL
        return len(self.failed) == self.workers or (bool(self.failed) and late)


class WorkerGroup:
    """A Ray Train run whose workers wait for trials."""

    def __init__(self, train_one: TrainOne, storage: Path, resources: Resources, folders: PictureFolders | None):
        import ray

        self.mailbox = ray.remote(num_cpus=0, max_concurrency=resources.workers + 4)(_Mailbox).remote(resources.workers)
        self.error: BaseException | None = None
        self._place = ""
        self._thread = threading.Thread(target=self._fit, args=(train_one, storage, resources, folders), daemon=True)
        self._thread.start()

    @property
    def lives(self) -> bool:
        """Whether the Ray Train run is alive. It ends only by an error or a refusal."""
        return self._thread.is_alive()

    def run(self, config: TrialRequest) -> Iterator[Message]:
        """Yield a trial's messages; the last one has "ended".

        A message `placed` follows each new placement, so that the driver can free it. Raise ConnectionError if workers
        are lost too often.
        """
        import ray

        ray.get(self.mailbox.give.remote(config))
        while True:
            message, begun, place, refusal = ray.get(self.mailbox.next.remote())
            if place != self._place:
                self._place = place
                yield {"placed": place}
            if message is not None:
                yield message
                if "ended" in message:
                    return
            elif refusal:
                raise RuntimeError(refusal)
            elif not self.lives:
                raise self.error or RuntimeError("the Ray Train run has ended")
            elif begun > WORKER_RETRIES + 1 and (lost := self._lost()) > WORKER_RETRIES:
                raise ConnectionError(f"the workers were lost {lost} times")

    def _lost(self) -> int:
        """Count how often the current trial lost its workers, without losses by preemption."""
        import ray

        from tune_dml.running.ray_internals import preempted_nodes

        gone = preempted_nodes()
        return sum(not nodes & gone for nodes in ray.get(self.mailbox.nodes_left.remote()))

    def _fit(self, train_one: TrainOne, storage: Path, resources: Resources, folders: PictureFolders | None) -> None:
        """Run Ray Train. Run it again if its workers were not placed in time, which Ray Train counts as a failure."""
        from tune_dml.running.ray_internals import is_placement_timeout

        while self.error is None:
            try:
                self._trainer(train_one, storage, resources, folders).fit()
            except BaseException as error:
                self.error = None if is_placement_timeout(error) else error  # `run` raises it
            else:
                return

    def _trainer(self, train_one: TrainOne, storage: Path, resources: Resources, folders: PictureFolders | None) -> Any:
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        from tune_dml.running.ray_internals import pass_to_train_workers
        from tune_dml.running.trials.rendezvous import Rendezvous

        # Ray Train's cleanup connects to the machine's default Ray, which is the wrong one if there are two.
        pass_to_train_workers("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
        per_worker: dict[str, float] = {"CPU": resources.cpus_per_worker}
        if resources.share:
            per_worker["GPU"] = resources.share
        return TorchTrainer(
            _worker(train_one) if folders is None else _refusing(with_node_check(_worker(train_one), folders)),
            train_loop_config={"mailbox": self.mailbox},
            torch_config=Rendezvous(),
            scaling_config=ScalingConfig(
                num_workers=resources.workers,
                use_gpu=resources.share > 0,
                resources_per_worker=per_worker,
                placement_strategy=resources.placement.upper(),
            ),
            run_config=RunConfig(
                name=f"train-{uuid.uuid4().hex[:12]}",
                storage_path=str(storage),
                # `run` counts lost workers per trial; this limit is for workers that cannot start.
                failure_config=FailureConfig(max_failures=-1, controller_failure_limit=WORKER_RETRIES),
            ),
        )


def _worker(train_one: TrainOne) -> _Loop:
    def work(config: Mapping[str, Any]) -> None:
        import ray
        import ray.train

        mailbox, rank, last = config["mailbox"], ray.train.get_context().get_world_rank(), 0
        place = ray.util.get_current_placement_group().id.hex()
        node = ray.get_runtime_context().get_node_id()
        while True:
            taken = ray.get(mailbox.take.remote(rank, last, place, node))
            if taken is None:
                continue
            last, trial = taken

            def post(message: Message, number: int = last) -> None:
                ray.get(mailbox.post.remote(number, rank, message))

            train_one(trial, post)

    return work


def _refusing(work: _Loop) -> _Loop:
    """Report why a node cannot train, and return; Ray Train would retry an error for ever.

    The function is pickled by value, for nodes without this project.
    """

    def run(config: Mapping[str, Any]) -> None:
        import ray
        import ray.train

        try:
            work(config)
        except RuntimeError as error:
            if UNLIKE_DRIVER not in str(error):
                raise
            rank, place = ray.train.get_context().get_world_rank(), ray.util.get_current_placement_group().id.hex()
            # By keyword: without the actor's class Ray does not know the order of the parameters.
            ray.get(config["mailbox"].refuse.remote(reason=str(error), rank=rank, place=place))

    return run


_GROUPS: list[WorkerGroup] = []
"""The worker group of this process, which is a trial's actor and serves one sweep."""


def get_worker_group(
    train_one: TrainOne, storage: Path, resources: Resources, folders: PictureFolders | None
) -> WorkerGroup:
    """Return this process's running group, or start one.

    Args:
        train_one: Trains one trial in one worker.
        storage: Folder for Ray Train's own files.
        resources: The resources of each worker.
        folders: Picture folders that each worker's node must have; None to check nothing.
    """
    if not _GROUPS or not _GROUPS[-1].lives:
        _GROUPS[:] = [WorkerGroup(train_one, storage, resources, folders)]
    return _GROUPS[-1]
