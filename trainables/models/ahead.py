"""Prepare the next batch in a thread while a CUDA device computes the current one. The thread has its own stream."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor


class Ahead:
    """Makes tensors in the order of the calls: in a thread for a CUDA device, otherwise when they are requested."""

    def __init__(self, device: torch.device) -> None:
        self._in_thread = device.type == "cuda"
        self._device = device
        if self._in_thread:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="pictures")
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self, make: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Begin to make a tensor. Return a function that waits for it and raises what `make` raised."""
        if not self._in_thread:
            return make
        begun = self._thread.submit(self._on_stream, make)

        def wait() -> Tensor:
            tensor, ready = begun.result()
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(ready)  # the device waits, not this thread
            tensor.record_stream(stream)
            return tensor

        return wait

    def _on_stream(self, make: Callable[[], Tensor]) -> tuple[Tensor, torch.cuda.Event]:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            tensor, ready = make(), torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
        return tensor, ready
