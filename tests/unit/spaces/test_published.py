"""Published numbers, the papers that contain them, and the curves read from them."""

import math
from collections import defaultdict
from dataclasses import replace

import pytest
from helpers.toys import rho_space

from search_spaces import papers
from trainables.errors import ConfigError
from tune_dml.papers.published import published_curve, published_rows
from tune_dml.space import CurveReference, Paper

RHO = replace(rho_space().published[0], note="One run per value")


def test_rho_curve_of_the_sec_supplement():
    curve = published_curve(RHO)
    assert curve.values() == {0.01: 74.57, 0.1: 72.00, 0.5: 68.54, 0.9: 68.28, 1.0: 67.89}
    assert curve.baseline == 60.84
    assert curve.source == "SEC-supplement, Table 4, Cars196, BN-Inception"
    assert curve.notes[0] == "One run per value."
    assert any("60.79 in Table 5" in note for note in curve.notes)
    assert any(note.startswith("Eta not printed") for note in curve.notes)
    assert curve.values("final_norm_var")[1.0] == 0.02
    assert curve.baseline_others["final_norm_mean"] == 8.03


GAMMA = CurveReference("DRO", "4", "In-Shop", ("DRO-KL-G",), "gamma", baseline_method="LS", embedding_dim=64)
PROXIES = CurveReference("MPA", "7", "CUB200-2011", ("MPA",), "proxies_per_class", runs=3)


@pytest.mark.parametrize(
    ("reference", "values", "baseline", "note"),
    [
        (GAMMA, {0.001: 85.7, 0.01: 85.8, 0.1: 85.1, 1.0: 84.8}, 82.6, "impossible"),
        (PROXIES, {1: 68.4, 4: 69.0, 8: 69.1, 12: 69.3, 16: 67.6}, None, ""),
    ],
)
def test_a_curve_has_the_printed_numbers(reference, values, baseline, note):
    curve = published_curve(reference)
    assert (curve.values(), curve.baseline) == (values, baseline)
    assert note in " ".join(curve.notes)


def test_two_curves_of_a_table_are_selected_by_their_settings():
    compared = {"metric": "top1", "baseline_method": "NT-Xent"}
    eta = CurveReference("SEC-supplement", "7", "CIFAR-10", ("NT-Xent+SEC",), "eta", **compared)
    with pytest.raises(ConfigError, match="one number per value"):
        published_curve(eta)
    found = {epochs: published_curve(replace(eta, where={"epochs": epochs})) for epochs in (100, 200)}
    assert {epochs: curve.values() for epochs, curve in found.items()} == {100: {0.25: 86.87}, 200: {0.25: 90.35}}
    assert {epochs: curve.baseline for epochs, curve in found.items()} == {100: 84.76, 200: 89.05}


def test_every_published_number_is_complete():
    rows = published_rows()
    assert len(rows) == 1222
    assert all(math.isfinite(row.value) and row.metric and row.method for row in rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": "44"}, "no package has numbers of this table"),
        ({"methods": ("Tripel+SEC",)}, "no such method"),
        ({"hyperparameter": "rhoo"}, "varies with 'rhoo'"),
        ({"hyperparameter": "eta"}, "one number per value"),
    ],
)
def test_declarations_of_unknown_tables_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        published_curve(replace(RHO, **change))


PAPERS = [value for value in vars(papers).values() if isinstance(value, Paper)]
TABLES = {(table.source, table.number): table for paper in PAPERS for table in paper.tables}


def rows_of_tables():
    rows = defaultdict(list)
    for row in published_rows():
        rows[row.paper, row.table].append(row)
    return rows


def test_every_printed_table_belongs_to_a_paper_and_holds_its_data_sets():
    rows = rows_of_tables()
    assert set(TABLES) == set(rows)
    for key, table in TABLES.items():
        assert set(table.datasets) == {row.dataset for row in rows[key]}, key


def test_values_stated_for_a_table_agree_with_its_rows():
    for key, rows in rows_of_tables().items():
        for field in ("backbone", "embedding_dim", "runs"):
            said = {row.hyperparameters[field] for row in rows if field in row.hyperparameters}
            assert not said or getattr(TABLES[key], field) in said, (key, field)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.key)
def test_a_paper_lists_the_data_sets_of_its_tables(paper):
    measured = {dataset for table in paper.tables for dataset in table.datasets} - {"worked example"}
    assert measured <= set(paper.datasets)
    assert all(table.source.partition("-")[0] == paper.key for table in paper.tables)


def test_a_table_is_found_by_its_number_and_part():
    assert papers.SEC.table("4", "supplement").holds.startswith("the triplet loss with SEC-EMA")
    assert papers.SEC.table("4", "rebuttal").holds.startswith("the tuplet margin loss")
    with pytest.raises(KeyError, match="4"):
        papers.SEC.table("4")


def test_a_curve_carries_what_its_table_states():
    curve = papers.DRO.table("4").curve("In-Shop", ("DRO-KL-G",), "gamma", baseline="LS")
    assert (curve.paper, curve.table, curve.embedding_dim, curve.baseline_method) == ("DRO", "4", 64, "LS")
    assert str(papers.DRO.cite("Table 4")).endswith("ECCV 2020, Table 4")
