"""A trial's files as objects in S3 or what speaks its language (MinIO, Ceph, R2, Google's interoperable API), through pyarrow.

    s3://BUCKET/PREFIX?endpoint_override=http://HOST:PORT&region=REGION         nothing of the query is needed on AWS

Credentials never stand in an address: each process finds its own, in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile,
or its machine's role. An object is put whole or is absent; of an upload that is cut short nothing can be read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from trainables.errors import ConfigError, Problem
from trainables.option_names import option_problem

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_EXAMPLE = "Example: s3://my-bucket/sweeps."
_QUERY = ("endpoint_override", "region", "scheme")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REFUSALS = {  # as pyarrow names S3's errors; what is not here is taken for an outage
    **dict.fromkeys(("NO_SUCH_BUCKET", "404"), ("the bucket must exist", "Make it, or correct the address.")),
    "ACCESS_DENIED": (
        "objects must be allowed to be put, got, listed and deleted there",
        "Give the credentials s3:PutObject, s3:GetObject, s3:DeleteObject and s3:ListBucket.",
    ),
    **dict.fromkeys(
        ("INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "UNRECOGNIZED_CLIENT", "INVALID_CLIENT_TOKEN_ID"),
        (
            "the credentials must be right",
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, in every process.",
        ),
    ),
    "301": ("the bucket must lie in the region that is asked", "Add ?region=REGION to the address."),
    "507": ("the store must have room", "Free some."),
}
_OUTAGES = {  # waited for in mid-sweep, where a role's credentials are renewed and clocks are set
    "ExpiredToken": "Renew the credentials: they have expired.",
    "REQUEST_TIME_TOO_SKEWED": "Set this machine's clock: it is minutes off.",
}
_AWAY = "Start it, or correct the address or AWS_ENDPOINT_URL."


@dataclass(frozen=True)
class Address:
    """A place in a bucket."""

    bucket: str
    path: str
    query: str = ""
    """Endpoint, scheme and region, encoded."""

    @classmethod
    def read(cls, text: str) -> Address:
        """In its normal form, with the endpoint of this process's environment. Raises ConfigError for what is no address."""
        parts = urlsplit(text)
        if parts.scheme != "s3":
            raise ConfigError(
                option_problem("trial_files", "must be an address that begins with s3://", _shown(text), _EXAMPLE)
            )
        if "@" in parts.netloc:
            rule, remedy = "no credentials may stand in an address", "Put them into the environment or a profile."
            raise ConfigError(option_problem("trial_files", rule, _shown(text), remedy))
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", parts.netloc):
            rule = "a bucket's name has 3 to 63 small letters, digits, dots and hyphens"
            raise ConfigError(option_problem("trial_files", rule, parts.netloc, _EXAMPLE))
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := sorted(query.keys() - set(_QUERY)):
            raise ConfigError(
                option_problem("trial_files", f"the query may have {', '.join(_QUERY)}", ", ".join(unknown), _EXAMPLE)
            )
        endpoint = query.get("endpoint_override") or next(filter(None, map(os.environ.get, _ENDPOINTS)), "")
        if endpoint:
            scheme, _, host = endpoint.rpartition("://")
            query |= {"endpoint_override": host.rstrip("/"), "scheme": scheme or query.get("scheme", "https")}
        if "@" in endpoint:
            rule, remedy = "no credentials may stand in an endpoint", "Put them into the environment or a profile."
            raise ConfigError(option_problem("trial_files", rule, _shown(endpoint), remedy))
        return cls(parts.netloc, parts.path.strip("/"), urlencode(sorted(query.items()), safe=":/"))

    def __truediv__(self, name: str) -> Address:
        return Address(self.bucket, f"{self.path}/{name}".lstrip("/"), self.query)

    @property
    def parent(self) -> Address:
        """The place above."""
        return Address(self.bucket, self.path.rpartition("/")[0], self.query)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.path}" + (f"?{self.query}" if self.query else "")


def _shown(text: str) -> str:
    """Without what may be a secret."""
    return re.sub(r"[^/]*@", "***@", text)


