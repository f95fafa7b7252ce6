"""A group of Ray Train workers that stays for many trials: what a trial of engine `train` costs over its training.

A Ray Train run takes 9 s and more to begin: a controller, a placement group, a process with torch for each worker, a process
group. So a trial's actor, which Tune uses again for the next trial, holds one TorchTrainer whose training function takes
trial after trial from a mailbox and posts rank 0's rows there. Ray Train still places the workers together and replaces
those that are lost; what was under way goes on from its own checkpoint.

    for message in get_worker_group(train_one, books, resources, folders).run(config): ...    # the last one has "ended" in it
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tune_dml.planning.request import Resources
from tune_dml.running.cluster.versions import PictureFolders, with_node_check
from tune_dml.running.failures import UNLIKE_DRIVER, WORKER_RETRIES
from tune_dml.running.trials.messages import Message

TrainOne = Callable[[dict[str, Any], Callable[[Message], None]], None]
"""(configuration, where messages go, the one that says how the trial ended among them), in one worker of several."""

_LOOK = 1.0
"""Seconds after which somebody who waits looks whether the others still live."""
_ALL_FAIL = 5.0
"""Seconds within which the other ranks fail too where what one has met meets all."""


class _Mailbox:
    """Between a trial's driver and its workers; an actor without CPU. One trial at a time, under a number that grows.

    A trial is given to workers that have all come: one that cannot train would leave the others waiting for it.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.come: set[int] = set()
        """Ranks that are in the place."""
        self.number = 0
        self.config: dict[str, Any] | None = None
        self.taken: dict[int, int] = {}
        """Rank -> how often it has taken the trial under way."""
        self.place = ""
        """The workers' placement group."""
        self.nodes: set[str] = set()
        """On which workers took the trial under way, since they were placed."""
        self.left: list[set[str]] = []
        """Those of workers that have been replaced since the trial began."""
        self.messages: deque[Message] = deque()
        self.refusal = ""
        """What a node lacks on which workers were placed."""
        self.failed: dict[int, Message] = {}
        """Rank -> how the trial under way ended for it, where no other try would help; in the order of their coming."""
        self.failed_at = 0.0
        self.is_torn = False
        """Whether one rank has failed alone: the others wait for it, and would go on waiting into the next trial.

        Or one is spent: it could not train the next trial, which would fail for this one's fault.
        """

    async def give(self, config: dict[str, Any]) -> None:
        """Begin a trial."""
        self.number += 1
        self.config, self.taken, self.failed = config, {}, {}
        self.nodes, self.left = set(), []
        self.messages.clear()

    async def take(self, rank: int, last: int, place: str, node: str) -> tuple[int, dict[str, Any]] | None:
        """The trial under way, to a rank that has not ended it; None when there is none yet.

        Raises where another's node lacks something, and, so that Ray Train begins all anew, where one has failed alone.
        """
        self._enter(rank, place)
        for _ in range(100):
            if self.refusal:
                raise RuntimeError(self.refusal)
            if self.is_torn:
                self.is_torn = False
                raise RuntimeError("one worker has failed, and the others wait for it, or it can train no more")
            if self.config is not None and self.number > last and len(self.come) == self.workers:
                self.taken[rank] = self.taken.get(rank, 0) + 1
                self.nodes.add(node)
                return self.number, self.config
            await asyncio.sleep(_LOOK / 100)
        return None

    async def post(self, number: int, rank: int, message: Message) -> None:
        """Something that a rank has to say of its trial."""
        if number != self.number:
            return
        if message.get("ended", {}).get("status") != "failed":
            self.messages.append(message)
            return
        self.failed_at = self.failed_at if self.failed else time.monotonic()
        self.failed[rank] = message

    async def refuse(self, reason: str, rank: int, place: str) -> None:
        """A worker was placed where it cannot train: none of them does."""
        self._enter(rank, place)
        self.refusal = reason

    def _enter(self, rank: int, place: str) -> None:
        if place != self.place:
            self.come, self.place = set(), place
            self.left += [self.nodes] if self.nodes else []
            self.nodes = set()
        self.come.add(rank)

    async def nodes_left(self) -> list[set[str]]:
        """Of each group of workers that took the trial under way and was lost: its nodes."""
        return self.left

    async def next(self) -> tuple[Message | None, int, str, str]:
        """The next message, if one comes soon; how often the workers began with this trial, where they are, what they lack."""
        for _ in range(100):
            if self.messages or self.refusal or self._has_failed():
                break
            await asyncio.sleep(_LOOK / 100)
        message = self.messages.popleft() if self.messages else None
        if message is None and self._has_failed():
            told = self.failed.get(0) or next(iter(self.failed.values()))
            message = {
                name: value for name, value in told.items() if name != "spent"
            }  # a worker is, and not its driver
            is_spent = any("spent" in failure for failure in self.failed.values())
            self.is_torn = is_spent or len(self.failed) < self.workers
        if message is not None and "ended" in message:
            self.config, self.failed = None, {}
        return message, max(self.taken.values(), default=0), self.place, self.refusal

    def _has_failed(self) -> bool:
        late = time.monotonic() > self.failed_at + _ALL_FAIL
        return len(self.failed) == self.workers or (bool(self.failed) and late)


