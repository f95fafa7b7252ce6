"""Render a view of a mesh with pybullet's CPU renderer; a seeded counter decides pose, light and background.

Run as a program, it answers requests on standard input (see `rendering.py`). Pixels are the same on every CPU: scalar
IEEE arithmetic without trigonometric functions, no specular light, integer anti-aliasing.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Vector = tuple[float, float, float]
_SEED = 20260
_OVERSAMPLING = 2
"""Rendered pixels per side of a picture's pixel: the renderer does not smooth edges."""
_NEAR, _FAR, _FOCAL_LENGTH = 1.0, 6.0, 2.4


class Camera(NamedTuple):
    """Camera, light and background for a mesh of radius 1 around the origin."""

    matrix: tuple[float, ...]  # world to camera, 4 x 4, column-major
    light_direction: Vector
    light_color: Vector
    ambient: float
    diffuse: float
    background: tuple[int, int, int]


def view(mesh: int, number: int) -> Camera:
    """Return a view: a uniform rotation, everything else uniform in its range."""
    uniform = _uniforms(mesh, number)
    back = _direction(uniform)
    right = _cross(_direction(uniform), back)
    while _dot(right, right) < 0.01:
        right = _cross(_direction(uniform), back)
    right = _unit(right)
    up = _cross(back, right)
    distance = 2.7 + 0.7 * next(uniform)
    shift = [0.1 * next(uniform) - 0.05 for _ in range(2)]
    columns = ((*axes, 0.0) for axes in zip(right, up, back, strict=True))
    ambient = 0.2 + 0.2 * next(uniform)
    side = _direction(uniform)
    red, green, blue = (0.8 + 0.2 * next(uniform) for _ in range(3))
    return Camera(
        matrix=(*(value for column in columns for value in column), *shift, -distance, 1.0),
        light_direction=_unit((0.7 * side[0] + back[0], 0.7 * side[1] + back[1], 0.7 * side[2] + back[2])),
        light_color=(red, green, blue),
        ambient=ambient,
        diffuse=0.95 - ambient,
        background=(int(256 * next(uniform)), int(256 * next(uniform)), int(256 * next(uniform))),
    )


def mesh_file(folder: Path, mesh: int) -> Path:
    """Return the file of a mesh of `pybullet_data/random_urdfs`."""
    return folder / f"{mesh:03d}" / f"{mesh:03d}.obj"


class _Renderer:
    """Renders views. One per process: pybullet's state is global.

    Each view loads its mesh again, because every second picture of a loaded mesh differs by one level in some pixels.
    """

    def __init__(self, folder: Path, size: int) -> None:
        import pybullet

        self.bullet: Any = pybullet
        self.folder, self.size = folder, size
        self.bullet.connect(self.bullet.DIRECT)

    def picture(self, mesh: int, number: int) -> Pixels:
        body = self._load(mesh)
        camera = view(mesh, number)
        side = self.size * _OVERSAMPLING
        _, _, colors, _, bodies = self.bullet.getCameraImage(
            side,
            side,
            viewMatrix=camera.matrix,
            projectionMatrix=_projection(),
            lightDirection=camera.light_direction,
            lightColor=camera.light_color,
            lightAmbientCoeff=camera.ambient,
            lightDiffuseCoeff=camera.diffuse,
            lightSpecularCoeff=0.0,
            shadow=0,
            renderer=self.bullet.ER_TINY_RENDERER,
        )
        self.bullet.removeBody(body)
        pixels = np.asarray(colors, dtype=np.uint8).reshape(side, side, 4)[..., :3].copy()
        pixels[np.asarray(bodies).reshape(side, side) < 0] = camera.background
        return _downsample(pixels)

    def _load(self, mesh: int) -> int:
        """Load a mesh, centred and scaled to radius 1; return its body."""
        file = mesh_file(self.folder, mesh)
        centre, radius = _bounding_sphere(file)
        shape = self.bullet.createVisualShape(
            self.bullet.GEOM_MESH,
            fileName=str(file),
            meshScale=[1 / radius] * 3,
            rgbaColor=[1, 1, 1, 1],
            specularColor=[0, 0, 0],
        )
        position = [-value / radius for value in centre]
        return int(self.bullet.createMultiBody(baseVisualShapeIndex=shape, basePosition=position))


def _uniforms(mesh: int, number: int) -> Iterator[float]:
    """Yield numbers in [0, 1) that depend only on mesh and view (Philox is counter-based)."""
    bits = np.random.Philox(key=_SEED, counter=[0, 0, mesh, number])
    while True:
        yield (int(bits.random_raw()) >> 11) * 2.0**-53


def _direction(uniform: Iterator[float]) -> Vector:
    """Draw a point of the unit sphere by rejection from a cube."""
    while True:
        point = (2 * next(uniform) - 1, 2 * next(uniform) - 1, 2 * next(uniform) - 1)
        if 0.01 < _dot(point, point) <= 1:
            return _unit(point)


def _projection() -> tuple[float, ...]:
    """Return a perspective projection, 4 x 4, column-major."""
    depth = _FAR - _NEAR
    return (
        *(_FOCAL_LENGTH, 0.0, 0.0, 0.0),
        *(0.0, _FOCAL_LENGTH, 0.0, 0.0),
        *(0.0, 0.0, -(_FAR + _NEAR) / depth, -1.0),
        *(0.0, 0.0, -2 * _FAR * _NEAR / depth, 0.0),
    )


@lru_cache
def _bounding_sphere(file: Path) -> tuple[Sequence[float], float]:
    """Return the centre of a mesh's bounding box and the largest distance of a corner from it."""
    lines = file.read_text(encoding="utf-8").splitlines()
    corners = [[float(word) for word in line.split()[1:4]] for line in lines if line.startswith("v ")]
    centre = [(min(axis) + max(axis)) / 2 for axis in zip(*corners, strict=True)]
    return centre, sqrt(max(sum((a - b) * (a - b) for a, b in zip(corner, centre, strict=True)) for corner in corners))


def _downsample(pixels: Pixels) -> Pixels:
    """Average each square of `_OVERSAMPLING` x `_OVERSAMPLING` pixels, rounded."""
    side, area = len(pixels) // _OVERSAMPLING, _OVERSAMPLING * _OVERSAMPLING
    squares = pixels.reshape(side, _OVERSAMPLING, side, _OVERSAMPLING, 3).sum(axis=(1, 3), dtype=np.uint16)
    means: Pixels = ((squares + area // 2) // area).astype(np.uint8)
    return means


def _dot(a: Vector, b: Vector) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _cross(a: Vector, b: Vector) -> Vector:
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


def _unit(a: Vector) -> Vector:
    length = sqrt(_dot(a, a))
    return a[0] / length, a[1] / length, a[2] / length


def _serve(make: Callable[[Path, int], Any], folder: Path, size: int) -> None:
    """Answer each input line `mesh view` with the bytes of the picture."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # pybullet prints when it is imported
    renderer = make(folder, size)
    for line in sys.stdin:
        mesh, number = map(int, line.split())
        answers.write(renderer.picture(mesh, number).tobytes())
        answers.flush()


if __name__ == "__main__":
    _serve(_Renderer, Path(sys.argv[1]), int(sys.argv[2]))
