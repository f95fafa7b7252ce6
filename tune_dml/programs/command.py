"""Build the command line of a trial that runs the user's training script, from a sweep file or `--command`.

The command may have placeholders such as `{optim.lr}` and `{seed}`, or W&B's macros such as `${args}`.
"""

import difflib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from trainables.errors import Problem, nearest
from tune_dml.text import joined

SETTING = "program"
"""Name of the setting that holds the command of a cell."""
_Value = float | int | str | bool | None
_MACRO = re.compile(r"\$\{(?P<name>\w+)(?::(?P<argument>[^}]*))?\}")
_PLACEHOLDER = re.compile(r"(?<!\$)\{(?P<name>[A-Za-z_][\w.-]*)\}")
_LISTS = ("args", "args_no_hyphens", "args_no_boolean_flags", "args_json", "args_json_file")
_MACROS = (*_LISTS, "env", "interpreter", "program", "envvar")
_INTERPRETER = "${interpreter}"
_OTHER_LANGUAGES = re.compile(rb"\b((ba|da|fi|k|z)?sh|julia|lua|node|perl|Rscript|ruby)\b")  # in a script's first line
_SHELL_OPERATORS = ("|", "||", "&&", "&", ";", "<", ">", ">>", "2>", "2>&1", "&>")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*")


def variable_of(parameter: str) -> str:
    """Return the environment variable that holds the value of a parameter."""
    return f"TUNE_DML_KNOB_{parameter.replace('.', '_').replace('-', '_').upper()}"


