"""The generated pages are what the code says now, and every identity of the specification has a test."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def methods_in(page):
    """What the page says of each method: formula and knobs. Which tests cite an identity changes with any new test."""
    return "".join(line for line in page.partition("## Identities")[0].splitlines(True) if not line.startswith("| [`"))


def test_the_page_of_methods_is_up_to_date():
    assert methods_in((ROOT / "docs" / "methods.md").read_text()) == methods_in(generator().page()), "run `make docs`"


def test_every_identity_has_a_test():
    covered = {number for numbers, _, _ in generator()._identity_tests() for number in numbers}
    assert covered == set(range(1, 62))


def test_links_between_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
