"""No level is compared between things that differ: each printed number has its conditions, each cell its settings."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from helpers.toys import Driver

from tune_dml.catalogue import spaces
from tune_dml.papers.published import published_rows
from tune_dml.planning.checks.conditions import conditions_of, table_of
from tune_dml.planning.plan import make_plan
from tune_dml.planning.request import Request
from tune_dml.planning.study import study_of
from tune_dml.record.results import results_of
from tune_dml.report import write_report
from tune_dml.space import Space, Value

SELECTED = {"data.split": "paper_test_selection"}


def compared(
    folder: Path, space: str | Space, dataset: str, arms: Sequence[str] | None = None, **settings: Value
) -> list[dict[str, Any]]:
    """What verdicts.json says of a study as planned on a paper's own data, with some settings changed."""
    request = Request(space, dataset, seeds=2, name="s", settings={**SELECTED, **settings}, arms=arms)
    plan = make_plan(study_of(request), data_digest="d" * 64)
    driver = Driver(folder / "s", plan)
    driver.session()
    for trial in plan.trials():
        number = 60.0 + trial.cell.index + 0.1 * trial.seed
        driver.started(trial)
        driver.ended(trial, step=1, seconds=1.0, metrics={plan.metric: number})
    written = write_report(results_of(folder / "s"), folder / "report")
    return json.loads(written.verdicts.read_text())["knobs"][0]["agreement"]


def of_table(found: list[dict[str, Any]], table: str, dataset: str) -> dict[str, Any]:
    (one,) = [item for item in found if (item["published"]["table"], item["published"]["dataset"]) == (table, dataset)]
    return one


def reasons(found: list[dict[str, Any]], table: str, dataset: str) -> list[str]:
    one = of_table(found, table, dataset)
    assert one["shared"] > 0
    assert one["verdict"] == "not comparable"
    assert one["sentences"][0].startswith("Not comparable in level with ")
    return one["reasons"]


def test_another_loss_is_a_reason(tmp_path):
    found = compared(tmp_path, "sec_eta", "cars196", **{"loss.name": "multi_similarity"})
    assert "other loss: multi_similarity, not semihard_triplet" in reasons(found, "2", "Cars196")


def test_another_weight_is_a_reason(tmp_path):
    found = compared(tmp_path, "sec_rho", "cub200", **{"regularizer.eta": 0.5})
    assert "other eta: 0.5, not 1" in reasons(found, "5", "CUB200-2011")


def test_semihard_is_not_the_triplet_loss(tmp_path):
    found = compared(tmp_path, "sec_l2", "cars196", **{"loss.name": "semihard_triplet"})
    assert "other loss: semihard_triplet, not triplet" in reasons(found, "3", "Cars196")


def test_half_the_epochs_are_a_reason(tmp_path):
    found = compared(
        tmp_path,
        "sec_simclr_200",
        "cifar10",
        ["NT-Xent", "NT-Xent+SEC"],
        **{"data.split": "shared_classes", "training.epochs": 100},
    )
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


def test_another_learning_rate_is_a_reason(tmp_path):
    found = compared(tmp_path, "dro_grouped_gamma", "cub200", **{"optim.lr": 1e-4})
    assert "other learning rate: 0.0001, not 1e-05" in reasons(found, "2", "CUB200-2011")


def test_equal_conditions_are_compared_and_what_nobody_prints_is_said(tmp_path):
    one = of_table(compared(tmp_path / "birds", "dro_grouped_gamma", "cub200"), "2", "CUB200-2011")
    assert one["reasons"] == []
    assert one["verdict"] != "not comparable"
    shop = of_table(compared(tmp_path / "shop", "dro_grouped_gamma", "inshop"), "4", "In-Shop")
    assert "number of steps (ours 12000)" in shop["not_printed"]
    assert any(caveat.startswith("not printed: number of steps") for caveat in shop["caveats"])
    assert any("not printed: number of steps" in sentence for sentence in shop["sentences"])


def test_a_weight_that_the_table_leaves_out_is_said(tmp_path):
    one = of_table(compared(tmp_path, "sec_rho", "cars196"), "4", "Cars196")
    assert one["reasons"] == []
    assert one["not_printed"] == ["eta (ours 0.5)"]


def test_nuisance_rates_around_the_printed_one_are_no_equal_condition(tmp_path):
    found = compared(tmp_path, "sec_rho", "cars196", **{"optim.weight_decay": 1e-4})
    assert "other weight decay: 0.0001, not 0.0025" in reasons(found, "4", "Cars196")


ROWS = {(row.paper, row.table, row.dataset, row.method, str(row.hyperparameters)): row for row in published_rows()}


def test_every_printed_number_has_conditions_or_was_cited_by_its_paper():
    for key, row in ROWS.items():
        found = conditions_of(row)
        remark = str(row.hyperparameters.get("source_note", ""))
        assert (found is None) == (remark.startswith(("cited", "copied")) or row.dataset == "worked example"), key
        if found is not None:
            known = set(found.settings) | set(found.unprinted)
            assert {"loss.name", "regularizer.name", "optim.lr"} <= known, key
            assert not {path for path in known if path.startswith(("evaluation.", "data."))}, key


def test_every_printed_hyperparameter_is_a_condition_or_a_remark():
    for key, row in ROWS.items():
        table = table_of(row.paper, row.table)
        method = table.method(row.method)
        if conditions_of(row) is not None:
            assert not set(row.hyperparameters) - set(method.knobs) - set(table.remarks), key
