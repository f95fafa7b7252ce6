"""Runs the studies on glyphs and writes docs/results: `make results` (all that changed), `python docs/generate_results.py pages`.

A study is run again when its plan (cells, data, seeds, protocol version) is no longer that of its committed result.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from claims import CLAIMS, Claim, Finding

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
DIGITS = 5
"""Significant digits that are kept: a seed moves the second."""
OF_THIS_MACHINE = re.compile(r" --(?:storage|tracking-uri|cache-dir) [^\s\"]+|,\"host\":\"[^\"]*\"")
FIGURES = ("curve-*.svg", "gains*.svg", "arms*.svg", "training-*.svg", "*.svg")
"""The picture of a study is the first of these that its report has."""


@dataclass(frozen=True)
class Study:
    """A study with the seeds and settings of its committed result."""

    name: str
    seeds: int = 3
    settings: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command that runs it."""
        sets = "".join(f" --set {setting}" for setting in self.settings)
        return f"tune-dml sweep {self.name} --dataset glyphs --seeds {self.seeds}{sets}"


STUDIES = tuple(
    Study(name, *rest)
    for name, *rest in (
        ("sec_eta", 5),
        ("sec_rho", 5),
        ("sec_losses",),
        ("sec_mu",),
        ("sec_tml", 5),
        ("sec_head",),
        ("sec_l2",),
        ("npair_scale",),
        ("sec_eta_rho",),
        ("sec_optimizer",),
        ("sec_linear_head",),
        ("sec_simclr",),
        ("sec_face", 3, ("training.epochs=4",)),
        ("dro_k",),
        ("dro_gamma",),
        ("dro_variants",),
        ("dro_chi2",),
        ("dro_grouped_gamma",),
        ("dro_gamma_margin",),
        ("dro_runs",),
        ("dro_imbalance", 3, ("training.steps=100",)),
        ("dro_runtime", 3, ("training.steps=20", "training.eval_every=20")),
        ("mpa_proxies",),
        ("mpa_family",),
        ("mpa_gamma",),
        ("mpa_tau",),
        ("mpa_delta_alpha",),
        ("mpa_proxies_tau",),
        ("label_noise",),
        ("later_losses",),
    )
)


def run(study: Study, storage: Path) -> None:
    """Run a study in a storage folder, and keep what its report says; a study that is there already is not run again."""
    words = [sys.executable, "-m", "tune_dml.cli", *study.command.split()[1:], "--name", study.name]
    subprocess.run([*words, "--storage", str(storage)], check=True)  # noqa: S603 - the words are ours
    keep(storage / study.name, study)


def keep(sweep: Path, study: Study) -> None:
    """Keep table, verdicts, picture and origin of a finished sweep, whose report was written by this version."""
    from tune_dml.record.results import load_results

    folder, report = RESULTS / study.name, sweep / "report"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copyfile(report / "csv" / "cells.csv", folder / "table.csv")
    picture = next(path for pattern in FIGURES for path in sorted((report / "figures").glob(pattern)))
    shutil.copyfile(picture, folder / "picture.svg")
    body = json.loads((report / "verdicts.json").read_text(encoding="utf-8"), parse_float=_short)
    text = OF_THIS_MACHINE.sub("", json.dumps(body, separators=(",", ":")))
    (folder / "verdicts.json").write_text(text + "\n", encoding="utf-8")
    commit = load_results(sweep.parent, sweep.name).provenance["git"]["commit"]
    origin = {
        "command": study.command,
        "plan": _plan(study),
        "commit": commit,
        "protocol_version": body["protocol_version"],
    }
    (folder / "origin.json").write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")


def _short(number: str) -> float:
    return float(f"{float(number):.{DIGITS}g}")


def _plan(study: Study) -> str:
    """Return the identity of the study's plan under the present code."""
    from trainables.config import parse_value
    from tune_dml.planning.plan import make_plan
    from tune_dml.planning.request import Request
    from tune_dml.planning.study import study_of

    pairs = (setting.partition("=") for setting in study.settings)
    settings = {path: parse_value(text) for path, _, text in pairs}
    request = Request(study.name, dataset="glyphs", seeds=study.seeds, settings=settings, name=study.name)
    return make_plan(study_of(request)).identity()


def changed() -> Iterator[Study]:
    """Studies without a committed result, or whose plan is another one now."""
    return (study for study in STUDIES if not has_result(study) or _origin(study)["plan"] != _plan(study))


def pages() -> dict[Path, str]:
    """Return every page that is generated from the committed results."""
    written = {RESULTS / study.name / "README.md": _page(study) for study in STUDIES if has_result(study)}
    return {RESULTS / "README.md": _index(), **written}


def has_result(study: Study) -> bool:
    """Whether docs/results has a result of the study."""
    return (RESULTS / study.name / "origin.json").exists()


def verdicts_of(study: Study) -> dict[str, Any]:
    """Read the verdicts of a committed result."""
    body: dict[str, Any] = json.loads((RESULTS / study.name / "verdicts.json").read_text(encoding="utf-8"))
    return body


