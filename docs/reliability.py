"""Writes docs/reliability.md from what tests/faults noted: `make test-faults`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

PAGE = Path(__file__).with_suffix(".md")
HEAD = """# What a sweep survives

Generated from what tests/faults noted of real kills of real processes; do not edit. `make test-faults` runs them all anew; until
then rows of several runs may stand side by side (docs/log.md says which). Each row is a sweep of four trials (digits, 120
steps, a checkpoint every 20) on engine `local`, except where the row says of what it is. The table of results, with every
metric of every trial, then equals that of a sweep that nobody disturbed; of engine `train`, of a worker between two trials and
of the eight submitted trials it is that every trial has each of its steps once, and of a sweep that waited for another that no
trial began twice.
*Repeated*: trials begun again, from their last checkpoint. *Lost*: trials without an end. *Doubled*: rows that MLflow has
twice. *Steps again*: steps trained once more although an evaluation after them was known, which is none where the last
checkpoint can be read; empty where it was not measured. *Recovered*: seconds from the fault to the next trial that begins or
ends; they include waiting for a slot on a busy 2-core machine, and are 0 where another trial ended just then.

| fault | finished | repeated | lost | doubled | steps again | recovered [s] |
|---|---|---|---|---|---|---|
"""


def page(rows: list[dict[str, str]]) -> str:
    """The page."""
    columns = ("fault", "finished", "repeated", "lost", "doubled", "steps", "seconds")
    return HEAD + "".join(f"| {' | '.join(str(row.get(column, '')) for column in columns)} |\n" for row in rows)


if __name__ == "__main__":
    PAGE.write_text(page([json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]))
