"""Project a sweep's ledger onto MLflow. The only package that imports MLflow."""

from tune_dml.tracking.runs import SyncReport
from tune_dml.tracking.store import experiment_name, store_problems, tracking_uri
from tune_dml.tracking.sync_state import with_last_store
from tune_dml.tracking.tracker import Reconciliation, Tracker

__all__ = [
    "Reconciliation",
    "SyncReport",
    "Tracker",
    "experiment_name",
    "store_problems",
    "tracking_uri",
    "with_last_store",
]
