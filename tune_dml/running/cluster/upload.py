"""Collect the files to upload with a job: this project's installed packages, and files that the user names.

    upload = collect_upload(files=[Path("mine.yaml")], working_dir=Path("own"))
    with upload.staged() as folder: ...

Files that look like secrets are not uploaded.
"""

from __future__ import annotations

import filecmp
import importlib.metadata
import importlib.util
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainables.errors import ConfigError, Problem, raise_if_any
from trainables.files import expand_home

_PACKAGES = ("tune_dml", "trainables", "search_spaces")
_DISTRIBUTION = "tune-dml"
_LIMIT = 50_000_000
"""Maximum size of an upload in bytes. Ray refuses 100 MB without naming a file."""

_LEFT_OUT = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".venv", ".venv-vision", "venv", "node_modules", "sweeps", "mlruns", "build"}
    | {
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".ipynb_checkpoints",
        "mlflow.db",
        "mlflow.db-wal",
        "mlflow.db-shm",
        ".gitignore",  # Ray would omit the files that it lists, such as an `.egg-info`
        "tune_dml.egg-info",  # the installed one is uploaded; others describe the user's packages
    }
)
_SECRET = re.compile(
    r"(?i)^(\.env(\..*)?|\.netrc|\.npmrc|\.pgpass|\.pypirc|\.s3cfg|\.boto|\.git-credentials|auth_token|id_(rsa|dsa|ecdsa|ed25519)"
    r"|(.*[_-])?credentials(\..*)?|.*service[_-]?account.*\.json|kaggle\.json|secrets?\.(ya?ml|json|toml|ini)|token(\.(txt|json))?"
    r"|.*\.(pem|key|p12|pfx|keystore)|\.(ssh|aws|gnupg|kube|docker|azure|ray))$"
)


@dataclass(frozen=True)
class Upload:
    """Files to upload, by their path in the job's working directory."""

    files: dict[str, Path]
    kept_back: tuple[str, ...] = ()
    """Files that are not uploaded because they look like secrets."""
    left_out: tuple[str, ...] = ()
    """Links that are not uploaded: to a folder, to a file outside, or broken."""

    own: frozenset[str] = frozenset()
    """Paths of the user's files."""

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum(path.stat().st_size for path in self.files.values())

    def __str__(self) -> str:
        """Return `1.9 MB in 312 files: tune_dml 1.1 MB, ...`."""
        sizes: dict[str, int] = {}
        for place, path in self.files.items():
            top = place.partition("/")[0]
            sizes[top] = sizes.get(top, 0) + path.stat().st_size
        parts = ", ".join(f"{top} {_megabytes(size)}" for top, size in sorted(sizes.items(), key=lambda each: -each[1]))
        return f"{_megabytes(self.size)} in {len(self.files)} files: {parts}"

    @contextmanager
    def staged(self) -> Iterator[Path]:
        """Yield a temporary folder with all files and the project's entry points, which declare spaces and methods."""
        with tempfile.TemporaryDirectory(prefix="tune-dml-") as folder:
            root = Path(folder)
            for place, path in self.files.items():
                (root / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, root / place)
            described = importlib.metadata.distribution(_DISTRIBUTION)
            info = root / f"tune_dml-{described.version}.dist-info"
            info.mkdir()
            for name in ("METADATA", "entry_points.txt"):
                (info / name).write_text(described.read_text(name) or "")
            yield root


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size < 1e6 else f"{size / 1e6:.1f} MB"


def collect_upload(files: Sequence[Path], working_dir: Path | None = None) -> Upload:
    """Collect this project's packages, the named files, and a folder of the user's modules.

    Raises:
        ConfigError: The folder is unsafe or would replace this project's modules, or the upload is too large.
        PermissionError: A file cannot be read.
    """
    chosen: dict[str, Path] = {}
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        for folder in spec.submodule_search_locations or () if spec else ():
            chosen.update({f"{name}/{place}": path for place, path in _walk(Path(folder), [], [])})
    own: dict[str, Path] = {}
    kept_back: list[str] = []
    left_out: list[str] = []
    if working_dir is not None:
        raise_if_any(folder_problems(working_dir))
        own.update(_walk(working_dir.resolve(), kept_back, left_out))
        raise_if_any([*_name_problems(own, working_dir), *_ignore_file_problems(own, working_dir)])
        raise_if_any(_undescribed_problems(own, working_dir))
        raise_if_any(_replacement_problems(chosen, own, working_dir))
    own.update({_place(file): file for file in files})
    upload = Upload({**chosen, **own}, tuple(kept_back), tuple(left_out), frozenset(own))
    if upload.size > _LIMIT:
        rule = f"an upload may have at most {_megabytes(_LIMIT)}, but this has {upload}"
        largest = max(upload.files, key=lambda place: upload.files[place].stat().st_size)
        remedy = f"The largest file is {largest}. Put data on the cluster's storage, or name a smaller folder."
        raise ConfigError(Problem("--working-dir", rule, str(working_dir), remedy))
    return upload


