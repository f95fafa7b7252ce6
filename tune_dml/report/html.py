"""The page: one file that needs no server, no network and no script, readable by keyboard, on paper and on a telephone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from tune_dml.report.analysis import Analysis, KnobAnswer
from tune_dml.report.naming import symbol_of
from tune_dml.report.questions import baseline, curve, directions, mechanism, norms, sheets, training
from tune_dml.report.questions.histories import Panel
from tune_dml.report.questions.optimum import extend_seeds_command
from tune_dml.report.sections import all_tables, describe, slug
from tune_dml.report.tables import Table

MOST_TRIALS = 1500
"""Rows of the trial table on the page; the CSV has them all."""


@dataclass(frozen=True)
class Picture:
    """A figure at both widths, with its text alternative."""

    name: str
    wide: str
    narrow: str
    description: str
    caption: str


@dataclass(frozen=True)
class Photograph:
    """A picture that is no drawing, with its text alternative."""

    source: str
    """A data address."""
    title: str
    description: str


@dataclass(frozen=True)
class Card:
    """One verdict at the top of the page."""

    word: str
    kind: str
    about: str
    sentence: str
    anchor: str


@dataclass(frozen=True)
class Chapter:
    """What the page shows about one knob."""

    answer: KnobAnswer
    symbol: str
    anchor: str
    pictures: dict[str, Picture] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    agreements: tuple[Table | None, ...] = ()
    seeds_command: str = ""


def figures_of(found: Analysis) -> dict[str, Picture]:
    """Every figure of the report, drawn."""
    pictures = [picture for answer in found.knobs for picture in _knob_pictures(answer)]
    if found.baseline is not None and found.baseline.comparison.rows:
        view = found.baseline
        pictures.append(
            _picture(
                "baseline",
                lambda narrow, name: baseline.draw(view, narrow=narrow, name=name),
                view.sentence,
                "Paired differences to the baseline with simultaneous intervals; the margin is shaded.",
            )
        )
    if found.norms is not None and found.norms.sides:
        lengths = found.norms
        pictures.append(
            _picture(
                "norms",
                lambda narrow, name: norms.draw(lengths, narrow=narrow, name=name),
                lengths.sentence,
                "Share of the pictures per unit of norm; each histogram has a vertical axis of its own.",
            )
        )
    return {picture.name: picture for picture in pictures}


def _knob_pictures(answer: KnobAnswer) -> Iterator[Picture]:
    anchor, found = slug(answer.curve.knob.path), answer.mechanism
    if answer.curve.points:
        yield _picture(
            f"curve-{anchor}",
            lambda narrow, name: curve.draw(answer.curve, narrow=narrow, name=name),
            describe(answer),
            _curve_caption(answer),
        )
    if answer.training is not None and answer.training.panels:
        going = answer.training
        yield _picture(
            f"training-{anchor}",
            lambda narrow, name: training.draw(going, narrow=narrow, name=name),
            f"Over training, for each value: {_names(going.panels)}. {going.sentence}",
            "Mean over seeds (lines) and range over seeds (bands); a trial that stopped early counts as far as it got."
            f"{_left_out(going.omitted)}",
        )
    if found is not None and found.panels:
        yield _picture(
            f"mechanism-{anchor}",
            lambda narrow, name: mechanism.draw(found, narrow=narrow, name=name),
            f"Over training, for each value: {_names(found.panels)}. The figures at the end are in the table below.",
            f"Mean over seeds (lines) and range over seeds (bands), on training batches."
            f"{_left_out(found.omitted, ' are in the table only')}",
        )
    if answer.directions is not None and answer.directions.panels:
        turns = answer.directions
        yield _picture(
            f"directions-{anchor}",
            lambda narrow, name: directions.draw(turns, narrow=narrow, name=name),
            f"Over training, for each value: {_names(turns.panels)}. {turns.sentence}",
            f"How far the unit embeddings of a fixed sample of training pictures moved in {turns.every} steps "
            "(chord, 0 to 2): variance and mean over the pictures; mean over seeds (lines), range over seeds (bands). "
            "Definition after Zhang et al., supplement C.2, which shows the distribution per 1000 steps.",
        )


def _names(panels: Sequence[Panel]) -> str:
    return ", ".join(panel.metric.name for panel in panels)


def _left_out(values: Sequence[str], where: str = " are left out") -> str:
    return f" For clarity, {len(values)} more values{where}." if values else ""


def _picture(name: str, draw: Callable[[bool, str], str], description: str, caption: str) -> Picture:
    return Picture(name, draw(False, f"{name}-w"), draw(True, f"{name}-n"), description, caption)


def _curve_caption(answer: KnobAnswer) -> str:
    found = answer.curve
    parts = []
    if found.sensitivity.half_widths:
        parts.append("Values whose comparison bars do not overlap differ (simultaneous, Tukey).")
    if not found.measured.isolated.crossed:
        parts.append("Each point is one seed of one cell; the other knobs differ from point to point.")
    elif found.how:
        parts.append(f"Means and seed points are {found.how}.")
    if any(point.failures for point in found.points):
        parts.append("Trials without a result are marked along the bottom, with their number.")
    if found.published:
        parts.append("The published curve has a vertical axis of its own.")
    return " ".join(parts)


def page(found: Analysis, pictures: dict[str, Picture]) -> str:
    """The HTML text."""
    from jinja2 import Environment, StrictUndefined

    here = files("tune_dml.report")
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = environment.from_string(here.joinpath("report.html").read_text(encoding="utf-8"))
    tables = all_tables(found)
    return template.render(
        found=found,
        plan=found.measured.results.plan,
        conduct=found.conduct,
        css=here.joinpath("report.css").read_text(encoding="utf-8"),
        cards=_cards(found),
        chapters=[_chapter(found, answer, pictures, tables) for answer in found.knobs],
        pictures=pictures,
        photographs=_photographs(found),
        tables={
            **tables,
            "cells": tables["cells"].without(["left out because"]),
            "trials": _shortened(tables.get("trials")),
        },
    )


def _chapter(found: Analysis, answer: KnobAnswer, pictures: dict[str, Picture], tables: dict[str, Table]) -> Chapter:
    anchor = slug(answer.curve.knob.path)
    needed = answer.curve.sensitivity.seeds_needed
    command = extend_seeds_command(found.measured.results.name, needed) if needed else ""
    kinds = ("differences", "chances", "mechanism")
    return Chapter(
        answer,
        symbol_of(answer.curve.knob),
        anchor,
        {
            kind: pictures[f"{kind}-{anchor}"]
            for kind in ("curve", "training", "mechanism", "directions")
            if f"{kind}-{anchor}" in pictures
        },
        {kind: tables[f"{kind}-{anchor}"] for kind in kinds if f"{kind}-{anchor}" in tables},
        tuple(tables.get(f"agreement-{anchor}-{index + 1}") for index in range(len(answer.comparisons))),
        command,
    )


def _photographs(found: Analysis) -> list[Photograph]:
    views = found.sheets.views if found.sheets else ()
    return [Photograph(sheets.draw(view), f"{view.side.title}: {view.count}", view.description) for view in views]


def _cards(found: Analysis) -> list[Card]:
    cards = []
    for answer in found.knobs:
        anchor, symbol = slug(answer.curve.knob.path), symbol_of(answer.curve.knob)
        verdict = answer.curve.sensitivity.verdict
        cards.append(Card(verdict, verdict, f"Does {symbol} matter?", answer.curve.sentences[0], f"curve-{anchor}"))
        if answer.location is not None:
            word = {"edge": "at the edge", "none": "flat"}.get(answer.location.optimum.verdict)
            kind = answer.location.optimum.verdict
            cards.append(
                Card(
                    word or kind,
                    kind,
                    f"Where is the best {symbol}?",
                    answer.location.sentence,
                    f"optimum-{anchor}",
                )
            )
        for comparison in answer.comparisons[:1]:
            level = comparison.agreement.verdict
            word = "level not comparable" if level == "not comparable" else level
            about = f"Does it agree with {comparison.published.published.paper}?"
            cards.append(Card(word, level.replace(" ", "-"), about, comparison.brief, f"agreement-{anchor}"))
    if found.baseline is not None:
        view = found.baseline
        about = f"Is it better than {view.comparison.baseline}?"
        cards.append(Card(view.word, view.word.partition(" ")[0], about, view.sentence, "against-baseline"))
    return cards


def _shortened(table: Table | None) -> Table | None:
    if table is None or len(table.rows) <= MOST_TRIALS:
        return table
    caption = f"{table.caption} The first {MOST_TRIALS} of {len(table.rows)}; csv/trials.csv has all."
    return Table(table.name, caption, table.columns, table.rows[:MOST_TRIALS])
