"""Discover methods and their typed knobs, which a constructor declares once.

    class TripletLoss(Loss):
        name = "triplet"

        def __init__(self, *, margin: Annotated[float, Field(ge=0, description="margin m")] = 1.0): ...

A class is found in the right folder or through another package's entry point. Its signature provides
validation, defaults, the knobs' domains, and the tables of command line and docs. The module imports no torch.
"""

import importlib
import inspect
import math
import pkgutil
import sys
import types
import typing
from collections import UserDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass
from functools import cache, cached_property
from importlib.metadata import EntryPoints, entry_points
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, create_model, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from trainables.errors import ConfigError, Problem, nearest, raise_if_any

T = TypeVar("T")

# Parameters that are not knobs, because data set, model or machine decide them.
_FROM_CONTEXT = frozenset({"num_classes", "embedding_dim", "in_channels", "in_features", "config", "root", "cache_dir"})


class Registry(UserDict[str, type[T]]):
    """Name -> class for every concrete subclass of `base` in a package's modules and in an entry-point group.

    A class needs its own class attribute `name`. The registry is filled at first use, when all modules are imported.
    """

    def __init__(self, package: str, base: type[T], group: str) -> None:
        self._package, self._base, self._group = package, base, group

    @cached_property
    def data(self) -> dict[str, type[T]]:  # type: ignore[override]
        """The classes, sorted by name. Raise ConfigError for duplicate names and wrong entry points."""
        classes: dict[str, type[T]] = {}
        path = importlib.import_module(self._package).__path__
        for info in sorted(pkgutil.iter_modules(path), key=lambda module: module.name):
            module = importlib.import_module(f"{self._package}.{info.name}")
            for cls in vars(module).values():
                if inspect.isclass(cls) and cls.__module__ == module.__name__ and not _missing_trait(cls, self._base):
                    _register(classes, cls)
        for place, cls in load_entries(self._group):
            if reason := _missing_trait(cls, self._base) or _wrong_arguments(cls, self._base):
                raise ConfigError(Problem(place, f"must name {reason}", str(cls), "Fix the package that names it."))
            _register(classes, cls)
        return dict(sorted(classes.items()))


@cache
def _entry_points(path: tuple[str, ...]) -> EntryPoints:
    """Return the entry points of the packages on an import path, whose metadata take milliseconds to read."""
    return typing.cast(EntryPoints, entry_points())  # before Python 3.12 the type differs but has the same `select`


def packages_add_methods() -> bool:
    """Return whether an installed package adds methods through entry points."""
    return any(map(_adds_methods, _entry_points(tuple(sys.path)).groups))


def _adds_methods(group: str) -> bool:
    return group.startswith("tune_dml.") and group != "tune_dml.space_packages"


@cache
def import_packages() -> bool:
    """Import the modules that add methods, once; return whether there are any. Those that do not import are left out."""
    found = _entry_points(tuple(sys.path))
    entries = [entry for group in found.groups if _adds_methods(group) for entry in found.select(group=group)]
    for entry in entries:
        with suppress(Exception, SystemExit):  # another package's module may raise anything, or exit
            importlib.import_module(entry.module)
    return bool(entries)


def load_entries(group: str) -> list[tuple[str, Any]]:
    """Return (label for messages, object) per entry point of a group. Raise ConfigError if some do not import."""
    loaded, problems = [], []
    for entry in _entry_points(tuple(sys.path)).select(group=group):
        place = f"entry point {group}.{entry.name}" + (f" of the package {entry.dist.name}" if entry.dist else "")
        try:
            loaded.append((place, entry.load()))
        except (Exception, SystemExit) as error:  # another package's module may raise anything, or exit
            rule, remedy = f"{entry.value} must be importable", "Fix the package, or uninstall it."
            problems.append(Problem(place, rule, f"{type(error).__name__}: {error}", remedy))
    raise_if_any(problems)
    return loaded


