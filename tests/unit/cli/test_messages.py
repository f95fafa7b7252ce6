"""Messages about wrong inputs: rule, value, place and remedy, in terms of flags and file keys. Nothing is written.

The record is `messages.txt`. After an intended change:

    python tests/unit/cli/test_messages.py
"""

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from helpers.toys import write_sweep

from tune_dml.cli import main

SAID = Path(__file__).with_name("messages.txt")
LINES = """
plan sec_roh
plan sec_rho --dataset glyfs
plan sec_rho --set loss.margn=0.2
plan sec_rho --set loss.name=tripplet
plan sec_rho --set training.steps=x
plan sec_rho --set training.steps=100 --set training.eval_every=200
plan sec_rho --set training.steps=0
plan sec_rho --set foo=1
plan sec_rho --set rho=0.5
plan sec_rho --set optim=0.5
plan sec_rho --set optim.learnrate=0.5
plan sec_rho --set regularizer.rho=1
plan sec_rho --set seed=3
plan sec_rho --set seed.x=3
plan sec_rho --set data.name=digits
plan sec_rho --set loss.margin
plan sec_rho --set batch.batch_size=7
plan sec_rho --set model.backbone=resnet51
plan sec_rho --set optim.lr=-1
plan sec_rho --set optim.lr=nan
plan sec_rho --set batch.sampler=nothing
plan sec_rho --set data.folds=3 --set data.fold=5
plan sec_rho --seeds 0 --set loss.margin
plan sec_rho --seeds 1,1 --margin 0 --search tpe --arm x --set lr=x
plan sec_rho --num-samples 5
plan sec_rho --protocol glyphs/tripet
plan sec_rho --protocol sec/cub200
plan sec_rho --tune lr
plan sec_rho --tune regularizer.roh
plan SEC_RHO
plan sec_rho --storage file
plan sec_rho --tune optim.lr=fast,slow
plan sec_rho --tune regularizer.rho=1,1.0
plan sec_rho --tune regularizer.rho
plan sec_rho --tune loss.name
plan sec_rho --tune optim.lr=
plan sec_rho --tune optim.lr=0.1,0.10
plan sec_rho --tune optim.lr=0.1 --tune optim.lr=0.2
plan --command true --param lr=1,1 --param lr=2 --metric x --goal maximize --margin 1
plan --command true --param lr=1 --metric x --goal maximize --margin 1
plan --command true --param lr=1,2 --metric= --goal maximize --margin 1
plan sec_rho --search bayes
plan sec_rho --set optim.lr=true
plan sec_rho --set loss.margin=true
compare toy
compare toy toy
list --storage file
open toy
plan sec_rho --workers 0 --gpus-per-worker 1.5
plan sec_rho --gpus 1
plan sec_rho --seed 3
sweep sec_rho --n-trials 5
sweep sec_rho --sampler tpe
sweep sec_rho --timeout 5
sweep sec_rho --study-name x
sweep sec_rho --loss arcface
sweep sec_rho --embed-dim 64
sweep sec_rho --dry-run
sweep sec_rho --search best
sweep
train --seed x
sweep sec_rho --nmae x
plan sec_rho --margin -1
plan sec_rho --margin nan
plan sec_rho --margin inf
submit cluster.yaml sweep sec_rho --storage /s
submit none.yaml -- sweep no.yaml
plan sec_rho --name ../x
plan sec_rho --name=
plan sec_rho --dataset image_folder
plan sec_rho --dataset image_folder --data-root nowhere
plan sec_rho --dataset digits --data-root nowhere
plan folder
plan no.yaml
plan
swep sec_rho
sweep sec_rho --max-seeds 5
sweep sec_rho --until-decided --max-seeds 1 --budget 0
sweep sec_rho --storage file
sweep sec_rho --time-budget 0 --max-concurrent 0
sweep sec_rho --storage unmounted
sweep sec_rho --margin -1 --storage file/sweeps -o file
sweep sec_rho --dataset digits --name toy --seeds 5
status tyo
status file --storage .
resume nothing
confirm nothing
open nothing
status toy --timeout 5
show sec_roh
rm toy
rm folder --yes
rm .. --yes
rm toy/.. --yes
rm link --yes
mv link new
mv toy ../x
mv toy ..
mv toy other
schema -o nowhere/schema.json
schema -o .
resume toy --margin -1 -o file
extend toy --seeds 5 --margin -1 -o file
report toy --margin 0 -o file
report --from-csv none.csv --metric acc --margin 1
extend toy
extend toy --add margin=0.3
extend toy --add loss.margin
extend toy --add loss.margin=-1
extend toy --num-samples 3
extend toy --arm x
confirm toy --top 0 --seeds 0
confirm toy --seeds 0,1
train deadbeef
train --protocol glyphs/tripet
train --set optim.lrr=3
train --dataset glyfs --seed -1
train --threads 0
features digits --workers -1 -o new.features
datasets verify glyhps
datasets verify image_folder
datasets verify digits --root . --set optim.lr=1
datasets verify objects --set size=64 --set data.size=96
report a b --figures pdf --tracking-uri x --experiment y
report --from-csv runs.csv --unseal-test --tracking-uri x
atlas --table atlas.parquet --loss triplet --set training.steps=3
skill -o agents
doctor slurm --data-root x
doctor --partition x
doctor slurm --cluster x
plan sec_rho --data-root ''
plan sec_rho --storage=
plan sec_rho --tune layers=[64,64],[128]
plan dro_imbalance --arm SH --set loss.k=4
plan sec_rho --set evaluation.feature_maps=true --set evaluation.sheet_queries=0
plan sec_losses --arm Triplet --arm Triplet+SEC --set regularizer.name=none
plan sec_rho --dataset cub200 --protocol sec/sop --tune optim.rate
plan sec_rho --dataset digits --search random --num-samples 4 --tune batch.batch_size=9,300
reproduce sec-supplement 9
reproduce sec-supplement 8
reproduce sec 5
reproduce mpa 3
reproduce dro 1 --dataset sop
report toy --check sensitve(rho)
report toy --check 'sensitive(rho'
report toy --check ''
report toy --check "__import__('os')"
report toy --check complete(rho)
report toy --check 'sensitive and '
report toy --check 'sensitive(rho) or better(x)'
report toy --check 'sensitive) and complete'
train --set regularizer.name=sec_fixed --set regularizer.mu=true
train --set regularizer.name=sec_fixed --set regularizer.mu=-1
train --set evaluation.ks=[1,true]
train --set evaluation.ks=[1,0]
train --set optim.lr=inf
train --set optim.lr=abc
train --set optim.lr=null
train --set optim.lr=[1]
train --set optim.lr_schedule=milestones
train --set optim.lr_schedule=milestones --set optim.lr_milestones=[5,3]
train --set optim.lr_schedule=cosine --set optim.lr_milestones=[5]
train --set optim.lr_schedule=cosinus
train --set optim.momentum=0.5
train --set augment.name=crop_flip --set augment.scale=[0.5,0.1] --set augment.ratio=[0.0,1.0] --set augment.crop=300
train --set augment.name=crop_flips
train --set loss.name=tripplet --set regularizer.rho=1.5 --set optim.lrr=0.1 --set batch.batch_size=91 --set regularizer.name=sec --set model.backbone=smal_conv --set lossy.margin=1
train --set task.name=contrastive --set loss.name=tripplet --set augment.name=simclr --set augment.crop=3 --set data.split=class_disjoint
train --set task.name=contrastiv
plan sec_simclr --dataset glyphs --set data.split=class_disjoint
plan sec_simclr --dataset glyphs --set batch.sampler=m_per_class --set batch.batch_size=18
plan sec_simclr --dataset glyphs --set augment.name=none
plan sec_face --dataset glyphs --set data.split=shared_classes
plan sec_face --dataset glyphs --set task.test_sets='["lfw_bim"]'
plan sec_face --dataset glyphs --set task.pairs=10
plan sec_face --dataset glyphs --set task.pears=3
plan sec_face --dataset glyphs --set task.validation_sets='["lfw_bin"]' --set task.evaluation_root=/faces --set task.test_sets='["lfw_bin"]'
plan sec_face --dataset glyphs --set task.validation_sets='["lfw_bin"]' --set task.evaluation_root=/faces --set data.split=paper_test_selection
train --set augment.name=crop_flip --set augment.flip=2
sweep sec_rho --trial-files gs://bucket/x
sweep sec_rho --trial-files /mnt/shared
sweep sec_rho --trial-files s3://
sweep sec_rho --trial-files s3://Bucket/x
sweep sec_rho --trial-files s3://key:planted@bucket/x
sweep sec_rho --trial-files s3://key:planted/and+more@bucket/x
sweep sec_rho --trial-files s3://bucket/x?endpoint_override=http://key:planted/more@host
sweep sec_rho --trial-files s3://[bucket/x
sweep sec_rho --trial-files s3://bucket/x?endpoint_override=http://key:planted@host:1
sweep sec_rho --trial-files s3://bucket/x?access_key=planted
""".strip().splitlines()  # noqa: E501
MARGIN = "parameters: {loss.margin: {values: [0.1, 0.2]}}"
TWO = "arms: {a: {loss.name: triplett}, b: {loss.name: npair}}\nmetric: {name: val/recal}\ndataset: digits"
TIED = "arms: {a: {settings: {loss.name: dro_topk}, ties: {loss.k: {knob: optim.lrr, factor: 2}}}}"
RANDOM = "method: random\nrun_cap: 4\ndataset: digits\nfixed: {regularizer.name: sec, regularizer.eta: 0.5}"
AGAINST = "arms: {plain: {loss.name: triplet}, sec: {settings: {loss.name: triplet, regularizer.name: sec}, against: "
FILES = {
    "empty": "",
    "a list": "- method: grid",
    "no YAML": "method: [grid",
    "a tab": "parameters:\n\tloss.margin: 1",
    "a key twice": f"seeds: 3\n{MARGIN}\nseeds: 4",
    "nothing to compare": "dataset: glyphs",
    "one value": "parameters: {loss.margin: {values: [0.1]}}",
    "unknown key": "paramters: {loss.margin: {values: [0.1]}}",
    "a key of another tool": f"{MARGIN}\nproject: mine",
    "keys of other tools": f"{MARGIN}\nentity: me\nearly_terminate: {{type: hyperband}}\nnuisance: [optim.lr]\nn_trials: 3",
    "two mistakes and a margin": f"{TWO}\nmargin: -1",
    "two mistakes and seeds": f"{TWO}\nseeds: [0, 0]",
    "two mistakes and a baseline": f"{TWO}\nbaseline: c",
    "two mistakes and a setting": f"{TWO}\nfixed: {{loss.mrgin: 1}}",
    "a tie to no knob": f"{TIED}\nparameters: {{optim.lr: {{values: [1, 2]}}}}",
    "a list on a logarithmic scale": "parameters: {loss.margin: {values: [1, 2], log: true}}",
    "two distributions": "parameters: {loss.margin: {min: 0.1, max: 1, log: true, distribution: uniform}}",
    "seeds of none": f"{MARGIN}\nseeds: 0",
    "seeds in words": f"{MARGIN}\nseeds: many",
    "seeds of a truth": f"{MARGIN}\nseeds: true",
    "seeds twice": f"{MARGIN}\nseeds: [0, 0]",
    "metric in short": f"{MARGIN}\nmetric: val/recall_at_1",
    "metric unknown": f"{MARGIN}\nmetric: {{name: val/recal_at_1}}",
    "metric's key": f"{MARGIN}\nmetric: {{nam: val/recall_at_1}}",
    "metric's goal": f"{MARGIN}\nmetric: {{goal: maximise}}",
    "method": f"{MARGIN}\nmethod: gird",
    "values in short": "parameters: {loss.margin: [0.1, 0.2]}",
    "values and value": "parameters: {loss.margin: {value: 1, values: [0.1, 0.2]}}",
    "no values": "parameters: {loss.margin: {values: []}}",
    "values of one number": "parameters: {loss.margin: {values: 3}}",
    "no parameters": "parameters: {}",
    "half a range": "parameters: {loss.margin: {min: 1}}",
    "a range in a grid": "parameters: {loss.margin: {min: 0.1, max: 0.5}}",
    "a range turned round": "parameters: {loss.margin: {min: 0.5, max: 0.1}}\nmethod: tpe\nrun_cap: 5",
    "a distribution": "parameters: {loss.margin: {min: 0.1, max: 0.2, distribution: normal}}",
    "settings nested": "parameters: {loss: {margin: {values: [0.1, 0.2]}}}",
    "unknown knob": "parameters: {loss.margn: {values: [0.1, 0.2]}}",
    "knob in short": "parameters: {margin: {values: [0.1, 0.2]}}",
    "truth for a number": "parameters: {loss.margin: {values: [true, false]}}",
    "a value twice": "parameters: {loss.margin: {values: [0.1, 0.1]}}",
    "searched and fixed": f"{MARGIN}\nfixed: {{loss.margin: 1}}",
    "fixed as a list": f"{MARGIN}\nfixed: [loss.margin]",
    "fixed wrongly": f"{MARGIN}\nfixed: {{training.step: 300, optim.lr: fast}}",
    "data set": f"{MARGIN}\ndataset: glyfs",
    "no folder": f"{MARGIN}\ndataset: image_folder",
    "no cap": "parameters: {loss.margin: {min: 0.1, max: 0.5}}\nmethod: bayes",
    "a cap of none": f"{MARGIN}\nmethod: bayes\nrun_cap: 0",
    "a cap of a grid": f"{MARGIN}\nrun_cap: 5",
    "margin": f"{MARGIN}\nmargin: 0",
    "name": f"{MARGIN}\nname: my sweep",
    "protocol": f"{MARGIN}\nprotocol: glyphs/tripet",
    "tune": f"{MARGIN}\ntune: [lr]",
    "tune in short": f"{MARGIN}\ntune: optim.lr",
    "baseline": f"{MARGIN}\nbaseline: none",
    "half a baseline": f"{MARGIN}\nbaseline: {{label: none}}",
    "baseline's setting": f"{MARGIN}\nbaseline: {{label: none, settings: {{loss.mrgin: 0}}}}",
    "an arm's setting": "arms: {triplet: {loss.name: tripplet}, ms: {loss.name: multi_similarity}}",
    "an arm's key": "arms: {triplet: {name: triplet}, ms: {loss.name: multi_similarity}}",
    "an arm's key beside its settings": "arms: {a: {settings: {loss.name: triplet}, knob: []}, b: {}}",
    "an arm without a name": "arms: {a: {loss.name: triplet}, ' ': {loss.name: npair}}",
    "arms as a list": "arms: [triplet, ms]",
    "an arm's knob": f"arms: {{a: {{settings: {{loss.name: triplet}}, knobs: [loss.margn]}}, b: {{}}}}\n{MARGIN}",
    "an arm's tie": "arms: {a: {ties: {loss.margin: {knob: optim.lr}}}, b: {loss.name: npair}}",
    "an arm's protocol": "arms: {a: {protocol: glyphs/tripet}, b: {loss.name: triplet}}",
    "a value twice in another form": "parameters: {loss.margin: {values: [1, 1.0]}}",
    "a list of a distribution": "parameters: {optim.lr: {values: [1, 2], distribution: uniform}}",
    "a value of a distribution": "parameters: {optim.lr: {value: 1, distribution: int_uniform}}",
    "a range of categories": "parameters: {optim.lr: {min: 1, max: 2, distribution: categorical}}",
    "a range and a list that no trial can take": f"{RANDOM}\nparameters: {{regularizer.rho: {{min: 0.5, max: 3.5}}, "
    "loss.margin: {values: [0.1, -3]}}",
    "no seeds": f"{MARGIN}\nseeds: []",
    "set twice": "parameters: {optim.lr: {value: 1}}\nfixed: {optim.lr: 2}",
    "set twice in an arm": "arms: {a: {settings: {loss.margin: 1}, parameters: {loss.margin: {value: 2}}}}",
    "code": "!!python/object/apply:os.system [echo]",
    "no date": "a: 2020-13-45",
    "a gain over an unknown arm": f"{AGAINST}plian}}}}",
    "a gain over itself": f"{AGAINST}sec}}}}",
    "a larger gain than that of a baseline": f"{AGAINST}plain}}}}\ngain_differences: [[sec, plain]]",
    "a larger gain than itself": f"{AGAINST}plain}}}}\ngain_differences: [[sec, sec]]",
    "everything": "paramters: {}\nparameters: {loss.margin: {valus: [1]}, optim.rl: {values: [1, 2]}}\nseeds: 0\nmargin: -1\n"
    "dataset: glyfs\nfixed: {training.step: 3}",
}
PYTHONS = re.compile(r"constrained|unable to parse|instance of|data method|Known knobs: \.|\[Errno|Input should|None")
"""Words of Python and of packages, which no message may repeat."""


