"""A name at the top of a module without an underscore is for other modules: named by one, found by discovery, or the type of
something that is."""

import ast
import importlib
from collections import Counter

from helpers.sources import ROOT, sources
from helpers.sources import tree as tree_of

from tune_dml.space import Paper, Protocol, Recipe, Space

PACKAGES = ("tune_dml", "trainables", "search_spaces")
READERS = (*PACKAGES, "benchmarks", "docs")
FOUND_BY = {"verb", "question", "knob_question", "family"}  # decorators
READ_BY_NAME = {"ORDER", "GROUP", "EXAMPLES", "BARE_SHOWS_HELP"}  # of a file of questions or a verb
# People's own tests and spaces, the JSON schema of verdicts, and what starts the command.
FOR_OTHERS = {
    "trainables/testing.py",
    "tune_dml/space.py",
    "tune_dml/report/export/schema.py",
    "tune_dml/cli/__main__.py",
}


def trees(*packages):
    return {str(path.relative_to(ROOT)): tree_of(path) for package in packages for path in sources(package)}


def definitions(tree):
    """Name -> what defines it, at the top of a module."""
    named = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            named[node.name] = node
        elif isinstance(node, ast.Assign):
            named |= {
                name.id: node for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)
            }
        elif isinstance(node, ast.AnnAssign):
            named[node.target.id] = node
    return named


def names_of_others(tree):
    """What a module imports from others by name, and every attribute that it reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield node.attr


def is_discovered(node):
    """Whether registries find it: by a decorator, or as a class with a `name`."""
    if isinstance(node, ast.ClassDef):
        assigned = [target for item in node.body if isinstance(item, ast.Assign) for target in item.targets]
        return any(isinstance(target, ast.Name) and target.id == "name" for target in assigned)
    decorators = [getattr(decorator, "func", decorator) for decorator in getattr(node, "decorator_list", [])]
    return any(isinstance(decorator, ast.Name) and decorator.id in FOUND_BY for decorator in decorators)


def declared(path):
    """Spaces, protocols, recipes and papers, which are found by being there."""
    module = importlib.import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    return {
        name
        for name, value in vars(module).items()
        for item in (value if isinstance(value, tuple) else (value,))
        if isinstance(item, Space | Protocol | Recipe | Paper)
    }


def types_in(node):
    """The names in a definition's signature: of its arguments, what it returns, its bases, fields and public methods."""
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
    """The used names of a module, and the types that they show to whoever uses them; constants show none."""
    every, fresh = set(used), set(used)
    while fresh:
        shown = {name for known in fresh if not known.isupper() for name in types_in(named[known])}
        fresh = {name for name in shown & named.keys() if not name.isupper()} - every
        every |= fresh
    return every


def private_ones_without_an_underscore(read, all_readers):
    readers = Counter(name for names in all_readers.values() for name in names)
    for path, tree in read.items():
        named = definitions(tree)
        elsewhere = {name for name in named if readers[name] > (name in all_readers[path])}
        found = declared(path) if path.startswith("search_spaces/") else set()
        used = {name for name, node in named.items() if name in elsewhere | found | READ_BY_NAME or is_discovered(node)}
        yield from (f"{path}: {name}" for name in named.keys() - with_types(used, named) if not name.startswith("_"))


def test_a_name_without_an_underscore_is_used_by_another_module():
    every = trees(*READERS)
    readers = {path: set(names_of_others(tree)) for path, tree in every.items()}
    read = {path: tree for path, tree in every.items() if path.startswith(PACKAGES) and path not in FOR_OTHERS}
    assert sorted(private_ones_without_an_underscore(read, readers)) == []


def test_a_name_that_only_its_own_module_uses_would_be_noticed():
    body = "LIMIT = 3\nclass Row: ...\nclass Own: ...\ndef rows() -> list[Row]: return [LIMIT, Own]"
    read = {"a.py": ast.parse(body)}
    assert sorted(private_ones_without_an_underscore(read, {"a.py": set(), "b.py": {"rows"}})) == [
        "a.py: LIMIT",
        "a.py: Own",
    ]
