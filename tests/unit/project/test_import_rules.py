"""Import rules of packages, and packages that a fast command line must not load."""

import ast
import importlib
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter

import pytest
from helpers.processes import printed_by
from helpers.sources import ROOT, sources, tree

from tune_dml.space import Paper, Protocol, Recipe, Space


@cache
def imports(path):
    """Return every module that a file imports, anywhere in the file."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def offenders(package, forbidden, allowed=()):
    return [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(package)
        if str(path.relative_to(ROOT)) not in allowed
        for module in imports(path)
        if any(module == name or module.startswith(name + ".") for name in forbidden)
    ]


def test_search_spaces_import_only_space_and_configuration():
    known = ("tune_dml.space", "trainables.config", "search_spaces", "__future__")
    taken = {(path.name, module) for path in sources("search_spaces") for module in imports(path)}
    assert [(name, module) for name, module in taken if not module.startswith(known)] == []


def files_of(room, *without):
    names = {str(path.relative_to(ROOT)) for path in sources(room)}
    return {name for name in names if not name.startswith(without)}


WITHOUT_RAY = ("tune_dml/running/screen/", "tune_dml/running/failures.py", "tune_dml/running/process.py")


@pytest.mark.parametrize(
    ("package", "names", "allowed"),
    [
        ("tune_dml", ["ray"], files_of("tune_dml/running", *WITHOUT_RAY)),
        ("tune_dml", ["mlflow"], {"tune_dml/tracking/client.py"}),
        (
            "tune_dml",
            ["optuna"],
            files_of("tune_dml/running/search")
            | {"tune_dml/record/imported/studies.py", "tune_dml/record/study.py", "tune_dml/sweep.py"},
        ),
        ("tune_dml", ["matplotlib", "plotly"], files_of("tune_dml/report")),
        ("trainables", ["torch.distributed"], {"trainables/distributed.py"}),
        ("trainables", ["tune_dml", "ray", "optuna", "mlflow", "search_spaces"], ()),
    ],
)
def test_a_library_is_imported_in_few_files(package, names, allowed):
    assert not offenders(package, names, allowed)


# Each room may import those before it; `text` and `stats` import none of the story's rooms.
STORY = (
    *("text", "papers", "space", "catalogue", "planning", "record", "tracking", "running"),
    *("report", "operations", "campaigns", "api", "cli"),
)
NOTHING_ABOVE = {"report": {"running", "tracking"}, "stats": set(STORY)}


def test_packages_import_only_earlier_packages():
    upwards = []
    for path in sources("tune_dml"):
        room = path.relative_to(ROOT / "tune_dml").with_suffix("").parts[0]
        later = set(STORY[STORY.index(room) + 1 :]) if room in STORY else set()
        forbidden = later | NOTHING_ABOVE.get(room, set())
        taken = {module.split(".")[1] for module in imports(path) if module.startswith("tune_dml.")}
        upwards += [f"{path.relative_to(ROOT)} imports {name}" for name in taken & forbidden if room != "__init__"]
    assert not upwards


def test_imports_have_no_cycle():
    """Imports at the top of files, including those for types; imports inside functions cannot form a cycle."""
    paths = (*sources("tune_dml"), *sources("trainables"))
    files = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths}
    names = {name.removesuffix(".__init__") for name in files.values()}

    def at_the_top(path):
        nodes = [
            inner for node in tree(path).body for inner in (node, *(node.body if isinstance(node, ast.If) else ()))
        ]
        body = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        modules = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
        for node in body:
            if isinstance(node, ast.ImportFrom):
                whole = {f"{node.module}.{alias.name}" for alias in node.names} & names
                modules |= whole or {node.module}
        return modules & names

    taken = {name.removesuffix(".__init__"): at_the_top(path) for path, name in files.items()}
    TopologicalSorter(taken).prepare()  # its CycleError has the names along a cycle


def test_private_names_of_ray_are_used_in_one_file():
    assert not [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources("tune_dml")
        if path.name != "ray_internals.py"
        for module in imports(path)
        if module.partition(".")[0] == "ray" and "._" in module
    ]


def test_optional_packages_are_never_imported_at_the_top():
    top = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in (*sources("trainables"), *sources("tune_dml"))
        for node in tree(path).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in [getattr(node, "module", None) or node.names[0].name]
        if module.partition(".")[0] in {"torchvision", "timm", "faiss", "pytorch_metric_learning", "pybullet"}
    ]
    assert not top


HEAVY = {"torch", "ray", "mlflow", "optuna"}
QUICK = {
    "sys.argv = ['tune-dml', '--help']; import tune_dml.cli\ntry: tune_dml.cli.main()\nexcept SystemExit: pass": {
        *HEAVY,
        *("pandas", "numpy", "pydantic"),
    },
    "import tune_dml": HEAVY,
    "import tune_dml.space, tune_dml.catalogue; tune_dml.catalogue.spaces()": HEAVY,
    "import trainables.resolve": HEAVY,
    "import trainables.metrics.families": HEAVY,
    "import trainables.data as d; d.build_dataset('glyphs').check()": {*HEAVY, "sklearn"},
    "d.build_dataset('objects').check()": {*HEAVY, "pybullet"},
    "from tune_dml.record.origin.provenance import collect; collect()": HEAVY,
    "from tune_dml.tracking import store_problems; assert store_problems('sqlite:///x.db') == []": HEAVY,
    "import tune_dml.report": {*HEAVY, "matplotlib"},
}


def test_quick_imports_load_no_heavy_package():
    """All in one process: a package that none of them loads is loaded by no single one."""
    lines = ["import sys"]
    for code, heavy in QUICK.items():
        lines += [code, f"loaded = {heavy} & set(sys.modules)", f"assert not loaded, ({code!r}, loaded)"]
    printed_by("\n".join(lines))


def length(node):
    """Return the number of lines of a function or class, without a function's docstring."""
    own = node.end_lineno - node.lineno + 1
    first = node.body[0]
    described = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return own - (first.end_lineno - first.lineno + 1) if described and not isinstance(node, ast.ClassDef) else own


