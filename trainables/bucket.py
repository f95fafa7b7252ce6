"""Store trial files as objects in S3 or a compatible store (MinIO, Ceph, R2, Google's interoperable API), with pyarrow.

    s3://BUCKET/PREFIX?endpoint_override=http://HOST:PORT&region=REGION         AWS needs no query

Addresses never contain credentials. Each process reads AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or its
machine's role. An object appears only when it is complete; an interrupted upload leaves none.
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
_ELSEWHERE = "Put them into the environment or a profile."
_QUERY = ("endpoint_override", "region", "scheme")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REFUSALS = {  # pyarrow's names of S3's errors; any other error counts as an outage
    **dict.fromkeys(("NO_SUCH_BUCKET", "404"), ("the bucket must exist", "Create it, or correct the address.")),
    "ACCESS_DENIED": (
        "access must allow to put, get, list and delete objects",
        "Give the credentials s3:PutObject, s3:GetObject, s3:DeleteObject and s3:ListBucket.",
    ),
    **dict.fromkeys(
        ("INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "UNRECOGNIZED_CLIENT", "INVALID_CLIENT_TOKEN_ID"),
        (
            "the credentials must be right",
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, in every process.",
        ),
    ),
    "301": ("the bucket must be in the requested region", "Add ?region=REGION to the address."),
    "507": ("the store must have room", "Free some space."),
}
_OUTAGES = {  # a running sweep waits for these to be fixed
    "ExpiredToken": "Renew the credentials: they have expired.",
    "REQUEST_TIME_TOO_SKEWED": "Set this machine's clock: it is minutes off.",
}
_UNREACHABLE = "Start the store, or correct the address or AWS_ENDPOINT_URL."


@dataclass(frozen=True)
class Address:
    """Bucket, path and connection options of an address."""

    bucket: str
    path: str
    query: str = ""  # endpoint, scheme and region, encoded

    @classmethod
    def read(cls, text: str) -> Address:
        """Parse an address and add the environment's endpoint. Raise ConfigError for an invalid one."""
        try:
            parts = urlsplit(text)
        except ValueError:  # an unclosed bracket
            raise _refusal("must be a valid address", _mask(text)) from None
        if parts.scheme != "s3":
            raise _refusal("must be an address that begins with s3://", _mask(text))
        if "@" in parts.netloc or (":" in parts.netloc and "@" in parts.path):  # a secret may contain a slash
            raise _refusal("no credentials may stand in an address", _mask(text), _ELSEWHERE)
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", parts.netloc):
            raise _refusal("a bucket's name has 3 to 63 small letters, digits, dots and hyphens", parts.netloc)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := sorted(query.keys() - set(_QUERY)):
            raise _refusal(f"the query may have {', '.join(_QUERY)}", ", ".join(unknown))
        endpoint = query.get("endpoint_override") or next(filter(None, map(os.environ.get, _ENDPOINTS)), "")
        if endpoint:
            scheme, _, host = endpoint.rpartition("://")
            query |= {"endpoint_override": host.rstrip("/"), "scheme": scheme or query.get("scheme", "https")}
        if "@" in endpoint:
            raise _refusal("no credentials may stand in an endpoint", _mask(endpoint), _ELSEWHERE)
        return cls(parts.netloc, parts.path.strip("/"), urlencode(sorted(query.items()), safe=":/"))

    def __truediv__(self, name: str) -> Address:
        return Address(self.bucket, f"{self.path}/{name}".lstrip("/"), self.query)

    @property
    def parent(self) -> Address:
        """Address one level up."""
        return Address(self.bucket, self.path.rpartition("/")[0], self.query)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.path}" + (f"?{self.query}" if self.query else "")


def _refusal(rule: str, value: str, remedy: str = _EXAMPLE) -> ConfigError:
    return ConfigError(option_problem("trial_files", rule, value, remedy))


