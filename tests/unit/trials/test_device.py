"""The device of a worker, and whether it can train there again, with a fake GPU."""

import pytest
import torch
from helpers.trials import TASKS, config_of

from tune_dml.planning.request import Resources
from tune_dml.running.trials import trial as trials
from tune_dml.running.trials.device import cuda_error, device_of, missing_device

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("share", "there", "device"), [(1.0, True, CUDA), (0.25, True, CUDA), (0.0, True, CPU), (1.0, False, CPU)]
)
def test_a_trial_without_gpu_uses_none(monkeypatch, share, there, device):
    """Ray leaves the node's GPUs visible to tasks that request none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    resources = Resources(gpus_per_worker=share)
    assert device_of(resources) == device
    assert bool(missing_device(resources, device)) == (share > 0 and not there)


@pytest.mark.parametrize(
    "error", [None, RuntimeError("CUDA error: device-side assert triggered")], ids=["well", "sick"]
)
def test_a_device_that_fails_every_call_is_broken(monkeypatch, error):
    def synchronize(device):
        if error:
            raise error

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert cuda_error(CUDA) is error
    assert cuda_error(CPU) is None


SHORT = config_of(TASKS["retrieval"], training__steps=2, training__eval_every=2).settings()


def test_a_missing_gpu_is_reported_once_and_is_no_progress(messages_of):
    said = messages_of(SHORT, Resources(gpus_per_worker=1.0))
    notes = [message["note"] for message in said if "note" in message]
    assert len(notes) == 1
    assert "trains on the CPU" in notes[0]
    assert not any("note" in message for message in messages_of(SHORT, Resources(gpus_per_worker=0.0)))


@pytest.mark.parametrize("sick", [True, False])
def test_a_trial_that_breaks_its_device_reports_it_and_ends_its_process(monkeypatch, messages_of, sick):
    from trainables.models.small_conv import SmallConv

    def forward(self, pictures):
        raise RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDART")

    words = "CUDA error: device-side assert triggered\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
    monkeypatch.setattr(SmallConv, "forward", forward)
    monkeypatch.setattr(trials, "cuda_error", lambda device: RuntimeError(words) if sick else None)
    last = messages_of(SHORT)[-1]
    assert last["ended"]["status"] == "failed"
    assert last.get("spent", False) == sick
    expected = "device-side assert triggered (noticed at test_device.py:" if sick else "CUDNN_STATUS_EXECUTION_FAILED"
    assert expected in last["ended"]["reason"]
