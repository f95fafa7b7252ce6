"""Explain failed requests that an HTTP proxy may have received."""

import urllib.request
from urllib.parse import urlsplit

from tune_dml.record.origin.provenance import mask


def proxy_hint(address: str) -> str:
    """Return a sentence about the proxy of an address, with the command that avoids it; empty without a proxy."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    proxy, host = urllib.request.getproxies().get(parts.scheme), parts.hostname or ""
    if not proxy or urllib.request.proxy_bypass(host):
        return ""
    return f" The request went through the proxy {mask(proxy)}. To avoid it: `export no_proxy={host}`."
