"""Declared contrasts: each method against its own baseline, corrected among themselves alone, before all pairs."""

import numpy as np
import pytest
from helpers.toys import bare_sweep, space_of
from judging import report_of, section_of

from search_spaces import sec_losses, sec_optimizer
from tune_dml.planning.files.sweep_file import read_sweep_file
from tune_dml.report.analysis import analyse
from tune_dml.report.questions import answers
from tune_dml.space import Arm
from tune_dml.stats.intervals.contrasts import estimate_gains
from tune_dml.stats.intervals.simultaneous import all_pairs

LOSSES = ("A", "B", "C")
MEANS = {"A": 60.0, "A+SEC": 65.0, "B": 70.0, "B+SEC": 70.2, "C": 50.0, "C+SEC": 46.0}


def arms():
    for place, loss in enumerate(LOSSES):
        shared = {"loss.margin": 0.1 + 0.1 * place}
        yield Arm(loss, {**shared, "regularizer.name": "none"})
        yield Arm(f"{loss}+SEC", {**shared, "regularizer.name": "sec"}, against=(loss,))


def sweep(folder, means=MEANS, seeds=5, sd=0.3, **fields):
    space = space_of(arms=tuple(arms()), **{"gain_differences": (("A+SEC", "B+SEC"),), **fields})
    return bare_sweep(folder / "toy", space=space, means=means, seeds=tuple(range(seeds)), sd=sd, dataset="digits")  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return sweep(tmp_path_factory.mktemp("gains"))


def gains_of(results, margin=None):
    return section_of(analyse(results, margin), "gains")


def test_a_significant_gain_below_what_matters_is_not_called_none(results):
    headline = gains_of(results, margin=20.0).headline
    assert (
        "SEC improves none of 3 methods by an amount that matters; it worsens none by an amount that matters; "
        in headline
    )
    assert headline.endswith("3 differ by less than 20 points (1 significantly better, 1 significantly worse).")


def test_each_gain_is_judged_against_its_own_baseline_and_counted_in_the_answer(results):
    gains = gains_of(results)
    names = [section.name for section in answers(analyse(results), traces=False) if section.title]
    assert names.index("gains") < names.index("arms")
    rows = gains.data["gains"]["rows"]
    assert [(row.arm, row.against, row.verdict) for row in rows] == [
        ("A+SEC", "A", "gains"),
        ("B+SEC", "B", "within the margin"),
        ("C+SEC", "C", "loses"),
    ]
    assert rows[0].estimate == pytest.approx(5, abs=0.8)
    (larger,) = gains.data["gains"]["differences"]
    assert (larger.arm, larger.against, larger.verdict) == ("A+SEC", "B+SEC", "gains")
    assert larger.estimate == pytest.approx(rows[0].estimate - rows[1].estimate)
    assert gains.headline.startswith("The gain of A+SEC is ")
    assert "SEC improves 1 of 3 methods (A +" in gains.headline
    assert "; it worsens 1 (C -" in gains.headline
    assert gains.headline.endswith("; 1 differs by less than 1 point.")
    assert "of the 4 declared comparisons alone" in gains.data["gains"]["sentences"][0]


@pytest.mark.parametrize(("share", "verdict"), [(0.98, "open"), (1.02, "within the margin")])
def test_a_gain_is_within_the_margin_if_its_whole_interval_is(results, share, verdict):
    row = gains_of(results).data["gains"]["rows"][1]
    assert row.low < 0 < row.high
    margin = share * max(-row.low, row.high)
    assert gains_of(results, margin).data["gains"]["rows"][1].verdict == verdict


def test_for_a_minimised_metric_verdicts_are_reversed(tmp_path):
    gains = gains_of(sweep(tmp_path, goal="minimize"))
    assert [row.verdict for row in gains.data["gains"]["rows"]] == ["loses", "within the margin", "gains"]
    assert gains.data["gains"]["differences"][0].verdict == "loses"


def test_one_seed_gives_no_gain(tmp_path):
    gains = gains_of(sweep(tmp_path, seeds=1))
    said = ["It is undecided what the methods gain: one seed gives no noise estimate."]
    assert (gains.headline, gains.data["gains"]["sentences"]) == ("", said)


