"""Several sweeps of one space: what carries over between them, and what tuning gains in each."""

import json

import pytest
from helpers.toys import FLAT, STEEP, write_sweep

from trainables.errors import ConfigError
from tune_dml.report.several import analyse_study, study_sentences, write_study


def sweep(folder, **options):
    return write_sweep(folder, histories=False, evidence=False, **options)


@pytest.fixture(scope="module")
def steep(tmp_path_factory):
    return sweep(tmp_path_factory.mktemp("s") / "steep")


def test_an_order_that_is_the_same_elsewhere_carries_over(steep, tmp_path):
    found = analyse_study([steep, sweep(tmp_path / "digits", dataset="digits", sd=0.3)]).transfers
    assert [(item.first, item.second) for item in found] == [("steep", "digits"), ("digits", "steep")]
    assert found[0].tau > 0.7
    assert 0 < found[0].low <= found[0].tau <= found[0].high == 1
    assert found[0].carried == "rho=0.01"
    assert abs(found[0].lost.estimate) < 1e-9  # the same value is best there


def test_an_opposite_order_is_said_to_be_opposite(steep, tmp_path):
    means = dict(zip(STEEP, reversed(STEEP.values()), strict=True))
    found = analyse_study([steep, sweep(tmp_path / "digits", dataset="digits", means=means, sd=0.3)]).transfers[0]
    assert found.tau < -0.5
    assert found.high < 0.5
    assert found.lost.low > 0


def test_a_flat_curve_leaves_the_order_open(steep, tmp_path):
    found = analyse_study([steep, sweep(tmp_path / "digits", dataset="digits", means=FLAT, sd=0.4)]).transfers[0]
    assert found.low < -0.5
    assert found.high > 0.5


def test_one_seed_is_refused_with_its_reason(steep, tmp_path):
    study = analyse_study([steep, sweep(tmp_path / "digits", dataset="digits", seeds=(0,))])
    assert "the noise of one of them is unknown" in study.transfers[0].refusal
    assert any("is unknown with one seed" in sentence for sentence in study_sentences(study))


def test_tuning_gains_over_the_papers_value_by_what_was_put_in(steep):
    found = analyse_study([steep]).tunings[0]
    assert found.default.endswith("the paper's best on Cars196")
    blind = max(STEEP.values()) - sum(STEEP.values()) / len(STEEP)
    assert found.mistunability.estimate == pytest.approx(blind, abs=0.8)
    assert found.mistunability.low < blind < found.mistunability.high


def test_sweeps_without_a_common_knob_are_refused_together(steep, tmp_path):
    from helpers.toys import ETA, rho_space

    other = sweep(tmp_path / "eta", space=rho_space(scientific=(ETA,)), means={0.0: 60.0, 0.5: 61.0})
    with pytest.raises(ConfigError, match=r"share a knob; those of steep are regularizer\.rho"):
        analyse_study([steep, other])
    with pytest.raises(ConfigError, match="a sweep may be named once, but got 'steep'"):
        analyse_study([steep, steep])


def test_sweeps_of_one_data_set_are_told_apart_by_their_names(steep, tmp_path):
    study = analyse_study([steep, sweep(tmp_path / "again", means=FLAT, sd=0.4)])
    write_study(study, tmp_path / "out")
    text = (tmp_path / "out" / "study.html").read_text()
    assert "steep: rho matters on glyphs" in text
    assert "again: " in text


def test_page_and_json_are_written(steep, tmp_path):
    study = analyse_study([steep, sweep(tmp_path / "digits", dataset="digits")])
    page, body = write_study(study, tmp_path / "out")
    assert json.loads(body.read_text())["schema"] == "tune_dml.study/1"
    html = page.read_text()
    assert "Does the optimum carry over?" in html
    assert "What is tuning worth?" in html
