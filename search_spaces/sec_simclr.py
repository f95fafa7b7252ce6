"""SEC in contrastive learning: NT-Xent plain, with L2-reg, SEC and SEC-EMA, after 100 and 200 epochs."""

from search_spaces.papers import SEC
from search_spaces.protocols.ours import IMAGE_FOLDER_SIMCLR, IMAGE_FOLDER_SIMCLR_LONGER
from search_spaces.protocols.simclr import DIGITS_SIMCLR, GLYPHS_SIMCLR, GLYPHS_SIMCLR_LONGER, SIMCLR, SIMCLR_LONGER
from tune_dml.space import Arm, CurveReference, Grid, Knob, Protocol, Space, Value

_ETA = Knob("regularizer.eta", Grid((0.01, 0.05, 0.1, 0.25, 0.5, 1.0), scale="log"), symbol="eta")
_L2_ETA = Knob("regularizer.eta", Grid((5e-4, 1e-3, 5e-3, 1e-2, 5e-2), scale="log"), symbol="eta")
_LINEAR: dict[str, Value] = {"regularizer.schedule": "linear"}


def _published_curves(epochs: int) -> tuple[CurveReference, ...]:
    return tuple(
        SEC.table("7", "supplement").curve(
            dataset,
            (f"NT-Xent+{method}",),
            "eta",
            metric=metric,
            baseline="NT-Xent",
            where={"epochs": epochs},
            note=f"Only the chosen eta is printed; linear evaluation on the test pictures, {epochs} epochs of training.",
        )
        for method in ("SEC", "SEC-EMA", "L2-reg")
        for dataset in ("CIFAR-10", "CIFAR-100")
        for metric in ("top1", "top5")
    )


def _space(name: str, epochs: int, protocols: tuple[Protocol, ...]) -> Space:
    return Space(
        name=name,
        title=f"SEC for contrastive learning beside NT-Xent, {epochs} epochs",
        question="Does pulling the norms together help representations learned without labels?",
        citation=SEC.cite("supplement, section B.3 (grids) and Table 7"),
        scientific=(_ETA,),
        fixed={
            "task.name": "contrastive",
            "data.split": "shared_classes",
            "batch.sampler": "random",
            "loss.name": "nt_xent",
        },
        arms=(
            Arm("NT-Xent", {"regularizer.name": "none"}, knobs=()),
            Arm("NT-Xent+L2-reg", {"regularizer.name": "l2", **_LINEAR}, own_knobs=(_L2_ETA,), against=("NT-Xent",)),
            Arm("NT-Xent+SEC", {"regularizer.name": "sec", "regularizer.rho": 1.0, **_LINEAR}, against=("NT-Xent",)),
            Arm(
                "NT-Xent+SEC-EMA", {"regularizer.name": "sec", "regularizer.rho": 0.2, **_LINEAR}, against=("NT-Xent",)
            ),
        ),
        baseline="NT-Xent",
        protocols=protocols,
        published=_published_curves(epochs),
        metric="val/linear_top1",
        identities=("2: eta = 0 is the base loss, bit for bit", "3: L2-reg is SEC with a fixed mean of 0"),
        notes=("eta grows linearly from 0 to its value at the last step.",),
    )


SPACE = _space("sec_simclr", 100, (GLYPHS_SIMCLR, DIGITS_SIMCLR, IMAGE_FOLDER_SIMCLR, *SIMCLR))
LONGER = _space("sec_simclr_200", 200, (GLYPHS_SIMCLR_LONGER, IMAGE_FOLDER_SIMCLR_LONGER, *SIMCLR_LONGER))
