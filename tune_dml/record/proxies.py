"""What the environment's proxies do to a request: one that was set for the internet also gets those to this machine."""

from __future__ import annotations

import urllib.request
from urllib.parse import urlsplit

from tune_dml.record.provenance import mask


def directly(address: str) -> str:
    """How to ask an address without the proxy that the environment names for it, as a sentence to add; nothing where none is."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    proxy, host = urllib.request.getproxies().get(parts.scheme), parts.hostname or ""
    if not proxy or urllib.request.proxy_bypass(host):
        return ""
    return f" It was asked by way of the proxy {mask(proxy)}; without: `export no_proxy={host}`."
