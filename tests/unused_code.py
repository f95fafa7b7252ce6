"""Find code that nothing in the project calls, with vulture; tests do not count as callers. `make check` runs this."""

import ast
import sys
from pathlib import Path

from vulture import Vulture

FOUND_BY_DECORATOR = ["@verb", "@family", "@question", "@knob_question"]
ROOT = Path(__file__).parents[1]
PACKAGES = ("tune_dml", "trainables", "search_spaces")
CALLED_BY_OTHERS = [
    *("__getattr__", "__dir__", "__getitem__", "__signature__", "__annotations__", "__class__"),  # Python
    *("bases", "create_module", "exec_module"),  # its import system
    *("get_extra_state", "set_extra_state", "extra_repr", "find_class"),  # torch, pickle
    *(
        "on_start",
        "suggest",
        "choose_trial_to_run",
        "on_trial_*",
        "on_step_begin",
        "on_step_end",
        "on_experiment_end",
        "num_failures",
        "stop_all",
        "iteration",
        "checkpoint_path",
        "setup",
        "save",
        "restore",
    ),  # Ray Tune, Ray Train
    *("model_config", "compute_loss", "min_points_per_centroid"),  # pydantic, pytorch-metric-learning, faiss
    *("host_reads", "evaluation_root"),  # traits and knobs, read by name
    "process_group",  # for benchmarks and users who launch their own processes
    *("_repr_html_", "infer_relative_search_space", "sample_relative"),  # notebooks, Optuna
    *("many_knobs", "badge", "card", "opening", "searchable"),  # read by the page's template
    *("identities", "f1", "accuracy_std", "effect", "shape_algorithm"),  # written to files by their dataclasses' fields
    *("account", "qos", "mem"),  # written into SLURM's script by their dataclass's fields
    *("applies_to", "decisions"),  # docs/generate_fidelity.py
    *("surfaces", "regret"),  # of replayed searches: benchmarks/search.py
    *("do_GET", "do_POST", "do_PATCH", "log_message", "daemon_threads"),  # http.server
    "checkpoints",  # read by training scripts
    *("LogRange", "loss_checks", "regularizer_checks", "dataset_checks"),  # people's own spaces and tests
]


def found_by_name(item) -> bool:
    """Return whether discovery finds it: a method's class with a `name`, or a constant of a module of spaces."""
    if item.typ == "variable" and item.name.isupper():
        return item.filename.is_relative_to(ROOT / "search_spaces")
    if item.typ != "class":
        return False
    tree = ast.parse(item.filename.read_text())
    (body,) = [node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == item.name]
    assigned = [target.id for node in body if isinstance(node, ast.Assign) for target in node.targets]
    return "name" in assigned


def decided_by_pydantic(item) -> bool:
    """Return whether it is a validator of pydantic, by its decorator."""
    line = item.filename.read_text().splitlines()[max(0, item.first_lineno - 1) : item.last_lineno]
    return any("validator" in text or "serializer" in text for text in line)


def published(item) -> bool:
    """Return whether it is a field of the schema of verdicts.json, which `make docs` writes."""
    return item.filename == ROOT / "tune_dml" / "report" / "export" / "schema.py"


def key_of_a_file(item) -> bool:
    """Return whether it is a key of a TypedDict, and so of a stored file."""
    classes = (node for node in ast.walk(ast.parse(item.filename.read_text())) if isinstance(node, ast.ClassDef))
    typed = [node for node in classes if "TypedDict" in [ast.unparse(base) for base in node.bases]]
    return any(node.lineno <= item.first_lineno <= node.end_lineno for node in typed)


def main() -> int:
    """Print the unused code; return 1 if there is any."""
    vulture = Vulture(ignore_names=CALLED_BY_OTHERS, ignore_decorators=FOUND_BY_DECORATOR)
    vulture.scavenge([str(ROOT / package) for package in PACKAGES])
    accounted_for = (found_by_name, decided_by_pydantic, published, key_of_a_file)
    unused = [item for item in vulture.get_unused_code(60) if not any(known(item) for known in accounted_for)]
    for item in unused:
        print(item.get_report())  # noqa: T201
    return bool(unused)


if __name__ == "__main__":
    sys.exit(main())
