"""The only room that speaks MLflow: a projection of the ledger, brought up to date by syncing."""

from tune_dml.tracking.store import check, experiment_name, tracking_uri, ui_command
from tune_dml.tracking.tracker import Reconciliation, SyncReport, Tracker

__all__ = ["Reconciliation", "SyncReport", "Tracker", "check", "experiment_name", "tracking_uri", "ui_command"]
