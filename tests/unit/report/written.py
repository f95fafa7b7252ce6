from dataclasses import dataclass

from tune_dml.record.results import Results
from tune_dml.report import ReportFiles

FAILURES = {
    ("rho=0.9", 1): ("diverged", "loss is not finite at step 180"),
    ("rho=1", 0): ("failed", "out of memory: <b>CUDA</b>"),
    ("rho=1", 2): ("failed", "out of memory"),
}


@dataclass(frozen=True)
class ReportedSweep:
    """A sweep and its report."""

    results: Results
    files: ReportFiles

    @property
    def html(self):
        return self.files.html.read_text()
