"""Downloads from a local server: whole, resumed, refused, damaged, by several processes at once."""

import errno
import hashlib
import http.server
import io
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from trainables.errors import DataError
from trainables.models import BACKBONES
from trainables.models import download as downloads
from trainables.models.download import download

CONTENT = bytes(range(256)) * 400  # 102,400 bytes
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serve `content`; the attributes choose its faults."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.etag = CONTENT, '"one"'
        self.ranges, self.status, self.kind = True, 200, "application/octet-stream"
        self.breaks: list[int] = []  # bytes after which the next answers end
        self.stalls = threading.Event()
        self.stalls.set()
        self.asked: list[tuple[str | None, str | None]] = []
        self.sent = 0

    def url(self, name="w.pth"):
        return f"http://127.0.0.1:{self.server_port}/files/{name}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        server = self.server
        asked, condition = self.headers.get("Range"), self.headers.get("If-Range")
        server.asked.append((asked, condition))
        if server.status != 200:
            self.send_error(server.status)
            return
        content, start = server.content, 0
        if asked and server.ranges and condition in (None, server.etag):
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Type", server.kind)
        self.send_header("Content-Length", str(len(content) - start))
        if server.etag:
            self.send_header("ETag", server.etag)
        self.end_headers()
        end = start + server.breaks.pop(0) if server.breaks else len(content)
        server.sent += end - start  # before the process that has the whole file looks
        self.wfile.write(content[start:end])
        self.wfile.flush()
        server.stalls.wait(20)
        self.close_connection = True


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.stalls.set()
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "checkpoints" / "w.pth"


def left(target):
    """Return the files beside the lock."""
    return sorted(path.name for path in target.parent.iterdir() if path.suffix != ".lock")


def test_a_file_is_downloaded_once_and_again_if_it_is_damaged(server, target, monkeypatch):
    logged = []
    monkeypatch.setattr(downloads.log, "warning", lambda text, *values: logged.append(text % values))
    assert download(server.url(), target, digests=[DIGEST[:8], DIGEST]) == target
    assert target.read_bytes() == CONTENT
    assert left(target) == ["w.pth"]
    download(server.url(), target, digests=[DIGEST])
    assert len(server.asked) == 1
    target.write_bytes(b"damaged")
    download(server.url(), target, digests=[DIGEST])
    assert target.read_bytes() == CONTENT
    assert "was damaged" in "".join(logged)


def test_a_broken_download_is_resumed(server, target):
    server.breaks = [30_000, 50_000]
    download(server.url(), target, pause_s=0)
    assert target.read_bytes() == CONTENT
    assert server.asked == [(None, None), ("bytes=30000-", '"one"'), ("bytes=80000-", '"one"')]
    assert server.sent == len(CONTENT)


def begun(server, target, digests=()):
    """The partial file of an earlier download."""
    server.breaks = [30_000] + [0] * downloads._TRIES
    with pytest.raises(DataError):
        download(server.url(), target, digests=digests, pause_s=0)
    assert left(target) == ["w.pth.part", "w.pth.part.json"]
    server.breaks, server.asked = [], []


def test_a_server_without_ranges_sends_the_whole_file_again(server, target):
    begun(server, target)
    server.ranges = False
    download(server.url(), target)
    assert server.asked[0][0] == "bytes=30000-"
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize(("content", "etag"), [(CONTENT[::-1], '"two"'), (CONTENT[:20_000], '"one"')])
def test_a_file_that_has_changed_is_not_mixed_with_its_predecessor(server, target, content, etag):
    """Nor a shorter one under the same ETag, for which the server answers 416."""
    begun(server, target)
    server.content, server.etag = content, etag
    download(server.url(), target, pause_s=0)
    assert target.read_bytes() == content


def test_the_partial_file_of_another_url_is_not_used(server, target):
    begun(server, target)
    download(server.url("other.pth"), target)
    assert server.asked == [(None, None)]


def test_without_a_validator_only_a_digest_allows_to_resume(server, target):
    server.etag = ""
    begun(server, target, [DIGEST])
    download(server.url(), target)
    assert server.asked == [(None, None)]
    target.unlink()
    begun(server, target, [DIGEST])
    download(server.url(), target, digests=[DIGEST])
    assert server.asked == [("bytes=30000-", None)]
    assert target.read_bytes() == CONTENT


