"""Rendered objects: retrieval of instances across viewpoints, from meshes of a pip package."""

import hashlib
import importlib.util
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import numpy as np
from PIL import Image
from pydantic import Field

from trainables.data.base import Contents, DataSet, Progress, digest_of
from trainables.data.formats import cache
from trainables.data.formats.decoding import EncodedPictures, SquarePictures, decode, failure_problems
from trainables.data.formats.files import digests
from trainables.data.formats.mesh_views import mesh_file
from trainables.data.formats.rendering import RendererProcess, Renderers
from trainables.errors import DataError, Problem, raise_if_any

_MESHES = 1000
_REINSTALL = "Reinstall it: `pip install --force-reinstall --no-deps pybullet`."
_VIEWS = 24
_PIXELS = {
    64: "f1d1f3ed1e48b6f37564969cf5562fbba8bf6cd4ecebec6ffb0a4f58d8869f31",
    96: "717bb9af196d4533687bce956e6b38527a1b70b432d5d65873fed29ee777d584",
}
"""Size -> SHA-256 of all pixels of the default data set."""


class Objects(DataSet):
    """Random objects as classes, views as pictures; the second half of the classes is the test half.

    The 1,000 meshes of `pybullet_data/random_urdfs`, each centred, scaled to one radius and painted white. Each view
    draws rotation (uniform), distance, light and background from a counter, so a picture does not depend on the number
    of classes or views.
    """

    name = "objects"
    citation = "tune_dml; meshes of pybullet_data/random_urdfs, Coumans and Bai, PyBullet, 2016-2025"
    licence = "zlib (pybullet)"
    source = "pip install 'tune-dml[objects]'"

    def __init__(
        self,
        *,
        cache_dir: Path,
        size: Annotated[int, Field(ge=32, le=256, description="height and width in pixels")] = 64,
        views: Annotated[int, Field(ge=2, le=200, description="pictures a class")] = _VIEWS,
        classes: Annotated[int, Field(ge=4, le=_MESHES, description="meshes, the first ones")] = _MESHES,
    ) -> None:
        super().__init__(cache_dir=cache_dir)
        self.size, self.views, self.classes = size, views, classes

    def check(self) -> list[Problem]:
        folder = _mesh_folder()
        if folder is None:
            return [_missing_package_problem()]
        missing = [mesh for mesh in range(self.classes) if not mesh_file(folder, mesh).is_file()]
        if not missing:
            return []
        found = f"{self.classes - len(missing)} meshes"
        return [Problem(str(folder), f"pybullet must have {self.classes} meshes", found, _REINSTALL)]

    def digest(self) -> str:
        """Digest mesh files, settings and renderer version; raise the number 2 when the views change."""
        folder = _mesh_folder()
        if folder is None:
            raise DataError(_missing_package_problem())
        names = [str(mesh_file(folder, mesh).relative_to(folder)) for mesh in range(self.classes)]
        content = digests(folder, names, self.cache_dir)
        return digest_of(self.name, 2, self.size, self.views, content, version("pybullet"))

    def test_classes(self, class_names: Sequence[str]) -> tuple[int, ...]:
        return tuple(range(len(class_names) // 2, len(class_names)))

    def write(self, directory: Path, progress: Progress | None) -> Contents:
        raise_if_any(self.check(), DataError)
        self._require_renderer()
        names = tuple(f"{mesh:03d}" for mesh in range(self.classes))
        pictures = [f"mesh {name}, view {view}" for name in names for view in range(self.views)]
        with Renderers(self._start_renderer) as renderers:

            def render(number: int) -> Image.Image:
                return renderers.picture(*divmod(number, self.views))

            failures = decode(directory, EncodedPictures(pictures, render), SquarePictures(self.size), progress)
        if failures:
            raise DataError(failure_problems(failures, pictures, remedy="Call `prepare` again."))
        return Contents(np.arange(self.classes).repeat(self.views), names, self._notes(directory))

    def _start_renderer(self) -> RendererProcess:
        folder = _mesh_folder()
        if folder is None:
            raise DataError(_missing_package_problem())
        return RendererProcess(folder, self.size)

    def _require_renderer(self) -> None:
        """Render one view. Raise DataError if the renderer does not start."""
        with Renderers(self._start_renderer) as renderers:
            try:
                renderers.picture(0, 0)
            except RuntimeError as error:
                raise DataError(Problem("data.name", "pybullet must render", str(error), _REINSTALL)) from error

    def _notes(self, directory: Path) -> tuple[str, ...]:
        """Return a note if this machine renders other pixels than the recorded ones."""
        recorded = _PIXELS.get(self.size) if (self.views, self.classes) == (_VIEWS, _MESHES) else None
        if recorded is None or _pixels_digest(cache.open_images(directory)) == recorded:
            return ()
        return ("the pixels differ from the recorded ones: compare with results of this machine only",)


def _mesh_folder() -> Path | None:
    """Return the folder of the meshes without importing pybullet; None if it is not installed."""
    renderer, package = (importlib.util.find_spec(name) for name in ("pybullet", "pybullet_data"))
    if renderer is None or package is None or not package.submodule_search_locations:
        return None
    return Path(package.submodule_search_locations[0]) / "random_urdfs"


def _pixels_digest(images: cache.Images) -> str:
    digest = hashlib.sha256()
    for number in range(len(images)):
        digest.update(images[number].tobytes())
    return digest.hexdigest()


def _missing_package_problem() -> Problem:
    """Report the missing package, and whether this Python and system have a wheel."""
    system, machine, minor = platform.system(), platform.machine(), sys.version_info[:2]
    remedy = "Run `pip install 'tune-dml[objects]'`."
    if (system, machine) != ("Linux", "x86_64") or minor > (3, 11):
        platform_name = f"Python {minor[0]}.{minor[1]} on {system} {machine}"
        remedy = (
            f"There is no wheel for {platform_name}: use Python 3.11 on Linux x86_64, or another data set (glyphs)."
        )
    return Problem("data.name", "objects needs the package pybullet", None, remedy)