def _mask(text: str) -> str:
    """Return the address with everything masked that may be a credential: all before the last @."""
    return re.sub(r"(.*?//)?.*@", r"\1***@", text)


class BucketFiles:
    """Objects below an address."""

    def __init__(self, address: str) -> None:
        self._address = Address.read(address)
        self._prefix = f"{self._address.bucket}/{self._address.path}".rstrip("/")

    @property
    def storage(self) -> str:
        """The address without its query."""
        return f"s3://{self._prefix}"

    def put(self, name: str, content: bytes, *, private: bool = False) -> None:
        """Write an object: one request, or parts of 10 MB; the bucket's policy decides who may read."""
        with self._store() as store, store.open_output_stream(f"{self._prefix}/{name}") as stream:
            stream.write(content)

    def get(self, name: str) -> bytes | None:
        """Return an object's content, or None if there is none; two requests."""
        with self._store() as store:
            try:
                with store.open_input_file(f"{self._prefix}/{name}") as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    def names(self) -> list[str]:
        """Return the names of all objects; one request per thousand."""
        from pyarrow.fs import FileSelector, FileType

        with self._store() as store:
            found = store.get_file_info(FileSelector(self._prefix, allow_not_found=True, recursive=True))
        return sorted(info.path[len(self._prefix) + 1 :] for info in found if info.type is FileType.File)

    def delete(self, name: str) -> None:
        """Delete an object; three requests, since pyarrow checks first and leaves an empty folder object."""
        with self._store() as store, contextlib.suppress(FileNotFoundError):
            store.delete_file(f"{self._prefix}/{name}")

    def clear(self) -> None:
        """Delete everything, a thousand objects at a time."""
        with self._store() as store, contextlib.suppress(FileNotFoundError):
            store.delete_dir(self._prefix)

    @contextlib.contextmanager
    def _store(self) -> Iterator[FileSystem]:
        """Yield the client. Raise ConnectionError for outages and ConfigError for refusals."""
        try:
            yield _client(self._address.bucket, self._address.query)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _translate_error(str(error), self.storage) from error


@lru_cache(maxsize=8)
def _client(bucket: str, query: str) -> Any:
    """Return the process's client, which keeps connections and renews credentials."""
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    options = dict(parse_qsl(query))
    if "region" not in options and "endpoint_override" not in options:
        options["region"] = resolve_s3_region(bucket)
    # With delayed opening, a small object takes one request instead of three.
    return S3FileSystem(**options, allow_delayed_open=True, retry_strategy=AwsStandardS3RetryStrategy(max_attempts=3))


def _translate_error(text: str, address: str) -> Exception:
    """Translate pyarrow's error: ConnectionError for an outage, ConfigError for a refusal."""
    match = re.search(r"AWS Error (\w+)(?: \(HTTP status (\d+)\))?", text)
    code, status = match.groups(default="") if match else ("", "")
    if refusal := _REFUSALS.get(code) or _REFUSALS.get(status):
        rule, remedy = refusal
        return _refusal(rule, address, remedy)
    message = text.partition("AWS Error ")[2] or text
    message = re.split(r"; Details|\(Request ID", message)[0].strip()
    return ConnectionError(errno.EHOSTDOWN, f"object storage fails ({message})")


def bucket_problems(text: str | None) -> list[Problem]:
    """Check that objects can be put, read, listed and deleted at an address."""
    if text is None:
        return []
    try:
        probe = BucketFiles(str(Address.read(text) / f".tune-dml-{uuid.uuid4().hex}"))
        probe.put("probe", b"tune-dml")
        try:
            probe.names()
            probe.get("probe")
        finally:
            probe.clear()
    except ConfigError as error:
        return list(error.problems)
    except OSError as error:
        rule = f"the store must answer: {error.strerror}"
        remedy = next((remedy for code, remedy in _OUTAGES.items() if code in rule), _UNREACHABLE)
        return [option_problem("trial_files", rule, _mask(text), remedy)]
    return []
