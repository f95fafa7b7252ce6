"""DRO-KL: the temperature of the pair weights."""

from search_spaces.papers import DRO
from search_spaces.protocols.dro import DRO_CARS196, DRO_CUB200, DRO_INSHOP
from search_spaces.protocols.ours import GLYPHS_DRO_LONG
from tune_dml.space import Baseline, Grid, Knob, Space

SPACE = Space(
    name="dro_gamma",
    title="DRO-KL: temperature gamma",
    question="How sharply should hard pairs be preferred, and does it matter?",
    citation=DRO.cite("section 4.1 (grid .1:.2:.9), Tables 1 and 3 (at the best gamma only)"),
    scientific=(Knob("loss.gamma", Grid((0.1, 0.3, 0.5, 0.7, 0.9)), symbol="gamma"),),
    fixed={
        "loss.name": "dro_kl",
        "loss.base": "margin",
        "loss.margin": 0.2,
        "loss.threshold": 0.5,
        "loss.drop_zeros": True,
    },
    baseline=Baseline(
        "mean of all pairs",
        {"loss.name": "margin_all", "loss.margin": 0.2, "loss.threshold": 0.5, "loss.denominator": "nonzero"},
    ),
    protocols=(GLYPHS_DRO_LONG, DRO_CUB200, DRO_CARS196, DRO_INSHOP),
    identities=("26: gamma to infinity is the mean of all pairs, gamma to 0 the largest loss",),
    notes=(
        "Pairs without loss are left out, here and in the baseline, as section 3.2 allows and section 4.2.1 does. With them, "
        "gamma would shrink the gradient to a sixth, and Adam's coupled weight decay would confound the comparison.",
        "Every pair counts with the paper's weight, softmax(l / gamma). Its experiments sample pairs by these weights "
        "(sections 3.2 and 4.1), how many is not printed; the released code samples from exp(l / gamma) - 1 among the largest "
        "(loss.weights=expm1, loss.samples).",
        "The paper prints only the best gamma: R@1 67.7 on CUB200-2011, 86.4 on Cars196, 90.8 on In-Shop, selected on test.",
    ),
)
