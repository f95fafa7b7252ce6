"""The questions of the report, one a file: found by being there, or through the entry-point group `tune_dml.questions`.

A question is a function marked with `question` (about the whole sweep) or `knob_question` (about each knob in turn). It gives
one section, or None where there is nothing to say.
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
"""Behind the configurations and the importance of knobs, before the seeds."""
RENAME = "Rename that of your own package."
_NOTHING: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True)
class Question:
    """A question of the report."""

    answer: Callable[[Analysis, KnobAnalysis | None], Section | None]
    order: int
    """Where it stands. Hundreds are the page's parts, in each the knobs in turn and then the rest: 100 methods, 200 the
    knob, 300 all cells and trust, 400 training, 500 opened tests, 600 the appendix, which the page keeps closed."""
    about_knob: bool
    reads_traces: bool
    """Reads what trials logged or left: a summary for the terminal leaves it out."""
    unanswered: Mapping[str, object]
    """What verdicts.json has where there is no section."""

    def section(self, analysis: Analysis, knob: KnobAnalysis | None) -> Section:
        """Its answer, without a title where there is nothing to say."""
        answer = self.answer(analysis, knob) or Section("", "", "", data=self.unanswered)
        return replace(answer, knob=knob, appendix=self.appendix)

    @property
    def appendix(self) -> bool:
        """Whether it stands in the appendix."""
        return self.order >= _APPENDIX


def question(
    order: int, *, reads_traces: bool = False, unanswered: Mapping[str, object] = _NOTHING
) -> Callable[[Callable[[Analysis], Section | None]], Question]:
    """Mark a function as the answer to a question about the sweep; `Question` says what the arguments mean."""
    return lambda ask: Question(lambda analysis, _: ask(analysis), order, False, reads_traces, unanswered)


def knob_question(
    order: int, *, reads_traces: bool = False, unanswered: Mapping[str, object] = _NOTHING
) -> Callable[[Callable[[Analysis, KnobAnalysis], Section | None]], Question]:
    """Mark a function as the answer to a question about each knob; `Question` says what the arguments mean."""

    def mark(ask: Callable[[Analysis, KnobAnalysis], Section | None]) -> Question:
        def answer(analysis: Analysis, knob: KnobAnalysis | None) -> Section | None:
            return ask(analysis, knob) if knob is not None else None

        return Question(answer, order, True, reads_traces, unanswered)

    return mark


def _questions() -> list[Question]:
    """Ours and those of other packages, in the order of the report."""
    modules = [import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    questions = [value for module in modules for value in vars(module).values() if isinstance(value, Question)]
    for place, loaded in load_entries(GROUP):
        if not isinstance(loaded, Question):
            rule = "a question of the report is a function marked with `question` or `knob_question`"
            raise ConfigError(Problem(place, rule, str(loaded), "Mark the function."))
        questions.append(loaded)
    return sorted(questions, key=lambda question: question.order)


def answers(analysis: Analysis, *, traces: bool = True) -> tuple[Section, ...]:
    """Every question answered, in the order of the page; without `traces`, those that read what trials logged or left are not.

    Raises ConfigError when two sections, tables or figures have one name.
    """
    sections = tuple(one.section(analysis, knob) for one, knob in _in_order(analysis, traces=traces))
    _refuse_clashes(sections)
    return sections


def first_sentence(analysis: Analysis) -> str:
    """What the answer at the head of page and terminal begins with; no question is asked that comes after it."""
    asked = sorted(_in_order(analysis, traces=False), key=lambda item: not item[0].appendix)
    sentences = (one_line(one.section(analysis, knob).headline) for one, knob in asked)
    return next(filter(None, sentences), "")


def _in_order(analysis: Analysis, *, traces: bool) -> list[tuple[Question, KnobAnalysis | None]]:
    """Each question, with each knob that it is asked about, in the order of the page."""
    asked: list[tuple[Question, KnobAnalysis | None]] = [
        (one, knob)
        for one in _questions()
        if traces or not one.reads_traces
        for knob in (analysis.knobs if one.about_knob else (None,))
    ]
    return sorted(asked, key=lambda item: _place(analysis, item[0].order, item[1]))


def _place(analysis: Analysis, order: int, knob: KnobAnalysis | None) -> tuple[int, int, int]:
    """Where a section stands: in a part of the page its knobs in turn, then what is about all of them.

    A knob of a search, whose values cannot be compared, comes after what is said of the configurations.
    """
    if knob is None:
        return order, 0, 0
    part = _OF_A_SEARCH if order // 100 == 2 and knob.isolated.problem else order // 100 * 100
    return part, analysis.knobs.index(knob), order


def _refuse_clashes(sections: tuple[Section, ...]) -> None:
    anchors = [section.anchor for section in sections if section.title]
    for kind, names in (
        ("sections", anchors),
        ("tables", [table.name for table in tables_of(sections)]),
        ("figures", [figure.name for figure in figures_of(sections)]),
    ):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            rule = f"two {kind} of the report have one name, which is their anchor or file"
            raise ConfigError(Problem("report", rule, twice, RENAME))