@dataclass(frozen=True)
class Program:
    """A command that runs one trial."""

    command: tuple[str, ...]
    folder: str
    seed_flag: str | None = "--seed"  # flag of the seed in `${args}`; None to pass the seed only in the environment
    timeout: float | None = None  # time limit of a trial in seconds; a longer trial fails

    @property
    def text(self) -> str:
        """The command in one line."""
        return shlex.join(self.command)

    @property
    def scripts(self) -> tuple[Path, ...]:
        """The existing Python files that the command names."""
        paths = (Path(self.folder) / word for word in self.command if word.endswith(".py"))
        return tuple(path for path in paths if path.is_file())

    @property
    def label(self) -> str:
        """Name of the script or of the module after `-m`, otherwise of the program."""
        names = [word for word in self.command if word.endswith((".py", ".sh"))]
        names += [
            word for previous, word in pairwise(self.command) if previous in {"-m", _INTERPRETER} and word != "-m"
        ]
        return Path((*names, self.command[0])[0]).name

    def words(self, values: Mapping[str, _Value], seed: int, knobs_file: str) -> list[str]:
        """Return the command line of one trial."""
        all_values = {**values, "seed": seed}
        lists = {name: self._arguments(name, values, seed, knobs_file) for name in _LISTS}
        list_texts = {name: shlex.join(arguments) for name, arguments in lists.items()}
        words: list[str] = []
        for word in self.command:
            macro = _MACRO.fullmatch(word)
            if macro and macro["name"] in lists:
                words += lists[macro["name"]]
                continue
            expanded = _MACRO.sub(lambda macro: list_texts.get(macro["name"], _expand_macro(macro)), word)
            words.append(_PLACEHOLDER.sub(lambda hole: _text(all_values.get(hole["name"], hole[0])), expanded))
        return words

    def _arguments(self, macro: str, values: Mapping[str, _Value], seed: int, knobs_file: str) -> list[str]:
        if macro == "args_json_file":
            return [knobs_file]
        if macro == "args_json":
            return [json.dumps({**values, "seed": seed})]
        hyphens = "" if macro == "args_no_hyphens" else "--"
        words = []
        for name, value in values.items():
            if macro == "args_no_boolean_flags" and isinstance(value, bool):
                words += [f"--{name}"] if value else []
            else:
                words.append(f"{hyphens}{name}={_text(value)}")
        flag = self.seed_flag and (self.seed_flag.lstrip("-") if not hyphens else self.seed_flag)
        return [*words, f"{flag}={seed}"] if flag else words

    def notes(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return notes on parameters or a seed that the command does not pass. `names` are a trial's parameters."""
        if any(macro["name"] in _LISTS for word in self.command for macro in _MACRO.finditer(word)):
            return ()
        passed = {placeholder["name"] for word in self.command for placeholder in _PLACEHOLDER.finditer(word)}
        missing = [name for name in (*names, "seed") if name not in passed]
        if not missing:
            return ()
        read = f"the script must read {'them' if missing[1:] else 'it'} from $TUNE_DML_KNOBS or the environment"
        return (f"The command does not pass {joined(missing)}: {read}.",)

    def problems(self, names: Sequence[str], origin: str) -> list[Problem]:
        """Return the problems of the command, such as unknown placeholders. `names` are a trial's parameters."""
        shell = [word for word in self.command if word in _SHELL_OPERATORS]
        remedy = f"Write it as {shlex.join(['bash', '-c', 'COMMAND'])}, with quotes around the whole command."
        problems = [Problem(origin, "the command runs without a shell", word, remedy) for word in shell[:1]]
        for word in self.command:
            problems += [
                Problem(origin, "unknown macro", f"${{{found['name']}}}", nearest(found["name"], _MACROS, what="macro"))
                for found in _MACRO.finditer(word)
                if found["name"] not in _MACROS
                and difflib.get_close_matches(found["name"], _MACROS)  # others may belong to Hydra
            ]
            problems += [
                Problem(origin, "unknown parameter", hole[0], nearest(hole["name"], [*names, "seed"], what="parameter"))
                for hole in _PLACEHOLDER.finditer(word)
                if hole["name"] not in {*names, "seed"}
            ]
        return [*problems, *self.missing_problems(origin), *self._interpreter_problems(origin)]

    def _interpreter_problems(self, origin: str) -> list[Problem]:
        """Return a problem if Python is to run a script of another language."""
        return [
            Problem(origin, "Python runs the program, but this script is of another language", word, remedy)
            for previous, word in pairwise(self.command)
            if previous == _INTERPRETER and _has_other_language(Path(self.folder) / word)
            for remedy in [f'In place of `program`, write command: [bash, {word}, "${{args}}"], or its interpreter.']
        ]

    def missing_problems(self, origin: str) -> list[Problem]:
        """Return a problem if the folder, the program or its script is missing on this machine."""
        if not Path(self.folder).is_dir():
            remedy = "Restore it, or start a new sweep."
            return [Problem(origin, "the program's working directory must exist", self.folder, remedy)]
        program = self.command[0]
        file = Path(self.folder) / program  # a name with a slash is a path in the folder, any other is on the PATH
        if not _MACRO.search(program) and not shutil.which(str(file) if "/" in program else program):
            example = f"Write env {program} PROGRAM" if _ASSIGNMENT.fullmatch(program) else "Example: python train.py"
            if file.is_file():
                shell = "python" if file.suffix == ".py" else "bash"
                example = f"Write ./{program}" if os.access(file, os.X_OK) else f"Write {shell} {program}"
            return [Problem(origin, "must begin with an executable program", program, f"{example}.")]
        with_previous = zip(self.command, (None, *self.command), strict=False)
        scripts = [
            word
            for word, previous in with_previous
            if (word.endswith(".py") or previous == _INTERPRETER) and not word.startswith(("-", "${"))
        ]
        missing_scripts = [word for word in scripts[:1] if not (Path(self.folder) / word).is_file()]
        scripts_there = sorted(path.name for path in Path(self.folder).glob("*.py"))
        return [
            Problem(origin, f"the script must be in {self.folder}", word, known=scripts_there, kind="script")
            for word in missing_scripts
        ]


def _has_other_language(script: Path) -> bool:
    """Return whether a script's first line, or its suffix, names an interpreter that does not run Python."""
    if not script.is_file():
        return False
    with script.open("rb") as file:
        first = file.readline(200)
    if first.startswith(b"#!"):
        return b"python" not in first and bool(_OTHER_LANGUAGES.search(first))
    return script.suffix == ".sh"


def read_command(text: str) -> tuple[str, ...]:
    """Split a command into words as a shell does. Raise ValueError for an open quote."""
    return tuple(shlex.split(text))


def _expand_macro(macro: re.Match[str]) -> str:
    """Return the value of a macro. An unknown macro stays unchanged."""
    if macro["name"] == "envvar":
        return os.environ.get(macro["argument"] or "", "")
    return {"env": "/usr/bin/env", "interpreter": sys.executable}.get(macro["name"], macro[0])


def _text(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)
