"""Naive oracles of the losses: `ORACLES[name](embeddings, labels, **weights, **knobs)`, from every module here."""

import importlib
import pkgutil

ORACLES = {
    name: oracle
    for info in pkgutil.iter_modules(__path__)
    for name, oracle in importlib.import_module(f"{__name__}.{info.name}").ORACLES.items()
}
