"""Turn declared options into flags of the command line, and read their text. Imports no heavy package."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import typer

from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.files import expand_home
from trainables.option_names import Flags, naming
from tune_dml.cli import _complete
from tune_dml.cli._command import USAGE_ERROR
from tune_dml.planning.request import Engine, OwnCommand, Racing, Request, Resources, Session, folder_problems
from tune_dml.text import is_number

if TYPE_CHECKING:
    from tune_dml.space import Value

_PathOrNone = TypeVar("_PathOrNone", Path, Path | None)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
SweepArgument = Annotated[
    str,
    typer.Argument(
        metavar="SWEEP", help="Name of a sweep; `tune-dml list` shows them.", autocompletion=_complete.sweeps
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Folder to write to.")]
Stores = Annotated[Session, "storage", "tracking_uri", "experiment"]  # a session of which a verb has only these flags


@dataclass(frozen=True)
class ReportOptions:
    """Options of the report that a session writes at its end."""

    output: Output = None
    as_json: Json = False

    def problems(self) -> list[Problem]:
        """Return why the report cannot be written."""
        return folder_problems("-o", absolute(self.output))


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Turn a function into a verb: a dataclass parameter becomes one flag for each of its fields.

    `Annotated[Session, "storage"]` has flags for the named fields only; the others keep their defaults. A parameter
    with the name of an option of `Request`, `Resources`, `Racing` or `Session` takes its type, default and help from
    there. Parameters with an annotation of Typer stay unchanged.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters = [p.replace(annotation=hints[p.name]) for p in inspect.signature(function).parameters.values()]
    groups = {p.name: _options_of(p.annotation) for p in parameters if is_dataclass(_group_of(p.annotation))}
    options = [option for p in parameters for option in groups.get(p.name, [p])]
    flags = [_flag(option) for option in options]
    read = {option.name for option, flag in zip(options, flags, strict=True) if flag.annotation != option.annotation}

    @wraps(function)
    def run_verb(**given: Any) -> None:
        with naming(Flags()):
            values = given | read_values({name: text for name, text in given.items() if name in read})
            if "engine" in read:
                values["engine"] = engine_of(values["workers"], values["engine"])
            for name, group in groups.items():
                values[name] = _group_of(hints[name])(**{field.name: values.pop(field.name) for field in group})
            function(**values)

    run_verb.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
    run_verb.__annotations__ = {flag.name: flag.annotation for flag in flags}
    return run_verb


def _group_of(annotation: Any) -> Any:
    """Return the dataclass of `Annotated[Session, "storage"]`; any other annotation unchanged."""
    group, *_ = get_args(annotation) or [annotation]
    return group if is_dataclass(group) else annotation


@cache
def _options_of(annotation: Any) -> list[inspect.Parameter]:
    group = _group_of(annotation)
    hints, declared = get_type_hints(group, include_extras=True), inspect.signature(group).parameters
    names = getattr(annotation, "__metadata__", tuple(declared))
    return [declared[name].replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY) for name in names]


def read_values(given: Mapping[str, object]) -> dict[str, Any]:
    """Parse the texts of declared options. Raise ConfigError with every text that an option does not accept."""
    values: dict[str, object] = {}
    problems: list[Problem] = []
    for name, text in given.items():
        try:
            values[name] = _READERS[name](text) if name in _READERS else text
        except ConfigError as error:
            problems += error.problems
    raise_if_any(problems)
    return values


def engine_of(workers: int, engine: Engine | None = None) -> Engine:
    """Return the requested engine, or the one that the number of workers needs."""
    return engine or ("local" if workers == 1 else "train")


def confirm_or_abort(question: str, yes: bool) -> None:
    """Ask a question unless `yes`. Raise ConfigError without a terminal, Abort if the user declines."""
    if not yes and not sys.stdin.isatty():
        raise ConfigError(Problem("--yes", "without a terminal this needs confirmation", None, "Add --yes."))
    if not yes and not typer.confirm(question):
        raise typer.Abort


def raise_if_link(folder: Path, verb: str) -> None:
    """Raise ConfigError if a sweep's folder is a link, because the user may mean the link or the sweep."""
    if folder.is_symlink():
        sweep = folder.resolve()
        rule = f"is a link to {sweep}; `tune-dml {verb}` needs the sweep itself"
        remedy = f"Use `{verb}` for the link, or `tune-dml {verb} {sweep.name} --storage {sweep.parent}` for the sweep."
        raise ConfigError(Problem(str(folder), rule, None, remedy))


def absolute(path: _PathOrNone) -> _PathOrNone:
    """Return the absolute path, with ~ expanded (a shell does not expand --root=~/x)."""
    return Path(os.path.abspath(expand_home(path))) if path else path


def location_flags(session: Session) -> dict[str, str | None]:
    """Return the locations given on this command line, by flag, for the commands that the output suggests."""
    storage = None if session.storage == Session.storage else str(session.storage)
    return {"--storage": storage, "--tracking-uri": session.tracking_uri, "--experiment": session.experiment}


def final_request(request: Request, own: OwnCommand) -> Request:
    """Return the request of a space or of `--command`. Raise a usage error without either."""
    from tune_dml.planning.files.program import command_request

    if not request.space and own.command is None:
        raise USAGE_ERROR("Missing argument 'SPACE|FILE.yaml'. Or give your own command with --command.")
    return command_request(request, own)


def request_of(given: Mapping[str, Any]) -> Request:
    """Return the request of the parsed flags of `sweep`. Raise ConfigError for invalid flags."""
    values = read_values(given)
    request, own = ({field.name: values[field.name] for field in fields(group)} for group in (Request, OwnCommand))
    return final_request(Request(**request), OwnCommand(**own))