def _missing_trait(cls: Any, base: type) -> str:
    """Return what an object must be to count as a method; empty if it does."""
    if not (inspect.isclass(cls) and issubclass(cls, base)):
        return f"a class derived from {base.__module__}.{base.__qualname__}"
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        return f"a class that implements {', '.join(missing)}"
    return "" if isinstance(cls.__dict__.get("name"), str) else "a class with its own attribute `name`"


def _wrong_arguments(cls: Any, base: type) -> str:
    """Return the abstract method of `base` whose arguments a class does not take; empty if it takes all."""
    for name in sorted(getattr(base, "__abstractmethods__", ())):
        if not callable(getattr(cls, name)):
            continue  # a property
        expected = inspect.signature(getattr(base, name)).parameters.values()
        required = [argument.name for argument in expected if argument.default is argument.empty]
        optional = {argument.name: None for argument in expected if argument.default is not argument.empty}
        try:
            inspect.signature(getattr(cls, name)).bind(*required, **optional)
        except TypeError:
            arguments = [argument for argument in (*required, *optional) if argument != "self"]
            return f"a class whose {name} takes {' and '.join(arguments) or 'no arguments'}"
    return ""


def _register(classes: dict[str, type[T]], cls: Any) -> None:
    name = cls.__dict__["name"]
    if classes.get(name, cls) is not cls:
        existing = classes[name]
        place, remedy = f"{cls.__module__}.{cls.__qualname__}", "Rename one of them."
        rule = f"a method's name must be unique, {existing.__module__}.{existing.__qualname__} has it already"
        raise ConfigError(Problem(place, rule, name, remedy))
    classes[name] = cls


@dataclass(frozen=True)
class KnobDomain:
    """Legal values of a numeric knob."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    integer: bool = False
    multiple_of: int = 1
    """Divisor of every legal value; only for whole numbers."""

    def allows(self, value: float) -> bool:
        """Return whether a value is legal."""
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below and not (self.integer and value % self.multiple_of)


@dataclass(frozen=True)
class Parameter:
    """One knob of a method, as its constructor declares it."""

    name: str
    type: str
    default: object
    domain: str
    """Rules as text: `>= 0, <= 1`."""
    description: str
    required: bool = False
    choices: tuple[object, ...] = ()
    """Legal values, if they are listed."""
    numbers: KnobDomain = field(default=KnobDomain(), repr=False)
    """Rules in numbers; unbounded without rules."""

    @property
    def rule(self) -> str:
        """The rules as text, or the choices: `euclidean or cosine`."""
        return self.domain or " or ".join("null" if choice is None else str(choice) for choice in self.choices)


def domain_of_rules(rules: Iterable[object], annotation: object) -> KnobDomain:
    """Return the domain that a field's rules (`Ge`, `Gt`, `Le`, `Lt`, `MultipleOf`) define."""
    bounds: dict[str, float] = {}
    divisor = 1
    for rule in rules:
        divisor = int(getattr(rule, "multiple_of", divisor))
        bounds |= {kind: float(getattr(rule, kind)) for kind in ("gt", "ge", "lt", "le") if hasattr(rule, kind)}
    return KnobDomain(
        bounds.get("gt", bounds.get("ge", -math.inf)),
        bounds.get("lt", bounds.get("le", math.inf)),
        low_open="gt" in bounds,
        high_open="lt" in bounds,
        integer=annotation is int or set(typing.get_args(annotation)) == {int, type(None)},
        multiple_of=divisor,
    )


