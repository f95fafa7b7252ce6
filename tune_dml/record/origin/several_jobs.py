"""Environment variables of a command that several SLURM jobs run one after another."""

from __future__ import annotations

import os

BUDGET_FROM = "TUNE_DML_BUDGET_FROM"
"""Time from which the budgets of all jobs count, in seconds since the epoch."""
ARRAY_GROUP = "TUNE_DML_ARRAY_GROUP"
"""Trials per task, if the session's trials run as tasks of an array."""
TASK_GPUS = "TUNE_DML_TASK_GPUS"
"""GPUs of each of these tasks; the job that collects their results needs none itself."""


def continues_in_next_job() -> bool:
    """Return whether another job continues an interrupted session. If so, no look is taken between them."""
    return BUDGET_FROM in os.environ
