"""Check a cluster file before any machine starts: against Ray's schema, and for the needs of our sweeps.

Schema and defaults are those of the installed Ray. Its own loader stops at the first error; this check reports all.
"""

import io
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path, PurePosixPath
from shutil import which
from typing import Any

from trainables.errors import ConfigError, Problem, nearest
from trainables.files import expand_home
from tune_dml.planning.files.sweep_file import read_mapping
from tune_dml.text import one_line

_ClusterConfig = Mapping[str, Any]  # the content of a cluster file, which Ray's schema checks
_TOKEN = Path("~/.ray/auth_token")
_GUIDE = "docs/cluster.md says how."
_EXAMPLES = "cluster.yaml and deploy/ are commented examples."
_TYPES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
}
_PROVIDER_KEYS = ("aws_credentials", "coordinator_address", "external_head_ip")
"""Keys that Ray also reads for `_CHECKED_PROVIDERS`, although its schema lacks them."""
_CHECKED_PROVIDERS = ("aws", "gcp", "local")
_PROGRAMS = ("ssh", "rsync")  # programs that Ray's launcher runs on this machine
_LAUNCHER_NEEDS = {"aws": ("boto3", "boto3"), "gcp": ("googleapiclient", "google-api-python-client")}
"""Provider -> module that Ray's launcher imports on this machine, and its package."""
_PLACEHOLDER = re.compile(r"\bYOUR-[A-Z-]+")
_MOUNTS = re.compile(r"\bmount|fuse|lustre|gpfs")
_RAY_START = re.compile(r"\bray start\b")
_DASHBOARD = re.compile(r"--dashboard-host[= ]+['\"]?([^\s'\";]+)")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_POD_GPU, _POD_CLUSTER = "nvidia.com/gpu", "spec.rayClusterSpec"
_GPU_MACHINES = re.compile(r"[pg]\d|a\d-")  # prefixes of machine types with GPUs, on AWS and Google Cloud


def cluster_file_problems(path: Path, *, to_start: bool = True) -> list[Problem]:
    """Return the problems that prevent sweeps on the cluster of a file.

    If it is not `to_start`, only a running cluster is reached by it.
    """
    try:
        config = read_mapping(path, "cluster file", _EXAMPLES)
    except ConfigError as error:
        return list(error.problems)
    if str(config.get("apiVersion", "")).startswith("ray.io/"):
        if not to_start:
            rule = "Ray's launcher cannot reach a cluster on Kubernetes"
            return [Problem(str(path), rule, config.get("kind"), "Name http://HOST:8265 of a port-forward.")]
        return [_locate(path, problem) for problem in _rayjob_problems(config)]
    from jsonschema import Draft7Validator

    from tune_dml.running.ray_internals import cluster_file_schema

    errors = list(Draft7Validator(cluster_file_schema()).iter_errors(config))
    problems = [*_schema_problems(errors), *_unlisted_problems(config)] or list(_ray_problems(config))
    if not any(error.validator == "type" for error in errors):  # after a wrong type, further checks would fail
        problems += _sweep_problems(config) if to_start else _package_problems(config)
    return [_locate(path, problem) for problem in problems]


def cluster_file_gaps(path: Path) -> list[Problem]:
    """Return what is missing before a correct file can be used: values of placeholders, and packages."""
    config = read_mapping(path, "cluster file", _EXAMPLES)
    packages = () if "apiVersion" in config else _package_problems(config)
    return [_locate(path, problem) for problem in (*_placeholder_problems(config), *packages)]


def cluster_file_notes(path: Path) -> list[str]:
    """Return notes for the user of a correct file."""
    config: _ClusterConfig = read_mapping(path, "cluster file", _EXAMPLES)
    if "apiVersion" in config:
        return [f"Kubernetes checks its schema: kubectl apply --dry-run=server -f {path}"]
    notes = []
    if _is_local(config) and not (config.get("auth") or {}).get("ssh_private_key"):
        notes += ["no auth.ssh_private_key: the head starts the workers by SSH, and needs a key that they accept"]
    keys = ("initialization_commands", "setup_commands", "worker_setup_commands", "worker_start_ray_commands")
    if any(_MOUNTS.search(command) for key in keys for command in _commands(config, key)):
        return notes
    return [*notes, "workers mount no shared folder: name a bucket with each sweep, --trial-files s3://..."]


def _locate(path: Path, problem: Problem) -> Problem:
    return Problem(f"{path.name}: {problem.place}", problem.rule, problem.value, problem.remedy)


