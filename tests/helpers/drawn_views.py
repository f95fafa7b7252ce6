"""A replacement for `trainables.data.formats.mesh_views` without pybullet: squares in the background's colour.

A mesh file that says "broken" ends the process, as a renderer that fails does.
"""

import sys
from pathlib import Path

import numpy as np

from trainables.data import objects
from trainables.data.formats import rendering
from trainables.data.formats.mesh_views import _serve, mesh_file, view


class Squares:
    def __init__(self, folder, size):
        self.folder, self.size = folder, size

    def picture(self, mesh, number):
        if mesh_file(self.folder, mesh).read_text() == "broken":
            raise ValueError(f"mesh {mesh} is broken")
        pixels = np.empty((self.size, self.size, 3), np.uint8)
        pixels[:] = view(mesh, number).background
        pixels[:4, :4] = mesh % 256
        return pixels


def use(monkeypatch, folder: Path, meshes: int = 40) -> Path:
    """Make the data set `objects` draw these squares for empty mesh files in `folder`."""
    for mesh in range(meshes):
        file = mesh_file(folder, mesh)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"mesh {mesh}")
    monkeypatch.setattr(objects, "_mesh_folder", lambda: folder)
    monkeypatch.setattr(objects, "version", lambda name: "0")
    monkeypatch.setattr(rendering, "_PROGRAM", __name__)
    return folder


if __name__ == "__main__":
    _serve(Squares, Path(sys.argv[1]), int(sys.argv[2]))
