"""Levels are compared only under equal conditions, known for each printed number and each cell."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.toys import Driver, bare_sweep, write_results, write_sweep
from judging import report_of

from trainables.errors import ConfigError
from tune_dml.catalogue import protocols, spaces
from tune_dml.papers.published import published_rows
from tune_dml.planning.checks.conditions import conditions_of, equals_printed, table_of
from tune_dml.planning.plan import make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.study import study_of
from tune_dml.record.results import results_of
from tune_dml.report import summary
from tune_dml.report.analysis import analyse
from tune_dml.report.questions.run.run_summary import run_summary
from tune_dml.report.section import Facts
from tune_dml.space import Space, Value

SELECTED = {"data.split": "paper_test_selection"}


def compared(
    folder: Path, space: str | Space, dataset: str, arms: Sequence[str] | None = None, **settings: Value
) -> list[dict[str, Any]]:
    """Return the part of verdicts.json about a study on a paper's own data, with some settings changed."""
    request = Request(space, dataset, seeds=2, name="s", settings={**SELECTED, **settings}, arms=arms)
    plan = make_plan(study_of(request), data_digest="d" * 64)
    results = write_results(folder / "s", plan, lambda trial: 60.0 + trial.cell.index + 0.1 * trial.seed)
    return report_of(results, folder).knob["agreement"]


def of_table(found: list[dict[str, Any]], table: str, dataset: str) -> dict[str, Any]:
    (one,) = [item for item in found if (item["published"]["table"], item["published"]["dataset"]) == (table, dataset)]
    return one


def reasons(found: list[dict[str, Any]], table: str, dataset: str) -> list[str]:
    one = of_table(found, table, dataset)
    assert one["shared"] > 0
    assert one["verdict"] == "not comparable"
    assert one["sentences"][0].startswith("Not comparable in level with ")
    return one["reasons"]


@pytest.mark.parametrize(
    ("space", "dataset", "change", "table", "on", "reason"),
    [
        ("sec_eta", "cars196", {"loss.name": "multi_similarity"}, "2", "Cars196", "loss: multi_similarity, not semihard_triplet"),
        ("sec_rho", "cub200", {"regularizer.eta": 0.5}, "5", "CUB200-2011", "eta: 0.5, not 1"),
        ("sec_l2", "cars196", {"loss.name": "semihard_triplet"}, "3", "Cars196", "loss: semihard_triplet, not triplet"),
        ("dro_grouped_gamma", "cub200", {"optim.lr": 1e-4}, "2", "CUB200-2011", "learning rate: 0.0001, not 1e-05"),
        ("sec_rho", "cars196", {"optim.weight_decay": 1e-4}, "4", "Cars196", "weight decay: 0.0001, not 0.0025"),
    ],
)  # fmt: skip
def test_a_setting_that_differs_from_the_printed_one_is_a_reason(tmp_path, space, dataset, change, table, on, reason):
    """Also settings that are no knobs; and the semihard loss is not the triplet loss."""
    assert f"other {reason}" in reasons(compared(tmp_path, space, dataset, **change), table, on)


def test_half_the_epochs_are_a_reason(tmp_path):
    shorter = {"data.split": "shared_classes", "training.epochs": 100}
    found = compared(tmp_path, "sec_simclr_200", "cifar10", ["NT-Xent", "NT-Xent+SEC"], **shorter)
    longer = [item for item in found if item["published"]["methods"] == ["NT-Xent+SEC"] and item["shared"]]
    assert longer
    assert all("other number of epochs: 100, not 200" in item["reasons"] for item in longer)


def test_another_proxy_loss_without_its_regularizer_is_a_reason(tmp_path):
    space = spaces()["mpa_proxies"]
    plain, family = space.arms
    other = replace(family, settings={**family.settings, "loss.name": "mpa_ap", "loss.tau": 0.0})
    said = reasons(compared(tmp_path, replace(space, arms=(plain, other)), "cub200"), "7", "CUB200-2011")
    assert "other loss: mpa_ap, not mpa" in said
    assert "other loss.tau: 0, not 0.2" in said


def test_equal_conditions_are_compared_and_unprinted_ones_are_noted(tmp_path):
    one = of_table(compared(tmp_path / "birds", "dro_grouped_gamma", "cub200"), "2", "CUB200-2011")
    assert one["reasons"] == []
    assert one["verdict"] != "not comparable"
    shop = of_table(compared(tmp_path / "shop", "dro_grouped_gamma", "inshop"), "4", "In-Shop")
    assert "number of steps (ours 12000)" in shop["not_printed"]
    assert any(caveat.startswith("not printed: number of steps") for caveat in shop["caveats"])
    assert any("not printed: number of steps" in sentence for sentence in shop["sentences"])
    one = of_table(compared(tmp_path, "sec_rho", "cars196"), "4", "Cars196")
    assert one["reasons"] == []
    assert one["not_printed"] == ["eta (ours 0.5)"]


