"""The papers as objects against the file of printed numbers: neither holds a table that the other lacks."""

from collections import defaultdict

import pytest

from search_spaces import papers
from tune_dml.papers.published import published_rows
from tune_dml.space import Paper

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


def test_what_a_table_states_once_is_what_its_rows_say():
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
    assert str(papers.DRO.at("Table 4")).endswith("ECCV 2020, Table 4")