class BucketFiles:
    """Objects below an address."""

    def __init__(self, address: str) -> None:
        self._address = Address.read(address)
        self._below = f"{self._address.bucket}/{self._address.path}".rstrip("/")

    @property
    def place(self) -> str:
        """The address without its query."""
        return f"s3://{self._below}"

    def put(self, name: str, content: bytes, *, private: bool = False) -> None:
        """One request, or a part of 10 MB each and two; who may read it is said by the bucket's policy."""
        with self._store() as store, store.open_output_stream(f"{self._below}/{name}") as stream:
            stream.write(content)

    def get(self, name: str) -> bytes | None:
        """Two requests, whatever the size."""
        with self._store() as store:
            try:
                with store.open_input_file(f"{self._below}/{name}") as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    def names(self) -> list[str]:
        """One request for a thousand objects."""
        from pyarrow.fs import FileSelector, FileType

        with self._store() as store:
            found = store.get_file_info(FileSelector(self._below, allow_not_found=True, recursive=True))
        return sorted(info.path[len(self._below) + 1 :] for info in found if info.type is FileType.File)

    def delete(self, name: str) -> None:
        """Three requests: pyarrow looks first, and leaves an empty object for what was the folder."""
        with self._store() as store, contextlib.suppress(FileNotFoundError):
            store.delete_file(f"{self._below}/{name}")

    def clear(self) -> None:
        """Delete everything, a thousand objects at a time."""
        with self._store() as store, contextlib.suppress(FileNotFoundError):
            store.delete_dir(self._below)

    @contextlib.contextmanager
    def _store(self) -> Iterator[FileSystem]:
        """Raises ConnectionError, which `patiently` waits for, where the store fails, and ConfigError where it refuses."""
        try:
            yield _connected(self._address.bucket, self._address.query)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _in_words(str(error), self.place) from error


@lru_cache(maxsize=8)
def _connected(bucket: str, query: str) -> Any:
    """One client a process: it keeps its connections, and renews credentials that expire."""
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    options = dict(parse_qsl(query))
    if "region" not in options and "endpoint_override" not in options:
        options["region"] = resolve_s3_region(bucket)
    # Opened late, a small object is one request and not the three of an upload in parts.
    return S3FileSystem(**options, allow_delayed_open=True, retry_strategy=AwsStandardS3RetryStrategy(max_attempts=3))


def _in_words(text: str, place: str) -> Exception:
    """What an error of pyarrow means: an outage, which passes, or a refusal, which does not."""
    found = re.search(r"AWS Error (\w+)(?: \(HTTP status (\d+)\))?", text)
    code, status = found.groups(default="") if found else ("", "")
    if refusal := _REFUSALS.get(code) or _REFUSALS.get(status):
        rule, remedy = refusal
        return ConfigError(option_problem("trial_files", rule, place, remedy))
    words = text.partition("AWS Error ")[2] or text
    words = re.split(r"; Details|\(Request ID", words)[0].strip()
    return ConnectionError(errno.EHOSTDOWN, f"object storage fails ({words})")


def bucket_problems(text: str | None) -> list[Problem]:
    """Why trials could not keep their files at an address, found by putting, getting, listing and deleting an object there."""
    if text is None:
        return []
    try:
        probe = BucketFiles(str(Address.read(text) / f".tune-dml-{uuid.uuid4().hex}"))
        probe.put("probe", b"tune-dml")
        whole = (probe.names(), probe.get("probe")) == (["probe"], b"tune-dml")
        probe.clear()
    except ConfigError as error:
        return list(error.problems)
    except OSError as error:
        rule = f"the store must answer: {error.strerror}"
        remedy = next((remedy for word, remedy in _OUTAGES.items() if word in rule), _AWAY)
        return [option_problem("trial_files", rule, _shown(text), remedy)]
    if not whole:
        rule = "what is put must be seen at once by whoever lists or gets it"
        return [option_problem("trial_files", rule, _shown(text), "Choose a store that is consistent, as S3 is.")]
    return []
