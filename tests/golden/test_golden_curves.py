"""Results of trials change only together with PROTOCOL_VERSION: short trials against their recorded metrics.

On the processor and the torch that recorded them, every figure is equal to the last bit. Elsewhere other kernels round
differently, from the initial weights on: there the training figures agree to 1e-3, and to 5e-2 where rounding may decide
which samples are drawn.
"""

import json
import platform
import re
from pathlib import Path

import pytest
import torch
from helpers.trials import TASKS, config_of, run, without_time

from trainables.config import PROTOCOL_VERSION

RECORDED = Path(__file__).with_name("curves.json")
HOW_TO_RECORD = "python -m pytest tests/golden --record-curves"

RETRIEVAL = {**TASKS["retrieval"], "batch.sampler": "m_per_class", "batch.batch_size": 9}
CASES = {
    "triplet": RETRIEVAL,
    "float32, crops": {
        **RETRIEVAL,
        "training.precision": "float32",
        "augment.name": "crop_flip",
        "augment.crop": 16,
        "augment.resize": 18,
    },
    "sec-ema": {**RETRIEVAL, "regularizer.name": "sec", "regularizer.eta": 0.5, "regularizer.rho": 0.1},
    "bn head, sgd": {
        **RETRIEVAL,
        "loss.name": "multi_similarity",
        "model.head": "bn_fc",
        "optim.name": "sgd",
        "optim.lr_schedule": "milestones",
        "optim.lr_milestones": [4],
    },
    "proxies": {**RETRIEVAL, "loss.name": "proxy_anchor"},
    "drawn pairs": {**RETRIEVAL, "loss.name": "dro_kl", "loss.gamma": 0.5, "loss.samples": 20},
    "drawn negatives": {**RETRIEVAL, "loss.name": "margin_dws"},
    "face recognition": TASKS["face_recognition"],
    "contrastive": TASKS["contrastive"],
}


def curve(case, folder, cache_dir):
    """Every figure of every row of a six-step trial."""
    lengths = {"training.steps": 6, "training.eval_every": 3}
    # Which program clusters, and so what NMI and F1 are, depends on what is installed.
    settings = {"training.precision": "float64", **CASES[case], **lengths, "evaluation.clustering": False}
    _, rows = run(config_of(settings), folder, cache_dir=cache_dir)
    return [without_time(row) for row in rows]


def equal_elsewhere(case, rows, expected):
    """Return whether training figures agree within the tolerance for other machines."""
    tolerance = 5e-2 if case.startswith("drawn") else 1e-3
    figures, others = (
        [{k: v for k, v in row.items() if k.startswith("train/")} for row in x] for x in (rows, expected)
    )
    return len(rows) == len(expected) and all(
        row == pytest.approx(other, rel=tolerance, abs=tolerance) for row, other in zip(figures, others, strict=True)
    )


def machine():
    """Return what determines rounding: torch, its kernels, and the processor for which MKL chooses kernels."""
    about = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.findall(r"^(?:vendor_id|cpu family|model)\s*:\s*(.+)$", about, re.MULTILINE)[:3]
    kernels = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "kernels": kernels, "processor": " ".join(model) or platform.processor()}


@pytest.fixture(scope="module")
def recorded(request):
    if request.config.getoption("--record-curves"):
        about = {"protocol_version": PROTOCOL_VERSION, "machine": machine(), "curves": {}}
        yield about
        RECORDED.write_text(json.dumps(about, indent=1) + "\n")
    else:
        yield json.loads(RECORDED.read_text())


@pytest.mark.parametrize("case", CASES)
def test_a_trial_repeats_the_stored_curve_of_its_protocol_version(case, recorded, tmp_path, cache_dir, request):
    rows = curve(case, tmp_path, cache_dir)
    if request.config.getoption("--record-curves"):
        recorded["curves"][case] = rows
        pytest.skip("recorded")
    assert recorded["protocol_version"] == PROTOCOL_VERSION, f"A new protocol version: record with `{HOW_TO_RECORD}`."
    expected = recorded["curves"][case]
    same = rows == expected if machine() == recorded["machine"] else equal_elsewhere(case, rows, expected)
    assert same, (
        f"What a trial computes has changed: {rows} instead of {expected}. Stored sweeps can then be neither resumed nor "
        "compared with new ones. If that is meant, raise PROTOCOL_VERSION in trainables/config.py, say why in CHANGELOG.md, "
        f"and record anew with `{HOW_TO_RECORD}`; if not, find what changed."
    )
