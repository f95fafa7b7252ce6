"""Mutation test: change one operator or number at a time, and count the mutants that the unit tests catch.

    python tests/mutants.py [--count 300] [--seed 0] [--jobs 2] [PATH ...]

The unit tests of all areas run once under a tracer that notes which file of tests runs which lines; of one file, because
tests share what its fixtures and caches hold. Each mutant is then judged by the tests of the files that run its
statement, the fastest file first, in a child of a process that has already imported the libraries. A failing test or a
timeout catches the mutant. Survivors are printed with their line. The exit code is 1 if fewer than
90 % are caught.
"""

import argparse
import ast
import copy
import importlib
import importlib.machinery
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
AREAS = [
    *("tune_dml/stats", "tune_dml/planning", "trainables/metrics", "trainables/losses", "trainables/regularizers"),
    "trainables/samplers",
]
KNOBS = "tests/unit/cli/test_frozen.py"
TESTS = [
    *("tests/unit/stats", "tests/unit/race", "tests/unit/metrics", "tests/unit/losses", "tests/unit/regularizers"),
    *("tests/unit/samplers", "tests/unit/planning", "tests/unit/atlas", "tests/contracts/test_losses.py"),
    *("tests/unit/record/test_confirmation.py", "tests/unit/record/test_hostile_input.py"),
    *("tests/unit/record/test_looks.py", "tests/unit/search", "tests/unit/spaces"),
    *("tests/unit/training/test_retrieval.py", "tests/unit/training/test_vary.py", "tests/unit/cli/test_init.py"),
    f"{KNOBS}::test_knobs_of_methods_keep_their_defaults_and_rules",
    "tests/unit/cli/test_messages.py",
    "tests/unit/project/test_docs.py",
    *("tests/unit/report/test_comparable.py", "tests/unit/report/test_reproduction.py"),
    "tests/integration/test_every_study_on_a_folder.py::test_sizes_of_a_study_shrink_to_the_folder_with_a_note",
]
LIBRARIES = [
    *("torch", "numpy", "pandas", "scipy.stats", "scipy.optimize", "sklearn.cluster", "pydantic", "typer", "rich"),
    *("pytest", "sqlalchemy", "optuna", "yaml", "jinja2"),
]
GOAL = 0.9
WHILE_IMPORTING = "import"
ENOUGH_EVENTS = 5000  # of one function in one test: tracing longer only costs time
_OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
    ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_ARBITRARY = {"default_rng", "Random", "manual_seed", "lru_cache"}  # any seed will do, and any size of a cache
_DECLARATIONS = {"strict", "stacklevel", "stable"}  # zip's check of what the code ensures; torch sorts stably on a CPU
_NEGLIGIBLE = 1e-6
_ENOUGH_ROUNDS = 10  # an iteration of so many has converged
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


