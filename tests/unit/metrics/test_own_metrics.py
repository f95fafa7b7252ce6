"""Metrics that another package declares: wrong declarations and results are one message with the metric's name."""

from importlib.metadata import EntryPoint, EntryPoints

import numpy as np
import pytest
import torch

from trainables import methods
from trainables.errors import ConfigError
from trainables.metrics import families, retrieval
from trainables.metrics.retrieval import retrieval_metrics


@pytest.fixture(autouse=True)
def _own_families(monkeypatch):
    """Remove metrics declared in a test at its end."""
    monkeypatch.setattr(families, "FAMILIES", known := dict(families.FAMILIES))
    monkeypatch.setattr(retrieval, "FAMILIES", known)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            lambda ranking: ranking.positions[:, 0].double().mean(),
            r"one number for each of the 6 queries.*'shape \(\)'",
        ),
        (lambda ranking: 0.5, "one number for each of the 6 queries, but got 'float'"),
        (lambda ranking: ranking.positions[:, 0].numpy(), "one number for each of the 6 queries, but got 'ndarray'"),
        (lambda ranking: ranking.positions[:, 0] * torch.nan, "must be finite for every query"),
        (lambda ranking: ranking.positions.zero_()[:, 0], "must not change its inputs in place"),
        (
            lambda ranking: ranking.relevant + 1.0,
            "between 0 and 1 for every query, but got '2 on average'. .*percent=F",
        ),
    ],
)
def test_wrong_results_are_named(value, said):
    families.family("mine", "mine", positives="best")(value)
    with pytest.raises(ConfigError, match=said):
        retrieval_metrics(np.eye(6), [0, 0, 1, 1, 2, 2], 1, metrics="mine")


def test_numbers_of_any_type_are_averaged_in_double_precision():
    families.family("mine", "mine", positives="best", percent=False)(lambda ranking: ranking.relevant.half() + 30000)
    assert retrieval_metrics(np.eye(6), [0, 0, 1, 1, 2, 2], 1, metrics="mine")["mine"] == 30000


@pytest.mark.parametrize(
    ("key", "positives", "said"),
    [
        ("first", "first", r"needs a key with \{k\}"),
        ("first", "worst", "positives must be best, first, first_r, all, but got 'worst'"),
        ("map_at_r", "best", "the key is taken by another metric"),
        ("tie_fraction", "best", "the key is taken by another metric"),
        ("mine_at_{k}", "best", "must take ranking and k, but got 'too many positional arguments'"),
    ],
)
def test_wrong_declarations_are_named(key, positives, said):
    with pytest.raises(ConfigError, match=said):
        families.family(key, "mine", positives=positives)(lambda ranking: ranking.positions[:, 0])


def test_a_module_may_be_imported_again():
    for _ in range(2):
        families.family("mine", "mine", positives="best")(naive)
    assert families.FAMILIES["mine"].value is naive


def naive(ranking):
    return ranking.positions[:, 0]


def test_a_metric_of_another_package_is_known_before_its_methods_are_used(monkeypatch, tmp_path):
    (tmp_path / "package_of_mine.py").write_text(
        "from trainables.metrics.families import family\n"
        "@family('share_of_mine', 'mine', positives='best')\n"
        "def share(ranking):\n    return ranking.positions[:, 0].double().reciprocal()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("x", "package_of_mine:share", "tune_dml.losses")
    broken = EntryPoint("y", "no_such_package:share", "tune_dml.losses")
    monkeypatch.setattr(methods, "_entry_points", lambda path: EntryPoints([broken, entry]))
    methods.import_packages.cache_clear()
    try:
        assert families.describe_key("share_of_mine") == ("mine", True)
    finally:
        methods.import_packages.cache_clear()
