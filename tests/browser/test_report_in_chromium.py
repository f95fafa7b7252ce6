"""The report in a real browser: it fits a telephone, asks the network for nothing and complains about nothing."""

import html
import json
import re
import shutil
import subprocess

import pytest
from helpers.toys import write_sweep

from tune_dml.report import write_report

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-default-apps",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip
FAILURES = {
    ("rho=0.9", 1): ("diverged", "loss is not finite at step 180"),
    ("rho=1", 0): ("failed", "out of memory"),
}
# Run in a frame of a given width, so that the page lays itself out for it whatever the smallest window may be.
PROBE = """<!doctype html><meta charset="utf-8"><body>
<iframe id="frame" width="{width}" height="900"></iframe><pre id="found"></pre>
<script>
const frame = document.getElementById("frame");
frame.onload = () => {{
  const page = frame.contentDocument, view = frame.contentWindow, root = page.documentElement;
  const displayed = (item) => view.getComputedStyle(item).display !== "none";
  const shown = (name) => [...page.querySelectorAll("figure ." + name)].filter(displayed).length;
  const texts = [...page.querySelectorAll("figure svg text")].filter(e => e.getBoundingClientRect().width > 0);
  const pixels = (text) => {{
    const svg = text.closest("svg"), scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    return parseFloat(view.getComputedStyle(text).fontSize) * scale;
  }};
  const outside = (text) => {{
    const box = text.getBoundingClientRect(), around = text.closest("svg").getBoundingClientRect();
    return box.left < around.left - 1 || box.right > around.right + 1;
  }};
  document.getElementById("found").textContent = JSON.stringify({{
    width: root.clientWidth, content: root.scrollWidth, wide: shown("wide"), narrow: shown("narrow"),
    smallest: Math.min(...texts.map(pixels)), outside: texts.filter(outside).map(e => e.textContent),
    requests: view.performance.getEntriesByType("resource").map(e => e.name),
    loaded: [...page.images].filter(e => e.complete && e.naturalWidth > 0).length,
    focusable: [...page.querySelectorAll("a, summary, [tabindex='0']")].length,
  }});
}};
frame.srcdoc = {source};
</script></body>"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    results = write_sweep(folder / "sec_rho", failures=FAILURES)
    return write_report(results, folder / "report", unseal_test=True).html


def chromium(target, profile, *flags):
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, target.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def probe(report, folder, width):
    page = folder / "probe.html"
    source = json.dumps(report.read_text()).replace("</", "<\\/")
    page.write_text(PROBE.format(width=width, source=source))
    dump = chromium(page, folder / "profile", "--dump-dom", "--virtual-time-budget=5000").stdout
    found = re.search(r'<pre id="found">(.+?)</pre>', dump)
    assert found is not None
    return json.loads(html.unescape(found[1]))


@pytest.mark.parametrize(("width", "shown", "hidden"), [(390, "narrow", "wide"), (1280, "wide", "narrow")])
def test_page_fits_its_window_and_its_text_can_be_read(report, tmp_path, width, shown, hidden):
    found = probe(report, tmp_path, width)
    assert found["width"] <= width
    assert found["content"] <= found["width"], "the page scrolls sideways"
    assert found[shown] == 6
    assert found["loaded"] == 2
    assert found[hidden] == 0
    assert found["smallest"] >= 10.5, "figure text is smaller than 10.5 px"
    assert found["outside"] == [], "figure text runs out of its picture"
    assert found["requests"] == []
    assert found["focusable"] > 20


def test_no_complaint_and_no_request(report, tmp_path):
    log = tmp_path / "net.json"
    done = chromium(report, tmp_path / "profile", "--enable-logging=stderr", f"--log-net-log={log}", "--dump-dom")
    assert "CONSOLE" not in done.stderr
    assert "Where every number comes from" in done.stdout
    events = log.read_text()
    asked = set(re.findall(r'"url":"(https?://[^"]+)"', events))
    assert not {url for url in asked if "google" not in url and "gvt1" not in url}  # the browser's own errands aside