def _without_effect(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node whose change no test can detect, such as type hints."""
    for field in ("annotation", "returns"):
        if isinstance(part := getattr(node, field, None), ast.AST):
            yield part
    if isinstance(node, ast.ClassDef):  # frozen, eq, slots: promises to readers and type checkers
        yield from (each for each in node.decorator_list if ast.unparse(each).startswith("dataclass"))
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func).rpartition(".")[2]
        if called in _ARBITRARY:
            yield from (*node.args, *(each.value for each in node.keywords))
        yield from (each.value for each in node.keywords if each.arg in _DECLARATIONS)
    if isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < abs(node.value) <= _NEGLIGIBLE:
        yield node  # a guard against rounding or division by zero: twice as much is one, too
    if isinstance(node, ast.For) and ast.unparse(node.target) == "_":
        yield from (
            each for each in ast.walk(node.iter) if isinstance(each, ast.Constant) and each.value >= _ENOUGH_ROUNDS
        )


def places(tree: ast.Module) -> list[int]:
    """Return the positions, in the order of `ast.walk`, of the nodes that can be mutated with effect."""
    skipped = {id(part) for node in ast.walk(tree) for root in _without_effect(node) for part in ast.walk(root)}
    return [
        index
        for index, node in enumerate(ast.walk(tree))
        if id(node) not in skipped
        and mutate(copy.copy(node) if not isinstance(node, ast.Compare) else copy.deepcopy(node))
    ]


def sample(paths: list[str], count: int, seed: int) -> Iterator[tuple[Path, int]]:
    """Yield a seeded sample of (file, position)."""
    files = sorted(
        file for path in paths for file in ([ROOT / path] if path.endswith(".py") else (ROOT / path).rglob("*.py"))
    )
    every = [(file, index) for file in files for index in places(ast.parse(file.read_text(encoding="utf-8")))]
    yield from random.Random(seed).sample(every, min(count, len(every)))


@dataclass(frozen=True)
class Mutant:
    """One changed node: its file, the changed tree, the lines of its statement, and the change."""

    file: Path
    tree: ast.Module
    lines: range
    change: str


def _statement(tree: ast.Module, node: ast.AST) -> range:
    """Return the lines of the innermost statement around a node; of a compound one, its head alone."""
    lines = range(0)
    for statement in ast.walk(tree):  # outer statements come first
        if isinstance(statement, ast.stmt) and any(part is node for part in ast.walk(statement)):
            body = getattr(statement, "body", None)
            end = body[0].lineno if isinstance(body, list) else (statement.end_lineno or statement.lineno) + 1
            lines = range(statement.lineno, max(end, statement.lineno + 1))
    return lines


def mutant(file: Path, index: int) -> Mutant:
    """Change the node at a position of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    node = list(ast.walk(tree))[index]
    before = ast.unparse(node)
    mutate(node)
    change = f"{file.relative_to(ROOT)}:{node.lineno}: {before} -> {ast.unparse(node)}"  # type: ignore[attr-defined]
    return Mutant(file, tree, _statement(tree, node), change)


class Tracer:
    """A pytest plugin that notes the lines of the areas that each file of tests runs, and how long each test takes."""

    def __init__(self) -> None:
        self.lines: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self.seconds: dict[str, float] = defaultdict(float)
        self._now = WHILE_IMPORTING
        self._inside = tuple(str(ROOT / area) for area in AREAS)
        self._events: Counter[object] = Counter()
        sys.settrace(self._call)

    def _call(self, frame, event, argument):
        inside = frame.f_code.co_filename.startswith(self._inside) and self._events[frame.f_code] < ENOUGH_EVENTS
        return self._line if inside else None

    def _line(self, frame, event, argument):
        self.lines[self._now].add((frame.f_code.co_filename, frame.f_lineno))
        self._events[frame.f_code] += 1
        frame.f_trace_lines = self._events[frame.f_code] < ENOUGH_EVENTS
        return self._line

    def pytest_runtest_logstart(self, nodeid):
        if self._now != (file := _file_of(nodeid)):
            _clear_caches()
        self._now = file
        self._events.clear()
        sys.settrace(self._call)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _clear_caches() -> None:
    """Clear the caches of the project's functions, so that each file of tests runs their lines again."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in {"tune_dml", "trainables", "search_spaces"}:
            for value in list(vars(module).values()):
                if callable(clear := getattr(value, "cache_clear", None)):
                    clear()


def _run_pytest(tests: list[str], *plugins: object, output: str = os.devnull, options: tuple[str, ...] = ()) -> int:
    """Run tests in this process; return the exit code."""
    import pytest

    os.chdir(ROOT)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(written, 1)
    os.dup2(written, 2)
    sys.argv = ["pytest"]
    return int(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options, *tests], plugins=list(plugins)))


def _collect_lines(tests: list[str], written: Path) -> int:
    """Run all tests under the tracer and write the lines it saw; return the exit code."""
    tracer = Tracer()
    code = _run_pytest(tests, tracer, output=f"{written}.log")
    lines = {test: sorted(seen) for test, seen in tracer.lines.items()}
    if code == 0:
        written.write_text(json.dumps({"lines": lines, "seconds": tracer.seconds}), encoding="utf-8")
    return code


class Coverage:
    """Which files of tests run a statement."""

    def __init__(self, file: Path) -> None:
        stored = json.loads(file.read_text(encoding="utf-8"))
        self.seconds: dict[str, float] = stored["seconds"]
        self._files: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._of_module: dict[str, set[str]] = defaultdict(set)
        for file, lines in stored["lines"].items():
            for name, line in lines:
                self._files[name, line].add(file)
                self._of_module[name].add(file)
        self._total: Counter[str] = Counter()
        for test, seconds in self.seconds.items():
            self._total[_file_of(test)] += seconds  # type: ignore[assignment]

    def tests(self, changed: Mutant) -> list[str]:
        """Return the tests of the files that run the statement, the fastest file first.

        Of a statement that runs on import, those of all files that run its module.
        """
        name = str(changed.file)
        found = set().union(*(self._files[name, line] for line in changed.lines))
        if WHILE_IMPORTING in found:
            # The test of all knobs reads defaults and rules, and runs no line of the method.
            found = {KNOBS, *self._of_module[name]} if len(self._of_module[name]) > 1 else set(self._total)
        tests = [test for test in self.seconds if _file_of(test) in found]
        return sorted(tests, key=lambda test: (self._total[_file_of(test)], test))


def _judge(changed: Mutant, tests: list[str], limit: int) -> int:
    """Run tests on a mutant in this process, which has not imported the project; return pytest's exit code."""
    original = importlib.machinery.SourceFileLoader.get_code
    path = str(changed.file)

    def get_code(loader, name):
        if loader.path != path:
            return original(loader, name)
        return compile(changed.tree, path, "exec", dont_inherit=True)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    signal.alarm(limit)
    return _run_pytest(tests, options=("-x",))


def _fork(run) -> int:
    """Run a function in a child process, whose exit code is the function's result."""
    if child := os.fork():
        return child
    code = 1
    try:
        code = run()
    finally:
        os._exit(code)


def judge_all(mutants: list[Mutant], coverage: Coverage, jobs: int) -> list[Mutant]:
    """Return the mutants that no test catches, printing each as it is found."""
    waiting, running, survivors = list(reversed(mutants)), {}, []
    while waiting or running:
        while waiting and len(running) < jobs:
            changed = waiting.pop()
            tests = coverage.tests(changed)
            limit = int(60 + 5 * sum(coverage.seconds.get(test, 0.0) for test in tests))
            running[_fork(lambda: _judge(changed, tests, limit) if tests else 0)] = changed  # noqa: B023 - runs now
        child, status = os.wait()
        changed = running.pop(child)
        if status == 0:
            survivors.append(changed)
            print(f"survived  {changed.change}", flush=True)  # noqa: T201
    return survivors


def main() -> int:
    """Judge a sample of mutants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=AREAS)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--lines", type=Path, help="file of an earlier run's traced lines, written where it is missing")
    options = parser.parse_args()
    if untraced := [path for path in options.paths if not path.startswith(tuple(AREAS))]:
        parser.error(f"paths must lie in {', '.join(AREAS)}; no test is traced in {', '.join(untraced)}")
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    for library in LIBRARIES:
        importlib.import_module(library)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        lines = options.lines or Path(folder) / "lines.json"
        if not lines.exists():
            _, status = os.waitpid(_fork(lambda: _collect_lines(TESTS, lines)), 0)
            if status:
                print("The tests fail without a mutant:", Path(f"{lines}.log").read_text()[-4000:])  # noqa: T201
                return 2
        mutants = [mutant(file, index) for file, index in sample(options.paths, options.count, options.seed)]
        survivors = judge_all(mutants, Coverage(lines), options.jobs)
    share = 1 - len(survivors) / max(len(mutants), 1)
    caught = len(mutants) - len(survivors)
    print(f"{caught} of {len(mutants)} mutants caught ({share:.0%}) in {time.monotonic() - begin:.0f} s")  # noqa: T201
    return int(share < GOAL)


if __name__ == "__main__":
    sys.exit(main())
