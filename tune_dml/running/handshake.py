"""Whether it is a Ray that answers at an address, in seconds: Ray itself waits for minutes, and any server has an open port."""

from __future__ import annotations

import importlib.metadata
from typing import Any
from urllib.parse import urlsplit

from trainables.errors import Problem

_SECONDS = 3.0
_CLIENT_PORT = 10001
_REMEDY = "Start it (`ray up cluster.yaml`), correct the address, or use --address local."


def address_problems(address: str | None, origin: str) -> list[Problem]:
    """Why no sweep can be run at an address: nobody answers, it is no Ray, another version, or it wants a token.

    Args:
        address: HOST:PORT of a head, ray://HOST:PORT of its client server; nothing is asked of `auto` or a local one.
        origin: where the address was given.
    """
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
        return [Problem(origin, rule, address, "Example: --address ray://head:10001.")]
    target = f"{host}:{port or _CLIENT_PORT}"
    return [Problem(origin, rule, address, remedy) for rule, remedy in _greet(target, client=scheme == "ray")]


def _greet(target: str, *, client: bool) -> list[tuple[str, str]]:
    """(rule, remedy) of what is wrong with whoever listens there."""
    import grpc
    from ray.core.generated import gcs_service_pb2, ray_client_pb2

    method, request = "/ray.rpc.NodeInfoGcsService/CheckAlive", b""
    if client:
        method = "/ray.rpc.RayletDriver/ClusterInfo"
        request = ray_client_pb2.ClusterInfoRequest(type=ray_client_pb2.ClusterInfoType.PING).SerializeToString()
    try:
        with grpc.insecure_channel(target) as channel:
            answer = channel.unary_unary(method)(request, timeout=_SECONDS, metadata=_token())
    except grpc.RpcError as error:
        if error.code() in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}:
            remedy = "Copy the head's ~/.ray/auth_token to yours (mode 0600) and set RAY_AUTH_MODE=token."
            return [("the Ray cluster asks for its token", remedy)]
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            which = "a Ray client server (ray://)" if client else "the head of a Ray cluster"
            return [(f"what listens there must be {which}", "Correct the port: 6379 is a head's, ray:// has 10001.")]
        reason = str(error.details() or error.code()).rpartition("Failed ")[2].partition("\n")[0]
        return [(f"the Ray cluster must be reachable (failed {reason})", _REMEDY)]
    ours = importlib.metadata.version("ray")
    theirs = ours if client else gcs_service_pb2.CheckAliveReply.FromString(answer).ray_version
    if theirs != ours:
        return [
            (f"Ray must have one version everywhere: the cluster has {theirs}, here is {ours}", "Install its version.")
        ]
    return []


def _token() -> list[tuple[str, str]]:
    """The header that proves who we are, where this user has a token."""
    from ray import _raylet

    loader: Any = _raylet.AuthenticationTokenLoader.instance()  # type: ignore[attr-defined]
    if not loader.has_token(ignore_auth_mode=True):
        return []
    return [("authorization", f"Bearer {loader.get_raw_token(ignore_auth_mode=True)}")]
