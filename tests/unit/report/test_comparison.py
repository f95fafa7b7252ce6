"""Comparisons of sweeps: paired if data and seeds match, refused otherwise."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.toys import ETA, FLAT, STEEP, bare_sweep, crossed, rho_space, space_of, write_sweep

from trainables.errors import ConfigError
from tune_dml.record.judging.looks import Look
from tune_dml.report.analysis.cell import seed_values
from tune_dml.report.several.comparison import _complete_cells, _level_means, _rank_tables, compare_sweeps
from tune_dml.report.several.comparison_page import comparison_sentences, write_comparison
from tune_dml.report.several.study import _loss_of_random, analyse_study
from tune_dml.report.several.study_page import study_sentences, write_study
from tune_dml.space import Arm, Grid, Knob
from tune_dml.stats.verdicts.selection import score_of_best


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    return bare_sweep(tmp_path_factory.mktemp("a") / "half")


@pytest.fixture(scope="module")
def lower(tmp_path_factory):
    """The same study at another eta, five points lower."""
    means = {rho: mean - 5 for rho, mean in STEEP.items()}
    settings = {"regularizer.eta": 1.0}
    folder = tmp_path_factory.mktemp("b") / "lower"
    return bare_sweep(folder, means=means, cell_settings=settings, sd=0.6)


def test_differences_are_listed_and_use_the_seeds_of_both_sweeps(half, lower):
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
    assert found.differences == {"regularizer.eta": (0.5, 1.0)}


def test_baselines_that_were_tuned_are_compared_at_equal_values(tmp_path):
    rates = Knob("optim.lr", Grid((0.01, 0.1)), symbol="lr")
    arms = (Arm("SEC", {"regularizer.name": "sec"}), Arm("plain", {"regularizer.name": "none"}))
    space, means = space_of(rates, arms=arms, baseline="plain"), {"SEC: lr=0.01": 60.0, "SEC: lr=0.1": 70.0}
    means |= {"plain: lr=0.01": 50.0, "plain: lr=0.1": 65.0}
    settings = {"one": {}, "two": {"loss.margin": 0.3}}
    sweeps = [bare_sweep(tmp_path / name, space=space, means=means, cell_settings=settings[name]) for name in settings]
    rows = compare_sweeps(sweeps).paired
    assert [(row.first, row.second) for row in rows] == [(label, label) for label in means]
    fixed = replace(space, scientific=(), fixed={"optim.lr": 0.1})
    few = bare_sweep(tmp_path / "few", space=fixed, means={"SEC": 70.0, "plain": 65.0}, cell_settings=settings["two"])
    assert [row.first for row in compare_sweeps([sweeps[0], few]).paired] == ["SEC: lr=0.1", "plain: lr=0.1"]


def test_equal_configurations_of_a_script_that_was_edited_are_compared(half, tmp_path):
    means = {rho: mean - 5 for rho, mean in STEEP.items()}
    edited = bare_sweep(tmp_path / "edited", means=means, sd=0.6)
    sweeps = [replace(item, trials=tuple(replace(trial, code={path: path[1:3]}) for trial in item.trials))
              for item, path in ((half, "/v1/train.py"), (edited, "/v2/train.py"))]  # fmt: skip
    found = compare_sweeps(sweeps)
    assert found.differences == {"code of train.py": ("v1", "v2")}
    assert (found.same, len(found.paired)) == ({"edited": 0}, len(STEEP) + 1)
    moved = replace(half, trials=tuple(replace(trial, code={"/other/train.py": "v1"}) for trial in half.trials))
    assert not compare_sweeps([sweeps[0], replace(moved, plan=replace(moved.plan, name="moved"))]).paired


def test_a_difference_is_judged_on_the_seeds_that_its_two_cells_share(half, lower):
    """Seeds of other cells, or of one of the two, say nothing about it: half of such comparisons were wrong."""
    rhos = sorted(STEEP)
    kept = [t for t in half.trials if t.seed != rhos.index(t.cell.knobs.get("regularizer.rho", rhos[0])) % 3]
    rows = compare_sweeps([replace(half, trials=tuple(kept)), lower]).paired[1:]
    assert {row.seeds for row in rows} == {2}
    for row in rows:
        assert (row.low + row.high) / 2 == pytest.approx(row.difference)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dataset": "digits"}, "other data set: digits, not glyphs"),
        ({"seeds": (7, 8, 9)}, "they share fewer than two seeds"),
        ({"means": {0.2: 70.0, 0.3: 71.0}, "baseline": None}, "no cell of one sweep has the knob values"),
        ({"cell_settings": {"data.split": "paper_test_selection"}}, "other validation classes: data.split is paper_te"),
        ({"cell_settings": {"seeds.split": 0}}, "other validation classes: seeds.split is 0, not the trial"),
    ],
)
def test_sweeps_that_do_not_compare_are_refused_with_the_reason(half, tmp_path, options, reason):
    other = bare_sweep(tmp_path / "other", **options)
    found = compare_sweeps([half, other])
    assert reason in next(iter(found.refusals.values()))[0]
    assert not found.paired
    assert comparison_sentences(found)[0].startswith("other is not compared with half")


def test_page_and_json_agree(half, lower, tmp_path):
    page, body = write_comparison(compare_sweeps([half, lower]), tmp_path / "out")
    seen = json.loads(body.read_text())
    assert seen["schema"] == "tune_dml.comparison/1"
    assert seen["metric"] == {"key": "val/recall_at_1", "label": "validation R@1 [%]", "goal": "maximize"}
    assert {row["verdict"] for row in seen["paired"]} == {"worse", "undecided"}
    html = page.read_text()
    assert "What differs?" in html
    assert "significantly worse at 5 of 6" in html
    assert html.index("What differs?") < html.index("How far apart")


def test_beside_significant_differences_no_larger_one_is_named_that_may_be_chance(half, lower):
    found = compare_sweeps([half, lower])
    baseline, *rows = found.paired
    vars(found)["paired"] = (replace(baseline, difference=20.0), *rows)
    largest = min(row.difference for row in rows)
    assert f"; the largest significant difference is {largest:.2f} points at regul" in comparison_sentences(found)[0]


def test_equal_configurations_are_not_compared_and_equal_means_are_called_equal(half, tmp_path):
    found = compare_sweeps([half, half])
    assert found.same == {"half": 6}
    assert not found.paired
    assert "share only equal configurations" in comparison_sentences(found)[0]
    settings = {"regularizer.eta": 1.0}
    alike = bare_sweep(tmp_path / "alike", cell_settings=settings)
    said = comparison_sentences(compare_sweeps([half, alike]))
    assert said == ("alike and half have equal means at all 6 shared points.",)


def test_json_of_a_cell_without_numbers_has_null(tmp_path):
    failures = {("rho=0.9", seed): ("failed", "lost") for seed in (0, 1, 2)}
    sweep = bare_sweep(tmp_path / "lost", failures=failures)
    _, numbers = write_comparison(compare_sweeps([sweep, sweep]), tmp_path / "page")
    rows = json.loads(numbers.read_text())["cells"]
    assert any(row["mean"] is None for row in rows)
    assert all(row["mean"] is None or math.isfinite(row["mean"]) for row in rows)


def test_ranks_compare_the_order_of_each_shared_knobs_values(half, lower, tmp_path):
    """On other data and seeds too: only the order counts."""
    comparison = compare_sweeps([half, lower])
    (rank,) = comparison.ranks
    assert (rank.knob, rank.against, rank.agreement.levels) == ("regularizer.rho", comparison.names[1], len(STEEP))
    assert "values like half?" in write_comparison(comparison, tmp_path)[0].read_text()
    assert rank.agreement.tau > 0.6
    turned = {rho: 100 - mean for rho, mean in STEEP.items()}
    options = {"dataset": "digits", "seeds": (7, 8, 9), "sd": 0.1, "histories": False, "evidence": False}
    other = write_sweep(tmp_path / "other", means=turned, **options)
    assert compare_sweeps([half, other]).ranks[0].agreement.tau < -0.6


def test_bounds_of_tau_have_the_level_of_the_look_and_share_it(half, lower):
    one, two = compare_sweeps([half, lower]), compare_sweeps([half, lower, lower])
    assert one.rank_level == min(sweep.looks.level for sweep in one.sweeps)
    assert two.rank_level == one.rank_level / 2
    first = Look(2, 2, "report", 1.0, 12, "first", cells=6)
    looked_at = replace(half, looks=(first,))
    assert compare_sweeps([looked_at, lower]).rank_level < one.rank_level


@pytest.mark.parametrize("lost", [{(0.1, "bad"), (0.3, "bad")}, set()])
def test_ranks_average_each_value_over_the_same_other_settings(lost):
    """A value whose weak cells failed would lead, although the knob has no effect."""

    def sweep():
        shifts = {"good": 20.0, "bad": 0.0}
        cells = [
            SimpleNamespace(
                cell=SimpleNamespace(arm="", baseline=False, settings={}, knobs={"rho": rho, "lr": lr}),
                values={} if (rho, lr) in lost else {seed: 40 + rho + shifts[lr] + 0.1 * seed for seed in range(3)},
            )
            for rho in (0.9, 0.5, 0.3, 0.1)
            for lr in shifts
        ]
        plan = SimpleNamespace(seeds=(0, 1, 2), knobs=[SimpleNamespace(path="rho"), SimpleNamespace(path="lr")])
        return SimpleNamespace(cells=cells, results=SimpleNamespace(plan=plan), resolution=0.0)

    complete = sweep()
    assert list(_rank_tables(complete, complete)) == ["rho"]
    levels = _complete_cells(complete, "rho")
    means = _level_means(levels, list(levels)).mean(1)
    assert means.tolist() == sorted(means, reverse=True)


@pytest.fixture(scope="module")
def steep(tmp_path_factory):
    return bare_sweep(tmp_path_factory.mktemp("s") / "steep")


def test_an_order_shared_by_both_sweeps_carries_over(steep, tmp_path):
    found = analyse_study([steep, bare_sweep(tmp_path / "digits", dataset="digits", sd=0.3)]).transfers
    assert [(item.first, item.second) for item in found] == [("steep", "digits"), ("digits", "steep")]
    assert found[0].tau > 0.7
    assert 0 < found[0].low <= found[0].tau <= found[0].high == 1
    assert found[0].carried == "rho=0.01"
    assert abs(found[0].lost.estimate) < 1e-9  # the same value is best there


def test_an_opposite_order_is_reported_as_opposite_and_a_flat_curve_leaves_it_open(steep, tmp_path):
    means = dict(zip(STEEP, reversed(STEEP.values()), strict=True))
    found = analyse_study([steep, bare_sweep(tmp_path / "digits", dataset="digits", means=means, sd=0.3)]).transfers[0]
    assert found.tau < -0.5
    assert found.high < 0.5
    assert found.lost.low > 0
    found = analyse_study([steep, bare_sweep(tmp_path / "flat", dataset="digits", means=FLAT, sd=0.4)]).transfers[0]
    assert found.low < -0.5
    assert found.high > 0.5


def test_one_seed_is_refused_with_its_reason(steep, tmp_path):
    study = analyse_study([steep, bare_sweep(tmp_path / "digits", dataset="digits", seeds=(0,))])
    assert "the noise of one of them is unknown" in study.transfers[0].refusal
    assert any("is unknown: fewer than two seeds have all values" in sentence for sentence in study_sentences(study))
    assert any("; 1 of 5 means is within " in sentence for sentence in study_sentences(study))


def test_the_gain_over_the_papers_value_is_the_planted_one(steep):
    found = analyse_study([steep]).tunings[0]
    assert found.default.endswith("the paper's best on Cars196")
    blind = max(STEEP.values()) - sum(STEEP.values()) / len(STEEP)
    assert found.mistunability.estimate == pytest.approx(blind, abs=0.8)
    assert found.mistunability.low < blind < found.mistunability.high


def test_a_reference_with_the_best_mean_has_no_gain_to_bound(steep, tmp_path):
    """The value that tuning selects is the reference itself, which does not show that no other value is better."""
    study = analyse_study([steep, bare_sweep(tmp_path / "digits", dataset="digits", sd=0.3)])
    assert study.tunings[0].tunability.keeps_default
    assert study.transfers[0].lost.keeps_default
    sentences = study_sentences(study)
    same = "steep: no value of rho has a better mean than rho=0.01, the paper's best on Cars196; a random value of rho"
    assert any(sentence.startswith(same) for sentence in sentences)
    assert any("rho=0.01, which is best in steep, has the best mean there too." in sentence for sentence in sentences)


def test_a_random_value_of_equal_ones_loses_nothing():
    """Near 100 % noise is skewed: the limits of the selected value's score would claim a loss in 12 %."""
    draws = 1 - np.random.default_rng(0).standard_exponential((400, 6, 10))
    sweep = SimpleNamespace(looks=SimpleNamespace(level=0.05), resolution=0.0)
    assert np.mean([_loss_of_random(values, sweep).low > 1e-9 for values in draws]) < 0.08