def _schema_problems(errors: Iterable[Any]) -> Iterator[Problem]:
    for error in errors:
        parents, known = [str(key) for key in error.absolute_path], list(error.schema.get("properties", {}))
        if error.validator == "additionalProperties":
            unknown = [key for key in error.instance if key not in known]
            yield from (_unknown_key(".".join([*parents, str(key)]), known) for key in unknown)
        elif error.validator == "required":
            missing = [key for key in error.schema["required"] if key not in error.instance]
            key = next(key for key in missing if error.message.startswith(repr(key)))
            remedy = _description(error.schema["properties"].get(key, {}))
            yield Problem(".".join([*parents, key]), "must be given", None, remedy)
        elif error.validator == "type":
            types = [error.validator_value] if isinstance(error.validator_value, str) else error.validator_value
            rule = f"must be {' or '.join(_TYPES[kind] for kind in types if kind != 'null')}"
            yield Problem(".".join(parents), rule, error.instance, _description(error.schema))
        else:
            yield Problem(".".join(parents), error.message.partition("\n")[0])


def _texts(part: Any, location: str = "") -> Iterator[tuple[str, str]]:
    """Yield the location and content of each text in a mapping or list."""
    if isinstance(part, str):
        yield location, part
    pairs = part.items() if isinstance(part, Mapping) else enumerate(part) if isinstance(part, list) else ()
    for key, value in pairs:
        yield from _texts(value, f"{location}.{key}".lstrip("."))


def _description(part: _ClusterConfig) -> str:
    return str(part.get("description", "")).partition(". ")[0]


def _unknown_key(location: str, known: Sequence[str]) -> Problem:
    return Problem(location, "no such key", None, nearest(location.rpartition(".")[2], known, what="key"))


def _unlisted_problems(config: _ClusterConfig) -> Iterator[Problem]:
    """Check what Ray's schema does not: the keys of `provider`, and the sources of mounts."""
    from tune_dml.running.ray_internals import cluster_file_schema

    provider, mounts = config.get("provider"), config.get("file_mounts")
    known = [*cluster_file_schema()["properties"]["provider"]["properties"], *_PROVIDER_KEYS]
    for key in provider if isinstance(provider, dict) and provider.get("type") in _CHECKED_PROVIDERS else ():
        if key not in known:
            yield _unknown_key(f"provider.{key}", known)
    for location, source in mounts.items() if isinstance(mounts, dict) else ():
        if not isinstance(source, str):
            yield Problem(f"file_mounts.{location}", "must be the path of the files to copy", source)


def _ray_problems(config: _ClusterConfig) -> Iterator[Problem]:
    """Yield the error of Ray's loader beyond its schema, such as a head that is not a node type."""
    from tune_dml.running.ray_internals import validate_cluster_file

    printed, level = io.StringIO(), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(printed), redirect_stderr(printed):  # it prints its message before it raises
            validate_cluster_file(config)
    except Exception as error:  # whatever it raises, the file is wrong
        message = str(error).strip() or printed.getvalue().strip() or type(error).__name__
        yield Problem("the file", f"Ray refuses it: {one_line(message.splitlines()[0]).rstrip('.')}")
    finally:
        logging.disable(level)


def _package_problems(config: _ClusterConfig) -> Iterator[Problem]:
    module, package = _LAUNCHER_NEEDS.get(config.get("provider", {}).get("type"), ("", ""))
    if module and find_spec(module) is None:
        rule = f"Ray's launcher needs the package {package} here"
        yield Problem("provider.type", rule, None, f"pip install {package}")
    if missing := [program for program in _PROGRAMS if which(program) is None]:
        rule = f"Ray's launcher runs {' and '.join(missing)} here, to reach machines and to copy files"
        yield Problem("provider.type", rule, None, f"Install {' and '.join(missing)}.")


def _sweep_problems(config: _ClusterConfig) -> Iterator[Problem]:
    """Yield why a sweep would fail, or be unsafe, on the cluster that Ray would start."""
    yield from _token_problems(config)
    yield from _dashboard_problems(config)
    yield from _head_problems(config)
    yield from _image_problems(config)
    yield from _local_problems(config)
    for location, source in (config.get("file_mounts") or {}).items():
        if isinstance(source, str):
            yield from _mount_problems(location, expand_home(source))


def _commands(config: _ClusterConfig, key: str) -> Sequence[str]:
    return config.get(key) or []