def _origin(study: Study) -> Mapping[str, str]:
    origin: Mapping[str, str] = json.loads((RESULTS / study.name / "origin.json").read_text(encoding="utf-8"))
    return origin


INDEX = """# Results on glyphs

Generated by `python docs/generate_results.py pages` from the verdicts of each study; do not edit. No verdict is written
by hand.

The data are the embedded glyphs: 583 characters drawn in 20 typefaces, 219 classes for training, 73 others for validation.
A network of four small convolutions trains from random weights by the protocol of the data set
([protocols](../../search_spaces/protocols/ours.py)). The papers fine-tune a pretrained network for thousands of steps on
photographs: an order of methods can be compared with theirs, a level cannot. Test classes stay sealed.

## The claims of the three papers

A claim of an improvement holds if its simultaneous interval lies above zero. It does not hold if the interval excludes a gain
of one point, the smallest difference that matters. Otherwise it is undecided. A verdict is about glyphs and this protocol, not
about the papers' data. Differences are in points of R@1 on validation classes unless the study says otherwise.

"""


def _index() -> str:
    findings = [(claim, _judge(claim)) for claim in CLAIMS]
    counts = {
        v: sum(f.verdict == v for _, f in findings) for v in ("holds", "does not hold", "undecided", "not tested")
    }
    summary = ", ".join(f"{verdict} {count}" for verdict, count in counts.items() if count)
    rows = ["| paper | claim | printed in | study | on glyphs | interval |", "|---|---|---|---|---|---|"]
    rows += [_claim_row(claim, finding) for claim, finding in findings]
    studies = ["| study | seeds | trials | answer | code |", "|---|---|---|---|---|"]
    studies += [_study_row(study) for study in STUDIES if has_result(study)]
    missing = [f"`{study.name}`" for study in STUDIES if not has_result(study)]
    lacking = f"\nWithout a result yet: {', '.join(missing)}.\n" if missing else ""
    return (
        f"{INDEX}Of {len(CLAIMS)} claims: {summary}.\n\n"
        + "\n".join(rows)
        + "\n\n## The studies\n\n"
        + "\n".join(studies)
        + "\n"
        + lacking
    )


def _judge(claim: Claim) -> Finding:
    study = next(study for study in STUDIES if study.name == claim.study)
    if not has_result(study):
        return Finding("not tested", "the study has no result yet")
    return claim.test.judge(verdicts_of(study))


def _claim_row(claim: Claim, finding: Finding) -> str:
    done = claim.study in {study.name for study in STUDIES if has_result(study)}
    study = f"[{claim.study}]({claim.study}/README.md)" if done else claim.study
    cells = (claim.paper, claim.text, claim.source, study, f"**{finding.verdict}**", finding.evidence)
    return f"| {' | '.join(map(_plain, cells))} |"


def _study_row(study: Study) -> str:
    body, origin = verdicts_of(study), _origin(study)
    answer = " ".join(body["answer"]["sentences"])
    link = f"[{study.name}]({study.name}/README.md)"
    code = f"{str(origin['commit'])[:8]}, protocol {origin['protocol_version']}"
    cells = (link, str(len(body["seeds"])), str(len(body["trials"])), answer, code)
    return f"| {' | '.join(map(_plain, cells))} |"


def _page(study: Study) -> str:
    from tune_dml.catalogue import spaces

    body, origin, space = verdicts_of(study), _origin(study), spaces()[study.name]
    rows = ["| cell | seeds | mean | interval of the mean |", "|---|---|---|---|"]
    rows += [
        f"| {_plain(cell['label'])} | {cell['n']} of {cell['planned']} | {_number(cell['mean'])} | "
        f"{_number(cell['low'])} to {_number(cell['high'])} |"
        for cell in body["cells"]
    ]
    claims = [
        f"- {claim.text} ({claim.paper}, {claim.source}): **{f.verdict}**. {f.evidence}"
        for claim in CLAIMS
        if claim.study == study.name
        for f in (_judge(claim),)
    ]
    answer = "\n".join(f"> {sentence}" for sentence in body["answer"]["sentences"])
    said = "\n".join(f"- {sentence}" for sentence in body["sentences"])
    judged = "## Claims\n\n" + "\n".join(claims) + "\n\n" if claims else ""
    return (
        f"# {study.name}: {space.title}\n\n"
        f"{space.question}\n\n"
        f"    {origin['command']}\n\n"
        f"Generated from `verdicts.json`. Code: commit {origin['commit']}, protocol version {origin['protocol_version']}. "
        f"{len(body['trials'])} trials.\n\n"
        f"{answer}\n\n![The study's figure](picture.svg)\n\n{judged}"
        f"## Verdicts\n\n{said}\n\n## Cells: {body['metric']['label']}\n\n" + "\n".join(rows) + "\n"
    )


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def main(verb: str, storage: Path) -> None:
    """`run` runs what changed, `keep` takes finished sweeps of a storage over; both, and `pages`, write the pages."""
    if verb == "run":
        for study in changed():
            run(study, storage)
    if verb == "keep":
        for study in STUDIES:
            if (storage / study.name / "report" / "verdicts.json").exists():
                keep(storage / study.name, study)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else "sweeps"))
