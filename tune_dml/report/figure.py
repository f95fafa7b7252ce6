"""Drawing: one style, two widths, deterministic SVG that stands inside a page.

Colours are Okabe and Ito's, told apart by every common kind of colour vision; nothing is said by colour alone: series differ
in marker and line style too. Text stays text (searchable, in the page's font). Pictures carry no date and fixed ids.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tune_dml.report.knob import Axis
from tune_dml.report.traces import Line, Panel
from tune_dml.space import Value
from tune_dml.text import is_number, value_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Transform


BLUE, VERMILLION, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#000000", "#5F6B7A"
CYCLE = tuple(
    zip(
        (BLUE, VERMILLION, GREEN, PINK, ORANGE, SKY, GREY),
        ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1))),
        ("o", "s", "^", "D", "v", "P", "X"),
        strict=True,
    )
)
"""(colour, line style, marker) of the series of a panel."""

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tune_dml",
    "font.family": "DejaVu Sans",  # measured with a wide font, shown in the page's: labels can only get narrower
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "axes.titlelocation": "left",
    "grid.color": "#D9DEE4",
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "text.parse_math": False,
}
MOST_NAMED = 10
"""Up to this many values are named on the axis; of more, round numbers are."""
WIDE, NARROW = 7.6, 3.55  # inches: at 100% the text of both has the size of the page's small print


@contextmanager
def canvas(*, narrow: bool, height: float) -> Iterator[Figure]:
    """An empty figure in the house style, `height` inches high; released afterwards."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as NewFigure

    with mpl.rc_context({**mpl.rcParamsDefault, **_STYLE, "backend": mpl.rcParams["backend"]}):
        figure = NewFigure(figsize=(NARROW if narrow else WIDE, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure


def beside(ax: Axes, points: float) -> Transform:
    """Data coordinates, moved sideways by printer's points."""
    from matplotlib.transforms import ScaledTranslation

    figure: Any = ax.get_figure()
    moved: Transform = ax.transData + ScaledTranslation(points / 72, 0, figure.dpi_scale_trans)
    return moved


def panels(figure: Figure, count: int, *, narrow: bool, columns: int = 2) -> list[Axes]:
    """Panels side by side, or stacked on a narrow page."""
    columns = 1 if narrow else min(columns, count)
    rows = -(-count // columns)
    axes = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for spare in axes[count:]:
        spare.remove()
    return list(axes[:count])


def svg(figure: Figure, name: str) -> str:
    """The figure as an `<svg>` element whose ids start with `name`: several may stand on one page."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(xlink:href|href)="#([^"]+)"', rf'\1="#{name}-\2"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r"font: ([^;\"']*?)\s*'DejaVu Sans'[^;\"]*", r"font: \1 system-ui, sans-serif", text)
    text = re.sub(r"font-family: 'DejaVu Sans'[^;\"]*", "font-family: system-ui, sans-serif", text)
    text = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", text, count=1)
    text = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", text, count=1)
    return text.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1).strip()


class KnobAxis:
    """Where the knob's values lie on the horizontal axis, and the ticks that name them."""

    def __init__(self, axis: Axis, values: Sequence[Value]):
        self.axis = axis
        self.values = tuple(values)

    @property
    def numeric(self) -> bool:
        """Whether the values are numbers, so that a line between them means something."""
        return all(is_number(value) for value in self.values)

    def position(self, value: Value) -> float:
        """The horizontal position of a value."""
        if self.axis == "ordered":
            return float([repr(item) for item in self.values].index(repr(value)))
        return float(value) if is_number(value) else math.nan

    def label(self, ax: Axes, title: str, width: float) -> None:
        """Scale, limits, and a tick at every tested value whose label has room (`width`: inches of the panel)."""
        from matplotlib.ticker import NullFormatter, NullLocator

        if self.axis == "log":
            ax.set_xscale("log")
        ax.set_xlabel(title)
        xs = [self.position(value) for value in self.values]
        if not xs:
            return
        low, high = self._limits(xs)
        ax.set_xlim(low, high)
        if len(xs) > MOST_NAMED and self.axis != "ordered":
            self._label_round_numbers(ax, xs, low, high)
            return
        labels = [value_text(value) for value in self.values]
        named = self._ticks_with_room(xs, labels, low, high, width)
        ax.set_xticks([xs[i] for i in named], [labels[i] for i in named])
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xticks([xs[i] for i in range(len(xs)) if i not in named], minor=True)
        ax.tick_params(axis="x", which="minor", length=3)
        ax.grid(visible=False, axis="x")

    def _label_round_numbers(self, ax: Axes, xs: list[float], low: float, high: float) -> None:
        """Round numbers named, and a small mark at each tested value."""
        from matplotlib.ticker import MaxNLocator

        if self.axis == "log":
            ticks = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
        else:
            ticks = [float(x) for x in MaxNLocator(6).tick_values(low, high) if low <= x <= high]
        ax.set_xticks(ticks, [value_text(x) for x in ticks])
        ax.set_xticks([], minor=True)
        ground = ax.get_xaxis_transform()
        ax.plot(xs, [0.012] * len(xs), "|", ms=4, mew=0.7, color=GREY, transform=ground, zorder=1)
        ax.grid(visible=False, axis="x")

    def _limits(self, xs: list[float]) -> tuple[float, float]:
        if self.axis == "log":
            low, high = math.log10(min(xs)), math.log10(max(xs))
            pad = 0.07 * (high - low) or 0.5
            return float(10 ** (low - pad)), float(10 ** (high + pad))
        pad = 0.07 * (max(xs) - min(xs)) or 0.5
        return min(xs) - pad, max(xs) + pad

    def _ticks_with_room(self, xs: list[float], labels: list[str], low: float, high: float, width: float) -> list[int]:
        """Ends first, then whatever does not run into a neighbour."""

        def inch(x: float) -> float:
            if self.axis == "log":
                return width * math.log(x / low) / math.log(high / low)
            return width * (x - low) / (high - low)

        reach = [0.5 * 0.075 * len(label) + 0.05 for label in labels]  # half a label, 8.5 pt
        order = [len(xs) - 1, 0, *range(1, len(xs) - 1)]
        named: list[int] = []
        for i in dict.fromkeys(order):
            if all(abs(inch(xs[i]) - inch(xs[k])) > reach[i] + reach[k] for k in named):
                named.append(i)
        return sorted(named)


def over_training(
    shown: Sequence[Panel], *, narrow: bool, name: str, with_set: bool = False, log_beyond: float = math.inf
) -> str:
    """A panel for each logged figure: mean over seeds as a line, range over seeds as a band.

    Args:
        shown: what to draw.
        narrow: below one another.
        name: begins the ids of the drawing.
        with_set: titles say of which pictures a figure is.
        log_beyond: a panel of positive means whose largest is so many times the least has a logarithmic axis.
    """
    columns = 1 if narrow else min(len(shown), 3) if len(shown) != 4 else 2
    # A value keeps its colour from panel to panel, also where one of them lacks it.
    labels = list(dict.fromkeys(line.label for panel in shown for line in panel.lines))
    with canvas(narrow=narrow, height=2.6 * -(-len(shown) // columns) + 0.6) as figure:
        handles = {}
        for ax, panel in zip(panels(figure, len(shown), narrow=narrow, columns=columns), shown, strict=True):
            for line in panel.lines:
                handles[line.label] = _draw_line(ax, line, CYCLE[labels.index(line.label) % len(CYCLE)])
            ax.set_title(panel.metric.axis if with_set else panel.metric.name)
            ax.set_xlabel("training step")
            ax.locator_params(axis="x", nbins=5)
            means = [mean for line in panel.lines for mean in line.mean]
            if min(means) > 0 and max(means) > log_beyond * min(means):
                _set_log_scale(ax)
        figure.legend(
            [handles[label] for label in labels], labels,
            loc="outside lower center", ncols=2 if narrow else 4, handlelength=2.6,
        )  # fmt: skip
        return svg(figure, name)


def _draw_line(ax: Axes, line: Line, style: tuple[str, Any, str]) -> Any:
    colour, dashes, marker = style
    ax.fill_between(line.steps, line.low, line.high, color=colour, alpha=0.13, lw=0)
    (handle,) = ax.plot(
        line.steps, line.mean, color=colour, ls=dashes, marker=marker, ms=3.5, lw=1.4,
        markevery=max(1, len(line.steps) // 8),
    )  # fmt: skip
    return handle


def _set_log_scale(ax: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
