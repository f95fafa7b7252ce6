"""All that a trial's process imports, at once, while nobody looks for garbage: that takes a third of the time.

Ray's processes of this machine import it as they start (`cluster.Connection`), elsewhere a process's first trial does.
"""

from __future__ import annotations

import gc
from importlib import import_module

gc.disable()
try:
    for name in ("ray.tune", "trainables.training", "tune_dml.running.trials.trial"):
        import_module(name)
finally:
    gc.freeze()  # no garbage, and never looked at again
    gc.enable()
