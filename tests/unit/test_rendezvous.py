"""Where the workers of a trial meet, without workers."""

import os
import socket

import pytest
import ray
import ray.train

from trainables import distributed
from tune_dml.running.trials import rendezvous


class Context:
    """Of the second of two workers."""

    def get_world_rank(self):
        return 1

    def get_world_size(self):
        return 2

    get_local_rank, get_local_world_size = get_world_rank, get_world_size


@pytest.mark.parametrize("named", [None, "eth7"])
@pytest.mark.parametrize("address", ["127.0.0.1", "203.0.113.7"])
def test_workers_exchange_at_their_nodes_address_in_ray(monkeypatch, address, named):
    """Not where its name leads, on Debian to 127.0.1.1; a user's word goes first, and a translated address says nothing."""
    joined = []
    monkeypatch.setattr(os, "environ", {"GLOO_SOCKET_IFNAME": named} if named else {})
    monkeypatch.setattr(ray.train, "get_context", Context)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: address)
    monkeypatch.setattr(distributed, "join", lambda *at, **given: joined.append((at, given["rank"])))
    rendezvous._join("gloo", "192.0.2.1", 7001, timeout_s=1.0)
    here = {"127.0.0.1": socket.if_indextoname(1)}.get(address)
    assert os.environ.get("GLOO_SOCKET_IFNAME") == (named or here)
    assert joined == [(("192.0.2.1", 7001), 1)]
