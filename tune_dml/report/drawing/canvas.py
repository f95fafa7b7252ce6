"""Canvas of lines, areas, dots and text in pixels, written as SVG. Colours are roles of `colours`.

Text remains searchable and has the page's font. Equal marks give equal bytes.
"""

import html
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from tune_dml.report.drawing.colours import PALETTE
from tune_dml.text import one_line, shortened

Points = Sequence[tuple[float, float]]
Anchor = Literal["start", "middle", "end"]

_WIDTHS = {
    **dict.fromkeys(" .,:;'|!ijltfr()[]-I", 0.42),
    **dict.fromkeys("=+<>~w", 0.84),
    **dict.fromkeys("ABCDEFGHJKLNOPQRSTUVXYZ", 0.78),
    **dict.fromkeys("mMW%@", 1.0),
}
"""Widths of letters relative to the font size, for the widest common font; other letters have `_LETTER`."""
_LETTER = 0.66
FONT = 12.0  # font size of the axes in pixels


@dataclass(frozen=True)
class Pen:
    """Colour, width and style of a mark."""

    colour: str  # role in `colours.PALETTE`
    width: float = 1.4
    dash: str = ""
    opacity: float = 1.0


@dataclass(frozen=True)
class Mark:
    """One line, area, dot or text of a canvas."""

    kind: Literal["line", "area", "dot", "text"]
    points: tuple[tuple[float, float], ...]
    pen: Pen
    shape: str = ""  # shape of a dot: circle, square, diamond, triangle, down, left, right, cross, hollow
    size: float = 0.0  # a dot's radius, a text's font size
    text: str = ""  # the text, or the tooltip of another mark
    anchor: Anchor = "start"
    bold: bool = False
    halo: bool = False
    link: str = ""  # anchor of the page's row with details
    group: str = ""


@dataclass
class Canvas:
    """Marks in drawing order."""

    width: float
    height: float
    marks: list[Mark] = field(default_factory=list)
    _group: str = ""

    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        """Put the marks drawn in this context into a group that can be hidden."""
        before, self._group = self._group, name
        yield
        self._group = before

    def line(self, points: Points, pen: Pen, text: str = "") -> None:
        """Draw a line through points."""
        self.marks.append(Mark("line", tuple(points), pen, text=text, group=self._group))

    def area(self, points: Points, pen: Pen, text: str = "") -> None:
        """Fill the area within points."""
        self.marks.append(Mark("area", tuple(points), pen, text=text, group=self._group))

    def box(self, left: float, top: float, right: float, bottom: float, pen: Pen, *, text: str = "") -> None:
        """Fill a rectangle."""
        self.area([(left, top), (right, top), (right, bottom), (left, bottom)], pen, text)

    def dot(
        self, x: float, y: float, pen: Pen, shape: str = "circle", *, size: float = 3.0, text: str = "", link: str = ""
    ) -> None:
        """Draw a dot of some shape."""
        mark = Mark("dot", ((x, y),), pen, shape=shape, size=size, text=text, link=link, group=self._group)
        self.marks.append(mark)

    def text(
        self, x: float, y: float, text: str, colour: str = "soft", *, anchor: Anchor = "start",
        bold: bool = False, halo: bool = False,
    ) -> None:  # fmt: skip
        """Draw a line of text with its baseline at y; a `halo` keeps it readable on top of lines."""
        line, pen = one_line(text), Pen(colour)
        self.marks.append(
            Mark("text", ((x, y),), pen, size=FONT, text=line, anchor=anchor, bold=bold, halo=halo, group=self._group)
        )

    def svg(self) -> str:
        """Return an `<svg>` element for the page; the page's style sheet sets the colours."""
        return f'<svg viewBox="0 0 {_n(self.width)} {_n(self.height)}" focusable="false">{self._body()}</svg>'

    def document(self) -> str:
        """Return an SVG file in light colours."""
        used = sorted({mark.pen.colour for mark in self.marks})
        style = " ".join(f".k-{name} {{ color: {PALETTE[name][0]}; }}" for name in used)
        size = f'width="{_n(self.width)}" height="{_n(self.height)}" viewBox="0 0 {_n(self.width)} {_n(self.height)}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Helvetica, Arial, sans-serif">'
            f"<style>{SVG_STYLE} {style}</style>"
            f'<rect width="100%" height="100%" fill="{PALETTE["paper"][0]}"/>{self._body(links=False)}</svg>\n'
        )

    def _body(self, links: bool = True) -> str:
        parts, group = [], ""
        for mark in self.marks:
            if mark.group != group:
                parts.append("</g>" if group else "")
                group = mark.group
                parts.append(f'<g class="{html.escape(group)}">' if group else "")
            parts.append(_element(mark, links))
        return "".join(parts) + ("</g>" if group else "")


