"""Collect the files to upload with a job: this project's installed packages, and files that the user names.

Files that look like secrets are not uploaded.
"""

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
"""Maximum size of an upload in bytes. Ray refuses 100 MB and names no file."""

_EXCLUDED_NAMES = {
    *(".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints"),
    *(".venv", ".venv-vision", "venv", "node_modules", "build", "sweeps", "mlruns"),
    *("mlflow.db", "mlflow.db-wal", "mlflow.db-shm"),
    ".gitignore",  # Ray would omit the files that it lists, such as an `.egg-info`
    "tune_dml.egg-info",  # the installed one is uploaded; others describe the user's packages
}
_SECRET = re.compile(
    r"(?i)^(\.env(\..*)?|\.netrc|\.npmrc|\.pgpass|\.pypirc|\.s3cfg|\.boto|\.git-credentials|auth_token|id_(rsa|dsa|ecdsa|ed25519)"
    r"|(.*[_-])?credentials(\..*)?|.*service[_-]?account.*\.json|kaggle\.json|secrets?\.(ya?ml|json|toml|ini)|token(\.(txt|json))?"
    r"|.*\.(pem|key|p12|pfx|keystore)|\.(ssh|aws|gnupg|kube|docker|azure|ray))$"
)


@dataclass(frozen=True)
class Upload:
    """Files to upload, by their path in the job's working directory."""

    files: dict[str, Path]
    secrets: tuple[str, ...] = ()  # files that are not uploaded because they look like secrets
    skipped_links: tuple[str, ...] = ()
    """Links that are not uploaded: broken ones, and links to folders or to files outside of the folder."""

    user_files: frozenset[str] = frozenset()  # their paths

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum(path.stat().st_size for path in self.files.values())

    def __str__(self) -> str:
        """Return `1.9 MB in 312 files: tune_dml 1.1 MB, ...`."""
        sizes: dict[str, int] = {}
        for location, path in self.files.items():
            package = location.partition("/")[0]
            sizes[package] = sizes.get(package, 0) + path.stat().st_size
        by_size = sorted(sizes.items(), key=lambda item: -item[1])
        parts = ", ".join(f"{package} {_megabytes(size)}" for package, size in by_size)
        return f"{_megabytes(self.size)} in {len(self.files)} files: {parts}"

    @contextmanager
    def stage(self) -> Iterator[Path]:
        """Yield a temporary folder with all files, and the project's entry points, which declare spaces and methods."""
        with tempfile.TemporaryDirectory(prefix="tune-dml-") as folder:
            root = Path(folder)
            for location, path in self.files.items():
                (root / location).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, root / location)
            distribution = importlib.metadata.distribution(_DISTRIBUTION)
            info = root / f"tune_dml-{distribution.version}.dist-info"
            info.mkdir()
            # A checkout's own .egg-info names the metadata PKG-INFO.
            metadata = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
            (info / "METADATA").write_text(metadata, encoding="utf-8")
            (info / "entry_points.txt").write_text(distribution.read_text("entry_points.txt") or "")
            yield root


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size < 1e6 else f"{size / 1e6:.1f} MB"


def collect_upload(files: Sequence[Path], working_dir: Path | None = None) -> Upload:
    """Collect this project's packages, the named files, and `working_dir`, a folder of the user's modules.

    Raise ConfigError if the folder is unsafe or would replace this project's modules, or the upload is too large.
    """
    project_files: dict[str, Path] = {}
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        for folder in spec.submodule_search_locations or () if spec else ():
            project_files.update({f"{name}/{location}": path for location, path in _walk(Path(folder), [], [])})
    user_files: dict[str, Path] = {}
    secrets: list[str] = []
    skipped_links: list[str] = []
    if working_dir is not None:
        raise_if_any(_unsafe_folder_problems(working_dir))
        user_files.update(_walk(working_dir.resolve(), secrets, skipped_links))
        raise_if_any(_rayignore_problems(user_files, working_dir))
        raise_if_any(_missing_egg_info_problems(user_files, working_dir))
        raise_if_any(_replacement_problems(project_files, user_files, working_dir))
    user_files.update({_path_in_job(file): file for file in files})
    upload = Upload({**project_files, **user_files}, tuple(secrets), tuple(skipped_links), frozenset(user_files))
    if upload.size > _LIMIT:
        rule = f"an upload may have at most {_megabytes(_LIMIT)}, but this has {upload}"
        largest = max(upload.files, key=lambda location: upload.files[location].stat().st_size)
        remedy = f"The largest file is {largest}. Put data on the cluster's storage, or name a smaller folder."
        raise ConfigError(Problem("--working-dir", rule, str(working_dir), remedy))
    return upload


