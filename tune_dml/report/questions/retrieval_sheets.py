"""What do the networks find? The sheets of two cells: the same pictures asked, so that the difference shows."""

from __future__ import annotations

import base64
import itertools

from tune_dml.report.measured import Measured
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Photograph, Photographs, Section, Text
from tune_dml.report.traces import Pair, Side

_LEGEND = "Green, solid and ticked: right. Red, dashed and crossed: wrong."


@question(order=440, reads_traces=True)
def retrieval_sheets(measured: Measured) -> Section | None:
    """Both sheets, with words for those who do not see them, and what cannot be shown."""
    if measured.results.imported is not None:
        return None
    pair = measured.pair
    photographs = tuple(_photograph(side) for side in pair.sides if side.evidence.drawn)
    missing = [
        f"{side.title}, seed {pair.seed}, has no sheet: it was switched off (evaluation.sheet_queries=0), or there was "
        "nothing to put on it."
        for side in pair.sides
        if side.evidence.drawn is None
    ]
    body: list[Block] = [Text(text) for text in (*pair.missing, *missing)]
    if photographs:
        body = [Text(_sentence(pair)), *body, Photographs(photographs, _LEGEND)]
    return Section("sheets", "What do the networks find?", "Pictures", tuple(body))


def _sentence(pair: Pair) -> str:
    first, side = pair.sides[0].evidence, next(side for side in pair.sides if side.evidence.drawn)
    shown = (
        f"The pairs of {first.part}, seed {pair.seed}, that were judged wrong with most confidence."
        if _of_pairs(side)
        else f"The same {len(side.evidence.rows)} queries of {first.part}, seed {pair.seed}, each with its nearest "
        "pictures by cosine."
    )
    return f"{shown} An illustration: the verdicts above rest on all pictures and seeds."


def _photograph(side: Side) -> Photograph:
    data = side.evidence.drawn.read_bytes() if side.evidence.drawn else b""
    source = f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"
    return Photograph(source, f"{side.title}: {_count(side)}", _description(side))


def _of_pairs(side: Side) -> bool:
    """Whether the sheet shows pairs: a row of neighbours has one tile without a verdict, the query."""
    return any(sum(tile is None or tile.right is None for tile in row) > 1 for row in side.evidence.rows)


def _count(side: Side) -> str:
    """What is right on it."""
    rows = side.evidence.rows
    verdicts = [tile.right for row in rows for tile in row if tile and tile.right is not None]
    if _of_pairs(side):
        return f"{len(verdicts)} pairs judged wrong with most confidence"
    return f"{sum(verdicts)} of the {len(verdicts)} nearest pictures of {len(rows)} queries are of the query's class"


def _description(side: Side) -> str:
    """Row by row, for readers who do not see it."""
    if _of_pairs(side):
        pairs = [
            f"{first.name} and {second.name}"
            for row in side.evidence.rows
            for first, second in itertools.pairwise(row)
            if first and second and first.right is None
        ]
        return f"{side.title}: pairs judged wrong with most confidence: {'; '.join(pairs)}."
    rows = []
    for query, *others in side.evidence.rows:
        if query is not None:
            nearest = [f"{tile.name} ({'right' if tile.right else 'wrong'})" for tile in others if tile]
            rows.append(f"{query.name}: {', '.join(nearest)}")
    return f"{side.title}: nearest pictures of each query. {'; '.join(rows)}."
