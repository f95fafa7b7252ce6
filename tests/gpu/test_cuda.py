"""On a CUDA device: the numbers of the CPU, no waiting for the device within a step, and ranks that equal one process.

Needs trainables, torch, numpy, pydantic, pillow and pytest, no Ray: where that is all there is, run
`python -m pytest --confcutdir=tests/gpu -m gpu tests/gpu`. TUNE_DML_DEVICE names another kind of device to try them on.
"""

import copy
import os

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from PIL import Image

from trainables import distributed, training
from trainables.context import FolderContext, read_sealed
from trainables.losses import LOSSES
from trainables.regularizers import REGULARIZERS
from trainables.resolve import Layer, resolve
from trainables.tasks import build_learner
from trainables.testing import Method, batch
from trainables.training import train

DEVICE = torch.device(os.environ.get("TUNE_DML_DEVICE", "cuda"))
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE.type == "cuda" and not torch.cuda.is_available(), reason="no CUDA device"),
]
WAITS = {"cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaMemcpy", "aten::item", "aten::_local_scalar_dense"}
"""What a step must not do: each leaves the device without work until the host has sent some again."""
COMMON = {
    "data.name": "image_folder",
    "data.size": 32,
    "model.embedding_dim": 8,
    "data.validation_fraction": 0.4,
    "batch.batch_size": 9,  # does not divide by 2: ranks hold 5 and 4 pictures
    "batch.sampler": "random",
    "training.steps": 6,
    "training.eval_every": 3,
    "training.precision": "float64",
    "regularizer.name": "sec",
    "regularizer.eta": 0.5,
    "regularizer.rho": 0.4,
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Twelve classes of twelve pictures."""
    root, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(12):
        (root / f"class{number:02}").mkdir()
        base = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        for picture in range(12):
            noise = random.integers(0, 40, (32, 32, 3))
            pixels = np.asarray(Image.fromarray(base).resize((32, 32))).astype(int) + noise
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"class{number:02}" / f"{picture}.png")
    return root


def config_of(pictures, **settings):
    named = {path.replace("__", "."): value for path, value in settings.items()}
    return resolve(Layer("test", {**COMMON, "data.root": str(pictures), **named})).config


def both(method):
    """(value, slope) on the CPU, and on the device for the same module and batch."""
    embeddings, numbers = batch(dtype=torch.float64)
    module = method.build()
    if getattr(module, "needs_mean", False):
        module.set_mean(1.0)
    twin = copy.deepcopy(module).to(DEVICE)
    moved = embeddings.detach().to(DEVICE).requires_grad_()
    found = []
    for part, given, classes in ((module, embeddings, numbers), (twin, moved, numbers.to(DEVICE))):
        value = method.value(given, classes, part)
        found.append((value.detach().cpu(), torch.autograd.grad(value, given)[0].cpu()))
    return found


@pytest.mark.parametrize("method", [*LOSSES.values(), *REGULARIZERS.values()], ids=lambda cls: cls.name)
def test_value_and_gradient_are_those_of_the_cpu(method):
    (value, slope), (other, slant) = both(Method(method))
    torch.testing.assert_close(other, value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(slant, slope, rtol=1e-7, atol=1e-11)


@pytest.mark.parametrize("loss", ["semihard_triplet", "multi_similarity", "dro_kl", "margin_dws", "proxy_anchor"])
def test_no_step_waits_for_the_device(pictures, tmp_path, loss):
    """A step may wait for the one before, whose loss it looks at: that is an event's synchronisation and no stream's."""
    context = FolderContext(tmp_path, DEVICE)
    config = config_of(pictures, loss__name=loss, training__precision="float32", training__steps=40)
    training.prepare_process(config, context)
    run = training.begin(config, context, build_learner(config, context, cache_dir=tmp_path / "cache"))
    for _ in range(5):
        training.update(run)
        run.state.step += 1
    with torch.profiler.profile() as profile:
        for _ in range(5):
            training.update(run)
            run.state.step += 1
    called = {event.key: event.count for event in profile.key_averages()}
    ends = 1 if DEVICE.type == "cuda" else 0  # the profiler itself waits when it stops
    waited = {name: called[name] for name in WAITS & called.keys() if called[name] > ends}
    if DEVICE.type == "cuda":  # elsewhere nothing is asynchronous, and a look costs nothing
        assert waited == {}


def _train(rank, world_size, folder, pictures, backend):
    device = torch.device(DEVICE.type, rank % torch.cuda.device_count()) if DEVICE.type == "cuda" else DEVICE
    meeting = f"file://{folder}/meet"
    with distributed.process_group(rank=rank, world_size=world_size, init_method=meeting, backend=backend):
        context = FolderContext(folder / "own", device, rank=rank, world_size=world_size)
        outcome = train(config_of(pictures), context, cache_dir=folder.parent / "cache")
        if rank == 0:
            torch.save(outcome.metrics | read_sealed(folder / "own"), folder / "metrics.pt")


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_two_ranks_on_the_device_equal_one_process_on_the_cpu(pictures, tmp_path, backend):
    if backend == "nccl" and (DEVICE.type != "cuda" or torch.cuda.device_count() < 2):
        pytest.skip("nccl needs a CUDA device for each rank")
    alone, two = tmp_path / "alone", tmp_path / "two"
    alone.mkdir()
    two.mkdir()
    context = FolderContext(alone / "own", torch.device("cpu"))
    one = train(config_of(pictures), context, cache_dir=tmp_path / "cache").metrics | read_sealed(alone / "own")
    mp.spawn(_train, (2, two, pictures, backend), nprocs=2)
    found = torch.load(two / "metrics.pt", weights_only=True)
    assert found.keys() == one.keys()
    same = {name for name, value in one.items() if not name.endswith("seconds")}
    assert {name: found[name] for name in same} == pytest.approx({name: one[name] for name in same}, rel=1e-6)