def _path_in_job(file: Path) -> str:
    """Return the relative path of a file, which is the same on the cluster."""
    if file.is_absolute() or ".." in file.parts:
        rule = "a file to upload must be named by a relative path below the working directory"
        raise ConfigError(Problem("submit", rule, str(file), "Change to its folder first."))
    return file.as_posix()


def _walk(folder: Path, secrets: list[str], skipped_links: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield (relative path, path) of the files to upload; append the others to `secrets` and `skipped_links`."""
    for parent, folders, names in os.walk(folder, onerror=_raise_error):
        entries = sorted(Path(parent, name) for name in (*folders, *names) if name not in _EXCLUDED_NAMES)
        folders.clear()
        for path in entries:
            relative = path.relative_to(folder).as_posix()
            if _SECRET.match(path.name):
                secrets.append(relative)
            elif path.is_symlink() and not (path.is_file() and path.resolve().is_relative_to(folder.resolve())):
                skipped_links.append(relative)
            elif path.is_dir():
                folders.append(path.name)
            elif path.is_file():
                yield relative, path


def _raise_error(error: OSError) -> None:
    """Raise the error of an unreadable folder, because the cluster would lack its modules."""
    raise error


def _rayignore_problems(locations: Iterable[str], folder: Path) -> Iterator[Problem]:
    for location in locations:
        if location.rpartition("/")[2] == ".rayignore":  # Ray would apply it to all files of the upload
            rule = f"the whole folder is uploaded; .rayignore is not supported (in {folder})"
            remedy = "Move the files that it lists out of the folder, and delete it."
            yield Problem("--working-dir", rule, location, remedy)


def _missing_egg_info_problems(user_files: Mapping[str, Path], folder: Path) -> Iterator[Problem]:
    """Yield a problem if the folder declares entry points but has no .egg-info at its top."""
    metadata_folders = {location.partition("/")[0] for location in user_files if location.endswith("/entry_points.txt")}
    if "pyproject.toml" not in user_files or any(folder_name.endswith(".egg-info") for folder_name in metadata_folders):
        return
    try:
        declared = tomllib.loads(user_files["pyproject.toml"].read_text(encoding="utf-8")).get("project", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return  # the cluster cannot read it either
    if not any(group.startswith("tune_dml.") for group in declared.get("entry-points", {})):
        return
    nested = [Path(location).parents[1] for location in user_files if location.endswith(".egg-info/entry_points.txt")]
    remedy = f"Name {folder / nested[0]}." if nested else "Run `pip install -e .` there, with setuptools."
    rule = "its pyproject.toml declares methods or spaces; to find them, the cluster needs an .egg-info at its top"
    yield Problem("--working-dir", rule, str(folder), remedy)


def _replacement_problems(
    project_files: Mapping[str, Path], user_files: Mapping[str, Path], folder: Path
) -> Iterator[Problem]:
    for location in project_files.keys() & user_files.keys():
        if not filecmp.cmp(project_files[location], user_files[location], shallow=False):
            rule = f"a folder of your own modules must not replace this project's (in {folder})"
            remedy = f"Rename its {location.partition('/')[0]}/, or install the checkout that it belongs to."
            yield Problem("--working-dir", rule, location, remedy)
            return


def _unsafe_folder_problems(folder: Path) -> list[Problem]:
    """Return the problem of a folder that is unsafe to upload, such as a home folder or one that others can write."""
    option, resolved = "--working-dir", folder.resolve()
    if not resolved.is_dir():
        return [Problem(option, "must be a folder", str(folder))]
    remedy = "Name the folder of your own modules."
    home = expand_home("~")
    # Without a home folder, `home` is relative.
    holds_home = home.is_absolute() and home.resolve().is_relative_to(resolved)
    if holds_home or resolved in {Path("/"), Path(tempfile.gettempdir()).resolve()}:
        rule = "must not hold a home folder, a whole disk or the shared temporary folder"
        return [Problem(option, rule, str(folder), remedy)]
    status = resolved.stat()
    if status.st_mode & 0o002:
        return [Problem(option, "must not be writable by everybody, because its code runs", str(folder), remedy)]
    if hasattr(os, "getuid") and status.st_uid not in {os.getuid(), 0}:
        return [Problem(option, "must belong to you, because its code runs", str(folder), remedy)]
    return []
