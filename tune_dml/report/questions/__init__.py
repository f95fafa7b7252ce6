"""The questions of the report, discovered in this package and in the entry-point group `tune_dml.questions`.

A question is a function decorated with `question` (about the sweep) or `knob_question` (about each knob). It returns one
section, or None if there is nothing to say.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from types import MappingProxyType

from trainables.errors import ConfigError, Problem
from trainables.methods import load_entries
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.knob import KnobAnalysis
from tune_dml.report.section import Section, figures_of, tables_of
from tune_dml.text import one_line

GROUP = "tune_dml.questions"
_APPENDIX = 600
_OF_A_SEARCH = 335
"""Position of a knob whose values cannot be compared: after configurations and importance, before trust."""
RENAME = "Rename the one of your package."
_NOTHING: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True)
class Question:
    """A question of the report."""

    answer: Callable[[Analysis, KnobAnalysis | None], Section | None]
    order: int
    """Position. Hundreds are parts of the page, each with the knobs first: 100 methods, 200 knobs, 300 cells and trust,
    400 training, 500 opened tests, 600 the folded appendix."""
    about_knob: bool
    reads_traces: bool
    """Whether it reads histories or evidence; the terminal's summary omits it."""
    unanswered: Mapping[str, object]
    """Its keys of verdicts.json if there is no section."""

    def section(self, analysis: Analysis, knob: KnobAnalysis | None) -> Section:
        """Return its answer; without a title if there is nothing to say."""
        answer = self.answer(analysis, knob) or Section("", "", "", data=self.unanswered)
        return replace(answer, knob=knob, appendix=self.appendix)

    @property
    def appendix(self) -> bool:
        """Whether it belongs to the appendix."""
        return self.order >= _APPENDIX

    @property
    def warns(self) -> bool:
        """Whether it holds of the whole sweep, before any verdict: warnings, and the appendix."""
        return self.order < 100 or self.appendix


def question(
    order: int, *, reads_traces: bool = False, unanswered: Mapping[str, object] = _NOTHING
) -> Callable[[Callable[[Analysis], Section | None]], Question]:
    """Decorate a function that answers a question about the sweep; see `Question` for the arguments."""
    return lambda ask: Question(lambda analysis, _: ask(analysis), order, False, reads_traces, unanswered)


def knob_question(
    order: int, *, reads_traces: bool = False, unanswered: Mapping[str, object] = _NOTHING
) -> Callable[[Callable[[Analysis, KnobAnalysis], Section | None]], Question]:
    """Decorate a function that answers a question about each knob; see `Question` for the arguments."""

    def mark(ask: Callable[[Analysis, KnobAnalysis], Section | None]) -> Question:
        def answer(analysis: Analysis, knob: KnobAnalysis | None) -> Section | None:
            return ask(analysis, knob) if knob is not None else None

        return Question(answer, order, True, reads_traces, unanswered)

    return mark


def _questions() -> list[Question]:
    modules = [import_module(info.name) for info in pkgutil.walk_packages(__path__, f"{__name__}.")]
    questions = [value for module in modules for value in vars(module).values() if isinstance(value, Question)]
    for place, loaded in load_entries(GROUP):
        if not isinstance(loaded, Question):
            rule = "a question of the report is a function decorated with `question` or `knob_question`"
            raise ConfigError(Problem(place, rule, str(loaded), "Decorate the function."))
        questions.append(loaded)
    return sorted(questions, key=lambda question: question.order)


def answers(analysis: Analysis, *, traces: bool = True) -> tuple[Section, ...]:
    """Answer every question, in the order of the page.

    Args:
        analysis: The analysed sweep.
        traces: Whether to include the questions that read histories or evidence.

    Raises:
        ConfigError: Two sections, tables or figures share a name.
    """
    sections = tuple(one.section(analysis, knob) for one, knob in _in_order(analysis, traces=traces))
    _refuse_clashes(sections)
    return sections


def first_sentence(analysis: Analysis) -> str:
    """Return the first sentence of the answer that is no warning, else the first warning; ask no further questions."""
    asked = sorted(_in_order(analysis, traces=False), key=lambda item: (item[0].warns, not item[0].appendix))
    sentences = (one_line(one.section(analysis, knob).headline) for one, knob in asked)
    return next(filter(None, sentences), "")


def _in_order(analysis: Analysis, *, traces: bool) -> list[tuple[Question, KnobAnalysis | None]]:
    """Return each question with each of its knobs, in the order of the page."""
    asked: list[tuple[Question, KnobAnalysis | None]] = [
        (one, knob)
        for one in _questions()
        if traces or not one.reads_traces
        for knob in (analysis.knobs if one.about_knob else (None,))
    ]
    return sorted(asked, key=lambda item: _place(analysis, item[0].order, item[1]))


def _place(analysis: Analysis, order: int, knob: KnobAnalysis | None) -> tuple[int, int, int]:
    """Return a section's sort key: within a part of the page, knobs in turn, then the rest.

    A searched knob, whose values cannot be compared, comes after the configurations.
    """
    if knob is None:
        return order, 0, 0
    part = _OF_A_SEARCH if order // 100 == 2 and knob.isolated.problem else order // 100 * 100
    return part, rank_of(analysis, knob), order


def rank_of(analysis: Analysis, knob: KnobAnalysis) -> int:
    """Return a knob's place among the knobs of its arm: those that matter first, by how far they move the metric."""

    def moved(other: KnobAnalysis) -> tuple[bool, float]:
        verdict = other.sensitivity
        return verdict.verdict != "sensitive", -abs(verdict.largest.estimate) if verdict.largest else 0.0

    arms = list(dict.fromkeys(other.arm for other in analysis.knobs))
    ordered = sorted(analysis.knobs, key=lambda other: (arms.index(other.arm), *moved(other)))
    return next(place for place, other in enumerate(ordered) if other is knob)


def _refuse_clashes(sections: tuple[Section, ...]) -> None:
    anchors = [section.anchor for section in sections if section.title]
    for kind, names in (
        ("sections", anchors),
        ("tables", [table.name for table in tables_of(sections)]),
        ("figures", [figure.name for figure in figures_of(sections)]),
    ):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            rule = f"two {kind} of the report share a name, which is their anchor or file"
            raise ConfigError(Problem("report", rule, twice, RENAME))
