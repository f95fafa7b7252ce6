"""The verdicts as JSON: the same numbers as the page, in full precision, under stable names."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from tune_dml.report.analysis import Analysis, CellRow, KnobAnswer

SCHEMA = "tune_dml.verdicts/1"


def verdicts_text(found: Analysis) -> str:
    """The JSON text."""
    return json.dumps(verdicts_data(found), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def verdicts_data(found: Analysis) -> dict[str, Any]:
    """Plain lists, objects, numbers; null where a number does not exist."""
    results, measured = found.measured.results, found.measured
    plan = results.plan
    body = {
        "schema": SCHEMA,
        "sweep": results.name,
        "space": plan.space.name,
        "dataset": plan.dataset,
        "data_digest": plan.data_digest,
        "protocol_version": plan.protocol_version,
        "plan": plan.identity(),
        "mlflow_parent_run": results.parent_run_id or None,
        "metric": {"key": measured.metric.key, "label": measured.metric.axis, "goal": measured.goal},
        "margin": measured.margin,
        "seeds": measured.seeds,
        "counts": dict(found.conduct.counts),
        "training_seconds": found.conduct.seconds,
        "sentences": found.verdicts,
        "findings": found.findings,
        "knobs": [_knob(answer) for answer in found.knobs],
        "baseline": None if found.baseline is None else found.baseline.comparison,
        "cells": [_cell(row) for row in found.cells],
        "failures": found.conduct.failures,
        "notes": found.conduct.notes,
        "opened_test": None if found.opened is None else found.opened,
        "trials": [
            {
                "trial": trial.key,
                "run_id": trial.run_id or None,
                "cell": trial.cell.label,
                "seed": trial.seed,
                "status": trial.status,
                "reason": trial.reason,
                "step": trial.step,
                "seconds": trial.seconds,
                "attempts": trial.attempts,
                "host": trial.host,
                "metrics": dict(sorted(trial.metrics.items())),
            }
            for trial in results.trials
        ],
    }
    plain: dict[str, Any] = _plain(body)
    return plain


def _knob(answer: KnobAnswer) -> dict[str, Any]:
    curve = answer.curve
    return {
        "path": curve.knob.path,
        "symbol": curve.knob.symbol,
        "axis": curve.measured.axis,
        "isolated": curve.how or None,
        "points": curve.points,
        "sensitivity": curve.sensitivity,
        "sentences": curve.sentences,
        "optimum": None
        if answer.location is None
        else {
            **vars(answer.location.optimum),
            "sentence": answer.location.sentence,
            "command": answer.location.command,
        },
        "agreement": [
            {
                **vars(comparison.agreement),
                "source": comparison.published.source,
                "published": comparison.published.published,
                "notes": comparison.published.notes,
                "sentences": comparison.sentences,
            }
            for comparison in answer.comparisons
        ],
        "mechanism": [] if answer.mechanism is None else answer.mechanism.finals,
    }


def _cell(row: CellRow) -> dict[str, Any]:
    return {
        "label": row.label,
        "knobs": dict(row.knobs),
        "baseline": row.baseline,
        "planned": row.planned,
        **vars(row.interval),
        "against_baseline": row.against,
        "left_out": row.left_out or None,
        "seconds": row.seconds,
        "trials": [{"seed": seed, "trial": key} for seed, key in row.trials],
    }


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