def settings_of(pairs: list[str] | None) -> dict[str, Value]:
    """Read `KEY=VALUE` of --set. Raise ConfigError for any other text, and for a key with two values."""
    from trainables.config import parse_value

    settings: dict[str, Value] = {}
    problems = []
    for pair in pairs or []:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            problems.append(Problem("--set", "must read KEY=VALUE", pair, "Example: --set loss.margin=0.2."))
        path, value = key.strip(), parse_value(text)
        first = settings.setdefault(path, value)
        if _comparable(first) != _comparable(value):
            both = f"{path}={first} and {path}={value}"
            problems.append(Problem("--set", "a setting has one value", both, "Keep one of them."))
    raise_if_any(problems)
    return settings


def _comparable(value: Value) -> object:
    """Return a key that is the same for 1 and 1.0, and differs for 1, True and `1`."""
    return float(value) if is_number(value) else repr(value)


def values_of(pairs: list[str] | None, flag: str = "--add") -> dict[str, list[Any]]:
    """Read `KEY=V,V` of a flag. Raise ConfigError for any other text, and for a key or a value given twice."""
    from trainables.config import parse_value

    example = f"Example: {flag} loss.margin=0.5,1.0."
    values_by_key: dict[str, list[Any]] = {}
    problems = []
    for pair in pairs or []:
        key, _, text = pair.partition("=")
        parts = [part.strip() for part in text.split(",")]
        values = [parse_value(part) for part in parts]
        if not key or not text:
            problems.append(Problem(flag, "must read KEY=V,V,...", pair, example))
        elif key.strip() in values_by_key:
            problems.append(Problem(flag, "a knob may be given once, with all its values", key.strip(), example))
        elif any(part.startswith("[") for part in parts):
            rule = "each value must be a number, text, true or false, but not a list"
            problems.append(Problem(flag, rule, pair, example))
        elif len(set(map(_comparable, values))) < len(values):
            problems.append(Problem(flag, "the values of a knob must differ", pair, "Remove the repeats."))
        values_by_key[key.strip()] = values
    raise_if_any(problems)
    return values_by_key


def _tune_of(pairs: list[str] | None) -> dict[str, list[Any]] | None:
    """Read `KEY` and `KEY=V,V` of --tune; None if there is none."""
    if not pairs:
        return None
    given = values_of([pair for pair in pairs if "=" in pair], "--tune")
    return {key: given.get(key, []) for key in (pair.partition("=")[0].strip() for pair in pairs)}


def seeds_of(text: str | None) -> int | tuple[int, ...] | None:
    """Read a count or a list of seeds. Raise ConfigError for other text."""
    if text is None:
        return None
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()] or [-1]
    except ValueError:
        numbers = [-1]
    if min(numbers) < 0 or (len(numbers) == 1 and "," not in text and numbers[0] < 1):
        rule = "must be a count of at least 1, or whole numbers >= 0 with commas"
        raise ConfigError(Problem("--seeds", rule, text, "Example: --seeds 3, or --seeds 0,1,7."))
    return numbers[0] if len(numbers) == 1 and "," not in text else tuple(numbers)


_READERS: dict[str, Callable[[Any], Any]] = {
    "seeds": seeds_of,
    "settings": settings_of,
    "tune": _tune_of,
    "params": lambda pairs: values_of(pairs, "--param") if pairs else None,
}
_REPEATED = {
    "settings": ("--set", "KEY=VALUE"),
    "arms": ("--arm", "NAME"),
    "tune": ("--tune", "KEY[=V,V,...]"),
    "params": ("--param", "NAME=V,V,..."),
}
"""Option that may be given several times -> its flag and the form of a value."""
_COMPLETIONS: dict[str, Callable[..., list[str]]] = {
    "dataset": _complete.datasets,
    "protocol": _complete.protocols,
    "settings": _complete.settings,
    "tune": _complete.setting_names,
}
_DECLARATIONS = {
    option.name: option for group in (Request, OwnCommand, Resources, Racing, Session) for option in _options_of(group)
}


def _flag(option: inspect.Parameter) -> inspect.Parameter:
    """Return an option for Typer: with a type that Typer can parse, and the declared sentence as help."""
    flag = option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    declared = _DECLARATIONS.get(option.name) if option.kind is inspect.Parameter.KEYWORD_ONLY else None
    if declared is None or any(not isinstance(part, str) for part in getattr(option.annotation, "__metadata__", ())):
        return flag
    kind, sentence = get_args(declared.annotation)
    default = declared.default if option.default is inspect.Parameter.empty else option.default
    shown: Any = typer.Option(help=sentence, autocompletion=_COMPLETIONS.get(option.name))
    if option.name == "space":
        default = ""  # `final_request` requires it, unless there is a command
        kind, shown = str, typer.Argument(metavar="SPACE|FILE.yaml", help=sentence, autocompletion=_complete.spaces)
    elif option.name == "seeds":
        kind = str | None
    elif kind is bool:
        shown = typer.Option(f"--{option.name.replace('_', '-')}", help=sentence)
    elif option.name in _REPEATED:
        name, metavar = _REPEATED[option.name]
        kind, completion = list[str] | None, _COMPLETIONS.get(option.name)
        shown = typer.Option(name, metavar=metavar, help=sentence, autocompletion=completion)
    elif option.name == "engine":  # by default the number of workers decides
        kind, default = kind | None, None
    elif Path in get_args(kind):
        kind = Path | None if type(None) in get_args(kind) else Path
    return flag.replace(annotation=Annotated[kind, shown], default=default)
