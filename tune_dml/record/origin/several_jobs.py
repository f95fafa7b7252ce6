"""Environment variables of a command that several SLURM jobs run one after another."""

from __future__ import annotations

import os

BUDGET_FROM = "TUNE_DML_BUDGET_FROM"
"""Seconds since the epoch from which the command's budgets count, over all its jobs."""
ARRAY_GROUP = "TUNE_DML_ARRAY_GROUP"
"""Trials per task, if the session's trials run as tasks of an array."""
TASK_GPUS = "TUNE_DML_TASK_GPUS"
"""GPUs of each of these tasks; the job that collects their results needs none itself."""


def goes_on_by_itself() -> bool:
    """Return whether another job continues an interrupted session, so that no look happens between them."""
    return BUDGET_FROM in os.environ
