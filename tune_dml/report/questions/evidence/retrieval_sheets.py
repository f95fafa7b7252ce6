"""What do the networks retrieve? Show the sheets of two cells, for the same queries."""

from __future__ import annotations

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
_MOST_ROWS = 3
"""Maximum number of queries that the page shows of a sheet."""
_Row = tuple[Tile | None, ...]


@question(order=440, reads_traces=True)
def retrieval_sheets(analysis: Analysis) -> Section | None:
    """Show rows of both sheets with text alternatives, and feature maps if recorded."""
    pair = analysis.pair
    arms = analysis.results.plan.arms
    if not pair.sides or all(arm.base_settings.get("evaluation.sheet_queries") == 0 for arm in arms):
        return None
    chosen = _chosen(pair)
    photographs = tuple(_photograph(side, chosen) for side in pair.sides if side.evidence.drawn)
    missing = [
        f"{side.title}, seed {pair.seed}, has no sheet: it was switched off (evaluation.sheet_queries=0), or it would "
        "be empty."
        for side in pair.sides
        if side.evidence.drawn is None
    ]
    body: list[Block] = [Text(text) for text in (*pair.missing, *missing)]
    if photographs:
        body = [Text(_sentence(analysis, pair, chosen)), *body, Photographs(photographs, _LEGEND)]
    maps = tuple(_maps(side, side.evidence.maps) for side in pair.sides if side.evidence.maps)
    if maps:
        caption = (
            "Each query beside the channels of the last layer that respond most (Zhang et al., supplement, Figure 3)."
        )
        body.append(Fold("What the last feature maps look at", (Photographs(maps, caption),)))
    return Section("sheets", "What do the networks find?", "Pictures", tuple(body))


def _chosen(pair: Pair) -> list[int]:
    """Return the rows to show. If both sheets have the same queries: those that differ most, in favour of each in turn."""
    sheets = [side.evidence.rows for side in pair.sides if side.evidence.drawn]
    every = list(range(len(sheets[0]))) if sheets else []
    if len(sheets) < 2 or _of_pairs(sheets[0]) or _asked(sheets[0]) != _asked(sheets[1]):
        return every
    ranked = sorted(every, key=lambda row: _alike(sheets[0][row], sheets[1][row]))
    first = [row for row in ranked if _right(sheets[0][row]) > _right(sheets[1][row])]
    second = [row for row in ranked if _right(sheets[0][row]) < _right(sheets[1][row])]
    in_turn = [row for pair in itertools.zip_longest(second, first) for row in pair if row is not None]
    return sorted([*in_turn, *(row for row in ranked if row not in in_turn)][:_MOST_ROWS])


def _asked(rows: Sequence[_Row]) -> list[int | None]:
    return [row[0].picture if row[0] else None for row in rows]


def _right(row: _Row) -> int:
    return sum(bool(tile and tile.right) for tile in row[1:])


def _alike(one: _Row, other: _Row) -> tuple[bool, int]:
    """Return a sort key: whether both nearest images agree, then the difference in right images."""
    right = [[bool(tile and tile.right) for tile in row[1:]] for row in (one, other)]
    return right[0][:1] == right[1][:1], -abs(sum(right[0]) - sum(right[1]))


def _sentence(analysis: Analysis, pair: Pair, chosen: Sequence[int]) -> str:
    first, side = pair.sides[0].evidence, next(side for side in pair.sides if side.evidence.drawn)
    if _of_pairs(side.evidence.rows):
        shown = f"The most confident wrong pairs of {first.part}, seed {pair.seed}."
    else:
        of = len(side.evidence.rows)
        those = f"{len(chosen)} of {of} queries" if len(chosen) < of else f"The same {of} queries"
        more = ", those on which the two differ most" if len(chosen) < of else ""
        shown = f"{those} of {first.part}, seed {pair.seed}{more}, each with its nearest images by cosine."
        shown += _apart(analysis, pair)
    return f"{shown} This illustrates; the verdicts above use all images and seeds."


def _apart(analysis: Analysis, pair: Pair) -> str:
    """Count the queries that only one of the two answers correctly; empty if not recorded."""
    kept = [analysis.results.hits(side.key, "val") for side in pair.sides]
    if len(kept) < 2 or any(hits is None for hits in kept):
        return ""
    one, other = (hits for hits in kept if hits is not None)
    if not np.array_equal(one.pictures, other.pictures):
        return ""
    alone = [int((a.hit & ~b.hit).sum()) for a, b in ((one, other), (other, one))]
    counts = " and ".join(f"{count} only with {side.label}" for side, count in zip(pair.sides, alone, strict=True))
    return f" The nearest image is right for {counts}, of {len(one.hit)} queries in all."


def _photograph(side: ShownCell, chosen: Sequence[int]) -> Photograph:
    rows, drawn = side.evidence.rows, side.evidence.drawn
    data = drawn.read_bytes() if drawn else b""
    if len(chosen) < len(rows):
        data = crop_rows(data, chosen, of=len(rows), columns=max(map(len, rows)))
    shown = [row for index, row in enumerate(rows) if index in chosen] if len(chosen) < len(rows) else rows
    return Photograph(_address(data), f"{side.title}: {_count(shown)}", _description(side, shown))


def _maps(side: ShownCell, drawn: Path) -> Photograph:
    asked = ", ".join(row[0].name for row in side.evidence.rows if row[0])
    return Photograph(_address(drawn.read_bytes()), side.title, f"{side.title}: most active feature maps of {asked}.")


def _address(jpeg: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"


def _of_pairs(rows: Sequence[_Row]) -> bool:
    """Return whether the sheet shows pairs; in a row of neighbours only the query has no verdict."""
    return any(sum(tile is None or tile.right is None for tile in row) > 1 for row in rows)


def _count(rows: Sequence[_Row]) -> str:
    verdicts = [tile.right for row in rows for tile in row if tile and tile.right is not None]
    if _of_pairs(rows):
        return f"{len(verdicts)} pairs judged wrong with most confidence"
    return f"{sum(verdicts)} of the {len(verdicts)} nearest images of {len(rows)} queries are of the query's class"


def _description(side: ShownCell, rows: Sequence[_Row]) -> str:
    if _of_pairs(rows):
        pairs = [
            f"{first.name} and {second.name}"
            for row in rows
            for first, second in itertools.pairwise(row)
            if first and second and first.right is None
        ]
        return f"{side.title}: pairs judged wrong with most confidence: {'; '.join(pairs)}."
    described = []
    for query, *others in rows:
        if query is not None:
            nearest = [f"{tile.name} ({'right' if tile.right else 'wrong'})" for tile in others if tile]
            described.append(f"{query.name}: {', '.join(nearest)}")
    return f"{side.title}: nearest images of each query. {'; '.join(described)}."
