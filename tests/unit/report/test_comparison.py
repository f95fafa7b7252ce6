"""Sweeps side by side: paired where data and seeds match, refused where they do not."""

import json
import math

import numpy as np
import pytest
from helpers.toys import STEEP, write_sweep

from tune_dml.report.several import (
    compare_sweeps,
    comparison_data,
    comparison_sentences,
    rank_agreements,
    write_comparison,
)


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    return write_sweep(tmp_path_factory.mktemp("a") / "half", histories=False, evidence=False)


@pytest.fixture(scope="module")
def lower(tmp_path_factory):
    """The same study at another eta, five points lower."""
    means = {rho: mean - 5 for rho, mean in STEEP.items()}
    settings = {"regularizer.eta": 1.0}
    folder = tmp_path_factory.mktemp("b") / "lower"
    return write_sweep(folder, means=means, cell_settings=settings, sd=0.6, histories=False, evidence=False)


def test_what_differs_is_one_setting(half, lower):
    assert compare_sweeps([half, lower]).differences == {"regularizer.eta": (0.5, 1.0)}


def test_differences_are_those_of_the_seeds_that_both_have(half, lower):
    found = compare_sweeps([half, lower])
    assert not found.refusals
    assert found.same == {"lower": 0}
    baseline, *rows = found.paired
    assert baseline.verdict == "undecided"
    assert len(rows) == len(STEEP)
    numbers = {(name, t.cell.knobs.get("regularizer.rho"), t.seed): t.metrics["val/recall_at_1"]
               for name, sweep in (("half", half), ("lower", lower)) for t in sweep.trials}  # fmt: skip
    for row in rows:
        rho = float(row.point.rpartition(" ")[2])
        naive = np.mean([numbers["lower", rho, seed] - numbers["half", rho, seed] for seed in (0, 1, 2)])
        assert row.difference == pytest.approx(naive)
        assert row.low < row.difference < row.high < 0
        assert row.verdict == "worse"
    assert "significantly worse at 5 of 6 shared points" in comparison_sentences(found)[0]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dataset": "digits"}, "other data set: digits, not glyphs"),
        ({"seeds": (7, 8, 9)}, "they share fewer than two seeds"),
        ({"means": {0.2: 70.0, 0.3: 71.0}, "baseline": None}, "no cell of one has the knob values"),
    ],
)
def test_what_does_not_compare_is_refused_with_its_reason(half, tmp_path, options, reason):
    other = write_sweep(tmp_path / "other", histories=False, evidence=False, **options)
    found = compare_sweeps([half, other])
    assert reason in found.refusals[0].reasons[0]
    assert not found.paired
    assert comparison_sentences(found)[0].startswith("other is not compared with half")


def test_page_and_json_say_the_same(half, lower, tmp_path):
    page, body = write_comparison(compare_sweeps([half, lower]), tmp_path / "out")
    seen = json.loads(body.read_text())
    assert seen["schema"] == "tune_dml.comparison/1"
    assert {row["verdict"] for row in seen["paired"]} == {"worse", "undecided"}
    html = page.read_text()
    assert "What differs?" in html
    assert "significantly worse at 5 of 6" in html
    assert html.index("What differs?") < html.index("How far apart")


def test_the_very_same_configuration_is_not_compared(half):
    found = compare_sweeps([half, half])
    assert found.same == {"half": 6}
    assert not found.paired
    assert "share only equal configurations" in comparison_sentences(found)[0]


def test_json_of_a_cell_without_numbers_has_null(tmp_path):
    failures = {("rho=0.9", seed): ("failed", "lost") for seed in (0, 1, 2)}
    sweep = write_sweep(tmp_path / "lost", failures=failures, histories=False, evidence=False)
    rows = comparison_data(compare_sweeps([sweep, sweep]))["cells"]
    assert any(row["mean"] is None for row in rows)
    assert all(row["mean"] is None or math.isfinite(row["mean"]) for row in rows)


def test_ranks_compare_the_order_of_each_shared_knobs_values(half, lower, tmp_path):
    """On other data and seeds too: only the order counts."""
    ((path, same),) = rank_agreements(*compare_sweeps([half, lower]).sweeps).items()
    assert (path, same.levels) == ("regularizer.rho", len(STEEP))
    assert same.tau > 0.6
    turned = {rho: 100 - mean for rho, mean in STEEP.items()}
    options = {"dataset": "digits", "seeds": (7, 8, 9), "sd": 0.1, "histories": False, "evidence": False}
    other = write_sweep(tmp_path / "other", means=turned, **options)
    assert rank_agreements(*compare_sweeps([half, other]).sweeps)[path].tau < -0.6