SVG_STYLE = (
    ".l { fill: none; stroke: currentColor; stroke-linejoin: round; } .a { fill: currentColor; stroke: none; } "
    ".h { fill: none; stroke: currentColor; stroke-width: 1.2; } .t { fill: currentColor; stroke: none; } "
    ".halo { stroke: var(--paper, white); stroke-width: 4px; paint-order: stroke; stroke-linejoin: round; }"
)
"""Style of lines, areas, hollow dots and texts, for pages and files."""


def text_width(text: str) -> float:
    """Estimate the width of a text in pixels; the estimate is usually slightly too large."""
    return FONT * sum(_WIDTHS.get(letter, _LETTER) for letter in text)


def fit_text(text: str, width: float) -> str:
    """Shorten a text to at most `width` pixels."""
    cuts = (shortened(text, length) for length in range(len(text), 4, -1))
    return next((cut for cut in cuts if text_width(cut) <= width), shortened(text, 4))


def _n(number: float) -> str:
    """Format a coordinate to a tenth of a pixel."""
    text = f"{number:.1f}"
    return text[:-2] if text.endswith(".0") else text


def _path(points: Points, closed: bool) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points) + ("Z" if closed else "")


def _element(mark: Mark, links: bool) -> str:
    pen, tip = mark.pen, html.escape(one_line(mark.text), quote=False)
    faint = f' opacity="{pen.opacity:g}"' if pen.opacity < 1 else ""
    if mark.kind == "text":
        return _text(mark)
    title = f"<title>{tip}</title>" if tip else ""
    if mark.kind == "dot":
        body = _dot(mark, title, faint)
        return f'<a href="#{html.escape(mark.link)}" tabindex="-1">{body}</a>' if links and mark.link else body
    if mark.kind == "area":
        return f'<path class="a k-{pen.colour}"{faint} d="{_path(mark.points, True)}">{title}</path>'
    dashes = f' stroke-dasharray="{pen.dash}"' if pen.dash else ""
    path = _path(mark.points, False)
    return f'<path class="l k-{pen.colour}" stroke-width="{pen.width:g}"{dashes}{faint} d="{path}">{title}</path>'


def _text(mark: Mark) -> str:
    (x, y), size = mark.points[0], f' font-size="{mark.size:g}"'
    position = f'x="{_n(x)}" y="{_n(y)}"'
    kind = "t halo" if mark.halo else "t"
    anchor = f' text-anchor="{mark.anchor}"' if mark.anchor != "start" else ""
    bold = ' font-weight="600"' if mark.bold else ""
    text = html.escape(mark.text, quote=False)
    return f'<text class="{kind} k-{mark.pen.colour}" {position}{size}{anchor}{bold}>{text}</text>'


def _dot(mark: Mark, title: str, faint: str) -> str:
    (x, y), size = mark.points[0], mark.size
    style = f'class="{"h" if mark.shape == "hollow" else "a"} k-{mark.pen.colour}"{faint}'
    if mark.shape in {"circle", "hollow"}:
        return f'<circle {style} cx="{_n(x)}" cy="{_n(y)}" r="{size:g}">{title}</circle>'
    return f'<path {style} d="{_path(outline(mark.shape, x, y, size), True)}">{title}</path>'


def outline(shape: str, x: float, y: float, size: float) -> list[tuple[float, float]]:
    """Return the corners of a dot's shape."""
    wide = 1.25 * size
    thin = 0.45 * size
    corners = {
        "square": [(-size, -size), (size, -size), (size, size), (-size, size)],
        "diamond": [(0.0, -wide), (wide, 0.0), (0.0, wide), (-wide, 0.0)],
        "triangle": [(0.0, -wide), (wide, size), (-wide, size)],
        "down": [(0.0, wide), (wide, -size), (-wide, -size)],
        "left": [(-wide, 0.0), (size, -wide), (size, wide)],
        "right": [(wide, 0.0), (-size, -wide), (-size, wide)],
        "cross": [
            (-size, -size + thin), (-size + thin, -size), (0.0, -thin), (size - thin, -size), (size, -size + thin),
            (thin, 0.0), (size, size - thin), (size - thin, size), (0.0, thin), (-size + thin, size),
            (-size, size - thin), (-thin, 0.0),
        ],
    }  # fmt: skip
    return [(x + dx, y + dy) for dx, dy in corners[shape]]