def _place(file: Path) -> str:
    """Return a named file's relative path, under which the command finds it on the cluster too."""
    if file.is_absolute() or ".." in file.parts:
        rule = "a file to upload must be named by a relative path below the working directory"
        raise ConfigError(Problem("submit", rule, str(file), "Change to its folder first."))
    return file.as_posix()


def _walk(folder: Path, kept_back: list[str], left_out: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield the files to upload; collect the names of secrets and of links that lead elsewhere."""
    for above, folders, names in os.walk(folder, onerror=_raise):
        entries = sorted(Path(above, name) for name in (*folders, *names) if name not in _LEFT_OUT)
        folders.clear()
        for path in entries:
            inside = path.relative_to(folder).as_posix()
            if _SECRET.match(path.name):
                kept_back.append(inside)
            elif path.is_symlink() and not (path.is_file() and path.resolve().is_relative_to(folder.resolve())):
                left_out.append(inside)
            elif path.is_dir():
                folders.append(path.name)
            elif path.is_file():
                yield inside, path


def _raise(error: OSError) -> None:
    """Raise the error of an unreadable folder, whose modules would be missing on the cluster."""
    raise error


def _name_problems(places: Iterable[str], folder: Path) -> Iterator[Problem]:
    for place in places:
        if place != place.encode("utf-8", "replace").decode():
            rule = f"the name of a file to upload must be valid UTF-8 (in {folder})"
            yield Problem("--working-dir", rule, place, "Rename it.")


def _ignore_file_problems(places: Iterable[str], folder: Path) -> Iterator[Problem]:
    """Refuse .rayignore files: Ray would apply them to all files of the upload."""
    for place in places:
        if place.rpartition("/")[2] == ".rayignore":
            rule = f"the whole folder is uploaded; .rayignore is not supported (in {folder})"
            yield Problem(
                "--working-dir", rule, place, "Move the files that it lists out of the folder, and delete it."
            )


def _undescribed_problems(theirs: Mapping[str, Path], folder: Path) -> Iterator[Problem]:
    """Refuse a package that declares entry points if the folder has no .egg-info at its top."""
    described = {place.partition("/")[0] for place in theirs if place.endswith("/entry_points.txt")}
    if "pyproject.toml" not in theirs or any(top.endswith(".egg-info") for top in described):
        return
    try:
        declared = tomllib.loads(theirs["pyproject.toml"].read_text(encoding="utf-8")).get("project", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return  # the cluster cannot read it either
    if not any(group.startswith("tune_dml.") for group in declared.get("entry-points", {})):
        return
    below = [Path(place).parents[1] for place in theirs if place.endswith(".egg-info/entry_points.txt")]
    remedy = f"Name {folder / below[0]}." if below else "Run `pip install -e .` there, with setuptools."
    rule = "its pyproject.toml declares methods or spaces; to find them, the cluster needs an .egg-info at its top"
    yield Problem("--working-dir", rule, str(folder), remedy)


def _replacement_problems(ours: Mapping[str, Path], theirs: Mapping[str, Path], folder: Path) -> Iterator[Problem]:
    """Refuse a user's module that would replace one of this project's; identical files are allowed."""
    for place in ours.keys() & theirs.keys():
        if not filecmp.cmp(ours[place], theirs[place], shallow=False):
            rule = f"a folder of your own modules must not replace this project's (in {folder})"
            remedy = f"Rename its {place.partition('/')[0]}/, or install the checkout that it belongs to."
            yield Problem("--working-dir", rule, place, remedy)
            return


def folder_problems(folder: Path) -> list[Problem]:
    """Return why a folder is unsafe to upload: it holds a home folder or a whole disk, or others can write to it."""
    place, there = "--working-dir", folder.resolve()
    if not there.is_dir():
        return [Problem(place, "must be a folder", str(folder))]
    remedy = "Name the folder of your own modules."
    home = expand_home("~")
    holds_home = home.is_absolute() and home.resolve().is_relative_to(there)  # else there is no home folder
    if holds_home or there in {Path("/"), Path(tempfile.gettempdir()).resolve()}:
        rule = "must not hold a home folder, a whole disk or the shared temporary folder"
        return [Problem(place, rule, str(folder), remedy)]
    state = there.stat()
    if state.st_mode & 0o002:
        return [Problem(place, "must not be writable by everybody, because its code runs", str(folder), remedy)]
    if hasattr(os, "getuid") and state.st_uid not in {os.getuid(), 0}:
        return [Problem(place, "must belong to you, because its code runs", str(folder), remedy)]
    return []
