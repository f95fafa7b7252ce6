"""Run the studies on glyphs and objects and write docs/results: `make results` and `make results-rerun`.

`run STORAGE` runs studies without a result and studies whose plan (cells, data, seeds, protocol version) changed.
`rerun STORAGE [STUDY ...]` runs the studies of the papers' claims from scratch with as many other seeds.
`keep STORAGE` stores the results of finished sweeps.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from claims import CLAIMS
from generate_results import write_pages
from result_studies import FEATURES, OBJECTS, RESULTS, STORE, STUDIES, Study, has_result, origin_of

FIRST_OTHER_SEED = 1000
"""First seed of a run with other seeds; no study has as many seeds."""
_FAILED_TRIALS = 3  # exit status of a sweep with failed or diverged trials
DIGITS = 5
"""Significant digits of stored numbers; seeds already change the second."""
LOCAL_DETAILS = re.compile(
    r" --(?:storage|tracking-uri|cache-dir) [^\s\"`]+|(?<=[\s\"])/[^\s\"]+/(?=objects\.features)|,\"host\":\"[^\"]*\""
)
OMITTED = re.compile(r"val/((precision|map|ndcg)_at_\d+|queries\w*|tie_fraction)|train/(?!loss$|norm_mean$).*")
"""Metrics that follow from recall and MAP@R, that are equal in all trials, or that describe the training alone."""
FIGURES = ("curve-*.svg", "gains*.svg", "arms*.svg", "training-*.svg", "*.svg")
"""A study's picture is the first of these files in its report."""


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


def rerun(study: Study, storage: Path) -> None:
    """Run a study with other seeds in a storage folder unless it ran there before, and keep what its claims became."""
    folder = (storage / study.folder).parent.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    seeds = ",".join(str(FIRST_OTHER_SEED + number) for number in range(study.seeds))
    command = replace(study, has_current_look=()).commands[0].replace(f"--seeds {study.seeds}", f"--seeds {seeds}")
    if not _seeds_judged(folder / study.name):
        if study.data == "objects":
            _tune_dml(STORE.split(), folder)
        _tune_dml([*command.split()[1:], "--name", study.name, "--storage", str(folder)], folder)
    store_rerun(folder / study.name, study)


def store_rerun(sweep: Path, study: Study) -> None:
    """Store the verdicts on a study's claims by a finished sweep with other seeds."""
    verdicts = json.loads((sweep / "report" / "verdicts.json").read_text(encoding="utf-8"), parse_float=_round)
    body = {"seeds": verdicts["seeds"], "trials": len(verdicts["trials"]), "commit": _commit(sweep)}
    findings = {claim.text: asdict(claim.test.judge(verdicts)) for claim in CLAIMS if claim.study == study.name}
    text = json.dumps(body | {"findings": findings}, indent=1)
    (RESULTS / study.folder / "rerun.json").write_text(text + "\n", encoding="utf-8")


def _commit(sweep: Path) -> str:
    """Return the commit of the code that a sweep ran."""
    from tune_dml.record.results import load_results

    return str(load_results(sweep.parent, sweep.name).provenance["git"]["commit"])


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
    origin = {"command": "\n    ".join(study.commands), "plan": _plan(study), "commit": _commit(sweep)}
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


def changed(studies: Sequence[Study] = (*STUDIES, *OBJECTS)) -> Iterator[Study]:
    """Return the studies without a committed result, or with a changed plan."""
    return (study for study in studies if not has_result(study) or origin_of(study)["plan"] != _plan(study))


def with_claims() -> Iterator[Study]:
    """Return the studies of the papers' claims on glyphs, and of heads on objects: seconds to a minute a trial."""
    named = {claim.study for claim in CLAIMS}
    return (study for study in (*OBJECTS, *STUDIES) if study.name in named and study.data != "objects-network")


def main(verb: str, storage: Path, names: Sequence[str]) -> None:
    """Run changed studies (`run`), those of the claims with other seeds (`rerun`), or store finished sweeps (`keep`)."""
    if verb == "run":
        for study in changed():
            run(study, storage)
    if verb == "rerun":
        for study in with_claims():
            if not names or study.name in names:
                rerun(study, storage)
    if verb == "keep":
        for study in (*STUDIES, *OBJECTS):
            if (storage / study.folder / "report" / "verdicts.json").exists():
                store_result(storage / study.folder, study)
    write_pages()


if __name__ == "__main__":
    verb, storage, *names = sys.argv[1:]
    main(verb, Path(storage), names)
