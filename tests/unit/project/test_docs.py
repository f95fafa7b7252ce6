"""The generated pages match the code, their examples run, and citations of the specification have a target."""

import doctest
import importlib
import pkgutil
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import generate
import generate_architecture
import pytest
from helpers.commands import whole_command
from helpers.programs import ProgramRun
from helpers.sources import ROOT

from trainables.losses import LOSSES
from trainables.regularizers import REGULARIZERS
from tune_dml.catalogue import spaces
from tune_dml.planning.checks.prepare import prepare
from tune_dml.planning.request import Request


def methods_in(page):
    """Return formula and knobs of each method on the page, without the tests that cite an identity."""
    return "".join(line for line in page.partition("## Identities")[0].splitlines(True) if not line.startswith("| [`"))


def test_the_page_of_methods_is_up_to_date():
    assert methods_in((ROOT / "docs" / "methods.md").read_text()) == methods_in(generate.page()), "run `make docs`"


@pytest.mark.parametrize(
    ("page", "module", "write"),
    [
        ("verdicts.schema.json", "generate_schema", "page"),
        ("studies.md", "generate_studies", "page"),
        ("fidelity.md", "generate_fidelity", "page"),
        ("architecture.md", "generate_architecture", "page"),
        ("commands.md", "generate_commands", "page"),
        ("llms.txt", "generate_commands", "llms"),
    ],
)
def test_a_generated_page_is_up_to_date(page, module, write):
    assert (ROOT / "docs" / page).read_text() == getattr(importlib.import_module(module), write)(), "run `make docs`"


def specification():
    return (ROOT / "docs" / "specification.md").read_text()


def sections():
    """Return the numbers of the specification's headings."""
    return set(re.findall(r"^#{2,3} (\d+(?:\.\d+)?)\.? ", specification(), re.MULTILINE))


def identities():
    """Return the numbers listed in its section 12."""
    chapter = specification().partition("\n## 12. ")[2].partition("\n## 13. ")[0]
    return [int(number) for number in re.findall(r"^(\d+)\. ", chapter, re.MULTILINE)]


def test_every_identity_has_a_test_and_every_numbered_test_an_identity():
    tested = {number for numbers, _, _ in generate.identity_tests() for number in numbers}
    assert identities() == sorted(tested)


def test_every_cited_section_exists():
    cited = {}
    for package in ("trainables", "tune_dml", "search_spaces", "tests", "benchmarks"):
        for path in (ROOT / package).rglob("*.py"):
            for numbers in re.findall(r"docs/specification\.md,\s+sections?\s+([\d., andto]*\d)", path.read_text()):
                cited |= dict.fromkeys(re.findall(r"\d+(?:\.\d+)?", numbers), path.name)
    assert len(cited) > 10
    assert {number: file for number, file in cited.items() if number not in sections()} == {}


def test_every_method_names_a_section_that_exists():
    methods = {**LOSSES, **REGULARIZERS}
    assert {name: cls.section for name, cls in methods.items() if not set(cls.section.split(", ")) <= sections()} == {}


def test_identities_of_spaces_are_documented():
    known = set(identities())
    for name, space in spaces().items():
        for identity in space.identities:
            number, _, statement = identity.partition(": ")
            assert int(number) in known, (name, identity)
            assert statement, (name, identity)


def anchors_of(page):
    """Return the anchors of a page's headings, as GitHub names them."""
    words = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", word.lower()).replace(" ", "-") for word in words}


def test_links_between_pages_have_targets():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
            if "://" not in target:
                there = page.parent / target if target else page
                assert there.exists(), f"{page.name}: {target}"
                assert not anchor or anchor in anchors_of(there), f"{page.name}: {target}#{anchor}"


def commands_in(text):
    """Return (verb, flags) of every `tune-dml VERB ...` in a text; both verbs of a submitted command."""
    for line in re.findall(r"tune-dml ([^`\n\"#]+)", text):
        for verb, *words in (part.split() for part in re.split(r" -- |&& tune-dml ", f"{line} ") if part.split()):
            flags = [word.strip(".,;:)]").partition("=")[0] for word in words if word.startswith("--")]
            yield verb.strip(".,;:)"), [flag for flag in flags if re.fullmatch(r"--[a-z][a-z-]*", flag)]


def test_every_command_of_the_pages_and_cluster_files_exists():
    verbs = whole_command().commands
    told = set()
    clusters = (ROOT / "cluster.yaml", *(ROOT / "deploy").glob("**/*.*"))
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *clusters):
        if page.name in {"CHANGELOG.md", "log.md"}:  # they name commands of earlier versions
            continue
        for verb, flags in commands_in(page.read_text()):
            if not re.fullmatch("[a-z]+", verb) or (page.name == "CONTRIBUTING.md" and verb == "protocols"):
                continue
            assert verb in verbs, f"{page.name}: tune-dml {verb}"
            of_verb = [verbs[verb], *getattr(verbs[verb], "commands", {}).values()]
            known = {flag for each in of_verb for option in each.params for flag in option.opts}
            assert set(flags) <= known, f"{page.name}: tune-dml {verb} {set(flags) - known}"
            told.add(verb)
    assert {"submit", "logs", "cancel", "doctor", "sweep", "report"} <= told


