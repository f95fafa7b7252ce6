"""Environment variables of a command that several SLURM jobs execute one after another."""

import os

BUDGET_FROM = "TUNE_DML_BUDGET_FROM"  # time from which the budgets of all jobs count, in seconds since the epoch
ARRAY_GROUP = "TUNE_DML_ARRAY_GROUP"  # number of trials per task, if the trials run as tasks of an array
TASK_GPUS = "TUNE_DML_TASK_GPUS"  # GPUs of each task of the array; the job that collects their results needs none


def continues_in_next_job() -> bool:
    """Return whether another job continues an interrupted session, so that its end is not a look."""
    return BUDGET_FROM in os.environ
