"""Read a YAML file safely."""

import difflib
import re
from pathlib import Path
from typing import Any

import yaml

from trainables.errors import ConfigError, Problem


class _Loader(yaml.SafeLoader):
    """Safe loader that refuses repeated keys and reads 1e-3 as a number."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and keys.count(key.value) > 1 and key.value != "<<":
            raise yaml.constructor.ConstructorError(None, None, f"`{key.value}` is given twice", key.start_mark)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+"), list("-+0123456789")
)


def read_mapping(
    path: Path, kind: str = "sweep file", example: str = "`tune-dml init FOLDER` writes one."
) -> dict[str, object]:
    """Read a YAML file that holds a mapping. Raise ConfigError if it cannot be read, is not YAML or holds no mapping.

    Messages call the file by its `kind`; `example` is the remedy for a missing or empty file.
    """
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        file_names = [item.name for item in path.parent.glob("*.y*ml")]
        matches = difflib.get_close_matches(path.name, file_names, n=1, cutoff=0.8)
        remedy = f"Did you mean '{matches[0]}'?" if matches else example
        reason = str(error.strerror).lower()
        raise ConfigError(Problem(str(path), f"the {kind} cannot be read: {reason}", None, remedy)) from None
    except UnicodeDecodeError:
        raise ConfigError(Problem(str(path), f"the {kind} must be text in UTF-8")) from None
    except yaml.YAMLError as error:
        raise ConfigError(_syntax_problem(path, kind, error)) from None
    except ValueError as error:  # such as a date that does not exist
        raise ConfigError(Problem(str(path), f"the {kind} must be YAML: {error}")) from None
    if not isinstance(raw, dict):
        rule = f"the {kind} is empty" if raw is None else f"a {kind} must be a mapping"
        raise ConfigError(Problem(str(path), rule, raw, example))
    return {str(key): value for key, value in raw.items()}


def _syntax_problem(path: Path, kind: str, error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None)
    where = f"{path}, line {mark.line + 1}" if mark else str(path)
    problem = str(getattr(error, "problem", None) or "it cannot be parsed")
    remedy = "Indent with spaces." if "\\t" in problem else ""
    return Problem(where, f"the {kind} must be YAML: {problem}", None, remedy)