class WorkerGroup:
    """A Ray Train run that waits for trials."""

    def __init__(self, train_one: TrainOne, books: Path, resources: Resources, folders: PictureFolders | None):
        import ray

        self.mailbox = ray.remote(num_cpus=0, max_concurrency=resources.workers + 4)(_Mailbox).remote(resources.workers)
        self.error: BaseException | None = None
        self._place = ""
        self._thread = threading.Thread(target=self._fit, args=(train_one, books, resources, folders), daemon=True)
        self._thread.start()

    @property
    def lives(self) -> bool:
        """Whether its run has not ended; it never does by itself."""
        return self._thread.is_alive()

    def run(self, config: dict[str, Any]) -> Iterator[Message]:
        """A trial's messages, the last of which says how it ended; raises when its workers are lost too often, or cannot train.

        Whenever the workers have been placed anew it says where first: the places must be freed when nobody needs them.
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
        """How often workers were lost to the trial under way; a node that was taken away with notice does not count."""
        import ray

        from tune_dml.running.ray_internals import preempted_nodes

        gone = preempted_nodes()
        return sum(not nodes & gone for nodes in ray.get(self.mailbox.nodes_left.remote()))

    def _fit(self, train_one: TrainOne, books: Path, resources: Resources, folders: PictureFolders | None) -> None:
        """A Ray Train run; another one where there was no room for its workers, which Ray Train calls a failure too."""
        from tune_dml.running.ray_internals import is_placement_timeout

        while self.error is None:
            try:
                self._trainer(train_one, books, resources, folders).fit()
            except BaseException as error:
                self.error = None if is_placement_timeout(error) else error  # for whoever waits for a message
            else:
                return

    def _trainer(self, train_one: TrainOne, books: Path, resources: Resources, folders: PictureFolders | None) -> Any:
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        from tune_dml.running.ray_internals import pass_to_train_workers
        from tune_dml.running.trials.rendezvous import Rendezvous

        # What frees the workers' places when this process is lost asks "the" Ray of the machine, in vain where there are two.
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
                storage_path=str(books),
                # What befalls workers is counted trial by trial, in `run`; that they cannot even begin, here alone.
                failure_config=FailureConfig(max_failures=-1, controller_failure_limit=WORKER_RETRIES),
            ),
        )


def _worker(train_one: TrainOne) -> Callable[[dict[str, Any]], None]:
    def work(config: dict[str, Any]) -> None:
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


def _refusing(work: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """Workers that say so where the node of one lacks something, and leave: an error Ray Train would try again for ever.

    Like the function it runs it travels by value, to a node without this project too.
    """

    def run(config: dict[str, Any]) -> None:
        import ray
        import ray.train

        try:
            work(config)
        except RuntimeError as error:
            if UNLIKE_DRIVER not in str(error):
                raise
            rank, place = ray.train.get_context().get_world_rank(), ray.util.get_current_placement_group().id.hex()
            # By keyword: of an actor whose class is not here Ray knows no positions.
            ray.get(config["mailbox"].refuse.remote(reason=str(error), rank=rank, place=place))

    return run


_GROUPS: list[WorkerGroup] = []
"""Of this process, which is a trial's actor and serves one sweep: at most one."""


def get_worker_group(
    train_one: TrainOne, books: Path, resources: Resources, folders: PictureFolders | None
) -> WorkerGroup:
    """This process's group, begun when there is none that lives; Ray Train keeps its books in a folder.

    `folders`: those of pictures for which a node is asked on which workers are placed; None to ask nothing of it.
    """
    if not _GROUPS or not _GROUPS[-1].lives:
        _GROUPS[:] = [WorkerGroup(train_one, books, resources, folders)]
    return _GROUPS[-1]
