"""Choose the space, arms and data set that reproduce a printed table."""

from dataclasses import dataclass

from trainables.errors import ConfigError, Problem, nearest
from trainables.option_names import option_problem
from tune_dml.catalogue import spaces
from tune_dml.papers.published import PublishedRow, is_cited, published_rows
from tune_dml.planning.checks.conditions import our_name, table_of
from tune_dml.space import METHOD, CurveReference, PaperTable, Space
from tune_dml.text import spelling_key


@dataclass(frozen=True)
class PrintedTable:
    """A printed table on one of its data sets, and the study that reproduces it."""

    table: PaperTable
    dataset: str  # the table's name of the data set
    trained_on: str  # our name of the data set to train on
    space: Space
    arms: tuple[str, ...]
    """Arms that have numbers in the table, beside the baseline if there is only one; empty means all of the space."""
    rows: tuple[PublishedRow, ...]  # all numbers of the table on the data set, including cited ones

    @property
    def name(self) -> str:
        """Name with source and data set: `SEC-supplement, Table 5, CUB200-2011`."""
        return f"{self.table.source}, Table {self.table.number}, {self.dataset}"


def printed_table(paper: str, number: str, dataset: str | None = None) -> PrintedTable:
    """Return a printed table by paper (capitals do not matter) and number; `Fig4 text` means numbers in a figure's text.

    `dataset` is our name or the table's; by default it is the table's first data set. Results on a data set that the
    table lacks are compared with the numbers of the first. Raise ConfigError if the table is unknown, or no space
    reproduces it.
    """
    table = _table(paper, number)
    requested = our_name(dataset or table.datasets[0])
    printed = next((name for name in table.datasets if our_name(name) == requested), table.datasets[0])
    source = (table.source, table.number, printed)
    rows = tuple(row for row in published_rows() if (row.paper, row.table, row.dataset) == source)
    methods = {row.method for row in rows if not is_cited(row)}
    space = _space(table, methods)
    trained_on = requested if dataset else our_name(printed)
    datasets = {protocol.dataset for protocol in space.protocols}
    if not dataset and trained_on not in datasets:  # a face protocol trains on other people than it tests on
        trained_on = next(name for name in datasets if name not in {"glyphs", "digits"})
    if trained_on not in datasets:
        remedy = nearest(trained_on, sorted(datasets), what="data set")
        rule = f"{space.name}, which reproduces the table, has no protocol on the data set"
        raise ConfigError(option_problem("dataset", rule, dataset, remedy))
    goes_by_method = any(curve.hyperparameter == METHOD for curve in _curves(space, table))
    named = {arm.name for arm in space.arms if goes_by_method and arm.name in methods}
    compared = {*named, space.baseline_name} if len(named) == 1 else named  # one arm alone is no sweep
    arms = tuple(arm.name for arm in space.arms if arm.name in compared)
    return PrintedTable(table, printed, trained_on, space, arms, rows)


def _table(paper: str, number: str) -> PaperTable:
    tables = {(row.paper, row.table): None for row in published_rows()}
    requested = spelling_key(paper), spelling_key(number)
    match = next((key for key in tables if (spelling_key(key[0]), spelling_key(key[1])) == requested), None)
    table = table_of(*match) if match else None
    if table is None:
        names = [
            f"{source.lower()} {table!r}" if " " in table else f"{source.lower()} {table}" for source, table in tables
        ]
        rule = "the table is not in the file of numbers"
        raise ConfigError(Problem("PAPER TABLE", rule, f"{paper} {number}", known=names, kind="table"))
    return table


def _space(table: PaperTable, methods: set[str]) -> Space:
    """Return the space that trains the most methods of the table, with the fewest other arms."""
    covered = {name: len(_covered_methods(space, table) & methods) for name, space in spaces().items()}
    best = min(covered, key=lambda name: (-covered[name], len(spaces()[name].every_arm)))
    if not covered[best]:
        remedy = "Reports of other studies may show its numbers; `tune-dml spaces` lists the studies."
        raise ConfigError(Problem("TABLE", "no space reproduces the table", f"{table.source} {table.number}", remedy))
    return spaces()[best]


def _covered_methods(space: Space, table: PaperTable) -> set[str]:
    curves = _curves(space, table)
    arms = {arm.name for arm in space.every_arm}
    named = {method for curve in curves for method in (*curve.methods, curve.baseline_method or "")}
    return named | (arms if any(curve.hyperparameter == METHOD for curve in curves) else set())


def _curves(space: Space, table: PaperTable) -> list[CurveReference]:
    return [curve for curve in space.published if (curve.paper, curve.table) == (table.source, table.number)]
