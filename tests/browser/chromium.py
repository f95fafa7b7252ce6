"""Headless Chromium, which reaches nothing but this machine."""

import shutil
import subprocess

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDS_CHROMIUM = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None,
        reason="no chromium, chromium-browser or google-chrome on the PATH: `apt-get install chromium`, then again",
    ),
]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-default-apps",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


def chromium(address, profile, *flags, timeout=120):
    """Show a page and return the ended process, with its output as text."""
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, address]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
