"""Mutation test: change one operator or number at a time, and count the mutants that the unit tests catch.

    python tests/mutants.py [--count 300] [--seed 0] [--timeout 600] [PATH ...]

A mutant of a file is judged by the unit tests of its area (`AREAS`), run in a copy of the tree. A failing test or a
timeout catches it. Survivors are printed with their line. The exit code is 1 if fewer than 90 % are caught.
"""

from __future__ import annotations

import argparse
import ast
import copy
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
AREAS = {
    "tune_dml/stats": ["tests/unit/stats", "tests/unit/race/test_replay.py", "tests/unit/test_looks.py"],
    "trainables/metrics": ["tests/unit/metrics"],
    "trainables/losses": ["tests/unit/losses"],
    "tune_dml/planning": ["tests/unit/planning", "tests/unit/test_plan.py"],
}
GOAL = 0.9
_OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
    ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_NAMES = {"max": "min", "min": "max", "any": "all", "all": "any", "maximum": "minimum", "minimum": "maximum"}


def mutate(node: ast.AST) -> bool:
    """Change a node in place; return whether it can be changed."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _OPERATORS:
        node.op = _OPERATORS[type(node.op)]()
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
        node.ops[0] = _OPERATORS[type(node.ops[0])]()
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        node.value = 2 * node.value or 1
    elif isinstance(node, ast.Attribute) and node.attr in _NAMES:
        node.attr = _NAMES[node.attr]
    elif isinstance(node, ast.Name) and node.id in _NAMES:
        node.id = _NAMES[node.id]
    else:
        return False
    return True


def places(tree: ast.Module) -> list[int]:
    """Return the positions, in the order of `ast.walk`, of the nodes that can be mutated; annotations are left out."""
    annotations = {
        id(part)
        for node in ast.walk(tree)
        for field in ("annotation", "returns")
        if isinstance(root := getattr(node, field, None), ast.AST)
        for part in ast.walk(root)
    }
    return [
        index
        for index, node in enumerate(ast.walk(tree))
        if id(node) not in annotations
        and mutate(copy.copy(node) if not isinstance(node, ast.Compare) else copy.deepcopy(node))
    ]


def sample(paths: list[str], count: int, seed: int) -> Iterator[tuple[Path, int]]:
    """Yield a seeded sample of (file, position)."""
    files = sorted(
        file for path in paths for file in ([ROOT / path] if path.endswith(".py") else (ROOT / path).rglob("*.py"))
    )
    every = [(file, index) for file in files for index in places(ast.parse(file.read_text(encoding="utf-8")))]
    yield from random.Random(seed).sample(every, min(count, len(every)))


def mutant(source: str, index: int) -> tuple[str, str]:
    """Return the mutated source, and a line that says what changed."""
    tree = ast.parse(source)
    node = list(ast.walk(tree))[index]
    before = ast.unparse(node)
    mutate(node)
    return ast.unparse(tree), f"{node.lineno}: {before} -> {ast.unparse(node)}"  # type: ignore[attr-defined]


def _area(file: Path) -> str:
    return next(area for area in AREAS if str(file.relative_to(ROOT)).startswith(area))


def caught(copied: Path, area: str, timeout: float) -> bool:
    """Run the tests of an area in the copied tree."""
    tests = [path for path in AREAS[area] if (copied / path).exists()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        return subprocess.run(command, cwd=copied, capture_output=True, timeout=timeout, check=False).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def main() -> int:
    """Judge a sample of mutants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=list(AREAS))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=600.0)
    options = parser.parse_args()
    survivors, judged = [], 0
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "tree"
        shutil.copytree(ROOT, copied, ignore=shutil.ignore_patterns(".git", ".venv*", "sweeps", "__pycache__"))
        chosen = list(sample(options.paths, options.count, options.seed))
        areas = sorted({_area(file) for file, _ in chosen})
        if broken := [area for area in areas if caught(copied, area, options.timeout)]:
            sys.stdout.write(f"The tests of {', '.join(broken)} fail or time out without a mutant.\n")
            return 2
        for file, index in chosen:
            name = str(file.relative_to(ROOT))
            source = file.read_text(encoding="utf-8")
            changed, what = mutant(source, index)
            (copied / name).write_text(changed, encoding="utf-8")
            judged += 1
            if not caught(copied, _area(file), options.timeout):
                survivors.append(f"{name}:{what}")
                sys.stdout.write(f"survived  {survivors[-1]}\n")
                sys.stdout.flush()
            (copied / name).write_text(source, encoding="utf-8")
    share = 1 - len(survivors) / max(judged, 1)
    sys.stdout.write(f"{judged - len(survivors)} of {judged} mutants caught ({share:.0%})\n")
    return int(share < GOAL)


if __name__ == "__main__":
    sys.exit(main())