def said_of(*words: str) -> str:
    """Return the message of a command line about a wrong input; the working directory is written as HERE."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["tune-dml", *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
            code: object = 0
        except SystemExit as end:
            code = end.code
    said = re.sub("'[0-9a-f]{12}'", "DIGEST", err.getvalue().replace(str(Path.cwd()), "HERE").rstrip())
    assert (code, out.getvalue()) == (2 if said.startswith("Usage: ") else 1, ""), words
    return said


def make_inputs() -> None:
    """Create the inputs of the lines: sweeps, folders, links, a file."""
    for name in ("toy", "other"):
        write_sweep(Path("sweeps") / name, histories=False, evidence=False)
    Path("folder").mkdir()
    Path("sweeps/folder").mkdir()
    Path("sweeps/link").symlink_to("toy")
    Path("unmounted").symlink_to("disk/sweeps")
    Path("file").write_text("")


def here() -> dict[Path, object]:
    """Return the content of every file and the target of every link."""
    every = [path for path in Path().rglob("*") if path.is_symlink() or path.is_file()]
    return {path: path.readlink() if path.is_symlink() else path.read_bytes() for path in every}


def of_file(text: str) -> str:
    """Return the message of `plan mine.yaml` about a sweep file."""
    Path("mine.yaml").write_text(text)
    said = said_of("plan", "mine.yaml")
    Path("mine.yaml").unlink()
    return said


def every_message() -> dict[str, str]:
    return {line: said_of(*shlex.split(line)) for line in LINES} | {name: of_file(text) for name, text in FILES.items()}


def as_text(messages: dict[str, str]) -> str:
    return "\n".join(f"$ {name}\n{said}\n" for name, said in messages.items())


@pytest.fixture
def said(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    make_inputs()
    before = here()
    messages = every_message()
    assert here() == before, "a refused command wrote a file"
    return messages


def test_messages_about_wrong_inputs_are_frozen(said):
    assert as_text(said) == SAID.read_text()
    for name, text in said.items():
        assert not PYTHONS.search(text), f"{name}: {text}"
        assert "planted" not in text, f"{name} has a secret: {text}"
        assert not re.search(r"\b_[A-Z]", text), f"{name} names a class: {text}"
        for line in text.splitlines():
            quoted = re.findall(r"'([^']*)'", line)
            meant = line.partition("Did you mean")[2]
            assert not [word for word in quoted if f"'{word}'" in meant and line.count(f"'{word}'") > 1], line
    for name in FILES:
        assert not re.search(r"(?<![`-])--\w", said[name]), f"{name} speaks of flags: {said[name]}"
        lines = [line for line in said[name].splitlines() if "problems:" not in line]
        assert all(line.startswith("mine.yaml") for line in lines), said[name]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {"COLUMNS": "100"}):
        os.chdir(folder)
        make_inputs()
        SAID.write_text(as_text(every_message()))
