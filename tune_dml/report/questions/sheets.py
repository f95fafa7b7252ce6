"""What do the networks find? The sheets of two cells: the same pictures asked, so that the difference shows."""

from __future__ import annotations

import base64
import itertools
from dataclasses import dataclass

from tune_dml.report.questions.compared import Pair, Side


@dataclass(frozen=True)
class SheetView:
    """One cell's sheet."""

    side: Side
    count: str
    """What is right on it, in words."""
    description: str
    """Row by row, for readers who do not see it."""


@dataclass(frozen=True)
class Sheets:
    """The sheets and what they say."""

    views: tuple[SheetView, ...]
    sentence: str
    missing: tuple[str, ...]
    """What cannot be shown, and why."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """All that is to be said."""
        return tuple(text for text in (self.sentence, *self.missing) if text)


def extract(pair: Pair) -> Sheets:
    """Both sheets in words."""
    views = tuple(SheetView(side, _count(side), _description(side)) for side in pair.sides if side.evidence.sheet)
    bare = [side for side in pair.sides if side.evidence.sheet is None]
    missing = [
        f"{side.title}, seed {pair.seed}, has no sheet: it was switched off (evaluation.sheet_queries=0), or there was "
        "nothing to put on it."
        for side in bare
    ]
    if not views:
        return Sheets((), "", (*pair.missing, *missing))
    shown = (
        f"The pairs of {pair.sides[0].evidence.part}, seed {pair.seed}, that were judged wrong with most confidence."
        if _of_pairs(views[0].side)
        else f"The same {len(views[0].side.evidence.rows)} queries of {pair.sides[0].evidence.part}, seed {pair.seed}, "
        "each with its nearest pictures by cosine."
    )
    illustration = " An illustration: the verdicts above rest on all pictures and seeds."
    return Sheets(views, shown + illustration, (*pair.missing, *missing))


def _verdicts(side: Side) -> list[bool]:
    return [tile.right for row in side.evidence.rows for tile in row if tile and tile.right is not None]


def _count(side: Side) -> str:
    verdicts, rows = _verdicts(side), side.evidence.rows
    if _of_pairs(side):
        return f"{len(verdicts)} pairs judged wrong with most confidence"
    return f"{sum(verdicts)} of the {len(verdicts)} nearest pictures of {len(rows)} queries are of the query's class"


def _of_pairs(side: Side) -> bool:
    """Whether the sheet shows pairs: a row of neighbours has one tile without a verdict, the query."""
    return any(sum(tile is None or tile.right is None for tile in row) > 1 for row in side.evidence.rows)


def _description(side: Side) -> str:
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
            found = [f"{tile.name} ({'right' if tile.right else 'wrong'})" for tile in others if tile]
            rows.append(f"{query.name}: {', '.join(found)}")
    return f"{side.title}: nearest pictures of each query. {'; '.join(rows)}."


def draw(view: SheetView) -> str:
    """The sheet as the address of an image that a page can hold."""
    drawn = view.side.evidence.drawn
    data = drawn.read_bytes() if drawn else b""
    return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"
