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

from tune_dml.report.measured import Axis
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
def figure(*, narrow: bool, height: float) -> Iterator[Figure]:
    """An empty figure in the house style, `height` inches high; released afterwards."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as NewFigure

    with mpl.rc_context({**mpl.rcParamsDefault, **_STYLE, "backend": mpl.rcParams["backend"]}):
        made = NewFigure(figsize=(NARROW if narrow else WIDE, height), layout="constrained")
        FigureCanvasSVG(made)
        yield made


def beside(ax: Axes, points: float) -> Transform:
    """Data coordinates, moved sideways by printer's points."""
    from matplotlib.transforms import ScaledTranslation

    made: Any = ax.get_figure()
    moved: Transform = ax.transData + ScaledTranslation(points / 72, 0, made.dpi_scale_trans)
    return moved


def panels(made: Figure, count: int, *, narrow: bool, columns: int = 2, **grid: Any) -> list[Axes]:
    """Panels side by side, or stacked on a narrow page."""
    columns = 1 if narrow else min(columns, count)
    rows = -(-count // columns)
    axes = made.subplots(rows, columns, squeeze=False, **grid).ravel().tolist()
    for spare in axes[count:]:
        spare.remove()
    return list(axes[:count])


def svg(made: Figure, name: str) -> str:
    """The figure as an `<svg>` element whose ids start with `name`: several may stand on one page."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context(_STYLE):
        made.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
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


class Place:
    """Where the knob's values lie on the horizontal axis, and the ticks that name them."""

    def __init__(self, axis: Axis, values: Sequence[Value]):
        self.axis = axis
        self.values = tuple(values)

    def __call__(self, value: Value) -> float:
        """The horizontal position of a value."""
        if self.axis == "ordered":
            return float([repr(item) for item in self.values].index(repr(value)))
        return float(value) if is_number(value) else math.nan

    def dress(self, ax: Axes, title: str, width: float) -> None:
        """Scale, limits, and a tick at every tested value whose label has room (`width`: inches of the panel)."""
        from matplotlib.ticker import NullFormatter, NullLocator

        if self.axis == "log":
            ax.set_xscale("log")
        ax.set_xlabel(title)
        places = [self(value) for value in self.values]
        if not places:
            return
        low, high = self._limits(places)
        ax.set_xlim(low, high)
        if len(places) > MOST_NAMED and self.axis != "ordered":
            self._dress_many(ax, places, low, high)
            return
        labels = [value_text(value) for value in self.values]
        named = self._with_room(places, labels, low, high, width)
        ax.set_xticks([places[i] for i in named], [labels[i] for i in named])
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xticks([places[i] for i in range(len(places)) if i not in named], minor=True)
        ax.tick_params(axis="x", which="minor", length=3)
        ax.grid(visible=False, axis="x")

    def _dress_many(self, ax: Axes, places: list[float], low: float, high: float) -> None:
        """Round numbers named, and a small mark at each tested value."""
        from matplotlib.ticker import MaxNLocator

        if self.axis == "log":
            round_ = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
        else:
            round_ = [place for place in MaxNLocator(6).tick_values(low, high) if low <= place <= high]
        ax.set_xticks(round_, [value_text(float(place)) for place in round_])
        ax.set_xticks([], minor=True)
        ground = ax.get_xaxis_transform()
        ax.plot(places, [0.012] * len(places), "|", ms=4, mew=0.7, color=GREY, transform=ground, zorder=1)
        ax.grid(visible=False, axis="x")

    def _limits(self, places: list[float]) -> tuple[float, float]:
        if self.axis == "log":
            low, high = math.log10(min(places)), math.log10(max(places))
            pad = 0.07 * (high - low) or 0.5
            return float(10 ** (low - pad)), float(10 ** (high + pad))
        pad = 0.07 * (max(places) - min(places)) or 0.5
        return min(places) - pad, max(places) + pad

    def _with_room(self, places: list[float], labels: list[str], low: float, high: float, width: float) -> list[int]:
        """Ends first, then whatever does not run into a neighbour."""

        def inch(place: float) -> float:
            if self.axis == "log":
                return width * math.log(place / low) / math.log(high / low)
            return width * (place - low) / (high - low)

        reach = [0.5 * 0.075 * len(label) + 0.05 for label in labels]  # half a label, 8.5 pt
        order = [len(places) - 1, 0, *range(1, len(places) - 1)]
        named: list[int] = []
        for i in dict.fromkeys(order):
            if all(abs(inch(places[i]) - inch(places[k])) > reach[i] + reach[k] for k in named):
                named.append(i)
        return sorted(named)


def spread(values: Sequence[Value]) -> bool:
    """Whether the values are numbers, so that a line between them means something."""
    return all(is_number(value) for value in values)