def _token_problems(config: _ClusterConfig) -> Iterator[Problem]:
    requires_token = False
    for role in ("head", "worker"):
        starts = [
            _RAY_START.split(command)[0]
            for command in _commands(config, f"{role}_start_ray_commands")
            if _RAY_START.search(command)
        ]
        if starts and all("RAY_AUTH_MODE=token" in prefix for prefix in starts):
            requires_token = True
            continue
        rule = "every node must require the token: otherwise anyone who reaches its port can run code"
        yield Problem(f"{role}_start_ray_commands", rule, None, "Write RAY_AUTH_MODE=token before `ray start`.")
    if requires_token and not any(location.endswith(".ray/auth_token") for location in config.get("file_mounts") or {}):
        rule = "Ray refuses to start under RAY_AUTH_MODE=token on a node without the token"
        yield Problem("file_mounts", rule, None, f"Add ~/.ray/auth_token: {_TOKEN}.")


def _dashboard_problems(config: _ClusterConfig) -> Iterator[Problem]:
    hosts = _DASHBOARD.findall("\n".join(_commands(config, "head_start_ray_commands")))  # Ray's own default is loopback
    rule, remedy = "the dashboard must listen on loopback: it takes jobs", "Use 127.0.0.1 and `ray dashboard`."
    for host in hosts:
        if host not in _LOOPBACK:
            yield Problem("head_start_ray_commands", rule, host, remedy)


def _head_problems(config: _ClusterConfig) -> Iterator[Problem]:
    """Require that the head offers `trial_driver`, but no CPU or GPU, because it must run drivers but no trials."""
    types, name = config.get("available_node_types") or {}, str(config.get("head_node_type"))
    if types and name not in types:
        return  # Ray's own check reports it
    resources = (types.get(name) or {}).get("resources") or {}
    start = "\n".join(_commands(config, "head_start_ray_commands"))
    if "trial_driver" not in resources and "trial_driver" not in start:
        rule = "the head must offer trial_driver, which a trial with several workers holds"
        yield Problem("head_node_type", rule, None, f"resources: {{'CPU': 0, 'trial_driver': 64}}; {_GUIDE}")
    defaults = {"CPU": True, "GPU": not types or _has_gpus((types.get(name) or {}).get("node_config") or {})}
    for resource, is_default in defaults.items():
        option = f"--num-{resource.lower()}s"
        is_zero = resources.get(resource) == 0 or re.search(rf"{option}[= ]0\b", start)
        if resources.get(resource) or (is_default and not is_zero):
            rule = f"the head must offer no {resource}: trials there would share it with every sweep's driver"
            place = "head_node_type" if types else "head_start_ray_commands"
            remedy = f"resources: {{'{resource}': 0}}." if types else f"Write {option}=0 after `ray start --head`."
            yield Problem(place, rule, resources.get(resource), remedy)


def _has_gpus(node: _ClusterConfig) -> bool:
    machine = str(node.get("InstanceType") or node.get("machineType") or "").rpartition("/")[2]
    return bool(node.get("guestAccelerators") or _GPU_MACHINES.match(machine))


def _image_problems(config: _ClusterConfig) -> Iterator[Problem]:
    """Yield a problem for each node type with Ray's default image on AWS, which is too old."""
    if config.get("provider", {}).get("type") != "aws":
        return
    for name, kind in (config.get("available_node_types") or {}).items():
        if str((kind.get("node_config") or {}).get("ImageId") or "latest_dlami").lower() == "latest_dlami":
            place = f"available_node_types.{name}.node_config.ImageId"
            rule = "an image must be named: Ray's default has Ubuntu 18.04, which current torch does not support"
            yield Problem(place, rule, None, "cluster.yaml shows how to find one.")


def _local_problems(config: _ClusterConfig) -> Iterator[Problem]:
    """Check what the head needs to start on-premises machines. Without it Ray would retry silently."""
    key = (config.get("auth") or {}).get("ssh_private_key")
    if key and not expand_home(key).exists():
        rule = "the SSH key must exist: Ray copies it to the head, which starts the workers with it"
        yield Problem("auth.ssh_private_key", rule, key, "deploy/on_premises.yaml shows how to make one.")
    start = "\n".join(_commands(config, "head_start_ray_commands"))
    if _is_local(config) and "RAY_enable_autoscaler_v2=0" not in start:
        rule = "version 2 of Ray's autoscaler counts the head as a worker, and so starts one worker too few"
        yield Problem("head_start_ray_commands", rule, None, "Write RAY_enable_autoscaler_v2=0 before `ray start`.")


def _is_local(config: _ClusterConfig) -> bool:
    return bool(config.get("provider", {}).get("type") == "local")


