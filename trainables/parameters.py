"""Typed knobs of a method, declared once in its constructor.

    class TripletLoss(Loss):
        def __init__(self, *, margin: Annotated[float, Field(ge=0, description="margin m")] = 1.0): ...

From that signature come validation, defaults, the allowed knobs, and the tables of the command line and the docs.
Imports no torch.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo

from trainables.errors import ConfigError, Problem, nearest

# Not knobs: the data set, the model and the machine decide these.
GIVEN_BY_CONTEXT = frozenset({"num_classes", "embedding_dim", "in_channels", "root", "cache_dir"})


@dataclass(frozen=True)
class Parameter:
    """One knob of a method, as its constructor declares it."""

    name: str
    type: str
    default: object
    domain: str
    description: str
    required: bool = False


def _knobs(cls: type) -> dict[str, tuple[Any, Any]]:
    hints = typing.get_type_hints(cls.__init__, include_extras=True)  # type: ignore[misc]
    knobs = {}
    for parameter in inspect.signature(cls).parameters.values():
        if parameter.name in GIVEN_BY_CONTEXT or parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        required = parameter.default is inspect.Parameter.empty
        knobs[parameter.name] = (hints[parameter.name], ... if required else parameter.default)
    return knobs


@cache
def _model(cls: type) -> type[BaseModel]:
    fields: dict[str, Any] = _knobs(cls)
    config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    return create_model(cls.__name__ + "Parameters", __config__=config, **fields)


@cache
def parameters_of(cls: type) -> tuple[Parameter, ...]:
    """The knobs of a method class, in the order of its constructor."""
    table = []
    for name, (hint, default) in _knobs(cls).items():
        base, info = _describe(hint)
        domain = ", ".join(str(rule) for rule in (info.metadata if info else ()))
        text = (info.description or "") if info else ""
        table.append(Parameter(name, base, None if default is ... else default, domain, text, default is ...))
    return tuple(table)


def _describe(hint: Any) -> tuple[str, FieldInfo | None]:
    if typing.get_origin(hint) is Annotated:
        base, *extras = typing.get_args(hint)
        return _type_name(base), next((extra for extra in extras if isinstance(extra, FieldInfo)), None)
    return _type_name(hint), None


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def resolve(cls: type, given: Mapping[str, object], place: str) -> tuple[dict[str, Any], list[Problem]]:
    """Fill in defaults and check every value; returns (parameters, problems) and raises nothing.

    `place` prefixes the knob's name in messages (`loss`, `regularizer`). A class may add rules that tie several knobs
    together in a classmethod `check_parameters(**parameters) -> Iterable[Problem]` (places relative to the method).
    """
    try:
        values = _model(cls)(**given).model_dump()
    except ValidationError as error:
        return dict(given), problems_of(error, place, [parameter.name for parameter in parameters_of(cls)])
    check = getattr(cls, "check_parameters", None)
    found = list(check(**values)) if check else []
    return values, [Problem(f"{place}.{p.place}", p.rule, p.value, p.remedy) for p in found]


def problems_of(error: ValidationError, place: str, known: list[str]) -> list[Problem]:
    """Pydantic's complaints in our words: rule, value, place, remedy."""
    problems = []
    for item in error.errors():
        where = ".".join(str(part) for part in (place, *item["loc"]) if part != "")
        if item["type"] == "extra_forbidden":
            name = str(item["loc"][-1])
            owner = ".".join(str(part) for part in (place, *item["loc"][:-1]) if part != "")
            problems.append(Problem(where, f"{owner} has no parameter {name!r}", None, nearest(name, known)))
        elif item["type"] == "missing":
            problems.append(Problem(where, "a value is required", None, f"Set {where}=..."))
        else:
            message = item["msg"].removeprefix("Value error, ")
            rule = message[0].lower() + message[1:]
            problems.append(Problem(where, rule.replace("input should", "value must"), item["input"]))
    return problems


def build(cls: type, given: Mapping[str, object], context: Mapping[str, object], place: str) -> Any:
    """Construct a method from checked knobs; raises ConfigError with every problem."""
    values, problems = resolve(cls, given, place)
    wanted = [name for name in GIVEN_BY_CONTEXT if name in inspect.signature(cls).parameters]
    problems += [
        Problem(f"{place}.{name}", f"{cls.__name__} needs {name}", None, f"Pass {name}=...")
        for name in sorted(wanted)
        if context.get(name) is None
    ]
    if problems:
        raise ConfigError(problems)
    return cls(**values, **{name: context[name] for name in wanted})
