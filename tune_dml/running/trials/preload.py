"""Import the modules that a trial needs, without garbage collection, which takes a third of the time.

Processes of a local Ray import this module when they start (`cluster.Connection`), others with their first trial.
"""

import gc
from importlib import import_module

gc.disable()
try:
    for name in ("ray.tune", "trainables.training", "tune_dml.running.trials.trial"):
        import_module(name)
finally:
    gc.freeze()  # never collect these objects
    gc.enable()
