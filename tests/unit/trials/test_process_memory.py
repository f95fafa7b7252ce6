"""Memory that a trial freed goes back to the system."""

import ctypes
import sys
from pathlib import Path

import pytest

from tune_dml.running.process import return_freed_memory

BLOCKS, SIZE = 3000, 20_000  # small enough for the heap, which shrinks only from its end


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_memory_below_a_used_block_goes_back():
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    blocks = [libc.malloc(SIZE) for _ in range(BLOCKS)]
    used = libc.malloc(SIZE)
    for block in blocks:
        ctypes.memset(block, 1, SIZE)
    for block in blocks:
        libc.free(block)
    before = resident()
    return_freed_memory()
    libc.free(used)
    assert before - resident() > 0.8 * BLOCKS * SIZE
