"""Parse the project's sources, each once per process."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def sources(package):
    return sorted((ROOT / package).rglob("*.py"))


@cache
def tree(path):
    return ast.parse(path.read_text())
