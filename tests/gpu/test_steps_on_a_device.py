"""A training step never waits for a CUDA device: new work is queued before the last is done."""

import pytest
import torch
from helpers.cuda import CROPS, DEVICE, ON_DEVICE, SEC, SMALL, config_of

from trainables import training
from trainables.context import TrialContext
from trainables.losses import LOSSES
from trainables.models.base import standardise
from trainables.regularizers import REGULARIZERS
from trainables.tasks import build_learner
from trainables.testing import Method, batch

pytestmark = ON_DEVICE
WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaMemcpy")
"""What leaves the device without work until the host has sent some again. Events are waited for: of the step before."""
WAIT_ONCE = {"recall_at_k_surrogate"}
"""How many positives a query has at most decides how much memory the ranks take, and is asked of the device."""
STEPS = {
    "semihard": {"loss.name": "semihard_triplet", **SEC},
    "multi similarity": {"loss.name": "multi_similarity", "training.precision": "bf16"},
    "dro": {"loss.name": "dro_kl", "loss.gamma": 0.5, **SEC},
    "sampled margin": {"loss.name": "margin_dws"},
    "proxy anchor": {"loss.name": "proxy_anchor", "optim.clip_norm": 1.0, "optim.clip_value": 10.0},
    "mpa": {"loss.name": "mpa"},
    "memory": {"loss.name": "contrastive", "memory.size": 30},
    "crops": {"loss.name": "multi_similarity", **CROPS},
    "micro batches": {"loss.name": "multi_similarity", "training.micro_batch": 4},
    "n pairs": {"loss.name": "npair", "batch.sampler": "m_per_class", "batch.instances_per_class": 3},
}


def wait_of(work):
    """Return torch's warning where `work` would wait for the device; empty if it does not."""
    if DEVICE.type != "cuda":
        work()
        return ""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        work()
    except RuntimeError as error:
        return str(error)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return ""


@pytest.mark.parametrize(
    "method",
    [cls for cls in (*LOSSES.values(), *REGULARIZERS.values()) if cls.name not in WAIT_ONCE],
    ids=lambda cls: cls.name,
)
def test_no_method_waits_for_the_device(method):
    embeddings, labels = batch(dtype=torch.float32)
    module = Method(method).build(torch.float32)
    if getattr(module, "needs_mean", False):
        module.set_mean(1.0)
    module, labels = module.to(DEVICE), labels.to(DEVICE)
    given = embeddings.detach().to(DEVICE).requires_grad_()

    def slope():
        return torch.autograd.grad(Method(method).value(given, labels, module), given)

    slope()  # the first call may look at its labels
    assert wait_of(slope) == ""


def test_standardising_does_not_wait_for_the_device():
    images = torch.rand(2, 1, 4, 4, device=DEVICE)
    assert wait_of(lambda: standardise(images, (0.5, 0.4, 0.3), (0.2, 0.2, 0.2))) == ""


@pytest.mark.parametrize("name", STEPS)
def test_no_training_step_waits_for_the_device(pictures, cache, tmp_path, name):
    config = config_of(pictures, SMALL, {"training.steps": 40}, STEPS[name])
    context = TrialContext(tmp_path, DEVICE)
    training.prepare_process(config, context)
    run = training.start_or_resume(config, context, build_learner(config, context, cache_dir=cache))

    def steps(count):
        for _ in range(count):
            run.recent.append(training.update(run))
            run.state.step += 1

    steps(5)
    assert wait_of(lambda: steps(5)) == ""
    with torch.profiler.profile() as profile:
        steps(5)
    called = {event.key: event.count for event in profile.key_averages()}
    ends = 2  # of the profiler itself
    assert {wait: called[wait] for wait in WAITS if called.get(wait, 0) > ends} == {}
    assert DEVICE.type != "cuda" or called.get("cudaLaunchKernel", 0) > 0  # else the profiler saw nothing
