"""tune_dml: from a paper's knob to a statistically honest sensitivity report.

    sweep = tune_dml.run_sweep("sec_rho", dataset="glyphs", seeds=3)
    sweep.table()
    tune_dml.write_report(sweep, "report")

Importing this package loads neither torch nor Ray; the functions do when they are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tune_dml.api import (
        confirm_sweep,
        extend_sweep,
        load_sweep,
        open_sweep,
        rescore_sweep,
        resume_sweep,
        run_sweep,
        write_report,
    )
    from tune_dml.programs.client import log, trial
    from tune_dml.sweep import Sweep

__all__ = [
    "Sweep",
    "__version__",
    "confirm_sweep",
    "extend_sweep",
    "load_sweep",
    "log",
    "open_sweep",
    "rescore_sweep",
    "resume_sweep",
    "run_sweep",
    "trial",
    "write_report",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Return a public name, loading it on first use."""
    if name in {"log", "trial"}:  # for training scripts: they load nothing else
        from tune_dml.programs import client

        return getattr(client, name)
    if name in __all__:
        from tune_dml import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names for completion, loaded or not."""
    return sorted(__all__)
