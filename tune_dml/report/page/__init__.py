"""The page: one file without server or network; works by keyboard, on paper, in dark mode and on phones.

The page is complete without scripts; `page.js` adds tooltips, sorting and search.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from trainables.errors import raise_if_any
from trainables.files import write_whole
from tune_dml.planning.request import folder_problems
from tune_dml.report.analysis import Analysis
from tune_dml.report.cells import TableCell
from tune_dml.report.drawing.canvas import SVG_STYLE
from tune_dml.report.drawing.colours import css_classes, css_variables
from tune_dml.report.section import Section, Table
from tune_dml.report.summary import Answer, answer_of
from tune_dml.text import json_value

_LONG = 40  # characters of a text from which on it may break, because it would push the numbers out of the page
_MAX_ROWS = 1500  # maximum number of rows of a table on the page; the CSV file has all rows
_MAX_CHOICES = 16  # maximum number of views and of toggles of one figure


@dataclass(frozen=True)
class PageHead:
    """Texts at the head and the foot of a page."""

    name: str  # title of the browser window
    kicker: str  # line above the title: kind of page, sweep, data set
    title: str
    answer: Answer
    footer: str
    downloads: str = ""  # text that lists the other files in the page's folder; may be empty
    many_knobs: bool = False  # whether the table of contents names the knob of each section


def page_text(analysis: Analysis, sections: Sequence[Section]) -> str:
    """Return the HTML page of a sweep."""
    results, plan = analysis.results, analysis.results.plan
    kicker = f"Sensitivity report: sweep {plan.name} on {plan.dataset}"
    data = f", data {plan.data_digest[:12]}" if plan.data_digest else ""
    footer = f"Plan {plan.identity()}{data}, protocol version {plan.protocol_version}."
    if results.imported is not None:
        kicker = f"Sensitivity report of {results.imported.source}"
        footer = f"Read from {results.imported.source}; trained elsewhere."
    downloads = (
        "verdicts.json (every number in full precision, by a published schema), csv/, tables.md, tables.tex and "
        "figures/ (SVG; PDF and PNG with `tune-dml report --figures all`)"
    )
    title = plan.space.title or plan.name
    answer = answer_of(analysis, sections)
    return _page_of(PageHead(plan.name, kicker, title, answer, footer, downloads, len(analysis.knobs) > 1), sections)


def writable(folder: Path) -> Path:
    """Return the folder; raise ConfigError if it is not writable."""
    raise_if_any(folder_problems("-o", folder.absolute(), "Name another folder for the report: -o DIR."))
    return folder


def write_page(
    folder: Path, name: str, head: PageHead, sections: Sequence[Section], data: Mapping[str, Any]
) -> tuple[Path, Path]:
    """Write `NAME.html` and `NAME.json` into a folder, which is created if missing.

    The JSON file has the numbers; those that are not finite become null.
    """
    folder = writable(folder)
    html_file, json_file = folder / f"{name}.html", folder / f"{name}.json"
    write_whole(html_file, _page_of(replace(head, downloads=f"{name}.json (every number in full precision)"), sections))
    write_whole(json_file, json.dumps(json_value(data), indent=1, allow_nan=False, ensure_ascii=False) + "\n")
    return html_file, json_file


def _page_of(head: PageHead, sections: Sequence[Section]) -> str:
    """Return the HTML of any page: head, sections with a title, and the folded appendix."""
    script = _part("page.js")
    titled = [section for section in sections if section.title]
    page: str = _template().render(
        head=head,
        answer=head.answer,
        shown=[section for section in titled if not section.appendix],
        appendix=[section for section in titled if section.appendix],
        css=_css(_part("page.css")),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return page


def _part(name: str) -> str:
    return files("tune_dml.report.page").joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> Any:
    """Compile the page's template once, which takes a third of the time of a small report."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters.update(code=_with_code, shortened=_shortened, rows=_rows)
    environment.filters.update(kind=lambda block: type(block).__name__, first_word=lambda text: text.partition(" ")[0])
    return environment.from_string(_part("page.html"))


def _css(text: str) -> str:
    light, dark = css_variables(dark=False), css_variables(dark=True)
    rules = [
        f":root {{ {light} }}",
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}",
        f"@media print {{ :root {{ {light} }} }}",
        text.strip(),
        SVG_STYLE,
        css_classes(),
    ]
    for index in range(_MAX_CHOICES):
        rules.append(f"figure:has(.pick{index}:checked) .view{index} {{ display: block; }}")
        rules.append(f"figure:has(.show-printed-{index}:not(:checked)) .printed-{index} {{ display: none; }}")
    return "\n".join(rules)


def _with_code(text: str) -> Markup:
    """Escape a text, and mark text between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text)))  # noqa: S704 - escaped before


def _shortened(table: Table) -> Table:
    table = table.without(table.csv_only)
    if len(table.rows) <= _MAX_ROWS:
        return table
    caption = (
        f"{table.caption} The first {_MAX_ROWS} of {len(table.rows)}; the CSV or JSON file beside the page has all."
    )
    return replace(table, caption=caption, rows=table.rows[:_MAX_ROWS])


def _rows(table: Table) -> str:
    """Render the rows in Python; the template would take a second for every ten thousand cells."""
    parts = []
    for row in table.cells:
        parts.append(f'<tr id="{html.escape(row[0].anchor)}">' if row[0].anchor else "<tr>")
        for index, item in enumerate(row):
            tag, scope = ("th", ' scope="row"') if index == 0 else ("td", "")
            is_number, is_long = item.numeric or table.numeric[index], len(item.text) > _LONG
            kind = ' class="n"' if is_number else ' class="long"' if is_long else ""
            value = f' data-value="{item.value}"' if item.numeric else ""
            parts.append(f"<{tag}{scope}{kind}{value}>{_content(item)}</{tag}>")
        parts.append("</tr>\n")
    return "".join(parts)


def _content(item: TableCell) -> str:
    if item.links:
        return " ".join(f'<a href="{html.escape(address)}">{html.escape(text)}</a>' for text, address in item.links)
    text = html.escape(item.text)
    return f'<span class="mark {html.escape(item.mark)}">{text}</span>' if item.mark else text