def test_the_architecture_names_every_folder():
    """Its first two levels are the folders that exist."""
    named = {folder for folder in generate_architecture.folders() if len(folder.parts) < 3}
    ignored = [line.strip("/").rpartition("/")[2] for line in (ROOT / ".gitignore").read_text().split()]

    def tracked(path):
        return not any(fnmatch(part, pattern) for part in path.parts for pattern in (".git", *ignored))

    files = [path.relative_to(ROOT) for pattern in ("*/*", "*/*/*") for path in ROOT.glob(pattern) if path.is_file()]
    exist = {Path(*f.parts[:depth]) for f in files if tracked(f) for depth in (1, 2) if len(f.parts) > depth}
    assert exist == named


def test_functions_named_on_the_page_of_verdicts_exist():
    named = re.findall(r"`((?:stats|record|planning|report)\.[\w.]+)`", (ROOT / "docs" / "verdicts.md").read_text())
    assert len(named) > 20
    assert [name for name in named if pkgutil.resolve_name(f"tune_dml.{name}") is None] == []


def test_files_named_in_the_docs_exist():
    for page in PAGES:
        for name in re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|yaml|csv|md))`", page.read_text()):
            there = [ROOT / room / name for room in (".", "tune_dml", "trainables")]
            assert any(path.exists() for path in there), f"{page.name}: {name}"


def test_every_target_is_in_the_help_and_in_the_guide():
    makefile, guide = (ROOT / "Makefile").read_text(), (ROOT / "CONTRIBUTING.md").read_text()
    phony = re.search(r"\.PHONY: ((?:.*\\\n)*.*)", makefile)[1].replace("\\", " ").split()
    targets = set(phony) - {"help", "clean"}
    told = makefile.partition("help:")[2].partition("\n\n")[0]
    assert {target for target in targets if not re.search(rf"\b(?:make |bench-\w+ ){target}\b", told)} == set()
    assert {target for target in targets - {"demo"} if not re.search(rf"`(?:make )?{target}`", guide)} == set()


GENERATED = {"methods.md", "studies.md", "fidelity.md", "reliability.md", "commands.md"}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "adr").glob("*.md")]


def prose(page):
    """Yield (number, line) outside tables and code blocks."""
    code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        if not code and not line.startswith(("|", "    ", "![")):
            yield number, line


def test_lines_of_prose_have_at_most_120_characters():
    for page in PAGES:
        long = [number for number, line in prose(page) if len(line) > 120]
        assert page.name in GENERATED or not long, page.name


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/data.md", "docs/sweep-files.md"])
def test_commands_of_the_first_pages_are_accepted(page):
    """The command line parses them: every argument, flag and value has the right form."""
    command = whole_command()
    lines = re.findall(r"^(?: {4})?tune-dml (.*?)(?:\s#.*)?$", (ROOT / page).read_text(), re.MULTILINE)
    assert lines
    for line in lines:
        verb, *words = shlex.split(line.replace("...", ""))
        command.commands[verb].make_context(verb, words)


def test_the_first_pages_are_short():
    limits = {"README.md": 95, "CHANGELOG.md": 100, "docs/log.md": 300}
    assert {page for page, limit in limits.items() if len((ROOT / page).read_text().splitlines()) > limit} == set()
    assert len((ROOT / "README.md").read_text().split()) <= 900


MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("tune_dml", "trainables")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_documented_examples_print_the_documented_output(name):
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.attempted
    assert not results.failed


PAGE = (ROOT / "docs" / "programs.md").read_text()
SCRIPTS = dict(re.findall(r"### ([^\n]+)\n.*?```python\n(.*?)```", PAGE, re.DOTALL))
KNOBS = {
    "scikit-learn in ten lines": {"C": 0.1},
    "A plain PyTorch loop": {"lr": 0.1},
    "pytorch-metric-learning's trainer": {"margin": 0.1},
}


@pytest.mark.slow
@pytest.mark.parametrize("title", KNOBS)
def test_a_script_of_the_docs_trains(title, tmp_path):
    metric = "val/precision_at_1" if "metric-learning" in title else "val/accuracy"
    ran = ProgramRun(tmp_path, SCRIPTS[title], metric, KNOBS[title])
    assert ran.end.status == "finished", ran.end
    assert 0.6 < ran.end.metrics[metric] <= 1
    (tmp_path / "alone.py").write_text(SCRIPTS[title])
    alone = subprocess.run([sys.executable, "alone.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert metric in alone.stdout, alone.stderr


def test_each_documented_script_is_tested():
    assert set(SCRIPTS) == set(KNOBS)


def test_the_file_of_the_docs_can_be_planned():
    (file,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    Path("sweep.yaml").write_text(file)
    Path("train.py").touch()
    plan = prepare(Request("sweep.yaml")).plan
    assert len(plan.trials()) == 15
