"""How often a driver looks for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

RARELY = 100_000
"""New objects between two looks: imports make a million, none of them garbage, and a third of their time goes there."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Meanwhile garbage is looked for rarely; no more often afterwards than before."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], RARELY) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