def _declared_knobs(cls: type) -> dict[str, tuple[Any, Any]]:
    # A dataclass declares its fields in the class; its constructor lacks their namespace.
    declared = cls if is_dataclass(cls) else cls.__init__  # type: ignore[misc]
    place = f"{cls.__module__}.{cls.__qualname__}"
    try:
        hints = typing.get_type_hints(declared, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        raise ConfigError(Problem(place, "the types of its knobs must resolve", str(error))) from error
    knobs, problems = {}, []
    for parameter in inspect.signature(cls).parameters.values():
        name, required = parameter.name, parameter.default is inspect.Parameter.empty
        if name in _FROM_CONTEXT or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            problems.append(Problem(place, "knobs must be keyword-only", name, "Write `*, ` before the first of them."))
        elif name not in hints:
            problems.append(Problem(place, "a knob must have a type", name, f"Example: `{name}: float`."))
        else:
            knobs[name] = (hints[name], ... if required else parameter.default)
    raise_if_any(problems)
    return knobs


class NoBooleanNumbers(BaseModel):
    """Refuses true and false where a number is expected; pydantic reads them as 1 and 0."""

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_boolean(cls, value: object, info: ValidationInfo) -> object:
        kinds = _classes_in(cls.model_fields[str(info.field_name)].annotation)
        entries = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(entry, bool) for entry in entries) and kinds & {int, float} and bool not in kinds:
            raise PydanticCustomError("boolean", "must be a number" if entries[0] is value else "must be numbers")
        return value


def _classes_in(hint: Any) -> set[type]:
    """Return the classes that a type hint consists of."""
    if parts := typing.get_args(hint):
        return set().union(*map(_classes_in, parts))
    return {hint} if isinstance(hint, type) else set()


class _Parameters(NoBooleanNumbers):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, arbitrary_types_allowed=True)


@cache
def _model(cls: type) -> type[BaseModel]:
    fields: dict[str, Any] = _declared_knobs(cls)
    return create_model(cls.__name__ + "Parameters", __base__=_Parameters, **fields)


@cache
def parameters_of(cls: type) -> tuple[Parameter, ...]:
    """Return the knobs of a method class, in the order of its constructor."""
    return tuple(_make_parameter(name, hint, default) for name, (hint, default) in _declared_knobs(cls).items())


@cache
def knob_names(cls: type) -> frozenset[str]:
    """Return the names of a method class's knobs."""
    return frozenset(_declared_knobs(cls))


def _make_parameter(name: str, hint: Any, default: object) -> Parameter:
    base, info = hint, None
    if typing.get_origin(hint) is Annotated:
        base, *extras = typing.get_args(hint)
        info = next((extra for extra in extras if isinstance(extra, FieldInfo)), None)
    rules = info.metadata if info else []
    return Parameter(
        name,
        _type_text(base),
        None if default is ... else default,
        ", ".join(map(_rule_text, rules)),
        (info.description or "") if info else "",
        default is ...,
        typing.get_args(base) if typing.get_origin(base) is typing.Literal else (),
        domain_of_rules(rules, base),
    )


