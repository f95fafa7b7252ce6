"""The papers' run-to-run standard deviation, where they print none: the user's, and what the verdict says without it."""

import json
from dataclasses import replace

import pytest
from helpers.toys import write_sweep

from trainables.errors import ConfigError
from tune_dml.report import summary, write_report
from tune_dml.report.analysis import analyse


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return write_sweep(tmp_path_factory.mktemp("sd") / "s", histories=False, evidence=False)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (None, "best at the lowest tested, if the run s.d. is at most 1.1"),
        (2.0, "undecided (it would take a run s.d. of at most 1.1; assumed 2)"),
    ],
)
def test_a_printed_curve_is_judged_by_the_given_spread(results, tmp_path, given, sentence):
    files = write_report(results, tmp_path / "report", paper_sd=given)
    (knob,) = json.loads(files.verdicts.read_text())["knobs"]
    assert f"The published curve by itself: {sentence}." in knob["agreement"][0]["sentences"]


def test_the_best_of_a_printed_curve_follows_the_goal(results, tmp_path):
    least = replace(results, plan=replace(results.plan, space=replace(results.plan.space, goal="minimize")))
    (knob,) = json.loads(write_report(least, tmp_path / "report").verdicts.read_text())["knobs"]
    (sentence,) = (text for text in knob["agreement"][0]["sentences"] if "by itself" in text)
    assert "best at the lowest" not in sentence


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        (None, "in 7 of 10 pairs of values (run s.d. 0.5, assumed): our order is significantly the same in 7, "),
        (1.0, "in 4 of 10 pairs of values (run s.d. 1, as given): our order is significantly the same in 4, "),
        (5.0, "in 0 of 10 pairs of values (run s.d. 5, as given)."),
    ],
)
def test_an_order_is_judged_by_the_given_spread(results, tmp_path, given, counts):
    files = write_report(results, tmp_path / "report", paper_sd=given)
    data = json.loads(files.verdicts.read_text())
    found = data["knobs"][0]["agreement"][0]
    assert any(counts in sentence for sentence in found["sentences"])
    assert found["order"]["paper_certain"] == int(counts.split()[1])
    plain = " ".join(data["answer"]["sentences"])
    assert ("its own numbers are too close" in plain) == (given == 5.0)


def test_our_own_deviation_stands_for_the_papers_where_it_is_larger_and_of_the_same_data(tmp_path):
    for dataset, words in (("glyphs", "run s.d. 0.5, assumed"), ("cars196", ", as ours")):
        sweep = write_sweep(tmp_path / dataset, dataset=dataset, sd=2.0, histories=False, evidence=False)
        assert any(words in verdict for verdict in summary(sweep).verdicts)


@pytest.mark.parametrize("given", [0.0, -1.0, float("nan"), float("inf")])
def test_a_spread_that_means_nothing_is_refused(results, given):
    with pytest.raises(ConfigError, match="paper_sd: the papers' run-to-run standard deviation must be greater than 0"):
        analyse(results, paper_sd=given)
