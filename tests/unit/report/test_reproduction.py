"""A printed table beside ours: the matching cell of each number, and the reasons against a comparison."""

import csv
import math
from types import SimpleNamespace

import pytest
from helpers.toys import write_results

from tune_dml.planning.plan import make_plan
from tune_dml.planning.reproduction import _covered_methods, printed_table
from tune_dml.planning.request import Request
from tune_dml.planning.study import study_of
from tune_dml.record.results import results_of
from tune_dml.report.published.reproduction import markdown, reproduce, write_reproduction

SELECTED = {"data.split": "paper_test_selection"}


def reproduced(folder, paper, number, dataset=None, metrics=None, **settings):
    """Return the rows of a table of an untrained sweep: the trial of cell i and seed s has 60 + i + s / 10."""
    printed = printed_table(paper, number, dataset)
    options = {"seeds": 3, "arms": printed.arms or None, "name": "r", "settings": settings}
    plan = make_plan(study_of(Request(printed.space, printed.trained_on, **options)))
    trained = write_results(
        folder / "r", plan, lambda trial: 60.0 + trial.cell.index + trial.seed / 10, **(metrics or {})
    )
    return printed, plan, reproduce(trained, printed)


def test_numbers_of_a_table_of_methods_are_matched_to_arms_by_name(tmp_path):
    printed, plan, rows = reproduced(tmp_path, "sec-supplement", "5", "cars196", **SELECTED)
    assert printed.space.name == "sec_losses"
    assert len(plan.cells) == 16
    assert len(rows) == len(printed.rows) == 96
    recalls = {row.method: row for row in rows if row.metric == "R@1"}
    assert {row.cell for row in recalls.values()} == {cell.label for cell in plan.cells}
    assert recalls["Triplet+SEC-EMA"].printed == 74.57
    assert recalls["Triplet+SEC-EMA"].why_not == ()
    assert recalls["Triplet"].ours == pytest.approx(60.1)
    assert recalls["Triplet"].half_width == pytest.approx(0.2484, abs=1e-3)
    nmi = next(row for row in rows if row.metric == "NMI")
    assert "ours has no NMI" in nmi.why_not


@pytest.mark.parametrize(("interrupted", "then"), [(False, "tune-dml report r"), (True, "give the same command again")])
def test_an_interrupted_reproduction_says_how_to_continue(monkeypatch, tmp_path, command_line, interrupted, then):
    reproduced(tmp_path, "sec-supplement", "4", "glyphs")
    results = results_of(tmp_path / "r")
    sweep = SimpleNamespace(
        results=results, name="r", folder=results.folder, interrupted=interrupted, exit_code=130 if interrupted else 0
    )
    monkeypatch.setattr("tune_dml.cli.reproduce.run_with_progress", lambda *_: sweep)
    code, out, _ = command_line("reproduce", "sec-supplement", "4", "--dataset", "glyphs")
    assert (code, out.splitlines()[-1].count(then)) == (sweep.exit_code, 1)

    def interrupted_writing(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("tune_dml.report.published.reproduction.write_reproduction", interrupted_writing)
    code, _, said = command_line("reproduce", "sec-supplement", "4", "--dataset", "glyphs")
    assert (code, "give the same command again" in said) == (130, True)


def test_a_table_on_other_data_is_shown_with_reasons(tmp_path):
    printed, plan, rows = reproduced(tmp_path, "SEC-rebuttal", "4", "glyphs", {"val/nmi": 50.0, "val/f1": 20.0})
    assert (printed.space.name, printed.dataset, plan.dataset) == ("sec_tml", "CUB200-2011", "glyphs")
    assert all("other data set: glyphs, not CUB200-2011" in row.why_not for row in rows)
    best = {row.cell for row in rows if row.method == "TML+SEC"}
    assert best == {"TML+SEC: eta=1"}
    long, wide = write_reproduction(rows, printed, tmp_path / "out")
    table = list(csv.DictReader(long.open()))
    assert [row["paper"] for row in table if row["method"] == "TML"] == ["68.96", "39.25", "63.64"]
    assert {row["ours"] for row in table if row["metric"] == "NMI"} == {"50.0"}
    assert b"\r" not in long.read_bytes()  # as the other CSV files
    assert "| TML |" in wide.read_text()
    assert "68.96 / 50.00 (a)" in wide.read_text()  # equal values do not show that there is no noise
    assert (
        "Every trial gave the same NMI, F1, so the noise of seeds is unknown and there is no interval."
        in wide.read_text()
    )
    assert "(a) other data set: glyphs, not CUB200-2011" in wide.read_text()


def test_numbers_along_a_knob_are_matched_to_cells_by_value(tmp_path):
    printed, _, rows = reproduced(tmp_path, "sec-supplement", "4", "cars196", {"train/norm_mean": 6.0}, **SELECTED)
    cells = {(row.method, row.hyperparameters.get("rho")): row.cell for row in rows}
    assert cells["Triplet", None] == "no SEC"
    along = {rho: cell for (_, rho), cell in cells.items() if rho}
    assert along == {rho: f"rho={rho:g}" for rho in (0.01, 0.1, 0.5, 0.9, 1.0)}
    assert _covered_methods(printed.space, printed.table) >= {"Triplet", "Triplet+SEC", "Triplet+SEC-EMA"}
    norms = [row.ours for row in rows if row.metric == "final_norm_mean"]
    assert norms == pytest.approx([6.0] * 6)


def test_a_number_without_printed_value_is_matched_to_the_best_of_the_grid(tmp_path):
    printed, _, rows = reproduced(tmp_path, "dro", "1", "cub200", **SELECTED)
    top = next(row for row in rows if (row.method, row.metric) == ("DRO-TopK_M", "R@1"))
    assert top.cell == "DRO-TopK_M: K=280"
    assert top.why_not == ()
    assert math.isnan(top.half_width)  # the seeds that would give it chose the cell
    assert "loss.k" in top.not_printed
    cited = next(row for row in rows if row.method == "HDC")
    assert cited.why_not == ("the paper cites it from others",)
    assert "Not printed, and assumed to equal ours: loss.k" in markdown(rows, printed)


@pytest.mark.parametrize(
    "words",
    [("sec-supplement", "6"), ("sec-supplement", "7"), ("dro", "fig4 text"), ("dro", "fig5 text"), ("mpa", "8")],
)
def test_every_kind_of_table_has_a_study(words):
    """With two arms at least: a sweep of the one method of DRO's Figure 4 would compare nothing."""
    printed = printed_table(*words)
    assert len(printed.arms) != 1
    assert printed.rows
    assert printed.trained_on in {protocol.dataset for protocol in printed.space.protocols}