def test_two_classes_never_share_a_name():
    places = [
        (node.name, path.relative_to(ROOT).as_posix())
        for folder in ("tune_dml", "trainables", "search_spaces")
        for path in sources(folder)
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    count = Counter(name for name, _ in places)
    assert sorted(place for place in places if count[place[0]] > 1) == []


def test_packages_files_functions_and_classes_are_small():
    """Anything larger should be split."""
    assert len(list((ROOT / "tune_dml").glob("*.py"))) <= 7
    assert len(list((ROOT / "tune_dml/running").glob("*.py"))) <= 8
    most = {ast.FunctionDef: 50, ast.AsyncFunctionDef: 50, ast.ClassDef: 200}
    large = []
    for path in (*sources("tune_dml"), *sources("trainables"), *sources("search_spaces")):
        lines = len(path.read_text().splitlines())
        large += [f"{path.relative_to(ROOT)} has {lines} lines"] * (lines > 400)
        nodes = [node for node in ast.walk(tree(path)) if type(node) in most]
        large += [f"{path.relative_to(ROOT)}: {node.name}" for node in nodes if length(node) > most[type(node)]]
    assert not large


@pytest.mark.slow
def test_a_driver_starts_trials_without_unneeded_imports():
    """Only races and reports need scipy; a thread loads MLflow before the first trial. Each takes a second."""
    heavy = {"scipy.stats", "mlflow", "sklearn", "tune_dml.report"}
    code = "import sys, tune_dml.api, tune_dml.tracking, tune_dml.running.sweep\n"
    printed_by(f"{code}loaded = {heavy} & set(sys.modules)\nassert not loaded, loaded")


PACKAGES = ("tune_dml", "trainables", "search_spaces")
READERS = (*PACKAGES, "benchmarks", "docs")
FOUND_BY = {"verb", "question", "knob_question", "family"}  # decorators
READ_BY_NAME = {"ORDER", "GROUP", "EXAMPLES", "BARE_SHOWS_HELP"}  # of a file of questions or a verb
# People's own tests and spaces, and what starts the command.
FOR_OTHERS = {"trainables/testing.py", "tune_dml/space.py", "tune_dml/cli/__main__.py"}


def trees(*packages):
    return {str(path.relative_to(ROOT)): tree(path) for package in packages for path in sources(package)}


def definitions(tree):
    """Name -> its definition at the top of a module."""
    named = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            named[node.name] = node
        elif isinstance(node, ast.Assign):
            parts = [part for target in node.targets for part in ast.walk(target)]
            named |= {part.id: node for part in parts if isinstance(part, ast.Name)}
        elif isinstance(node, ast.AnnAssign):
            named[node.target.id] = node
    return named


def names_of_others(tree):
    """Return the names that a module imports from others, and every attribute that it reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield node.attr


def is_discovered(node):
    """Return whether registries find it: by a decorator, or as a class with a `name`."""
    if isinstance(node, ast.ClassDef):
        assigned = [target for item in node.body if isinstance(item, ast.Assign) for target in item.targets]
        return any(isinstance(target, ast.Name) and target.id == "name" for target in assigned)
    decorators = [getattr(decorator, "func", decorator) for decorator in getattr(node, "decorator_list", [])]
    return any(isinstance(decorator, ast.Name) and decorator.id in FOUND_BY for decorator in decorators)


def declared(path):
    """Return spaces, protocols, recipes and papers, which discovery finds."""
    module = importlib.import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    return {
        name
        for name, value in vars(module).items()
        for item in (value if isinstance(value, tuple) else (value,))
        if isinstance(item, Space | Protocol | Recipe | Paper)
    }


def types_in(node):
    """Return the names in a definition's signature: arguments, result, bases, fields and public methods."""
    if isinstance(node, ast.FunctionDef):
        arguments = [part.annotation for part in ast.walk(node.args) if isinstance(part, ast.arg)]
        signatures = [*arguments, node.returns]
    elif isinstance(node, ast.ClassDef):
        methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
        for method in methods:
            if method.name == "__init__" or not method.name.startswith("_"):
                yield from types_in(method)
        signatures = [*node.bases, *(item.annotation for item in node.body if isinstance(item, ast.AnnAssign))]
    else:
        signatures = [node.value, getattr(node, "annotation", None)]
    for signature in filter(None, signatures):
        yield from (part.id for part in ast.walk(signature) if isinstance(part, ast.Name))


def with_types(used, named):
    """Return the used names of a module, and the types in their signatures; constants have none."""
    every, fresh = set(used), set(used)
    while fresh:
        shown = {name for known in fresh if not known.isupper() for name in types_in(named[known])}
        fresh = {name for name in shown & named.keys() if not name.isupper()} - every
        every |= fresh
    return every


def private_ones_without_an_underscore(read, all_readers):
    readers = Counter(name for names in all_readers.values() for name in names)
    for path, parsed in read.items():
        named = definitions(parsed)
        elsewhere = {name for name in named if readers[name] > (name in all_readers[path])}
        found = declared(path) if path.startswith("search_spaces/") else set()
        used = {name for name, node in named.items() if name in elsewhere | found | READ_BY_NAME or is_discovered(node)}
        yield from (f"{path}: {name}" for name in named.keys() - with_types(used, named) if not name.startswith("_"))


def test_a_name_without_an_underscore_is_used_by_another_module():
    every = trees(*READERS)
    readers = {path: set(names_of_others(tree)) for path, tree in every.items()}
    read = {path: tree for path, tree in every.items() if path.startswith(PACKAGES) and path not in FOR_OTHERS}
    assert sorted(private_ones_without_an_underscore(read, readers)) == []


def test_an_unused_public_name_is_detected():
    body = "LIMIT = 3\nclass Row: ...\nclass Own: ...\ndef rows() -> list[Row]: return [LIMIT, Own]"
    read = {"a.py": ast.parse(body)}
    found = private_ones_without_an_underscore(read, {"a.py": set(), "b.py": {"rows"}})
    assert sorted(found) == ["a.py: LIMIT", "a.py: Own"]
