"""Collect the provenance of a session: code, versions, machine and command line, without secrets."""

import contextlib
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
from typing import TypedDict
from urllib.parse import urlsplit

from trainables.errors import Problem
from trainables.option_names import option_problem

_LIST_LIMIT = 100
_TIMEOUT = 2.0  # seconds to wait for a helper program

_PACKAGES = (
    *("tune-dml", "torch", "numpy", "ray", "optuna", "mlflow", "pandas", "scipy", "scikit-learn", "pydantic"),
    *("pillow", "faiss-cpu", "faiss-gpu", "torchvision", "timm", "pytorch-metric-learning"),
)
_ENVIRONMENT = (
    *("RAY_ADDRESS", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "CUDA_VISIBLE_DEVICES"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG"),
    *("NVIDIA_TF32_OVERRIDE", "PYTORCH_CUDA_ALLOC_CONF", "PYTHONHASHSEED", "SLURM_JOB_ID"),
)

STARS = "***"
_VARIABLE = re.compile(
    r"(?i)(?:token|passw(?:or)?d|passphrase|secret|(?:api|access|account|private)_?key|credential|(?:\A|_)pass)s?(?:_|\Z)"
)
"""Matches names of environment variables that hold secrets."""
_MIN_SECRET_LENGTH = 8  # length of the shortest environment variable that is searched for in texts, as a secret


class Git(TypedDict, total=False):
    """State of a git repository."""

    commit: str | None
    branch: str
    dirty: bool
    untracked: list[str]
    untracked_cut: str
    diff_digest: str
    diff_note: str
    note: str


class Cpu(TypedDict):
    """CPU model, cores of the machine, and cores that this process may use."""

    model: str
    count: int | None
    usable: int | None


class Gpu(TypedDict):
    """One GPU, as nvidia-smi describes it."""

    name: str
    memory_mib: int | None
    driver: str


class Provenance(TypedDict, total=False):
    """The provenance of a session. Older sweeps may lack keys."""

    git: Git
    packages: dict[str, str]
    methods: dict[str, str]
    python: str
    platform: str
    host: str
    cpu: Cpu
    memory_bytes: int | None
    gpus: list[Gpu]
    argv: list[str]
    environment: dict[str, str]


_NAME_WORD = (
    r"(?:token(?!s)|passw(?:or)?d|passphrase|(?:store|key)pass|secret|api[_-]?key|credential|creds\b|authorization"
    r"|connection[_-]?string|cookie|x-auth"
    r"|(?:access|account|private|signing|encryption|master|client|storage|ssh|deploy|license)[_-]?key)s?(?-i:(?![a-z]))[\w-]{0,40}"
)
"""Matches a word in names of secrets. It does not match `tokenizer` and `secretary`."""
_SHORT_WORD = r"(?<![a-z])(?:passw?|pwd|pw|auth)\b"
_QUOTED = r"[bfru]{0,2}\\*(?P<quote>'{3}|\"{3}|['\"])(?:(?!(?P=quote))[^\n])+(?P=quote)"
"""Matches a string in quotes, which may follow a backslash."""
_VALUE = rf"(?:{_QUOTED}|(?!(?:[\d.]{{1,4}}|\$\w+|\$?\{{[\w.:]+\}})(?:[\s'\"&;,\]}})]|\Z))(?!\s)[^\s'\"&;,]+)"
"""Matches the value of a secret: not a short number, a variable or a placeholder."""
_ASSIGNMENT = (
    r"\\*['\"]?\]?(?:[\s,]+['\"]?(?:value|default)(?=['\"]?[=:])['\"]?)?(?::\s*\w+(?:\s*\|\s*None)?(?=\s*=))?"
    r"\s*(?::=|=>|[=:]|%3D)\s*(?:[>|][+-]?\s*\n\s+|[(\\]\s*)?"
)
"""Matches the text between name and value: an assignment in a program, YAML, JSON or a web address."""
_SECRETS = (
    r"(?s)-----BEGIN[A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END[A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
    r"\bSK[0-9a-f]{32}\b|(?<!\d)\d{8,10}:AA[\w-]{30,}|\bpul-[0-9a-f]{40}\b|\b\w{14}\.atlasv1\.[\w-]{12,}",
    r"\b(?:gh[pousr]_|github_pat_|gl(?:pat|dt|rt|ptt|cbt|soat|agent)-|GR1348941|hf_|sk-|xox[abeprs]-|xapp-|A[KS]IA"
    r"|dapi|dop_v1_|npm_|pypi-|AIza|SG\.|whsec_|[rs]k_(?:live|test)_|ya29\.|GOCSPX-|hv[bs]\.|lin_api_|gsk_|r8_"
    r"|nvapi-|shpat_|dckr_pat_|glsa_|glc_|sntrys_|NRAK-|sq0[a-z]{3}-|AGE-SECRET-KEY-1)[\w.-]{12,}(?::[\w/+=]{30,})?",
)
"""Secrets that are known by their form."""
_NAMED_SECRETS = (
    # scheme://user:password@host. Not for sqlite and file, whose paths may hold an `@`.
    r"((?<!sqlite)(?<!file)://)[^\s'\"]{0,1000}(?=@)",
    r"(?i)(\bbearer\s+)[\w.~+/=-]{8,}",
    r"(\b[Bb]asic\s+)(?=\S*[A-Z0-9])[\w+/]{8,}={0,2}(?![\w.-])",
    r"(?i)(\b(?:authorization|(?:set-)?cookie)\\*['\"]?\s*:\s*\\*['\"]?)(?!\s)(?:digest\s[^\n]+|[^'\"\n]+)",
    rf"(?i)((?:\bauth\s*=\s*|BasicAuth|\.login)\(\s*['\"][^'\"\n]*['\"]\s*,\s*){_QUOTED}",
    rf"(?i)((?:{_NAME_WORD})['\"]\s*,\s*)(?=['\"][^'\"\n]*\d){_QUOTED}(?!\s*:)",
    rf"(?i)((?:{_NAME_WORD}|{_SHORT_WORD}){_ASSIGNMENT}){_VALUE}",
    rf"(?i)((?<![\w-])--?[\w-]{{0,40}}?(?:{_NAME_WORD}|{_SHORT_WORD})\s+)(?!-){_VALUE}",
    rf"(?i)(<(?:{_NAME_WORD}|{_SHORT_WORD})>)[^<\n]+",
    r"(?i)((?<![\w-])[\w-]{0,40}?(?:passw(?:or)?d|passphrase|secret|(?:api|access|signing)[_-]?key|token)\s+)"
    r"(?=\S*\d)[^\s'\"]{8,}",
    r"(?i)(\blogin\s+\S+\s+password\s+|\bsshpass\s+-p\s*|\bmysql\w*\s[^\n]{0,80}?(?<=\s)-p|\bwandb\s+login\s+(?!-)"
    r"|\blogin\s[^\n]{0,80}?(?<=\s)-p\s+|\bredis-cli\s[^\n]{0,80}?(?<=\s)-a\s+)\S+",
    r"(?i)((?<!\w)(?:-u|--user|--proxy-user)[ =]*['\"]?[^\s:'\"]+:)[^\s'\"]+",
    r"(?i)((?:[?&](?:key|sig|code)|(?<![a-z])signature)=)[^\s&'\"]{8,}",
    r"((?<=['\"])key['\"]\s*:\s*['\"])[0-9a-f]{32}\b",
    r"(hooks\.slack\.com/services/|discord(?:app)?\.com/api/webhooks/)[\w/-]+",
)
"""Secrets that follow a name or a sign, the first group, which is kept."""
_PATTERNS = [(re.compile(pattern), STARS) for pattern in _SECRETS]
_PATTERNS += [(re.compile(pattern), rf"\1{STARS}") for pattern in _NAMED_SECRETS]


def mask(text: str) -> str:
    """Replace logins in addresses, values of secret settings, known tokens and secret variables by stars."""
    for pattern, stars in _PATTERNS:
        text = pattern.sub(stars, text)
    for name in os.environ:
        value = os.environ.get(name, "")  # another thread may remove a variable during the loop
        if value in text and _is_secret(name, value):
            text = text.replace(value, STARS)
    return text


def _is_secret(name: str, value: str) -> bool:
    """Return whether an environment variable holds a secret: not a short word, a number or a path."""
    is_long = len(value) >= _MIN_SECRET_LENGTH and not value.isdigit() and not value.startswith(("/", "~"))
    return is_long and _VARIABLE.search(name) is not None


def secret_problems(command: str) -> list[Problem]:
    """Return a problem if a command holds a secret, because plan and report show the command."""
    if (masked := mask(command)) == command:
        return []
    remedy = "Write ${envvar:NAME} in its place, or let the program read the environment."
    return [option_problem("command", "must not contain a secret: plan and report show it", masked, remedy)]


def without_login(address: str) -> str:
    """Return a web address without user and password. Other secrets are replaced by stars."""
    return re.sub(r"\A(https?://)[^/]*@", r"\1", mask(address))


def _mask_argv(argv: Sequence[str]) -> list[str]:
    """Return a command line without secrets (`--token X` and `--token=X`), and without surrogate characters."""
    masked: list[str] = []
    for word in (word.encode(errors="surrogateescape").decode(errors="replace") for word in argv):
        is_value = (
            bool(masked) and re.fullmatch(rf"(?i)--?[\w-]*?(?:{_NAME_WORD}|{_SHORT_WORD})", masked[-1]) is not None
        )
        masked.append(STARS if is_value else mask(word))
    return masked


def collect(argv: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> Provenance:
    """Return the provenance of this process as JSON values.

    `git` describes the repository of the working directory or, without one, of this package. Only size and digest of
    the diff against HEAD are stored. Equal digests mean equal changes of the tracked files.
    """
    environment = os.environ if environment is None else environment
    gpu_query = _start_gpu_query()  # runs at the same time as git
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "git": _git(Path.cwd(), Path(__file__).resolve().parent),
        "packages": _versions(),
        "methods": _methods(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "cpu": {"model": _cpu_model(), "count": os.cpu_count(), "usable": usable},
        "memory_bytes": _memory(),
        "gpus": _gpus(gpu_query),
        "argv": _mask_argv(sys.argv if argv is None else argv),
        "environment": {name: mask(environment[name]) for name in _ENVIRONMENT if name in environment},
    }


def _git(*folders: Path) -> Git:
    """Describe the repository of the first folder that belongs to one and is not ignored there."""
    if shutil.which("git") is None:
        return {"commit": None, "note": "git is not installed"}
    for folder in folders:
        has_repository = any((parent / ".git").exists() for parent in (folder, *folder.parents))
        if not has_repository or _run("git", "-C", str(folder), "check-ignore", "-q", ".") is not None:
            continue
        status = _run("git", "-C", str(folder), "status", "--porcelain=v2", "--branch")
        if status is None:  # the repository of another user, or a large one on a slow disk
            commit = (_run("git", "-C", str(folder), "rev-parse", "HEAD") or "").strip() or None
            return {"commit": commit, "note": f"git status failed, or took longer than {_TIMEOUT:g} s"}
        return _repository(folder, status)
    return {"commit": None, "note": "not in a git repository"}


def _repository(folder: Path, status: str) -> Git:
    heads = dict(line[2:].split(" ", 1) for line in status.splitlines() if line.startswith("# "))
    changes = [line for line in status.splitlines() if not line.startswith("#")]
    untracked = [line[2:] for line in changes if line.startswith("? ")]
    commit = heads.get("branch.oid", "")
    git: Git = {
        "commit": None if commit.startswith("(") else commit,  # "(initial)" before the first commit
        "branch": heads.get("branch.head", ""),
        "dirty": bool(changes),
        "untracked": untracked[:_LIST_LIMIT],
    }
    if len(untracked) > _LIST_LIMIT:
        git["untracked_cut"] = f"{_LIST_LIMIT} of {len(untracked)} untracked files are listed"
    if len(changes) > len(untracked):
        git.update(_diff(folder))
    return git


def _diff(folder: Path) -> Git:
    """Return digest and size of the uncommitted changes. Their text is not stored: it may hold secrets."""
    text = _run("git", "-C", str(folder), "diff", "HEAD", "--no-color", "--no-ext-diff")
    if text is None:
        return {"diff_note": "the diff could not be read"}
    lines = sum(line[:1] in {"+", "-"} and line[:3] not in {"+++", "---"} for line in text.splitlines())
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {"diff_digest": digest, "diff_note": f"{lines} lines of {text.count('diff --git ')} files"}


def _run(*command: str) -> str | None:
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
    """Return package -> version and source digest, for every other package with methods, data sets or spaces."""
    versions_by_package: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        groups = (entry for entry in package.entry_points if entry.group.startswith("tune_dml."))
        modules = sorted({entry.module.partition(".")[0] for entry in groups})
        name = _package_name(package) if modules else None
        # If a package is installed twice, Python imports the first.
        if name and name != "tune-dml" and name not in versions_by_package:
            versions_by_package[name] = f"{package.version}, source {_source_digest(modules)}"
    return versions_by_package


def _package_name(package: importlib.metadata.Distribution) -> str | None:
    """Return a package's name, None if its metadata are empty or lost."""
    # Python returns None; the package importlib_metadata, which MLflow imports, raises FileNotFoundError.
    with contextlib.suppress(FileNotFoundError):
        name: str | None = package.name
        return name
    return None


def _source_digest(modules: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for module in modules:
        spec = importlib.util.find_spec(module)
        folders = list(spec.submodule_search_locations or ()) if spec else []
        files = sorted(file for folder in folders for file in Path(folder).rglob("*.py"))
        if spec and not folders and spec.origin:
            files = [Path(spec.origin)]
        digest.update(module.encode())
        for file in files:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return (_run("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor()).strip()
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return model.group(1).strip() if model else platform.machine()


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


def _gpus(query: subprocess.Popen[bytes] | None) -> list[Gpu]:
    text = b""
    if query is not None:
        try:
            text, _ = query.communicate(timeout=_TIMEOUT)
        except subprocess.TimeoutExpired:
            query.kill()
            query.communicate()
    lines = text.decode(errors="replace").splitlines() if query is not None and query.returncode == 0 else []
    rows = ([part.strip() for part in line.split(",")] for line in lines)
    return [
        {"name": name, "memory_mib": int(memory) if memory.isdigit() else None, "driver": driver}
        for name, memory, driver in (row for row in rows if len(row) == 3)
    ]


def proxy_hint(address: str) -> str:
    """Return a sentence about the proxy of an address, with the command that avoids it; empty without a proxy."""
    import urllib.request  # loads slowly

    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    proxy, host = urllib.request.getproxies().get(parts.scheme), parts.hostname or ""
    if not proxy or urllib.request.proxy_bypass(host):
        return ""
    return f" The request went through the proxy {mask(proxy)}. To avoid it: `export no_proxy={host}`."
