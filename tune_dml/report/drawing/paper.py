"""Draw a canvas as PDF or PNG with matplotlib. Equal marks give equal bytes."""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

from tune_dml.report.drawing.canvas import Canvas, Mark, outline
from tune_dml.report.drawing.colours import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PIXELS_PER_INCH = 96
_FONT_SCALE = 0.86  # factor on font sizes, because matplotlib's font is wider than the page's


def render_file(canvas: Canvas, form: Literal["pdf", "png"]) -> bytes:
    """Return the canvas as a PDF or PNG file, in light colours."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    with _own_style():
        figure = _draw_figure(canvas)
        (FigureCanvasPdf if form == "pdf" else FigureCanvasAgg)(figure)  # these work without a screen
        buffer = io.BytesIO()
        metadata = {"CreationDate": None, "Creator": None, "Producer": None} if form == "pdf" else {"Software": None}
        figure.savefig(buffer, format=form, dpi=2 * _PIXELS_PER_INCH, metadata=metadata)
        return buffer.getvalue()


def matplotlib_figure(canvas: Canvas) -> Figure:
    """Return the canvas as a matplotlib figure."""
    with _own_style():
        return _draw_figure(canvas)


def _own_style() -> AbstractContextManager[None]:
    """Return a context with our matplotlib settings instead of the user's."""
    import matplotlib as mpl

    style = {"pdf.fonttype": 42, "font.family": "DejaVu Sans", "text.parse_math": False}
    return mpl.rc_context({**mpl.rcParamsDefault, **style, "backend": mpl.rcParams["backend"]})


def _draw_figure(canvas: Canvas) -> Figure:
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(canvas.width / _PIXELS_PER_INCH, canvas.height / _PIXELS_PER_INCH), facecolor="white")
    ax: Any = figure.add_axes((0, 0, 1, 1))
    ax.set_axis_off()
    ax.set_xlim(0, canvas.width)
    ax.set_ylim(canvas.height, 0)
    for order, mark in enumerate(canvas.marks):
        _draw_mark(ax, mark, order)
    return figure


def _draw_mark(ax: Any, mark: Mark, order: int) -> None:
    pen, colour = mark.pen, PALETTE[mark.pen.colour][0]
    xs, ys = [x for x, _ in mark.points], [y for _, y in mark.points]
    point = 72 / _PIXELS_PER_INCH
    if mark.kind == "line":
        dashes = tuple(float(part) * point for part in pen.dash.split())
        ax.plot(
            xs, ys, color=colour, lw=pen.width * point, alpha=pen.opacity, zorder=order, solid_capstyle="butt",
            linestyle=(0, dashes) if dashes else "-",
        )  # fmt: skip
    elif mark.kind == "area":
        ax.fill(xs, ys, color=colour, alpha=pen.opacity, lw=0, zorder=order)
    elif mark.kind == "dot" and mark.shape in {"circle", "hollow"}:
        hollow = mark.shape == "hollow"
        ax.plot(
            xs, ys, "o", ms=2 * mark.size * point, mfc="none" if hollow else colour, mec=colour if hollow else "none",
            mew=1.2 * point, alpha=pen.opacity, zorder=order,
        )  # fmt: skip
    elif mark.kind == "dot":
        corners = outline(mark.shape, *mark.points[0], mark.size)
        ax.fill([x for x, _ in corners], [y for _, y in corners], color=colour, alpha=pen.opacity, lw=0, zorder=order)
    else:
        ax.text(
            xs[0], ys[0], mark.text, color=colour, fontsize=mark.size * point * _FONT_SCALE, zorder=order,
            ha={"start": "left", "middle": "center", "end": "right"}[mark.anchor], va="baseline",
            fontweight="bold" if mark.bold else "normal",
        )  # fmt: skip
