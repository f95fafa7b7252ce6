import json

import pytest
from helpers.toys import write_sweep
from pages import read

from trainables.errors import ConfigError
from tune_dml.catalogue import protocols
from tune_dml.report import summary, write_report
from tune_dml.report.analysis import analyse
from tune_dml.report.questions.run.run_summary import run_summary
from tune_dml.report.section import Facts

AS_PRINTED = {
    **protocols()["sec/cars196"].settings,
    "data.split": "paper_test_selection",
    "data.name": "cars196",
}
"""Every condition of the paper's numbers on Cars196, their selection on the test classes included."""


def test_a_comparable_sweep_is_judged_in_level(tmp_path):
    results = write_sweep(
        tmp_path / "s",
        dataset="cars196",
        cell_settings=AS_PRINTED,
        histories=False,
        seeds=range(4),
        sd=0.05,
        seed_sd=0.1,
    )
    found = summary(results)
    assert found.verdicts[2] == (
        "Against SEC-supplement, Table 4, Cars196, BN-Inception: level: matches (1 condition not printed); "
        "order: 7 of 10 published differences are significant (run s.d. 0.5, assumed): our order is significantly the same in 7, "
        "significantly the opposite in 0, undecided in 0."
    )
    text = read(write_report(results, tmp_path / "report").html.read_text()).text
    assert "The level matches SEC-supplement, Table 4" in text
    assert "every difference is significantly below 1.00 points" in text
    assert "the verdict holds up to" in text
    assert "The published curve by itself: best at the lowest tested, if the run s.d. is at most 1.1." in text


@pytest.mark.parametrize(
    ("sd", "margin", "verdict"), [(2.0, 1.0, "compatible"), (0.05, 0.01, "compatible"), (0.05, 1.0, "matches")]
)
def test_a_level_matches_only_by_equivalence(tmp_path, sd, margin, verdict):
    """Numbers that cannot be told from the paper's are compatible; agreement takes a bound on the gap."""
    results = write_sweep(
        tmp_path / "s", dataset="cars196", cell_settings=AS_PRINTED, histories=False, evidence=False, sd=sd, seed_sd=0.1
    )
    data = json.loads(write_report(results, tmp_path / "report", margin=margin).verdicts.read_text())
    found = data["knobs"][0]["agreement"][0]
    assert found["verdict"] == verdict
    for sentence in found["sentences"]:
        assert ("This does not show agreement" in sentence) <= (verdict == "compatible")


def test_a_margin_given_later_stands_beside_the_planned_one(steep):
    def margin_of(margin):
        section = run_summary.section(analyse(steep.results, margin), None)
        (facts,) = (block for block in section.body if isinstance(block, Facts))
        return dict(facts.items)["Smallest difference that matters"]

    assert margin_of(None) == margin_of(1.0) == "1.00 points"
    assert margin_of(2.5) == "2.50 points (given later; planned: 1.00 points)"


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan")])
def test_a_margin_that_means_nothing_is_refused(steep, margin):
    with pytest.raises(ConfigError, match="margin: the smallest difference that matters must be greater than 0"):
        summary(steep.results, margin=margin)
