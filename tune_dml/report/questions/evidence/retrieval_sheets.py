"""What do the networks retrieve? Show the retrieval sheets of two cells for the same queries."""

import base64
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainables.evidence.record import Tile
from trainables.evidence.sheet import crop_rows
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.traces import Pair, ShownCell
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Fold, Photograph, Photographs, Section, Text

_LEGEND = "Green, solid and ticked: right. Red, dashed and crossed: wrong. Whole sheets lie in the trials' MLflow runs."
_MAX_ROWS = 3  # maximum number of queries that the page shows of a sheet
_Row = tuple[Tile | None, ...]


@question(order=440, reads_traces=True)
def retrieval_sheets(analysis: Analysis) -> Section | None:
    """Show rows of both sheets with text alternatives, and feature maps if recorded."""
    pair = analysis.pair
    arms = analysis.results.plan.arms
    if not pair.sides or all(arm.base_settings.get("evaluation.sheet_queries") == 0 for arm in arms):
        return None
    chosen = _choose_rows(pair)
    photographs = tuple(_photograph(side, chosen) for side in pair.sides if side.evidence.drawn)
    why = "has no sheet: it was switched off (evaluation.sheet_queries=0), or it would be empty"
    missing = [f"{side.title}, seed {pair.seed}, {why}." for side in pair.sides if side.evidence.drawn is None]
    body: list[Block] = [Text(text) for text in (*pair.missing, *missing)]
    if photographs:
        body = [Text(_sentence(analysis, pair, chosen)), *body, Photographs(photographs, _LEGEND)]
    maps = tuple(_maps(side, side.evidence.maps) for side in pair.sides if side.evidence.maps)
    if maps:
        caption = (
            "Each query beside the channels of the last layer that respond most (Zhang et al., supplement, Figure 3)."
        )
        body.append(Fold("What the last feature maps look at", (Photographs(maps, caption),)))
    return Section("sheets", "What do the networks find?", "Pictures", body)


def _choose_rows(pair: Pair) -> list[int]:
    """Return the rows of the sheets to show: all rows, unless both sheets have the same queries.

    With the same queries, the rows that differ most are chosen, alternately in favour of either cell.
    """
    sheets = [side.evidence.rows for side in pair.sides if side.evidence.drawn]
    rows = list(range(len(sheets[0]))) if sheets else []
    if len(sheets) < 2 or _shows_pairs(sheets[0]) or _queries(sheets[0]) != _queries(sheets[1]):
        return rows
    first, second = ([[bool(tile and tile.right) for tile in row[1:]] for row in sheet] for sheet in sheets[:2])
    lead = [sum(ours) - sum(theirs) for ours, theirs in zip(first, second, strict=True)]
    # rows whose nearest images disagree come first, then those with the largest difference in right images
    ranked = sorted(rows, key=lambda row: (first[row][:1] == second[row][:1], -abs(lead[row])))
    better, worse = [row for row in ranked if lead[row] > 0], [row for row in ranked if lead[row] < 0]
    alternating = [row for pair in itertools.zip_longest(worse, better) for row in pair if row is not None]
    return sorted([*alternating, *(row for row in ranked if row not in alternating)][:_MAX_ROWS])


def _queries(rows: Sequence[_Row]) -> list[int | None]:
    return [row[0].picture if row[0] else None for row in rows]


def _sentence(analysis: Analysis, pair: Pair, chosen: Sequence[int]) -> str:
    first, side = pair.sides[0].evidence, next(side for side in pair.sides if side.evidence.drawn)
    if _shows_pairs(side.evidence.rows):
        shown = f"The most confident wrong pairs of {first.part}, seed {pair.seed}."
    else:
        count = len(side.evidence.rows)
        queries = f"{len(chosen)} of {count} queries" if len(chosen) < count else f"The same {count} queries"
        choice = ", those on which the two differ most" if len(chosen) < count else ""
        shown = f"{queries} of {first.part}, seed {pair.seed}{choice}, each with its nearest images by cosine."
        shown += _hits_sentence(analysis, pair)
    return f"{shown} This illustrates; the verdicts above use all images and seeds."


def _hits_sentence(analysis: Analysis, pair: Pair) -> str:
    """Return how many queries only one of the two cells answers correctly; empty if hits were not recorded."""
    both = [hits for side in pair.sides if (hits := analysis.results.hits(side.key, "val")) is not None]
    if len(both) < 2 or not np.array_equal(both[0].pictures, both[1].pictures):
        return ""
    only = [int((a.hit & ~b.hit).sum()) for a, b in (both, both[::-1])]
    counts = " and ".join(f"{count} only with {side.label}" for side, count in zip(pair.sides, only, strict=True))
    return f" The nearest image is right for {counts}, of {len(both[0].hit)} queries in all."


def _photograph(side: ShownCell, chosen: Sequence[int]) -> Photograph:
    rows, drawn = side.evidence.rows, side.evidence.drawn
    data, shown = drawn.read_bytes() if drawn else b"", rows
    if len(chosen) < len(rows):
        data = crop_rows(data, chosen, of=len(rows), columns=max(map(len, rows)))
        shown = tuple(rows[index] for index in chosen)
    return Photograph(_data_url(data), f"{side.title}: {_count(shown)}", _description(side, shown))


def _maps(side: ShownCell, drawn: Path) -> Photograph:
    queries = ", ".join(row[0].name for row in side.evidence.rows if row[0])
    description = f"{side.title}: most active feature maps of {queries}."
    return Photograph(_data_url(drawn.read_bytes()), side.title, description)


def _data_url(jpeg: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"


def _shows_pairs(rows: Sequence[_Row]) -> bool:
    """Return whether the sheet shows pairs: their tiles have no verdict. Of neighbours, only the query has none."""
    return any(sum(tile is None or tile.right is None for tile in row) > 1 for row in rows)


def _count(rows: Sequence[_Row]) -> str:
    verdicts = [tile.right for row in rows for tile in row if tile and tile.right is not None]
    if _shows_pairs(rows):
        return f"{len(verdicts)} pairs judged wrong with most confidence"
    return f"{sum(verdicts)} of the {len(verdicts)} nearest images of {len(rows)} queries are of the query's class"


def _description(side: ShownCell, rows: Sequence[_Row]) -> str:
    if _shows_pairs(rows):
        couples = (couple for row in rows for couple in itertools.pairwise(row))
        pairs = [f"{a.name} and {b.name}" for a, b in couples if a and b and a.right is None]
        return f"{side.title}: pairs judged wrong with most confidence: {'; '.join(pairs)}."
    described = []
    for query, *others in rows:
        if query is not None:
            nearest = [f"{tile.name} ({'right' if tile.right else 'wrong'})" for tile in others if tile]
            described.append(f"{query.name}: {', '.join(nearest)}")
    return f"{side.title}: nearest images of each query. {'; '.join(described)}."
