"""A function that takes dataclasses of options becomes one that takes their fields as keywords.

    def run(request: Request, session: Session, *, console: Console | None = None) -> Sweep: ...

    run_sweep = spread(run)
    run_sweep("sec_rho", seeds=3, storage="sweeps", console=console)

The signature and the docstring say what the dataclasses declare: each option's type, default and sentence of help.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache, wraps
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from trainables.errors import nearest, raise_if_any

T = TypeVar("T")
_NONE = inspect.Parameter.empty


def spread(function: Callable[..., T], *, name: str = "", checked: bool = False) -> Callable[..., T]:
    """Put the fields of every parameter that is a dataclass without a default in its place, as keywords.

    A field without a default may be passed by position where its dataclass may. The new function raises TypeError, naming
    the nearest keyword, for one it does not know.

    Args:
        function: what is called, with the dataclasses put together.
        name: of the new function; the same by default.
        checked: whether the new function raises ConfigError for values that are not of their keyword's type.
    """
    signature, hints = inspect.signature(function), get_type_hints(function, include_extras=True)
    parameters = [p.replace(annotation=hints[p.name]) for p in signature.parameters.values()]
    groups = {p.name: options_of(p.annotation, p.kind) for p in parameters if _is_group(p)}
    options = [option for p in parameters for option in groups.get(p.name, [p])]
    options.sort(key=lambda option: option.kind)  # what may be passed by position comes first
    shown = [option.replace(annotation=_type_of(option.annotation)) for option in options]
    taken = signature.replace(parameters=shown, return_annotation=hints.get("return"))

    @wraps(function)
    def keywords(*given: Any, **named: Any) -> T:
        if unknown := [key for key in named if key not in taken.parameters]:
            remedy = nearest(unknown[0], list(taken.parameters), what="keyword")
            raise TypeError(f"{keywords.__name__}() got an unexpected keyword argument {unknown[0]!r}. {remedy}")
        bound = taken.bind(*given, **named)
        if checked:
            from tune_dml.planning.keywords import keyword_problems

            raise_if_any(keyword_problems({option.name: option.annotation for option in shown}, bound.arguments))
        bound.apply_defaults()
        values = bound.arguments
        for group, fields in groups.items():
            values[group] = hints[group](**{field.name: values.pop(field.name) for field in fields})
        return function(**values)

    keywords.__name__ = keywords.__qualname__ = name or function.__name__
    keywords.__signature__ = taken  # type: ignore[attr-defined]
    keywords.__annotations__ = {option.name: option.annotation for option in shown} | {
        "return": taken.return_annotation
    }
    described = [f"    {option.name}: {text}" for option in options if (text := help_of(option.annotation))]
    sections = [inspect.cleandoc(function.__doc__ or ""), "\n".join(["Options:", *described]) if described else ""]
    keywords.__doc__ = "\n\n".join(filter(None, sections))
    return keywords


def options_of(group: Any, kind: Any = inspect.Parameter.KEYWORD_ONLY) -> list[inspect.Parameter]:
    """The options that a dataclass declares, as parameters with their defaults; those without one are of the given kind."""
    return [option.replace(kind=kind) if option.default is _NONE else option for option in _fields(group)]


@cache
def _fields(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    declared = inspect.signature(group).parameters.values()
    return [p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in declared]


def help_of(annotation: Any) -> str:
    """The sentence beside a type: `Annotated[int, "How many."]`; empty where there is none."""
    return next((text for text in _beside(annotation) if isinstance(text, str)), "")


def _type_of(annotation: Any) -> Any:
    """The type alone, where nothing but its sentence stands beside it."""
    beside = _beside(annotation)
    return get_args(annotation)[0] if beside and all(isinstance(text, str) for text in beside) else annotation


def _beside(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()


def _is_group(parameter: inspect.Parameter) -> bool:
    return parameter.default is _NONE and is_dataclass(parameter.annotation)
