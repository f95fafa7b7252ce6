"""What is wrong with a cluster file, before a machine is started: Ray's own schema, and what our sweeps need of it.

The schema and the defaults are those of the installed Ray, whose loader raises four kinds of error and stops at the first;
here each finding is a `Problem`, and all are shown together.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from trainables.errors import ConfigError, Problem, nearest
from tune_dml.planning.file_errors import read_mapping
from tune_dml.text import one_line

_TOKEN = Path("~/.ray/auth_token")
_GUIDE = "docs/cluster.md says how."
_TYPES = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
}
_PROVIDER_KEYS = ("project_id", "coordinator_address", "head_ip", "worker_ips", "external_ip", "security_group")


def cluster_file_problems(path: Path) -> list[Problem]:
    """Everything that keeps a file from being a cluster for sweeps; empty when nothing does."""
    try:
        config = read_mapping(path, "cluster file", "cluster.yaml and deploy/ have commented ones.")
    except ConfigError as error:
        return list(error.problems)
    if str(config.get("apiVersion", "")).startswith("ray.io/"):
        rule = "a Kubernetes resource is checked by Kubernetes, not by Ray's launcher"
        return [Problem(str(path), rule, config.get("kind"), f"kubectl apply --dry-run=server -f {path}")]
    found = [*_schema_problems(config), *_unlisted_problems(config)] or list(_ray_problems(config))
    return [_at(path, problem) for problem in found or _sweep_problems(config)]


def _at(path: Path, problem: Problem) -> Problem:
    return Problem(f"{path.name}: {problem.place}", problem.rule, problem.value, problem.remedy)


def _schema() -> dict[str, Any]:
    import ray.autoscaler

    text = (Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text()
    schema: dict[str, Any] = json.loads(text)
    return schema


def _schema_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Unknown and missing keys and wrong types, wherever in the file."""
    from jsonschema import Draft7Validator

    for error in Draft7Validator(_schema()).iter_errors(config):
        above, known = [str(key) for key in error.absolute_path], list(error.schema.get("properties", {}))
        if error.validator == "additionalProperties":
            unknown = [key for key in error.instance if key not in known]
            yield from (_unknown(".".join([*above, str(key)]), known) for key in unknown)
        elif error.validator == "required":
            missing = [key for key in error.schema["required"] if key not in error.instance]
            key = next(key for key in missing if error.message.startswith(repr(key)))
            yield Problem(
                ".".join([*above, key]), "must be given", None, _about(error.schema["properties"].get(key, {}))
            )
        elif error.validator == "type":
            rule = f"must be {_TYPES[error.validator_value]}"
            yield Problem(".".join(above), rule, error.instance, _about(error.schema))
        else:
            yield Problem(".".join(above), error.message.partition("\n")[0])


def _about(part: Mapping[str, Any]) -> str:
    """The first sentence of what Ray's schema says of a part of the file."""
    return str(part.get("description", "")).partition(". ")[0]


def _unknown(place: str, known: Sequence[str]) -> Problem:
    return Problem(place, "no such key", None, nearest(place.rpartition(".")[2], known, what="key"))


def _unlisted_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """What Ray's schema says nothing of: it takes any key under `provider`, and anything for the source of a mount."""
    provider, mounts = config.get("provider"), config.get("file_mounts")
    known = [*_schema()["properties"]["provider"]["properties"], *_PROVIDER_KEYS]
    for key in provider if isinstance(provider, dict) else ():
        if key not in known:
            yield _unknown(f"provider.{key}", known)
    for place, source in mounts.items() if isinstance(mounts, dict) else ():
        if not isinstance(source, str):
            yield Problem(f"file_mounts.{place}", "must be the path of what is copied there", source)


def _ray_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """What Ray's own loader refuses beyond its schema: a head that is no node type, more workers asked than allowed."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    printed, level = io.StringIO(), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(printed), redirect_stderr(printed):  # it prints before it raises
            validate_config(prepare_config(dict(config)))
    except Exception as error:  # KeyError, AssertionError, ValueError, click's own: whatever it is, the file is wrong
        words = str(error).strip() or printed.getvalue().strip() or type(error).__name__
        yield Problem("the file", f"Ray refuses it: {one_line(words.splitlines()[0]).rstrip('.')}")
    finally:
        logging.disable(level)


def _sweep_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """A cluster that Ray would start, and on which a sweep would not run, or not safely."""
    head, workers = (_start(config, f"{who}_start_ray_commands") for who in ("head", "worker"))
    mounts = config.get("file_mounts") or {}
    for who, command in (("head", head), ("worker", workers)):
        if "RAY_AUTH_MODE=token" not in command:
            rule = "every node must ask for the token: whoever reaches the port of an open one can run code there"
            yield Problem(f"{who}_start_ray_commands", rule, None, "Write RAY_AUTH_MODE=token before `ray start`.")
    if "RAY_AUTH_MODE=token" in head + workers and not any(place.endswith(".ray/auth_token") for place in mounts):
        rule = "Ray refuses to start under RAY_AUTH_MODE=token on a node without the token"
        yield Problem("file_mounts", rule, None, f"Add ~/.ray/auth_token: {_TOKEN}.")
    for place, source in mounts.items():
        yield from _mount_problems(place, Path(source).expanduser())
    if any(f"--dashboard-host={where}" in head for where in ("0.0.0.0", "::")):  # noqa: S104 - what is refused
        rule = "the dashboard must listen on loopback: it takes jobs"
        yield Problem("head_start_ray_commands", rule, None, "Use --dashboard-host=127.0.0.1 and `ray dashboard`.")
    types = config.get("available_node_types") or {}
    has = (types.get(str(config.get("head_node_type"))) or {}).get("resources") or {}
    if "trial_driver" not in has and "trial_driver" not in head:
        rule = "the head must offer trial_driver, which a trial with several workers holds"
        yield Problem("head_node_type", rule, None, f"resources: {{'CPU': 0, 'trial_driver': 64}}; {_GUIDE}")
    if has.get("GPU"):
        rule = "the head must offer no GPU: a trial there would share it with every sweep's driver"
        yield Problem("head_node_type", rule, has["GPU"], "Leave GPU out of its resources.")


def _start(config: Mapping[str, Any], key: str) -> str:
    return "\n".join(config.get(key) or [])


def _mount_problems(place: str, source: Path) -> Iterator[Problem]:
    if source.name == _TOKEN.name and not source.exists():
        rule = "the token that every node is given must be there"
        remedy = f"ray get-auth-token --generate > /dev/null && chmod 600 {source}"
        yield Problem(f"file_mounts.{place}", rule, str(source), remedy)
    elif source.name == _TOKEN.name and source.stat().st_mode & 0o077:
        rule = "the token must be its owner's alone: who reads it runs code on the cluster"
        yield Problem(f"file_mounts.{place}", rule, f"{source.stat().st_mode & 0o777:04o}", f"chmod 600 {source}")
    elif not source.exists():
        yield Problem(f"file_mounts.{place}", "what is copied must be there", str(source))
