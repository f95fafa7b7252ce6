"""Name options in messages: as a flag, an argument of Python or a key of a sweep file.

    option_place("seeds")      --seeds            seeds             mine.yaml, seeds
    spell("seeds", 3)        --seeds 3          seeds=3           `seeds: 3`

The command line chooses `Flags` when it starts, and a sweep file `FileKeys` while it is checked.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from trainables.errors import ConfigError, Problem


class PythonArguments:
    """Names options as keyword arguments."""

    def place(self, option: str) -> str:
        """Return the name of an option, as the place of a problem."""
        return "name" if option == "sweep" else option

    def spell(self, option: str, value: object = None) -> str:
        """Return an option with a value as a user writes it; without one, its name."""
        return f"`{self.place(option)}`" if value is None else f"{self.place(option)}={_python_text(value)}"

    def setting(self, path: str, origin: str) -> str:
        """Return the place of a setting that comes from `origin`, as layers of settings name it."""
        option = _OPTION_OF_ORIGIN.get(origin)
        if option and option != "settings":
            return self.place(option)
        return f"{path} ({self.place(option) if option else origin})"


class Flags(PythonArguments):
    """Names options as flags of the command line."""

    def place(self, option: str) -> str:
        """Return the flag of an option, or the name of a positional argument."""
        return _FLAGS.get(option) or f"--{option.replace('_', '-')}"

    def spell(self, option: str, value: object = None) -> str:
        """Return a flag with its value."""
        return self.place(option) if value is None else f"{self.place(option)} {_flag_text(value)}"


@dataclass(frozen=True)
class FileKeys(PythonArguments):
    """Names options as keys of a sweep file; `beside` names the other options."""

    file: str
    keys: Set[str]  # options that the file decides
    beside: PythonArguments

    def place(self, option: str) -> str:
        """Return the file and the key of an option."""
        return f"{self.file}, {self._key(option)}" if option in self.keys else self.beside.place(option)

    def spell(self, option: str, value: object = None) -> str:
        """Return a key with its value."""
        if option not in self.keys:
            return self.beside.spell(option, value)
        return f"`{self._key(option)}`" if value is None else f"`{self._key(option)}: {_yaml_text(value)}`"

    def setting(self, path: str, origin: str) -> str:
        """Return the file, the setting and the key that it stands under."""
        if (option := _OPTION_OF_ORIGIN.get(origin)) and (option not in self.keys or option != "settings"):
            return self.place(option) if option in self.keys else self.beside.setting(path, origin)
        under = "parameters" if origin == "knob" else "fixed" if origin.startswith("space ") or option else origin
        return f"{self.file}, {path} ({under})"

    @staticmethod
    def _key(option: str) -> str:
        return {"search": "method", "num_samples": "run_cap", "settings": "fixed"}.get(option, option)


_FLAGS = {
    "settings": "--set",
    "arms": "--arm",
    "values": "--add",
    "params": "--param",
    "metrics": "--metric",
    "output": "-o",
    "sweep": "SWEEP",
    "space": "SPACE",
}
_OPTION_OF_ORIGIN = {"--set": "settings", "--dataset": "dataset", "--protocol": "protocol"}
"""Origin of a layer of settings, as plans store it -> option."""

_PYTHON = PythonArguments()
_names: ContextVar[PythonArguments] = ContextVar("option_names", default=_PYTHON)


def option_names() -> PythonArguments:
    """Return the naming that messages use in this context."""
    return _names.get()


def option_place(option: str) -> str:
    """Return the place of a problem with an option."""
    return _names.get().place(option)


def option_problem(option: str, rule: str, value: object = None, remedy: str = "") -> Problem:
    """Return a problem with an option."""
    return Problem(option_place(option), rule, value, remedy)


def unused_options(values: Mapping[str, object], reason: str) -> list[Problem]:
    """Return a problem for each option that has a value but no effect; `reason` says why."""
    rule = f"has no effect: {reason}"
    return [option_problem(option, rule, value, "Leave it out.") for option, value in values.items() if value]


def spell(option: str, value: object = None) -> str:
    """Return an option, with a value if given, as a user writes it."""
    return _names.get().spell(option, value)


@contextmanager
def naming(names: PythonArguments) -> Iterator[None]:
    """Name options by `names` within a block."""
    token = _names.set(names)
    try:
        yield
    finally:
        _names.reset(token)


@contextmanager
def values_from(option: str, paths: Iterable[str]) -> Iterator[None]:
    """Within a block, problems with the values of these knobs name this option as their place."""
    new_places = {option_names().setting(path, "knob"): f"{path} ({option_place(option)})" for path in paths}
    try:
        yield
    except ConfigError as error:
        raise ConfigError(replace(p, place=new_places.get(p.place, p.place)) for p in error.problems) from None


def _python_text(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_python_text(inner)}' for key, inner in value.items())}}}".replace("'", '"')
    if isinstance(value, list):
        return f"[{', '.join(map(_python_text, value))}]"
    return value if isinstance(value, str) and value.isupper() else repr(value).replace("'", '"')


def _flag_text(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_flag_text(inner)}" for key, inner in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _yaml_text(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_yaml_text(inner)}' for key, inner in value.items())}}}"
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)
