"""The report in a real browser: it fits, sends no request, logs no error and is accessible.

Pages are laid out in a frame of a given width, whatever the smallest window may be, and measured by a script there.
"""

import html
import json
import re

import pytest
from chromium import NEEDS_CHROMIUM, chromium
from helpers.arms import MEANS, space_of_arms
from helpers.toys import ETA, RHO, STEEP, crossed, opened, rho_space, write_sweep

from tune_dml.planning.plan import Search
from tune_dml.report import write_report
from tune_dml.space import Grid, Knob, LogRange, Range, Space

pytestmark = NEEDS_CHROMIUM
FAILURES = {
    ("rho=0.9", 1): ("diverged", "loss is not finite at step 180"),
    ("rho=1", 0): ("failed", "out of memory: <b>CUDA</b>"),
}
PROBE = """<!doctype html><meta charset="utf-8"><body>
<iframe id="frame" width="{width}" height="900"></iframe><pre id="found"></pre>
<script>
const frame = document.getElementById("frame");
const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const bright = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ratio = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
frame.onload = () => {{
  const page = frame.contentDocument, view = frame.contentWindow, root = page.documentElement;
  for (const part of page.querySelectorAll("details")) part.open = {opened};
  const seen = (item) => item.getClientRects().length > 0 && item.checkVisibility();
  const texts = [...page.querySelectorAll("figure svg text")].filter(e => e.getBoundingClientRect().width > 0);
  const pixels = (text) => {{
    const svg = text.closest("svg"), scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    return parseFloat(view.getComputedStyle(text).fontSize) * scale;
  }};
  const outside = (text) => {{
    const box = text.getBoundingClientRect(), around = text.closest("svg").getBoundingClientRect();
    const across = box.left < around.left - 1 || box.right > around.right + 1;
    return across || box.top < around.top - 2 || box.bottom > around.bottom + 2;
  }};
  const overlaps = [];
  for (const svg of new Set(texts.map(t => t.closest("svg")))) {{
    const own = texts.filter(t => t.closest("svg") === svg).map(t => [t, t.getBoundingClientRect()]);
    own.forEach(([one, a], i) => own.slice(i + 1).forEach(([other, b]) => {{
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const tall = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && tall > 3) overlaps.push(one.textContent + " | " + other.textContent);
    }}));
  }}
  const ground = (item) => {{
    for (let up = item; up; up = up.parentElement) {{
      const colour = view.getComputedStyle(up).backgroundColor, parts = parse(colour);
      if (parts.length === 3 || parts[3] > 0.5) return parts;
    }}
    return parse(view.getComputedStyle(page.body).backgroundColor);
  }};
  const pale = [];
  const words = "p, h1, h2, h3, a, li, dt, dd, th, td, summary, figcaption, code, label span, .verdict, svg text";
  for (const item of page.querySelectorAll(words)) {{
    const own = [...item.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || !seen(item)) continue;
    const found = ratio(bright(parse(view.getComputedStyle(item).color)), bright(ground(item)));
    const name = `${{item.localName}}.${{item.getAttribute("class")}}`;
    if (found < 4.5) pale.push(`${{name}} ${{found.toFixed(2)}} ${{item.textContent.slice(0, 40)}}`);
  }}
  const first = page.querySelector("figure");
  const stops = [...page.querySelectorAll("a, button, input, summary, [tabindex]")].filter(e => e.tabIndex >= 0 && seen(e));
  const below = stops.filter(e => !e.closest("nav") && !e.classList.contains("skip"));
  const tops = below.map(e => e.getBoundingClientRect().top + view.scrollY);
  document.getElementById("found").textContent = JSON.stringify({{
    width: root.clientWidth, content: root.scrollWidth, height: root.scrollHeight, texts: texts.length,
    smallest: Math.min(99, ...texts.map(pixels)), outside: texts.filter(outside).map(e => e.textContent), overlaps,
    pale: [...new Set(pale)].slice(0, 12), requests: view.performance.getEntriesByType("resource").map(e => e.name),
    loaded: [...page.images].filter(e => e.complete && e.naturalWidth > 0).length, stops: stops.length,
    forwards: tops.filter((top, i) => i && top < tops[i - 1] - 200).length, positive: stops.filter(e => e.tabIndex > 0).length,
    first: first ? first.querySelector("svg").getBoundingClientRect().bottom : 0,
    answer: page.querySelector("#answer").getBoundingClientRect().bottom,
    copies: page.querySelectorAll("button.copy").length, sorters: page.querySelectorAll("table.searchable thead button").length,
    ...(({probe})(page, view)),
  }});
}};
frame.srcdoc = {source};
</script></body>"""

