"""The rooms of the house: who may import whom, and what a fast command line must not load."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RAY = {f"tune_dml/running/{name}.py" for name in ("sweep", "trial", "search", "cluster")}


def sources(package):
    return sorted((ROOT / package).rglob("*.py"))


def imports(path):
    """Every module that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
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


def test_search_spaces_know_only_the_words_they_are_written_in():
    known = ("tune_dml.space", "trainables.config", "search_spaces", "__future__")
    strangers = [
        f"{path.name} imports {module}"
        for path in sources("search_spaces")
        for module in imports(path)
        if not module.startswith(known)
    ]
    assert not strangers


def test_trainables_know_nothing_of_the_platform():
    assert not offenders("trainables", ["tune_dml", "ray", "optuna", "mlflow", "search_spaces"])


# Each room may import those to its left; `text` and `stats` import none of the story's rooms.
STORY = ("space", "text", "published", "catalogue", "planning", "record", "tracking", "running", "report", "api", "cli")
NOTHING_ABOVE = {"report": {"running", "tracking"}, "stats": set(STORY)}


def test_rooms_import_only_what_comes_before_them_in_the_story():
    upwards = []
    for path in sources("tune_dml"):
        room = path.relative_to(ROOT / "tune_dml").with_suffix("").parts[0]
        later = set(STORY[STORY.index(room) + 1 :]) if room in STORY else set()
        forbidden = later | NOTHING_ABOVE.get(room, set())
        taken = {module.split(".")[1] for module in imports(path) if module.startswith("tune_dml.")}
        upwards += [f"{path.relative_to(ROOT)} imports {name}" for name in taken & forbidden if room != "__init__"]
    assert not upwards


def test_no_files_import_each_other_in_a_circle():
    """Imports at the top of files; what a function imports when it runs cannot lock two files together."""
    files = {
        path: ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (*sources("tune_dml"), *sources("trainables"))
    }
    names = {name.removesuffix(".__init__") for name in files.values()}

    def at_the_top(path):
        body = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        modules = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
        for node in body:
            if isinstance(node, ast.ImportFrom):
                whole = {f"{node.module}.{alias.name}" for alias in node.names} & names
                modules |= whole or {node.module}
        return modules & names

    TopologicalSorter({name.removesuffix(".__init__"): at_the_top(path) for path, name in files.items()}).prepare()


def test_ray_is_spoken_in_four_files():
    assert not offenders("tune_dml", ["ray"], RAY)
    assert all(any(module.startswith("ray") for module in imports(ROOT / path)) for path in RAY)


def test_mlflow_is_spoken_in_one_file():
    assert not offenders("tune_dml", ["mlflow"], {"tune_dml/tracking/client.py"})


def test_optuna_is_spoken_in_one_file():
    assert not offenders("tune_dml", ["optuna"], {"tune_dml/running/search.py"})


def test_plots_are_drawn_in_the_report():
    inside = {str(path.relative_to(ROOT)) for path in sources("tune_dml/report")}
    assert not offenders("tune_dml", ["matplotlib", "plotly"], inside)


def test_torch_distributed_is_spoken_in_one_file():
    assert not offenders("trainables", ["torch.distributed"], {"trainables/distributed.py"})


def test_optional_packages_are_never_imported_at_the_top():
    top = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in (*sources("trainables"), *sources("tune_dml"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in [getattr(node, "module", None) or node.names[0].name]
        if module.partition(".")[0] in {"torchvision", "timm", "faiss", "pytorch_metric_learning"}
    ]
    assert not top


@pytest.mark.parametrize(
    "code",
    [
        "import tune_dml",
        "import tune_dml.cli",
        "import tune_dml.space, tune_dml.catalogue; tune_dml.catalogue.spaces()",
        "import trainables.config",
        "import trainables.data",
    ],
)
def test_what_must_be_quick_loads_neither_torch_nor_ray(code):
    check = f"{code}; import sys; bad = {{'torch', 'ray', 'mlflow', 'optuna'}} & set(sys.modules); assert not bad, bad"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_help_loads_neither_torch_nor_ray_nor_pandas():
    code = (
        "import sys; sys.argv = ['tune-dml', '--help']\n"
        "from tune_dml.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'torch', 'ray', 'mlflow', 'pandas', 'numpy', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
