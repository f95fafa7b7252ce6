"""A command that several SLURM jobs run one after the other: what they tell it through the environment."""

from __future__ import annotations

import os

BUDGET_FROM = "TUNE_DML_BUDGET_FROM"
"""Seconds since the epoch from which the command's budgets count, over all its jobs."""
ARRAY_GROUP = "TUNE_DML_ARRAY_GROUP"
"""Trials of each task, where the session's trials run as tasks of an array."""


def goes_on_by_itself() -> bool:
    """Return whether another job follows an interrupted session: nobody looks at the sweep between them."""
    return BUDGET_FROM in os.environ
