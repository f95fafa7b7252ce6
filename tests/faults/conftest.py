"""What the fault tests have found, written down: `make test-faults` turns it into docs/reliability.md."""

import json
import os
from pathlib import Path

import pytest

FOUND = os.environ.get("TUNE_DML_FAULTS")


@pytest.fixture
def found(request):
    """Call it with what happened and the outcome."""

    def note(fault, outcome):
        assert outcome["lost"] == outcome["doubled"] == 0, outcome
        if FOUND:
            with Path(FOUND).open("a") as file:
                file.write(json.dumps({"fault": fault, **outcome}) + "\n")

    return note