ROWS = {(row.paper, row.table, row.dataset, row.method, str(row.hyperparameters)): row for row in published_rows()}


def test_every_printed_number_and_hyperparameter_has_conditions_or_a_remark():
    for key, row in ROWS.items():
        found = conditions_of(row)
        remark = str(row.hyperparameters.get("source_note", ""))
        assert (found is None) == (remark.startswith(("cited", "copied")) or row.dataset == "worked example"), key
        if found is not None:
            known = set(found.settings) | set(found.unprinted)
            assert {"loss.name", "regularizer.name", "optim.lr"} <= known, key
            assert not {path for path in known if path.startswith(("evaluation.", "data."))}, key
            table = table_of(row.paper, row.table)
            method = table.method(row.method)
            assert not set(row.hyperparameters) - set(method.knobs) - set(table.remarks), key


AS_PRINTED = {**protocols()["sec/cars196"].settings, "data.split": "paper_test_selection", "data.name": "cars196"}
"""Every condition of the paper's numbers on Cars196, their selection on the test classes included."""


def test_a_comparable_sweep_is_judged_in_level(tmp_path):
    options = {"histories": False, "seeds": range(4), "sd": 0.05, "seed_sd": 0.1}
    results = write_sweep(tmp_path / "s", dataset="cars196", cell_settings=AS_PRINTED, **options)
    found = report_of(results, tmp_path)
    assert found.files.summary.verdicts[2] == (
        "Against SEC-supplement, Table 4, Cars196, BN-Inception: level: matches (1 condition not printed); "
        "order: 7 of 10 published differences are significant (run s.d. 0.5, assumed): our order is significantly the same in 7, "
        "significantly the opposite in 0, undecided in 0."
    )
    for said in (
        "The level matches SEC-supplement, Table 4",
        "every difference is significantly below 1.00 points",
        "the verdict holds up to",
    ):
        assert said in found.text


@pytest.mark.parametrize(
    ("sd", "margin", "verdict"), [(2.0, 1.0, "compatible"), (0.05, 0.01, "compatible"), (0.05, 1.0, "matches")]
)
def test_a_level_matches_only_by_equivalence(tmp_path, sd, margin, verdict):
    """Numbers within noise of the paper's are compatible; agreement needs a bound on the difference."""
    results = bare_sweep(tmp_path / "s", dataset="cars196", cell_settings=AS_PRINTED, sd=sd, seed_sd=0.1)
    found = report_of(results, tmp_path, margin=margin).knob["agreement"][0]
    assert found["verdict"] == verdict
    for sentence in found["sentences"]:
        assert ("This does not show agreement" in sentence) <= (verdict == "compatible")


def facts_of(analysis):
    (facts,) = (block for block in run_summary.section(analysis, None).body if isinstance(block, Facts))
    return dict(facts.items)


def test_a_later_margin_is_shown_beside_the_planned_one(steep):
    def margin_of(margin):
        return facts_of(analyse(steep.results, margin))["Smallest difference that matters"]

    assert margin_of(None) == margin_of(1.0) == "1.00 points"
    assert margin_of(2.5) == "2.50 points (given later; planned: 1.00 points)"


MARGIN_RULE = "margin: the smallest difference that matters must be greater than 0"
SD_RULE = "paper_sd: the papers' run-to-run standard deviation must be greater than 0"


@pytest.mark.parametrize("given", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize(("name", "rule"), [("margin", MARGIN_RULE), ("paper_sd", SD_RULE)])
def test_an_invalid_margin_or_standard_deviation_is_refused(steep, name, rule, given):
    with pytest.raises(ConfigError, match=rule):
        analyse(steep.results, **{name: given})


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return bare_sweep(tmp_path_factory.mktemp("sd") / "s")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (None, "best at the lowest tested, if the run s.d. is at most 1.1"),
        (2.0, "undecided (it would take a run s.d. of at most 1.1; assumed 2)"),
    ],
)
def test_a_printed_curve_is_judged_by_the_given_spread(results, tmp_path, given, sentence):
    agreement = report_of(results, tmp_path, paper_sd=given).knob["agreement"][0]
    assert f"The published curve by itself: {sentence}." in agreement["sentences"]


