"""Write docs/verdicts.schema.json, the published schema of verdicts.json: `make docs`. A test compares them.

Keys may be added without a new version; removing a key or changing its meaning raises the version in `SCHEMA`.
"""

import json
import sys
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tune_dml.report.export import SCHEMA

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "verdicts.schema.json"

Number = float | None
"""A number; None for infinite values and NaN."""


class _Open(BaseModel):
    """Allows further keys."""

    model_config = ConfigDict(extra="allow")


class Next(_Open):
    """The command to run next."""

    command: str
    settles: str
    chance: float | None = Field(None, description="Probability of settling it; null if unknown.")
    trials: int
    cost: str


class PlainAnswer(_Open):
    """The head of the page: answer, next command, facts."""

    sentences: list[str]
    next: Next | None
    facts: dict[str, str]


class Metric(_Open):
    """The metric by which the sweep is judged."""

    key: str
    label: str
    goal: Literal["maximize", "minimize"]


class Gap(_Open):
    """A difference, first minus second, with its simultaneous interval."""

    first: str
    second: str
    estimate: Number
    low: Number
    high: Number


class Sensitivity(_Open):
    """Does the knob matter?"""

    verdict: Literal["sensitive", "insensitive", "undecided"]
    reason: str
    margin: float
    alpha: float
    largest: Gap | None
    differences: list[Gap]
    seeds: int
    seeds_needed: int | None
    seeds_chance: float | None = Field(
        None, description="Probability that `seeds_needed`, or the largest number considered, decide it."
    )
    diverged: list[str]
    stopped: list[str] = []
    algorithm: str


class Optimum(_Open):
    """Where is the best value?"""

    verdict: Literal["interior", "edge", "found", "undecided", "none"]
    reason: str
    best: str
    side: Literal["low", "high", ""]
    candidates: list[str]
    within: list[str]
    p_best: dict[str, float] = Field(
        description="Value -> probability of being the best; empty without a noise estimate."
    )
    algorithm: str


class Agreement(_Open):
    """Does the curve agree with a published one?"""

    verdict: str
    reasons: list[str]
    source: str
    shared: int


class Point(_Open):
    """One value of a knob."""

    label: str
    value: float | str | bool | None
    mean: Number
    half_bar: Number
    seeds: list[tuple[int, float]]
    failures: list[tuple[int, str, str]]


class KnobVerdicts(_Open):
    """All verdicts on one knob."""

    path: str
    symbol: str
    axis: Literal["log", "linear", "ordered"]
    points: list[Point]
    sensitivity: Sensitivity
    optimum: Optimum | None
    agreement: list[Agreement]
    still_gaining: list[tuple[str, float]] = Field(
        description="Values whose gain in the last quarter is significant, and larger than the smallest difference that matters."
    )
    sentences: list[str]


class BaselineRow(_Open):
    """A cell minus the baseline."""

    label: str
    n: int
    difference: Number
    low: Number
    high: Number
    verdict: Literal["better", "worse", "undecided"]


class AgainstBaseline(_Open):
    """Is it better than the baseline?"""

    baseline: str
    rows: list[BaselineRow]
    alpha: float
    algorithm: str


class Gain(_Open):
    """A declared contrast: an arm minus another one, or the gain of an arm minus that of another one."""

    arm: str
    against: str
    estimate: Number
    low: Number
    high: Number
    verdict: Literal["gains", "loses", "within the margin", "open"]


class Gains(_Open):
    """The gain of each method over its own baseline."""

    rows: list[Gain]
    differences: list[Gain] = Field(description="An arm's gain minus that of another arm.")
    lost: list[str]
    margin: float
    alpha: float
    algorithm: str
    sentences: list[str]


class CellVerdicts(_Open):
    """One cell in numbers."""

    label: str
    knobs: dict[str, float | str | bool | None]
    baseline: bool
    planned: int
    n: int
    mean: Number
    low: Number
    high: Number
    lost: str | None
    diverged: bool
    stopped: int | None = None
    """The step at which it was stopped early."""


class FailedTrial(_Open):
    """A trial without a result."""

    label: str
    seed: int
    status: str
    reason: str


class Trial(_Open):
    """One trial, the source of its numbers."""

    trial: str
    run_id: str | None
    cell: str
    seed: int
    status: Literal["finished", "diverged", "failed", "stopped", "running", "missing"]
    metrics: dict[str, Number]


class Verdicts(_Open):
    """verdicts.json."""

    version: Literal["tune_dml.verdicts/3"] = Field(alias="schema")
    sweep: str
    space: str
    dataset: str
    data_digest: str
    protocol_version: int
    plan: str
    mlflow_parent_run: str | None
    metric: Metric
    margin: float
    seeds: list[int]
    answer: PlainAnswer
    sentences: list[str]
    findings: list[str]
    knobs: list[KnobVerdicts]
    baseline: AgainstBaseline | None
    gains: Gains | None = Field(None, description="The contrasts that the study declares; null if it declares none.")
    cells: list[CellVerdicts]
    failures: list[FailedTrial]
    trials: list[Trial]
    counts: dict[str, int]
    training_seconds: float


def page() -> str:
    """Return the schema as JSON Schema, draft 2020-12."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA}
    schema = {**head, **Verdicts.model_json_schema(by_alias=True), "title": "verdicts.json of a tune-dml report"}
    return json.dumps(schema, indent=1) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.relative_to(ROOT)}\n")
