"""Keep Ray Train workers alive from trial to trial.

A Ray Train run takes at least 9 s to start: a controller, a placement group, processes with torch, a process group.
Tune reuses a trial's actor, which keeps one TorchTrainer. The workers take one trial after another from a mailbox. Ray
Train places the workers together and replaces lost ones; their trial continues from its checkpoint.
"""

import asyncio
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ray

from tune_dml.planning.request import Resources
from tune_dml.running.cluster.versions import PictureFolders, with_node_check
from tune_dml.running.failures import UNLIKE_DRIVER, WORKER_RETRIES
from tune_dml.running.trials.messages import Message, TrialRequest

TrainOne = Callable[[TrialRequest, Callable[[Message], None]], None]
"""Trains one trial in one worker and posts its messages, the last of which has "ended"."""
_Loop = Callable[[Mapping[str, Any]], None]
"""The function that Ray Train runs in each worker, with {"mailbox": the group's actor}."""

_POLL_SECONDS = 1.0  # seconds after which a call to the mailbox returns without an answer
_JOINT_FAILURE_SECONDS = 5.0  # seconds within which all ranks report a failure that has the same cause


class _Mailbox:
    """Ray actor that passes trials to the workers, and returns their messages. Reserves no CPU.

    It numbers the trials, and hands out a trial only when all workers have arrived, because they wait for each other.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.arrived_ranks: set[int] = set()  # in the current placement group
        self.number = 0
        self.config: TrialRequest | None = None
        self.taken: dict[int, int] = {}  # rank -> number of times that it took the current trial
        self.placement_group = ""
        self.nodes: set[str] = set()  # of the workers that took the current trial
        self.lost_node_sets: list[set[str]] = []  # nodes of each group of workers that the trial lost
        self.messages: deque[Message] = deque()
        self.refusal = ""  # why a worker's node cannot train; empty if all can
        self.failed: dict[int, Message] = {}  # rank -> its message that the trial failed, in order of arrival
        self.failed_at = 0.0
        self.must_restart = False
        """Whether the workers must restart: one failed while others wait for it, or a process must not train again."""

    async def give(self, config: TrialRequest) -> None:
        self.number += 1
        self.config, self.taken, self.failed = config, {}, {}
        self.nodes, self.lost_node_sets = set(), []
        self.messages.clear()

    async def take(self, rank: int, previous: int, placement_group: str, node: str) -> tuple[int, TrialRequest] | None:
        """Return the number and request of the trial after number `previous`; None after `_POLL_SECONDS` without one.

        Raise RuntimeError if a node cannot train, or one rank failed alone, so that Ray Train must restart all ranks.
        """
        self._enter(rank, placement_group)
        for _ in range(100):
            if self.refusal:
                raise RuntimeError(self.refusal)
            if self.must_restart:
                self.must_restart = False
                raise RuntimeError("one worker failed while the others wait, or its process must not train again")
            if self.config is not None and self.number > previous and len(self.arrived_ranks) == self.workers:
                self.taken[rank] = self.taken.get(rank, 0) + 1
                self.nodes.add(node)
                return self.number, self.config
            await asyncio.sleep(_POLL_SECONDS / 100)
        return None

    async def post(self, number: int, rank: int, message: Message) -> None:
        if number != self.number:
            return
        if message.get("ended", {}).get("status") != "failed":
            self.messages.append(message)
            return
        self.failed_at = self.failed_at if self.failed else time.monotonic()
        self.failed[rank] = message

    async def refuse(self, reason: str, rank: int, placement_group: str) -> None:
        self._enter(rank, placement_group)
        self.refusal = reason

    def _enter(self, rank: int, placement_group: str) -> None:
        if placement_group != self.placement_group:
            self.arrived_ranks, self.placement_group = set(), placement_group
            self.lost_node_sets += [self.nodes] if self.nodes else []
            self.nodes = set()
        self.arrived_ranks.add(rank)

    async def get_lost_nodes(self) -> list[set[str]]:
        return self.lost_node_sets

    async def next(self) -> tuple[Message | None, int, str, str]:
        """Return the next message, the number of attempts, the placement group and the reason of a refusal."""
        for _ in range(100):
            if self.messages or self.refusal or self._has_failed():
                break
            await asyncio.sleep(_POLL_SECONDS / 100)
        message = self.messages.popleft() if self.messages else None
        if message is None and self._has_failed():
            failure = self.failed.get(0) or next(iter(self.failed.values()))
            message = failure.copy()
            message.pop("spent", None)  # it is about the worker's process, not the trial's actor
            is_spent = any("spent" in failure for failure in self.failed.values())
            self.must_restart = is_spent or len(self.failed) < self.workers
        if message is not None and "ended" in message:
            self.config, self.failed = None, {}
        return message, max(self.taken.values(), default=0), self.placement_group, self.refusal

    def _has_failed(self) -> bool:
        is_late = time.monotonic() > self.failed_at + _JOINT_FAILURE_SECONDS
        return len(self.failed) == self.workers or (bool(self.failed) and is_late)


class WorkerGroup:
    """A Ray Train run whose workers wait for trials."""

    def __init__(self, train_one: TrainOne, storage: Path, resources: Resources, folders: PictureFolders | None):
        self.mailbox = ray.remote(num_cpus=0, max_concurrency=resources.workers + 4)(_Mailbox).remote(resources.workers)
        self.error: BaseException | None = None
        self._placement_group = ""
        work = _work_loop(train_one)
        loop = work if folders is None else _report_refusal(with_node_check(work, folders))
        self._thread = threading.Thread(target=self._fit, args=(loop, storage, resources), daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the Ray Train run continues. It ends only by an error or a refusal."""
        return self._thread.is_alive()

    def run(self, config: TrialRequest) -> Iterator[Message]:
        """Yield a trial's messages; the last one has "ended".

        A message `placed` reports each new placement group, so that the driver can free it. Raise the error of Ray
        Train, RuntimeError if a node cannot train, or ConnectionError if the workers were lost too often.
        """
        ray.get(self.mailbox.give.remote(config))
        while True:
            message, attempts, placement_group, refusal = ray.get(self.mailbox.next.remote())
            if placement_group != self._placement_group:
                self._placement_group = placement_group
                yield {"placed": placement_group}
            if message is not None:
                yield message
                if "ended" in message:
                    return
            elif refusal:
                raise RuntimeError(refusal)
            elif not self.is_alive:
                raise self.error or RuntimeError("the Ray Train run has ended")
            elif attempts > WORKER_RETRIES + 1 and (losses := self._count_losses()) > WORKER_RETRIES:
                raise ConnectionError(f"the workers were lost {losses} times")

    def _count_losses(self) -> int:
        from tune_dml.running.ray_internals import preempted_nodes

        preempted = preempted_nodes()
        return sum(not nodes & preempted for nodes in ray.get(self.mailbox.get_lost_nodes.remote()))

    def _fit(self, loop: _Loop, storage: Path, resources: Resources) -> None:
        """Run Ray Train, again if it failed because its workers were not placed in time."""
        from tune_dml.running.ray_internals import is_placement_timeout

        while self.error is None:
            try:
                self._trainer(loop, storage, resources).fit()
            except BaseException as error:
                self.error = None if is_placement_timeout(error) else error  # `run` raises it
            else:
                return

    def _trainer(self, loop: _Loop, storage: Path, resources: Resources) -> Any:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        from tune_dml.running.ray_internals import pass_to_train_workers
        from tune_dml.running.trials.rendezvous import Rendezvous

        # Without the address, Ray Train's cleanup connects to the machine's default Ray, even if we use another one.
        pass_to_train_workers("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
        gpus = {"GPU": resources.share} if resources.share else {}
        return TorchTrainer(
            loop,
            train_loop_config={"mailbox": self.mailbox},
            torch_config=Rendezvous(),
            scaling_config=ScalingConfig(
                num_workers=resources.workers,
                use_gpu=resources.share > 0,
                resources_per_worker={"CPU": resources.cpus_per_worker, **gpus},
                placement_strategy=resources.placement.upper(),
            ),
            run_config=RunConfig(
                name=f"train-{uuid.uuid4().hex[:12]}",
                storage_path=str(storage),
                # `run` counts lost workers per trial; this limit is for workers that cannot start.
                failure_config=FailureConfig(max_failures=-1, controller_failure_limit=WORKER_RETRIES),
            ),
        )


def _work_loop(train_one: TrainOne) -> _Loop:
    def work(config: Mapping[str, Any]) -> None:
        import ray.train

        mailbox, rank, previous = config["mailbox"], ray.train.get_context().get_world_rank(), 0
        placement_group = ray.util.get_current_placement_group().id.hex()
        node = ray.get_runtime_context().get_node_id()
        while True:
            taken = ray.get(mailbox.take.remote(rank, previous, placement_group, node))
            if taken is None:
                continue
            previous, trial = taken

            def post(message: Message, number: int = previous) -> None:
                ray.get(mailbox.post.remote(number, rank, message))

            train_one(trial, post)

    return work


def _report_refusal(work: _Loop) -> _Loop:
    """Wrap the loop of a worker: report that its node cannot train, and return. Ray Train would retry an error forever.

    The loop is pickled by value, for nodes without this project.
    """

    def run(config: Mapping[str, Any]) -> None:
        import ray.train

        try:
            work(config)
        except RuntimeError as error:
            if UNLIKE_DRIVER not in str(error):
                raise
            rank = ray.train.get_context().get_world_rank()
            placement_group = ray.util.get_current_placement_group().id.hex()
            # Pass keywords: without the actor's class Ray does not know the order of the parameters.
            ray.get(config["mailbox"].refuse.remote(reason=str(error), rank=rank, placement_group=placement_group))

    return run


_GROUPS: list[WorkerGroup] = []  # the worker group of this process, if there is one


def get_worker_group(
    train_one: TrainOne, storage: Path, resources: Resources, folders: PictureFolders | None
) -> WorkerGroup:
    """Return this process's running group, or start one. `folders` are those that each worker's node must have."""
    if not _GROUPS or not _GROUPS[-1].is_alive:
        _GROUPS[:] = [WorkerGroup(train_one, storage, resources, folders)]
    return _GROUPS[-1]