LR = Knob("optim.lr", LogRange(1e-5, 1e-1), symbol="lr", origin="user")
DIM = Knob("model.embedding_dim", Range(8, 512, integer=True, scale="log"), origin="user")
KIND = Knob("loss.name", Grid(("triplet", "contrastive", "npair"), scale="category"), symbol="<i>loss</i>\nkind")
MANY = tuple(
    Knob(path, LogRange(1e-5, 1e-1), symbol=path.partition(".")[2], origin="user")
    for path in (
        "optim.lr", "optim.weight_decay", "optim.backbone_lr_multiplier", "optim.loss_lr_multiplier", "optim.clip_value",
        "optim.loss_weight_decay", "optim.clip_norm", "optim.momentum", "optim.freeze_backbone_epochs", "loss.margin",
        "data.label_noise",
    )
)  # fmt: skip
SEARCHED = {(10.0 ** (-1.2 - 0.19 * i), 8 + 25 * i): 60 + 9 * ((7 * i) % 19) / 19 for i in range(19)}
EVERY = [(label, seed) for label in ("no SEC", *(f"rho={rho:g}" for rho in STEEP)) for seed in range(3)]
PAGES = {
    "one knob": {"seeds": range(5), "sd": 1.0},
    "one seed": {"seeds": (0,)},
    "partial": {"missing": [("rho=0.1", 2), ("rho=0.5", 1)], "failures": FAILURES},
    "failed": {"failures": dict.fromkeys(EVERY, ("failed", "no disk")), "histories": False, "evidence": False},
    "several knobs": {
        "space": rho_space(scientific=(RHO, ETA), published=()),
        "means": {(a, b): STEEP[a] + 3 * b for a, b in crossed(list(STEEP), [0.0, 0.5, 1.0])},
    },
    "search": {
        "space": Space("mine", "My own", "", None, (LR, DIM), {}),
        "means": SEARCHED,
        "baseline": None,
        "search": Search("tpe", len(SEARCHED)),
    },
    "many knobs": {
        "space": Space("mine", "My own", "", None, MANY, {}),
        "means": {
            tuple(10.0 ** (-1.2 - 0.013 * ((7 * i + 11 * k) % 97)) for k in range(len(MANY))): 60 + (7 * i) % 19
            for i in range(8)
        },
        "baseline": None,
        "search": Search("random", 8),
    },
    "methods": {"space": space_of_arms(), "means": MEANS, "dataset": "digits"},
    "odd names": {
        "space": Space("mine", "<b>My</b>\nown", "", None, (KIND,), {}),
        "means": {"triplet": 70.0, "contrastive": 66.0, "npair": 68.0},
        "baseline": None,
    },
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Name -> its page, written on first use."""
    written = {}

    def page(name):
        if name not in written:
            folder = tmp_path_factory.mktemp("browser")
            results = write_sweep(folder / "sec_rho", **PAGES.get(name, {"failures": FAILURES}))
            written[name] = write_report(opened(results) if name == "opened" else results, folder / "report").html
        return written[name]

    return page


def probe(report, folder, width, *, dark=False, unfolded=False, script="() => ({})"):
    """Return the measurements of a script in the page; `script` is a function of (document, window)."""
    page = folder / "probe.html"
    text = report.read_text()
    if dark:
        text = text.replace("(prefers-color-scheme: dark)", "all")
    source = json.dumps(text).replace("</", "<\\/")
    page.write_text(PROBE.format(width=width, source=source, opened=json.dumps(unfolded), probe=script))
    dump = chromium(page.as_uri(), folder / "profile", "--dump-dom", "--virtual-time-budget=5000").stdout
    found = re.search(r'<pre id="found">(.+?)</pre>', dump)
    assert found is not None
    return json.loads(html.unescape(found[1]))


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_page_fits_its_window_and_its_text_is_legible(pages, tmp_path, name, width):
    found = probe(pages(name), tmp_path, width, unfolded=True)
    assert found["width"] <= width
    assert found["content"] <= found["width"], "the page scrolls sideways"
    assert found["texts"] > 0
    assert found["smallest"] >= 10, "figure text is smaller than 10 px"
    assert found["outside"] == [], "figure text runs out of its picture"
    assert found["overlaps"] == [], "figure texts lie on each other"
    assert found["requests"] == []


@pytest.mark.parametrize("name", ["one knob", "partial", "several knobs", "opened"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_contrast_is_enough_in_both_schemes(pages, tmp_path, name, dark):
    assert probe(pages(name), tmp_path, 1280, dark=dark, unfolded=True)["pale"] == []


def test_answer_and_first_figure_are_seen_at_once_and_keyboard_reaches_every_part(pages, tmp_path):
    found = probe(pages("one knob"), tmp_path, 1280)
    assert found["first"] <= 900
    assert found["height"] <= 5000
    assert found["loaded"] == 2
    assert found["stops"] > 20
    assert found["positive"] == 0
    assert found["forwards"] == 0, "the tab order jumps back"


TOGGLE = """(page, view) => {
  const figure = page.querySelector("figure"), curve = figure.querySelector(".wide .printed-0");
  const shown = () => view.getComputedStyle(curve).display !== "none";
  const before = shown();
  figure.querySelector("input.show-printed-0").click();
  const after = shown();
  figure.querySelector("input.pick1").click();
  const views = [...figure.querySelectorAll(".view")].map(item => view.getComputedStyle(item).display !== "none");
  return { before, after, views };
}"""


def test_printed_curves_and_views_are_chosen_without_any_script(pages, tmp_path):
    page = tmp_path / "bare.html"
    page.write_text(re.sub(r"<script>.*?</script>", "", pages("one knob").read_text(), flags=re.DOTALL))
    found = probe(page, tmp_path, 1280, script=TOGGLE)
    assert (found["before"], found["after"]) == (True, False)
    assert found["views"] == [False, True]
    assert found["sorters"] == 0


SORT = """(page, view) => {
  const table = page.querySelector("table.searchable"), rows = () => [...table.tBodies[0].rows].filter(row => !row.hidden);
  const column = [...table.tHead.rows[0].cells].findIndex(cell => cell.textContent.includes("R@1"));
  table.tHead.rows[0].cells[column].querySelector("button").click();
  const values = rows().map(row => row.cells[column].dataset.value).filter(value => value !== undefined).map(Number);
  const search = page.querySelector("input[type=search]");
  search.value = "rho=0.01 finished";
  search.dispatchEvent(new Event("input"));
  const found = rows().length;
  view.location.hash = "#" + table.tBodies[0].rows[0].id;
  return { values, found };
}"""


def test_trials_are_sorted_and_searched(pages, tmp_path):
    found = probe(pages("partial"), tmp_path, 1280, script=SORT)
    assert found["values"] == sorted(found["values"])
    assert len(found["values"]) == 14
    assert found["found"] == 3
    assert found["sorters"] > 5


@pytest.mark.parametrize("address", ["", "#%"])
def test_page_logs_no_error_and_sends_no_request(pages, tmp_path, address):
    log = tmp_path / "net.json"
    flags = ("--enable-logging=stderr", f"--log-net-log={log}", "--dump-dom")
    done = chromium(pages("one knob").as_uri() + address, tmp_path / "profile", *flags)
    assert "CONSOLE" not in done.stderr
    assert "Where every number comes from" in done.stdout
    events = log.read_text()
    asked = set(re.findall(r'"url":"(https?://[^"]+)"', events))
    assert not {url for url in asked if "google" not in url and "gvt1" not in url}  # the browser's own errands aside
