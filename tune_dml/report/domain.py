"""The values that a knob may legally take, from the one declaration of the method it belongs to."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from tune_dml.space import Value
from tune_dml.stats import KnobDomain

_BOUND = re.compile(r"\b(gt|ge|lt|le)=(-?[\d.]+(?:e[+-]?\d+)?)")


def domain_of(path: str, settings: Mapping[str, Value]) -> KnobDomain:
    """The legal domain of a numeric knob under a cell's settings; unbounded where nothing is declared.

    Loads the method's package (and with it torch): asked only when a range is to be extended.
    """
    from trainables.config import TrialConfig
    from trainables.parameters import parameters_of
    from trainables.sections import methods_of

    section, _, name = path.partition(".")
    field = TrialConfig.model_fields.get(section)
    annotation = field.annotation if field else None
    fields = getattr(annotation, "model_fields", {})
    if name in fields:
        info = fields[name]
        return _parsed(" ".join(map(str, info.metadata)), info.annotation is int)
    try:
        method = methods_of(section)[str(settings[f"{section}.name"])]
    except (KeyError, ImportError):
        return KnobDomain()
    for parameter in parameters_of(method):
        if parameter.name == name:
            return _parsed(parameter.domain, parameter.type == "int")
    return KnobDomain()


def _parsed(text: str, integer: bool) -> KnobDomain:
    bounds = {kind: float(number) for kind, number in _BOUND.findall(text)}
    return KnobDomain(
        bounds.get("gt", bounds.get("ge", -math.inf)),
        bounds.get("lt", bounds.get("le", math.inf)),
        low_open="gt" in bounds,
        high_open="lt" in bounds,
        integer=integer,
    )