@pytest.mark.parametrize(
    ("means", "said"),
    [
        ((60.0, 60.0, 60.0), "None of 2 methods is better than A; none is worse; all 2 are undecided."),
        ((60.0, 90.0, 90.0), "Both methods are better than A (B +"),
    ],
)
def test_methods_that_add_nothing_by_name_are_counted_as_methods(tmp_path, means, said):
    others = (Arm(name, {"loss.margin": margin}, against=("A",)) for name, margin in (("B", 0.2), ("C", 0.3)))
    three = (Arm("A", {"loss.margin": 0.1}), *others)
    means = dict(zip("ABC", means, strict=True))
    results = bare_sweep(tmp_path / "toy", space=space_of(arms=three), means=means, sd=3.0, dataset="digits")
    assert gains_of(results).headline.startswith(said)


def test_a_single_contrast_is_one_comparison(tmp_path):
    two = (Arm("A", {"loss.margin": 0.1}), Arm("B", {"loss.margin": 0.2}, against=("A",)))
    results = bare_sweep(tmp_path / "toy", space=space_of(arms=two), means={"A": 60.0, "B": 70.0}, dataset="digits")
    assert "of the 1 declared comparison alone" in gains_of(results).data["gains"]["sentences"][0]


def test_a_space_without_contrasts_has_no_section_on_gains(tmp_path):
    plain = tuple(Arm(arm.name, arm.settings) for arm in arms())
    assert gains_of(bare_sweep(tmp_path / "toy", space=space_of(arms=plain), means=MEANS, dataset="digits")) is None


def test_the_report_lists_every_contrast(results, tmp_path):
    reported = report_of(results, tmp_path)
    assert [row["verdict"] for row in reported.data["gains"]["rows"]] == ["gains", "within the margin", "loses"]
    assert "What does each method gain over its own baseline?" in reported.html
    assert "gains.csv" in {path.name for path in reported.files.csv}


def test_gains_lie_inside_the_intervals_of_all_pairs():
    """So no gain contradicts the comparison of all methods that follows it."""
    values = np.random.default_rng(0).normal(size=(50, 8, 6))
    values[np.random.default_rng(1).random(values.shape) < 0.1] = np.nan
    gains = [(1, 0), (3, 2), (5, 4)]
    some, every = estimate_gains(values, gains), all_pairs(values)
    for place, (row, other) in enumerate(gains):
        testable = np.isfinite(some.low[:, place])
        assert (some.low[testable, place] >= every.low[testable, row, other] - 1e-9).all()
        assert (some.high[testable, place] <= every.high[testable, row, other] + 1e-9).all()


@pytest.mark.parametrize("seeds", [3, 5])
def test_equal_arms_gain_nothing(seeds):
    values = np.random.default_rng(seeds).normal(size=(800, 18, seeds))
    gains = [(arm + 1, arm) for arm in range(0, 18, 2)]
    some = estimate_gains(values, gains, [(0, 1), (2, 3)])
    assert ((some.low > 0) | (some.high < 0)).any(1).mean() <= 0.05


def test_contrasts_of_our_studies_match_their_question():
    names = {arm.name for arm in sec_losses.SPACE.arms}
    gains, _ = sec_losses.SPACE.contrasts_among(names)
    assert len(gains) == 13
    assert all(arm.startswith(f"{other}+") for arm, other in gains)
    _, larger = sec_optimizer.SPACE.contrasts_among({arm.name for arm in sec_optimizer.SPACE.arms})
    assert larger == [("SGD+SEC", "Adam+SEC")]


FILE = """
dataset: digits
arms:
  plain: {{loss.name: triplet}}
  sec: {{settings: {{loss.name: triplet, regularizer.name: sec}}, against: {against}}}
  l2: {{settings: {{loss.name: triplet, regularizer.name: l2}}, against: [plain]}}
gain_differences: {larger}
"""


def read(folder, against="plain", larger="[[sec, l2]]"):
    (folder / "toy.yaml").write_text(FILE.format(against=against, larger=larger))
    return read_sweep_file(folder / "toy.yaml").space


def test_a_sweep_file_can_declare_contrasts(tmp_path):
    space = read(tmp_path)
    assert space.contrasts_among({"plain", "sec", "l2"}) == ([("sec", "plain"), ("l2", "plain")], [("sec", "l2")])
    assert space.contrasts_among({"plain", "sec"}) == ([("sec", "plain")], [])
