"""Which of several sweeps on a cluster goes first: what each says of itself, and what the others may begin meanwhile.

    before = ahead(mine, others)               # sweeps of higher priority whose trials wait for room
    room(mine, before, nodes)                  # our trials that fit now into what those cannot use

Knows no Ray: `tune_dml.running.board` brings the claims, `tune_dml.running.in_order` heeds what comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_SLACK = 1e-9  # of Ray's fractions, kept in ten-thousandths


@dataclass(frozen=True)
class Claim:
    """What a sweep's driver says of itself."""

    sweep: str
    priority: int
    workers: int
    """Of each trial."""
    needs: Mapping[str, float]
    """What each worker needs: resource -> amount, more than 0."""
    job: str
    """Ray's name of the driver: it tells whether that still lives."""
    waiting: int = 0
    """Trials that could begin and have no room."""


@dataclass(frozen=True)
class Node:
    """What a node has, and what of that nobody uses."""

    total: Mapping[str, float]
    free: Mapping[str, float]


def ahead(mine: Claim, others: Iterable[Claim]) -> list[Claim]:
    """The sweeps that go before ours, first of all first: of higher priority, with trials that wait for room."""
    before = [other for other in others if other.priority > mine.priority and other.waiting > 0]
    return sorted(before, key=lambda other: -other.priority)


def room(mine: Claim, before: Sequence[Claim], nodes: Iterable[Node]) -> int:
    """How many of our trials may ask for room now, wherever Ray puts them, and take none that `before` could use.

    Where a worker of ours would take what is kept on a node, none may ask: Ray chooses the node.
    """
    workers, most = 0, None
    for node in nodes:
        fits = _times(mine.needs, node.free)
        kept = [_kept(other, mine, node) for other in before]
        left = min([fits, *(_times(mine.needs, _less(node.free, amounts)) for amounts in kept)])
        workers += left
        if left < fits:
            most = left if most is None else min(most, left)
    return (workers if most is None else min(workers, most)) // mine.workers


def _kept(other: Claim, mine: Claim, node: Node) -> dict[str, float]:
    """What is kept on a node for the waiting workers of another sweep, of all that ours uses too.

    As many as could still come: by what is free now of what ours leaves alone (GPUs, for one), and by the node's size of what
    both use, for that comes free while ours begins nothing.
    """
    shared = {name: amount for name, amount in other.needs.items() if name in mine.needs}
    alone = {name: amount for name, amount in other.needs.items() if name not in mine.needs}
    comes = min(
        [
            other.waiting * other.workers,
            *(_times(of, has) for of, has in ((shared, node.total), (alone, node.free)) if of),
        ]
    )
    return {name: amount * comes for name, amount in shared.items()}


def _times(needs: Mapping[str, float], has: Mapping[str, float]) -> int:
    """How many workers with these needs fit; none where there is not enough of something."""
    return max(0, min(int(has.get(name, 0.0) / amount + _SLACK) for name, amount in needs.items()))


def _less(free: Mapping[str, float], kept: Mapping[str, float]) -> dict[str, float]:
    return {name: amount - kept.get(name, 0.0) for name, amount in free.items()}