def _placeholder_problems(config: _ClusterConfig) -> Iterator[Problem]:
    remedy = "The comments of the file say where to find it."
    for location, text in _texts(config):
        if placeholder := _PLACEHOLDER.search(text):
            yield Problem(location, "must be filled in", placeholder[0], remedy)


def _mount_problems(location: str, source: Path) -> Iterator[Problem]:
    if source.name == _TOKEN.name and not source.exists():
        rule = "the token file must exist"
        remedy = f"ray get-auth-token --generate > /dev/null && chmod 600 {source}"
        yield Problem(f"file_mounts.{location}", rule, str(source), remedy)
    elif source.name == _TOKEN.name and source.stat().st_mode & 0o077:
        rule = "only the owner may read the token: a reader can run code on the cluster"
        yield Problem(f"file_mounts.{location}", rule, f"{source.stat().st_mode & 0o777:04o}", f"chmod 600 {source}")
    elif not source.exists():
        yield Problem(f"file_mounts.{location}", "the copied file must exist", str(source))


def _rayjob_problems(config: _ClusterConfig) -> Iterator[Problem]:
    """Yield why a sweep would fail, or be unsafe, in the RayJob that Kubernetes would start. KubeRay checks its schema."""
    if config.get("kind") != "RayJob":
        yield Problem("kind", "must be a RayJob, whose cluster lives as long as its sweep", config.get("kind"))
        return
    cluster = _at(config, "spec", "rayClusterSpec")
    if _at(cluster, "authOptions", "mode") != "token":
        rule = "every pod must require the token: otherwise anyone who reaches its port can run code"
        yield Problem(f"{_POD_CLUSTER}.authOptions", rule, None, "Write authOptions: {mode: token}.")
    head = _at(cluster, "headGroupSpec")
    yield from _head_pod_problems(head)
    groups = [(f"{_POD_CLUSTER}.headGroupSpec", head)]
    workers = _mappings_at(cluster, "workerGroupSpecs")
    groups += [(f"{_POD_CLUSTER}.workerGroupSpecs.{n}", group) for n, group in enumerate(workers)]
    yield from _volume_problems(re.split(r"[\s=]+", str(_at(config, "spec", "entrypoint"))), groups)


def _at(part: Any, *keys: str) -> Any:
    """Return the value below the keys; None if a part is missing or no mapping."""
    for key in keys:
        part = part.get(key) if isinstance(part, Mapping) else None
    return part


def _mappings_at(part: Any, *keys: str) -> list[_ClusterConfig]:
    items = _at(part, *keys)
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []


def _head_pod_problems(head: Any) -> Iterator[Problem]:
    location, cpus = f"{_POD_CLUSTER}.headGroupSpec", _at(head, "rayStartParams", "num-cpus")
    if str(cpus) != "0":
        rule = "the head must offer no CPU: trials there would share it with the sweep's driver"
        yield Problem(f"{location}.rayStartParams.num-cpus", rule, cpus, 'Write num-cpus: "0".')
    if "trial_driver" not in str(_at(head, "rayStartParams", "resources")):
        rule = "the head must offer trial_driver, which a trial with several workers holds"
        yield Problem(f"{location}.rayStartParams.resources", rule, None, "See deploy/kuberay.yaml.")
    containers = _mappings_at(head, "template", "spec", "containers")
    if any(str(_at(container, "resources", "limits", _POD_GPU)) not in {"None", "0"} for container in containers):
        rule = "the head must offer no GPU: trials there would share it with the sweep's driver"
        yield Problem(f"{location}.template", rule, None, f"Leave {_POD_GPU} out of its limits.")


def _volume_problems(words: Sequence[str], groups: Sequence[tuple[str, Any]]) -> Iterator[Problem]:
    """Check that the sweeps' folder is in a volume of each pod or, with a bucket, of the head's pod."""
    values = dict(pairwise(words))
    storage = PurePosixPath(values.get("--storage", ""))
    if not storage.is_absolute():
        rule = "the sweep must be stored in a volume: a pod's own folder is deleted with the pod"
        yield Problem("spec.entrypoint", rule, values.get("--storage"), "Example: --storage /mnt/shared/sweeps.")
        return
    for location, group in groups[:1] if "--trial-files" in values else groups:
        containers = _mappings_at(group, "template", "spec", "containers")
        mounts = [mount for container in containers for mount in _mappings_at(container, "volumeMounts")]
        if not any(storage.is_relative_to(str(mount.get("mountPath"))) for mount in mounts):
            rule = f"the folder of the sweeps, {storage}, must lie in a volume of each pod"
            yield Problem(f"{location}.template", rule, None, "Mount it there, or name a bucket with --trial-files.")