def _type_text(hint: Any) -> str:
    """Return a type as it is written in Python, without its rules: `Literal['first_batch'] | float`."""
    if typing.get_origin(hint) is Annotated:
        return _type_text(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " | ".join(map(_type_text, typing.get_args(hint)))
    if hint is type(None):
        return "None"
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


_SIGNS = {"gt": "> {:g}", "ge": ">= {:g}", "lt": "< {:g}", "le": "<= {:g}"}
_SIGNS |= {"multiple_of": "a multiple of {:g}", "min_length": "at least {:g} long"}


def _rule_text(rule: object) -> str:
    return next((text.format(getattr(rule, kind)) for kind, text in _SIGNS.items() if hasattr(rule, kind)), str(rule))


def check_knobs(cls: type, knobs: Mapping[str, object], place: str) -> tuple[dict[str, object], list[Problem]]:
    """Fill in defaults and check every value; return (knobs, problems) without raising.

    `place` prefixes the knob's name in messages (`loss`). A class may relate several knobs in a classmethod
    `check_parameters(**parameters) -> Iterable[Problem]`.
    """
    try:
        values = _model(cls)(**knobs).model_dump()
    except ValidationError as error:
        return dict(knobs), problems_of(error, place, [parameter.name for parameter in parameters_of(cls)], _model(cls))
    check = getattr(cls, "check_parameters", None)
    problems = check(**values) if check else ()
    return values, [Problem(f"{place}.{p.place}", p.rule, p.value, p.remedy) for p in problems]


def problems_of(error: ValidationError, place: str, known: Sequence[str], model: type[BaseModel]) -> list[Problem]:
    """Translate pydantic's errors of flat settings into problems, one for each value."""
    by_path: dict[str, list[ErrorDetails]] = {}
    for item in error.errors():
        # Behind a setting stand positions in its list, and pydantic's names of the types that it may have.
        parts = [place, *item["loc"][:1], *(part for part in item["loc"][1:] if isinstance(part, int))]
        by_path.setdefault(".".join(map(str, parts)), []).append(item)
    problems = []
    for path, (item, *others) in by_path.items():
        if item["type"] == "extra_forbidden":
            remedy = nearest(path, [f"{place}.{name}" for name in known], what="setting", dotted=True)
            problems.append(Problem(path, "unknown setting", None, remedy))
        elif item["type"] == "missing":
            problems.append(Problem(path, "a value is required", None, f"Set {path}=..."))
        else:
            field = model.model_fields.get(str(item["loc"][0]))
            is_optional = field is not None and type(None) in _classes_in(field.annotation)
            remedy = "Write null for no value." if is_optional and str(item["input"]).lower() == "none" else ""
            problems.append(Problem(path, rule_of_any([item, *others]), item["input"], remedy))
    return problems


_RULES = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "must be a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
    "string_type": "must be text",
    **dict.fromkeys(("list_type", "sequence_str", "tuple_type"), "must be a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be a mapping"),
    "too_short": "must have at least one entry",
}


def rule_of(error: ErrorDetails) -> str:
    """Return the rule that one error of pydantic states: `must be greater than 0`."""
    if (rule := _RULES.get(error["type"])) is not None:
        return rule
    message = str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    if error["type"] == "literal_error":
        message = message.replace(" None", " null")  # as it is typed
    return message[0].lower() + message[1:]


def rule_of_any(errors: Sequence[ErrorDetails]) -> str:
    """Return the rule of a value that may have one of several types: `must be a number, text or a list`."""
    rules = list(dict.fromkeys(map(rule_of, errors)))
    if "must be a number" in rules:  # whole numbers are numbers too
        rules = [rule for rule in rules if rule != "must be a whole number"]
    first, *other_rules = rules
    *leading, last = [first, *(rule.removeprefix("must be ") for rule in other_rules)]
    return f"{', '.join(leading)} or {last}" if leading else last


def unknown_problem(registry: Iterable[str], kind: str, name: str, place: str) -> Problem:
    """Return the problem of an unknown method, with the nearest name."""
    return Problem(place, f"unknown {kind}", name, known=registry, kind=kind)


def build(  # noqa: PLR0917
    registry: Mapping[str, type[T]],
    kind: str,
    name: str,
    knobs: Mapping[str, object],
    context: Mapping[str, object],
    section: str,
) -> T:
    """Create the method `name` with these knobs. Raise ConfigError that lists every wrong one."""
    if name not in registry:
        raise ConfigError(unknown_problem(registry, kind, name, f"{section}.name"))
    method: T = construct(registry[name], knobs, context, section)
    return method


def construct(cls: type, knobs: Mapping[str, object], context: Mapping[str, object], place: str) -> Any:
    """Create a method from checked knobs. Raise ConfigError with every problem."""
    values, problems = check_knobs(cls, knobs, place)
    needed = [name for name in _FROM_CONTEXT if name in inspect.signature(cls).parameters]
    problems += [
        Problem(f"{place}.{name}", f"{cls.__name__} needs {name}", None, f"Pass {name}=...")
        for name in sorted(needed)
        if context.get(name) is None
    ]
    raise_if_any(problems)
    return cls(**values, **{name: context[name] for name in needed})
