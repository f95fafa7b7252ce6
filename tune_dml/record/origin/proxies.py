"""Hints about HTTP proxies: one set for the internet may also receive requests to this machine."""

from __future__ import annotations

import urllib.request
from urllib.parse import urlsplit

from tune_dml.record.origin.provenance import mask


def directly(address: str) -> str:
    """Return a sentence that names the proxy of an address and the command without it; empty without a proxy."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    proxy, host = urllib.request.getproxies().get(parts.scheme), parts.hostname or ""
    if not proxy or urllib.request.proxy_bypass(host):
        return ""
    return f" The request went through the proxy {mask(proxy)}; without: `export no_proxy={host}`."
