"""Check within seconds that a Ray cluster listens at an address. Ray itself waits for minutes."""

import http.client
import importlib.metadata
import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from trainables.errors import Problem
from trainables.option_names import spell
from tune_dml.record.origin.provenance import proxy_hint

_SECONDS = 3.0
_CLIENT_PORT = 10001
REACH = "Start it (`ray up cluster.yaml`), correct the address, or set it to `local` to use only this machine."
_DASHBOARD_REMEDY = (
    "Start it (`ray up cluster.yaml`), or name the cluster file, which also reaches a dashboard on the head's loopback."
)
_NO_DASHBOARD = ("what listens there must be the dashboard of a Ray cluster", "Correct the port: a dashboard has 8265.")


def address_problems(address: str | None, origin: str) -> list[Problem]:
    """Return the problems of an address: no answer, no Ray, another version of Ray, or a missing token.

    The address is HOST:PORT of a head or ray://HOST:PORT of its client server. `auto`, and None for a local Ray, are not
    checked.
    """
    if problems := _token_file_problems():
        return problems
    if address is None or address == "auto":
        return []
    scheme, separator, rest = address.rpartition("://")
    parts = urlsplit(f"//{rest}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or (port is None and not separator):
        rule = "an address reads auto, local, HOST:PORT or ray://HOST:PORT"
        return [Problem(origin, rule, address, f"Example: {spell('address', 'ray://head:10001')}.")]
    target = f"{host}:{port or _CLIENT_PORT}"
    return [Problem(origin, rule, address, remedy) for rule, remedy in _probe_head(target, client=scheme == "ray")]


def _token_file_problems() -> list[Problem]:
    """Return the problem if RAY_AUTH_TOKEN_PATH names no file with a token; Ray itself would fail later."""
    name = os.environ.get("RAY_AUTH_TOKEN_PATH")
    if not name or os.environ.get("RAY_AUTH_TOKEN"):
        return []
    try:
        reason = "" if Path(name).read_bytes().strip() else "it is empty"
    except OSError as error:
        reason = error.strerror or str(error)
    remedy = "Copy the head's ~/.ray/auth_token there (mode 0600), or unset the variable."
    rule = f"must name a file that holds a token ({reason})"
    return [Problem("RAY_AUTH_TOKEN_PATH", rule, name, remedy)] if reason else []


def _probe_head(target: str, *, client: bool) -> list[tuple[str, str]]:
    import grpc
    from ray.core.generated import gcs_service_pb2, ray_client_pb2

    method, request = "/ray.rpc.NodeInfoGcsService/CheckAlive", b""
    if client:
        method = "/ray.rpc.RayletDriver/ClusterInfo"
        request = ray_client_pb2.ClusterInfoRequest(type=ray_client_pb2.ClusterInfoType.PING).SerializeToString()
    try:
        with grpc.insecure_channel(target, [("grpc.enable_http_proxy", 0)]) as channel:  # as Ray's channels
            answer = channel.unary_unary(method)(request, timeout=_SECONDS, metadata=_token())
    except grpc.RpcError as error:
        if error.code() in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}:
            return [_token_problem()]
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            server = "a Ray client server (ray://)" if client else "the head of a Ray cluster"
            remedy = "Correct the port: a head has 6379, a client server 10001."
            return [(f"what listens there must be {server}", remedy)]
        reason = str(error.details() or error.code()).rpartition("Failed ")[2].partition("\n")[0]
        return [(f"the Ray cluster must be reachable (failed {reason})", REACH)]
    return [] if client else _version_problems(gcs_service_pb2.CheckAliveReply.FromString(answer).ray_version)


def job_server_problems(address: str, origin: str) -> list[Problem]:
    """Return the problems that prevent sending jobs to a dashboard, http://HOST:PORT or https://HOST:PORT."""
    if problems := _token_file_problems():
        return problems
    return [Problem(origin, rule, address, remedy + proxy_hint(address)) for rule, remedy in _probe_dashboard(address)]


def _probe_dashboard(address: str) -> list[tuple[str, str]]:
    try:
        request = urllib.request.Request(f"{address.rstrip('/')}/api/version", headers=dict(_token()))  # noqa: S310
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310 - http or https
            return _version_problems(str(json.loads(answer.read())["ray_version"]))
    except urllib.error.HTTPError as error:
        return [_token_problem() if error.code in {401, 403} else _NO_DASHBOARD]
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        message = getattr(reason, "strerror", None) or reason
        return [(f"the cluster's dashboard must answer ({message})", _DASHBOARD_REMEDY)]
    except (http.client.HTTPException, ValueError, KeyError, TypeError):
        return [_NO_DASHBOARD]


def _version_problems(cluster_version: str) -> list[tuple[str, str]]:
    own_version = importlib.metadata.version("ray")
    rule = f"Ray must have one version everywhere: the cluster has {cluster_version}, this machine {own_version}"
    return [] if cluster_version == own_version else [(rule, "Install the cluster's version.")]


def _token_problem() -> tuple[str, str]:
    """Return (rule, remedy) for a missing or wrong token, in the order in which Ray looks for one."""
    rule, token_file = "the Ray cluster asks for its token", "the head's ~/.ray/auth_token"
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return rule, f"RAY_AUTH_MODE={os.environ['RAY_AUTH_MODE']} sends none: set it to token."
    if os.environ.get("RAY_AUTH_TOKEN"):
        return rule, f"RAY_AUTH_TOKEN holds another token: set it to the content of {token_file}, or unset it."
    if name := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        remedy = f"RAY_AUTH_TOKEN_PATH names {name}, which holds another token: copy {token_file} there, or unset it."
        return rule, remedy
    advice = "if yours is for another cluster, name a second file with RAY_AUTH_TOKEN_PATH"
    return rule, f"Copy {token_file} to yours (mode 0600) and set RAY_AUTH_MODE=token; {advice}."


def _token() -> list[tuple[str, str]]:
    """Return the authorization header, if this user has a token."""
    from tune_dml.running.ray_internals import load_token

    token = load_token()
    return [] if token is None else [("authorization", f"Bearer {token}")]