def test_a_mixed_file_is_detected_by_its_digest_and_downloaded_again(server, target):
    server.etag = ""
    server.content = CONTENT[::-1]
    begun(server, target, [DIGEST])
    server.content = CONTENT
    download(server.url(), target, digests=[DIGEST], pause_s=0)
    assert server.asked == [("bytes=30000-", None), (None, None)]
    assert target.read_bytes() == CONTENT


def test_a_wrong_digest_leaves_nothing_behind(server, target):
    with pytest.raises(DataError, match=r"must start with 00000000.*has been removed"):
        download(server.url(), target, digests=["00000000"])
    assert left(target) == []
    assert len(server.asked) == 1


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (403, 1), (503, downloads._TRIES)])
def test_refused_requests_are_reported(server, target, status, requests):
    server.status = status
    with pytest.raises(DataError, match=f"{status}"):
        download(server.url(), target, pause_s=0)
    assert len(server.asked) == requests
    assert left(target) == []


def test_a_web_page_is_refused_as_a_file(server, target):
    server.kind = "text/html; charset=utf-8"
    with pytest.raises(DataError, match="not a web page"):
        download(server.url(), target)
    server.kind, server.content = ("application/octet-stream", b"\n<!DOCTYPE html><html>Please agree first</html>")
    with pytest.raises(DataError, match="not a web page"):
        download(server.url(), target)
    assert left(target) == []


def test_a_file_that_ends_too_early_and_a_missing_connection_are_reported(server, target):
    server.breaks = [30_000] + [0] * downloads._TRIES
    with pytest.raises(DataError, match=r"ended after 30,000 bytes.*30,000 bytes are kept"):
        download(server.url(), target, pause_s=0)
    url = server.url()
    server.shutdown()
    server.server_close()
    with pytest.raises(DataError, match="refused"):
        download(url, target, pause_s=0)


def test_a_full_disk_and_an_unwritable_folder_are_reported(server, target, monkeypatch, tmp_path):
    usage = downloads.shutil.disk_usage(".")
    monkeypatch.setattr(downloads.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DataError, match=r"room for the file.*0\.1 MB are needed") as caught:
        download(server.url(), target)
    assert caught.value.__cause__.errno == errno.ENOSPC
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="writable"):
        download(server.url(), tmp_path / "file" / "w.pth")


def test_of_many_processes_one_downloads(server, target):
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: download(server.url(), target, digests=[DIGEST]), range(6)))
    assert found == [target] * 6
    assert len(server.asked) == 1


def test_a_file_in_a_read_only_folder_is_used(server, target, monkeypatch):
    download(server.url(), target)

    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(downloads, "FileLock", refuse)
    assert download(server.url(), target, digests=[DIGEST]) == target


def test_a_backbone_starts_from_a_url_and_every_network_after_it_from_the_cache(server, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    torch.manual_seed(0)
    source, file = BACKBONES["resnet18"](in_channels=3, stem="imagenet"), io.BytesIO()
    torch.save(source.state_dict(), file)
    server.content = file.getvalue()
    digest = hashlib.sha256(server.content).hexdigest()
    url = server.url(f"net-{digest[:8]}.pth")
    knobs = {"stem": "imagenet", "weights": url}
    assert BACKBONES["resnet18"].file_problems(**knobs) == []
    assert server.asked == []
    for _ in range(2):
        loaded = BACKBONES["resnet18"](in_channels=3, **knobs)
        assert all(map(torch.equal, loaded.state_dict().values(), source.state_dict().values()))
    assert len(server.asked) == 1
    assert (tmp_path / "hub" / "checkpoints" / f"net-{digest[:8]}.pth").exists()
    assert digest[:16] in BACKBONES["resnet18"].start(**knobs)
    with pytest.raises(DataError, match="must start with 12345678"):
        BACKBONES["resnet18"](in_channels=3, stem="imagenet", weights=f"{server.url('x.pth')}#sha256=12345678")
