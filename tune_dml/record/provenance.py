"""Where a sweep's numbers come from: code, versions, machine, command line. Never a secret, never slow.

    collect()            everything, JSON-able; a git repository and a GPU query are the only things that cost time
    mask(text)           the text with whatever looks like a secret starred out

No torch is imported to look at GPUs: torch answers when it already holds them, else the driver's own tools do.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_DIFF_LIMIT = 200_000
"""Characters of the diff that are kept; its digest is always of the whole."""

_LIST_LIMIT = 100
_TIMEOUT = 2.0
"""Seconds a helper program may take before we go on without it."""

_PACKAGES = (
    *("tune-dml", "torch", "numpy", "ray", "optuna", "mlflow", "pandas", "scipy", "scikit-learn", "pydantic"),
    *("pillow", "faiss-cpu", "faiss-gpu", "torchvision", "timm", "pytorch-metric-learning"),
)
_ENVIRONMENT = (
    *("RAY_ADDRESS", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "CUDA_VISIBLE_DEVICES"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG"),
    *("NVIDIA_TF32_OVERRIDE", "PYTORCH_CUDA_ALLOC_CONF", "PYTHONHASHSEED", "SLURM_JOB_ID"),
)

_STARS = "***"
_NAME = r"(?:[\w-]*(?:token|passw(?:or)?d|passwd|secret|api[_-]?key|credential|authorization)[\w-]*)"
_PATTERNS = (
    # scheme://user:password@host. Not for sqlite and file, whose paths may hold an `@`.
    (re.compile(r"(?<!sqlite)(?<!file)://[^\s'\"]*@"), f"://{_STARS}@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {_STARS}"),
    (re.compile(rf"(?i)(\b{_NAME}['\"]?\s*[=:]\s*)(['\"]?)(?!\s)[^\s'\"&;,]+"), rf"\1\2{_STARS}"),
    (re.compile(r"\b(?:gh[pousr]_|github_pat_|hf_|sk-|xox[abp]-|AKIA|dapi)[\w-]{12,}"), _STARS),
)


def mask(text: str) -> str:
    """The text with user:password@ of addresses, values of secret-looking settings and known token forms starred out."""
    for pattern, stars in _PATTERNS:
        text = pattern.sub(stars, text)
    return text


def without_login(address: str) -> str:
    """An address with a web server's user and password left out, for whoever is asked for them or has them in the environment.

    Other secrets are starred out.
    """
    return re.sub(r"\A(https?://)[^/]*@", r"\1", mask(address))


def _mask_argv(argv: Sequence[str]) -> list[str]:
    """A command line without secrets, `--token X` loses its X as `--token=X` does, in letters that every file and store takes.

    Python reads bytes that its locale does not know, as of a file named in another one's, into halves of letters.
    """
    masked: list[str] = []
    for word in (word.encode(errors="surrogateescape").decode(errors="replace") for word in argv):
        hidden = bool(masked) and re.fullmatch(rf"(?i)--?{_NAME}", masked[-1]) is not None
        masked.append(_STARS if hidden else mask(word))
    return masked


def collect(argv: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Everything that is known about this process and its code, as JSON-able values.

    `git` describes the project of the working directory, or that of this package when the former is none. The diff
    is against HEAD, secrets starred out; `diff_digest` is of the true diff, so equal digests mean equal code.
    """
    environment = os.environ if environment is None else environment
    gpu_query = _start_gpu_query()  # runs while git does
    return {
        "git": _git(Path.cwd(), Path(__file__).resolve().parent),
        "packages": _versions(),
        "methods": _methods(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "cpu": {"model": _cpu_model(), "count": os.cpu_count(), "usable": _usable_cpus()},
        "memory_bytes": _memory(),
        "gpus": _gpus(gpu_query),
        "argv": _mask_argv(sys.argv if argv is None else argv),
        "environment": {name: mask(environment[name]) for name in _ENVIRONMENT if name in environment},
    }


def _git(*folders: Path) -> dict[str, Any]:
    """The first folder that lies in a git repository and is not ignored by it."""
    if shutil.which("git") is None:
        return {"commit": None, "note": "git is not installed"}
    for folder in folders:
        status = _run("git", "-C", str(folder), "status", "--porcelain=v2", "--branch")
        if status is None or _run("git", "-C", str(folder), "check-ignore", "-q", ".") is not None:
            continue
        return _repository(folder, status)
    return {"commit": None, "note": "not in a git repository"}


def _repository(folder: Path, status: str) -> dict[str, Any]:
    heads = dict(line[2:].split(" ", 1) for line in status.splitlines() if line.startswith("# "))
    changes = [line for line in status.splitlines() if not line.startswith("#")]
    untracked = [line[2:] for line in changes if line.startswith("? ")]
    commit = heads.get("branch.oid", "")
    described: dict[str, Any] = {
        "commit": None if commit.startswith("(") else commit,  # "(initial)": nothing committed yet
        "branch": heads.get("branch.head", ""),
        "dirty": bool(changes),
        "untracked": untracked[:_LIST_LIMIT],
    }
    if len(untracked) > _LIST_LIMIT:
        described["untracked_cut"] = f"{_LIST_LIMIT} of {len(untracked)} untracked files are listed"
    if len(changes) > len(untracked):
        described.update(_diff(folder))
    return described


def _diff(folder: Path) -> dict[str, Any]:
    text = _run("git", "-C", str(folder), "diff", "HEAD", "--no-color", "--no-ext-diff")
    if text is None:
        return {"diff": "", "diff_note": "the diff could not be read"}
    shown = mask(text[:_DIFF_LIMIT])
    described: dict[str, Any] = {"diff_digest": hashlib.sha256(text.encode()).hexdigest()[:16], "diff": shown}
    if len(text) > _DIFF_LIMIT:
        described["diff_note"] = f"cut: the first {_DIFF_LIMIT} of {len(text)} characters"
    elif shown != text:
        described["diff_note"] = f"what looked like a secret is shown as {_STARS}"
    return described


def _run(*command: str) -> str | None:
    """What a program prints, or None when it fails, is missing or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _methods() -> dict[str, str]:
    """Package -> version and a digest of its source, of every other package that brings methods, data sets or spaces."""
    brought: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        groups = (entry for entry in package.entry_points if entry.group.startswith("tune_dml."))
        modules = sorted({entry.module.partition(".")[0] for entry in groups})
        if modules and package.name != "tune-dml" and package.name not in brought:  # the first one is imported
            brought[package.name] = f"{package.version}, source {_source_digest(modules)}"
    return brought


def _source_digest(modules: Sequence[str]) -> str:
    """Of the Python files of top-level modules, none of which is imported; of one that is not there, of its name alone."""
    seen = hashlib.sha256()
    for module in modules:
        spec = importlib.util.find_spec(module)
        folders = list(spec.submodule_search_locations or ()) if spec else []
        files = sorted(file for folder in folders for file in Path(folder).rglob("*.py"))
        if spec and not folders and spec.origin:
            files = [Path(spec.origin)]
        seen.update(module.encode())
        for file in files:
            seen.update(file.name.encode() + b"\0" + file.read_bytes())
    return seen.hexdigest()[:12]


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return (_run("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor()).strip()
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return model.group(1).strip() if model else platform.machine()


def _usable_cpus() -> int | None:
    affinity = getattr(os, "sched_getaffinity", None)  # not on every platform
    return len(affinity(0)) if affinity else os.cpu_count()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _start_gpu_query() -> subprocess.Popen[bytes] | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        return subprocess.Popen([program, *query], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # noqa: S603
    except OSError:
        return None


def _gpus(query: subprocess.Popen[bytes] | None) -> list[dict[str, Any]]:
    text = b""
    if query is not None:
        try:
            text, _ = query.communicate(timeout=_TIMEOUT)
        except subprocess.TimeoutExpired:
            query.kill()
            query.communicate()
    lines = text.decode(errors="replace").splitlines() if query is not None and query.returncode == 0 else []
    if rows := [[part.strip() for part in line.split(",")] for line in lines]:
        return [
            {"name": name, "memory_mib": int(memory) if memory.isdigit() else None, "driver": driver}
            for name, memory, driver in (row for row in rows if len(row) == 3)
        ]
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    devices = (torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count()))
    return [{"name": device.name, "memory_mib": device.total_memory // 2**20} for device in devices]
