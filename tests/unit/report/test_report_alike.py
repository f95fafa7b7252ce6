"""Configurations that trained to the same numbers: their differing knobs had no effect, and no verdict is drawn."""

from dataclasses import replace

import pytest
from helpers.toys import METRIC, RHO, bare_sweep, crossed, rho_space, write_sweep
from judging import section_of, with_metrics

from tune_dml.report import summary
from tune_dml.report.analysis import analyse
from tune_dml.report.questions.knobs.sensitivity import knob_headline
from tune_dml.report.section import Notes
from tune_dml.space import Grid, Knob

MARGIN = Knob("loss.margin", Grid((0.1, 0.5)), symbol="margin")


def twins(results, original):
    """Return the sweep with each trial's numbers from the cell that `original` names for its label."""
    metrics = {(trial.cell.label, trial.seed): trial.metrics for trial in results.trials}
    return with_metrics(results, lambda trial: metrics[original(trial.cell.label), trial.seed])


def alike(results):
    return section_of(analyse(results), "alike")


@pytest.fixture(scope="module")
def one_knob(tmp_path_factory):
    return bare_sweep(tmp_path_factory.mktemp("one") / "toy")


@pytest.fixture(scope="module")
def two_knobs(tmp_path_factory):
    space = rho_space(scientific=(RHO, MARGIN), published=())
    means = {point: 60.0 + 10 * point[0] for point in crossed((0.1, 0.5, 1.0), (0.1, 0.5))}
    return bare_sweep(tmp_path_factory.mktemp("two") / "toy", space=space, means=means)


def test_a_knob_whose_values_train_alike_is_not_called_insensitive(one_knob):
    results = twins(one_knob, lambda label: label if label == "no SEC" else "rho=0.5")
    (knob,) = analyse(results).knobs
    assert (knob.unused, knob.sensitivity.verdict) == (True, "undecided")
    said = summary(results)
    assert said.answer.sentences[0] == (
        "rho changes nothing on glyphs: its 5 values gave exactly the same results. Check that it is used."
    )
    assert "this says nothing about rho" in said.verdicts[0]
    assert "does not matter" not in " ".join(said.answer.sentences + said.verdicts)
    assert [finding for finding in said.findings if "rho changed nothing" in finding]
    assert not [command for command in said.commands if "--seeds" in command and "extend" in command]
    assert alike(results).data["alike"] == [["rho=0.01", "rho=0.1", "rho=0.5", "rho=0.9", "rho=1"]]


def test_an_unused_knob_is_named_and_the_other_is_judged(two_knobs):
    results = twins(two_knobs, lambda label: label.replace("margin=0.5", "margin=0.1"))
    rho, margin = analyse(results).knobs
    assert (rho.unused, rho.sensitivity.verdict) == (False, "sensitive")
    assert (margin.unused, margin.sensitivity.verdict) == (True, "undecided")
    found = alike(results)
    assert len(found.data["alike"]) == 3
    assert [len(block.items) for block in found.body if isinstance(block, Notes)] == [3]


def test_configurations_and_values_that_train_alike_are_named_and_the_knob_is_judged(two_knobs, one_knob):
    first = "rho=0.1, margin=0.1"
    results = twins(two_knobs, lambda label: first if label in {"rho=0.5, margin=0.1", "rho=1, margin=0.1"} else label)
    assert alike(results).headline.startswith(
        "rho=0.1, margin=0.1; rho=0.5, margin=0.1; and rho=1, margin=0.1 gave exactly the same"
    )
    results = twins(two_knobs, lambda label: label if label in {"no SEC", "rho=1, margin=0.5"} else first)
    assert alike(results).headline == "5 of 7 configurations gave exactly the same results under every seed."
    results = twins(one_knob, lambda label: "rho=0.9" if label == "rho=1" else label)
    assert not analyse(results).knobs[0].unused
    found = alike(results)
    assert found.headline == "rho=0.9 and rho=1 gave exactly the same results under every seed."
    assert found.findings == ()
    assert not [block for block in found.body if isinstance(block, Notes)], "the sentence names them"


def test_a_single_differing_figure_makes_configurations_different(one_knob):
    results = twins(one_knob, lambda label: label if label == "no SEC" else "rho=0.5")
    other = {("rho=1", 2): {"val/map_at_r": 1.0}}
    results = with_metrics(results, lambda trial: {**trial.metrics, **other.get((trial.cell.label, trial.seed), {})})
    assert not analyse(results).knobs[0].unused
    assert alike(results).data["alike"] == [["rho=0.01", "rho=0.1", "rho=0.5", "rho=0.9"]]


@pytest.mark.parametrize("loss", [{"train/loss": 0.0}, {}])
def test_equal_counts_without_a_loss_prove_nothing(one_knob, loss):
    results = with_metrics(one_knob, lambda trial: {METRIC: 50.0 + trial.seed, **loss})
    (knob,) = analyse(results).knobs
    assert not knob.unused
    assert alike(results) is None
    wide = analyse(results, margin=20.0)
    assert wide.knobs[0].sensitivity.verdict == "insensitive"
    equal = "its 5 values gave exactly the same validation R@1 under every seed. Check that it is used."
    assert knob_headline(wide, wide.knobs[0]) == f"rho does not matter on glyphs: {equal}"


def test_missing_cells_and_seeds_do_not_hide_equal_values(one_knob):
    results = twins(one_knob, lambda label: label if label == "no SEC" else "rho=0.5")
    lost = {("rho=0.1", 1), *(("rho=0.01", seed) for seed in results.plan.seeds)}
    trials = [replace(t, status="failed", metrics={}) if (t.cell.label, t.seed) in lost else t for t in results.trials]
    results = replace(results, trials=tuple(trials))
    assert analyse(results).knobs[0].unused
    assert summary(results).answer.sentences[0].startswith("rho changes nothing on glyphs: its 4 values")


def test_no_confirmation_is_advised_among_equal_figures(tmp_path):
    space = rho_space(baseline=None, published=())
    equal = write_sweep(tmp_path / "toy", space=space, baseline=None, sd=0, means=dict.fromkeys((0.1, 0.5, 1.0), 60.0))
    alone = with_metrics(equal, lambda trial: {METRIC: 50.0 + trial.seed})
    assert not [command for command in summary(alone).commands if " confirm " in command]