def test_the_best_of_a_printed_curve_follows_the_goal(results, tmp_path):
    least = replace(results, plan=replace(results.plan, space=replace(results.plan.space, goal="minimize")))
    (sentence,) = (text for text in report_of(least, tmp_path).knob["agreement"][0]["sentences"] if "by itself" in text)
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
    judged = report_of(results, tmp_path, paper_sd=given)
    agreement = judged.knob["agreement"][0]
    assert any(counts in sentence for sentence in agreement["sentences"])
    assert agreement["order"]["paper_certain"] == int(counts.split()[1])
    plain = " ".join(judged.data["answer"]["sentences"])
    assert ("its own numbers are too close" in plain) == (given == 5.0)


def test_our_larger_deviation_on_the_same_data_replaces_the_papers(tmp_path):
    for dataset, words in (("glyphs", "run s.d. 0.5, assumed"), ("cars196", ", as ours")):
        sweep = bare_sweep(tmp_path / dataset, dataset=dataset, sd=2.0)
        assert any(words in verdict for verdict in summary(sweep).verdicts)


def test_a_value_matches_a_printed_one_if_all_its_parts_match():
    assert equals_printed((0.1, 2), [0.1 * (1 + 1e-9), 2])
    assert not equals_printed((1, 2), [1, 3])
    assert not equals_printed((1, 2), [1, 2, 3])
    assert equals_printed("/data/weights.pth", "weights.pth")
    assert not equals_printed("/data/weights.pth", "others.pth")


TWO_LAYERS = {
    "embedding size (ours 64)",
    "batch size B (ours 128)",
    "loss.temperature (ours 0.5)",
    "optimizer (ours sgd)",
}


@pytest.mark.parametrize(
    ("space", "dataset", "arms", "change", "unprinted"),
    [
        ("sec_simclr", "cifar10", ("NT-Xent", "NT-Xent+SEC"), {"batch.batch_size": 128}, TWO_LAYERS),
        (
            "sec_face",
            "webface",
            ("Arcface", "Arcface+SEC"),
            {},
            {"embedding size (ours 64)", "backbone (ours resnet50)"},
        ),
    ],
)
def test_what_a_paper_does_not_state_is_no_difference(tmp_path, space, dataset, arms, change, unprinted):
    one = compared(tmp_path, space, dataset, arms, **{"model.embedding_dim": 64}, **change)[0]
    assert unprinted <= set(one["not_printed"])
    assert [reason for reason in one["reasons"] if not reason.startswith(("other data set", "other selection"))] == []
    assert "not stated" not in " ".join(one["sentences"])


def test_the_summary_lists_the_values_of_every_arm(tmp_path):
    request = Request("sec_mu", "glyphs", seeds=2, name="s")
    Driver(tmp_path / "s", make_plan(study_of(request), data_digest="d" * 64)).session()
    knobs = facts_of(analyse(results_of(tmp_path / "s")))["Knobs"]
    assert "{0.1, 0.5, 1}" in knobs
    assert "{0.001, 0.005, 0.01, 0.1}" in knobs


@pytest.mark.parametrize(
    ("space", "dataset", "arms", "told_apart"),
    [
        ("sec_mu", "cars196", None, ("SemihardTriplet+L2-reg", "SemihardTriplet+SEC")),
        ("sec_simclr", "cifar10", ("NT-Xent", "NT-Xent+SEC"), ("top1", "top5")),
    ],
)
def test_curves_of_one_table_are_told_apart(tmp_path, space, dataset, arms, told_apart):
    sources = [item["source"] for item in compared(tmp_path, space, dataset, arms)]
    assert len(set(sources)) == len(sources) > 1
    page = (tmp_path / "report" / "report.html").read_text()
    for name in told_apart:
        assert any(name in source for source in sources)
        assert f"{name})" in page


def test_methods_are_compared_at_the_printed_value_of_a_knob(tmp_path):
    """The text of DRO's Figure 5 has numbers at B = 640 alone, where ours are the worst."""
    request = Request("dro_imbalance", "inshop", seeds=2, name="s", settings=SELECTED)
    plan = make_plan(study_of(request), data_digest="d" * 64)
    results = write_results(tmp_path / "s", plan, lambda trial: 60.0 - trial.cell.index - 0.1 * trial.seed)
    (table,) = report_of(results, tmp_path).data["printed_methods"]
    assert [arm["cell"] for arm in table["arms"]] == [f"{arm['arm']}: B=640" for arm in table["arms"]]
    assert not any("batch size" in reason for reason in table["reasons"])
