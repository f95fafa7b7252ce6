"""`tune-dml init`: a sweep file for a folder of pictures, ready to run and to change."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from trainables.files import expanded
from tune_dml.cli.options import Json, absolute, verb

ORDER = 35
EXAMPLES = """
tune-dml init pictures                                # pictures/CLASS/*.jpg -> pictures.yaml
tune-dml sweep pictures.yaml
"""
_INSTANCES, _MOST_CLASSES = 3, 30  # of a batch

_SKIPPED = "\n  data.skip_corrupt: true            # leaves out {lost} that cannot be decoded"
_TEXT = """\
# A sweep over {pictures} pictures of {classes} classes in {folder}.
# Run it: tune-dml sweep {file}        What it would cost: tune-dml plan {file}
# Every key: `tune-dml schema`. Losses and their knobs: `tune-dml methods`. Settings: `tune-dml train --show`.

name: {name}
description: margin of the triplet loss

dataset: image_folder                # {folder}/CLASS/*.jpg, .png, .tif ...
data_root: {root}                    # the first half of the classes trains, the other one is the sealed test

parameters:                          # the knobs that are searched, by dotted names
  loss.margin: {{values: [0.1, 0.2, 0.5]}}
  # optim.lr: {{values: [0.0003, 0.001, 0.003]}}
  # optim.lr: {{min: 1.0e-4, max: 1.0e-2, distribution: log_uniform}}    # a range needs `method` and `run_cap`

fixed:                               # what all trials share
  loss.name: semihard_triplet
  batch.instances_per_class: {instances}       # pictures of each class in a batch
  batch.batch_size: {batch}
  data.size: 64                      # pictures are cut to squares of so many pixels{skipped}
  training.steps: {steps}

seeds: 3                             # every value runs once a seed, on the same batches and classes
metric: {{name: val/recall_at_1, goal: maximize}}
margin: 1.0                          # differences below this (percentage points) do not matter

# method: bayes                      # grid (the default), bayes (= gp), tpe, random, qmc
# run_cap: 20                        # values to propose, for all but grid
# tune: [optim.lr]                   # give every value its own best learning rate
# baseline: {{label: no margin, settings: {{loss.margin: 0.0}}}}
# arms: {{triplet: {{loss.name: semihard_triplet}}, ms: {{loss.name: multi_similarity}}}}   # compare methods, in place of knobs
"""


@verb
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Pictures, one folder a class.")],
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write; FOLDER.yaml by default.")
    ] = None,
    skip_corrupt: Annotated[bool, typer.Option(help="Leave out pictures that cannot be decoded.")] = False,
    as_json: Json = False,
) -> None:
    """Write a commented sweep file for a folder of pictures; `tune-dml sweep FOLDER.yaml` runs it."""
    from trainables.errors import Problem, raise_if_any

    root = expanded(folder).absolute()
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", root.name).strip("._-") or "pictures"
    path = absolute(output) or Path.cwd() / f"{name}.yaml"
    if path.exists():
        raise_if_any([Problem(str(path), "the file is there already", None, "Write another one with -o FILE.")])
    path.write_text(_sweep_text(root, path, name, skip_corrupt), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps({"file": str(path), "next": f"tune-dml sweep {path.name}"}))
        return
    typer.echo(f"Wrote {path.name}: three values of the triplet loss's margin, three seeds, and what else can be said.")
    typer.echo(f"Next: tune-dml sweep {path.name}")


def _sweep_text(root: Path, path: Path, name: str, skip_corrupt: bool) -> str:
    """A sweep file whose batches fit the pictures; raises ConfigError where they cannot be swept."""
    import os

    import numpy as np

    from trainables.data import default_cache_dir
    from trainables.data.image_folder import ImageFolder
    from trainables.errors import raise_if_any
    from trainables.tasks.splits import class_disjoint_split

    pictures = ImageFolder(root=root, cache_dir=default_cache_dir(), skip_corrupt=skip_corrupt)
    raise_if_any(pictures.check())
    counts = pictures.counts()
    lost = pictures.undecodable(None)
    contents = pictures.contents(np.setdiff1d(np.arange(counts["images"]), list(lost)))
    split = class_disjoint_split(contents.labels, pictures.test_classes(contents.class_names), seed=0)
    classes = min(_MOST_CLASSES, len(np.unique(contents.labels[split.train])))  # as many whatever the seed
    return _TEXT.format(
        pictures=len(contents.labels),
        classes=counts["classes"],
        folder=root.name,
        file=path.name,
        name=name,
        root=os.path.relpath(root, path.parent),
        instances=_INSTANCES,
        batch=classes * _INSTANCES,
        steps=300,
        skipped=_SKIPPED.format(lost=len(lost)) if lost else "",
    )
