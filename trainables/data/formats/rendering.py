"""Run one renderer process per thread while a data set is written."""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Self, cast

from PIL import Image

_PROGRAM = "trainables.data.formats.mesh_views"


class RendererProcess:
    """A `mesh_views` process for one thread. It is not restarted."""

    def __init__(self, folder: Path, size: int) -> None:
        self.size = size
        self.messages: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(  # noqa: S603 - this interpreter, own module
            [sys.executable, "-m", _PROGRAM, str(folder), str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.messages,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C is for the parent; the end of the input ends this process
        )
        self.requests = cast(IO[bytes], self.process.stdin)
        self.answers = cast(IO[bytes], self.process.stdout)

    def picture(self, mesh: int, view: int) -> Image.Image:
        """Render one view. If the process has ended, raise RuntimeError with its last message."""
        with suppress(BrokenPipeError):
            self.requests.write(f"{mesh} {view}\n".encode())
            self.requests.flush()
        pixels = self.answers.read(3 * self.size * self.size)
        if len(pixels) < 3 * self.size * self.size:
            raise RuntimeError(self._reason())
        return Image.frombytes("RGB", (self.size, self.size), pixels)

    def _reason(self) -> str:
        code = self.process.wait()
        self.messages.seek(0)
        lines = self.messages.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"the renderer ended with code {code}"

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self.requests.close()
        self.answers.close()
        self.process.wait()
        self.messages.close()


class Renderers:
    """Context manager with one `RendererProcess` per thread."""

    def __init__(self, start: Callable[[], RendererProcess]) -> None:
        self.start = start
        self.own = threading.local()
        self.all: list[RendererProcess] = []

    def picture(self, mesh: int, view: int) -> Image.Image:
        if not hasattr(self.own, "process"):
            self.own.process = self.start()
            self.all.append(self.own.process)
        process: RendererProcess = self.own.process
        return process.picture(mesh, view)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.all:
            process.close()