def test_a_value_at_its_best_nuisance_setting_is_not_scored_on_the_seeds_that_chose_it(tmp_path):
    rates = (0.001, 0.01, 0.1)
    space = rho_space(nuisance=(Knob("optim.lr", Grid(rates), symbol="lr"),))
    means = {(rho, rate): STEEP[rho] for rho, rate in crossed(list(STEEP), list(rates))}
    sweep = bare_sweep(tmp_path / "s", space=space, means=means, sd=3.0)
    study = analyse_study([sweep])
    (found,) = study.tunings
    baseline, *cells = sorted(study.sweeps[0].cells, key=lambda cell: not cell.cell.baseline)
    assert found.default == "no SEC, the baseline"
    gain = score_of_best(seed_values([*cells, baseline], sweep.plan.seeds), len(cells))
    assert found.tunability.estimate == pytest.approx(float(gain.mean))
    assert math.isnan(found.mistunability.estimate)
    twice = analyse_study([sweep, bare_sweep(tmp_path / "t", space=space, means=means)])
    assert [item.lost for item in twice.transfers] == [None, None]


def test_sweeps_that_make_no_study_are_refused(steep, tmp_path):
    with pytest.raises(ConfigError, match=r"recall_at_1 \(maximize\) of steep, but got 'val/recall_at_1 \(minimize\)'"):
        analyse_study([steep, bare_sweep(tmp_path / "other", space=rho_space(goal="minimize"))])
    other = bare_sweep(tmp_path / "eta", space=rho_space(scientific=(ETA,)), means={0.0: 60.0, 0.5: 61.0})
    with pytest.raises(ConfigError, match=r"share a knob; those of steep are regularizer\.rho"):
        analyse_study([steep, other])
    with pytest.raises(ConfigError, match="a sweep may be named once, but got 'steep'"):
        analyse_study([steep, steep])


def test_page_and_json_of_a_study_name_sweeps_of_the_same_data_set(steep, tmp_path):
    study = analyse_study([steep, bare_sweep(tmp_path / "again", means=FLAT, sd=0.4)])
    page, body = write_study(study, tmp_path / "out")
    data = json.loads(body.read_text())
    assert data["schema"] == "tune_dml.study/1"
    assert data["metric"] == {"key": "val/recall_at_1", "label": "validation R@1 [%]", "goal": "maximize"}
    html = page.read_text()
    assert "steep: rho matters on glyphs" in html
    assert "again: " in html
    assert "Does the optimum carry over?" in html
    assert "What is tuning worth?" in html
