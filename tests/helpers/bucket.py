"""An S3 server on loopback (moto) that records requests and can be stopped and restarted."""

import logging
import threading
import uuid

from moto.server import DomainDispatcherApplication, create_backend_app
from pyarrow.fs import FileSelector, FileSystem, FileType
from werkzeug.serving import make_server

logging.getLogger("werkzeug").setLevel(logging.ERROR)


class Store:
    """S3 store: `with Store() as store:`. Its content outlives `stop` and `start`; each store has another bucket."""

    def __init__(self):
        self.bucket = f"sweeps-{uuid.uuid4().hex[:8]}"
        self.requests = []
        """(verb, path, bytes of the body) of every request."""
        self.answer = None
        """Status line and S3 error code to return instead of the object."""
        self._inner = DomainDispatcherApplication(create_backend_app)
        self._port = 0
        self._server = None

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self._port}"

    @property
    def address(self):
        return f"s3://{self.bucket}/some/place?endpoint_override={self.endpoint}"

    @property
    def files(self):
        query = f"endpoint_override=127.0.0.1:{self._port}&scheme=http&allow_bucket_creation=true"
        return FileSystem.from_uri(f"s3://{self.bucket}?{query}")[0]

    def objects(self):
        """Return the size of every object by its name in the bucket."""
        found = self.files.get_file_info(FileSelector(self.bucket, recursive=True))
        return {info.path[len(self.bucket) + 1 :]: info.size for info in found if info.type is FileType.File}

    def read(self, name):
        with self.files.open_input_file(f"{self.bucket}/{name}") as file:
            return file.read()

    def write(self, name, content):
        with self.files.open_output_stream(f"{self.bucket}/{name}") as file:
            file.write(content)

    def __call__(self, environ, start_response):
        came = int(environ.get("HTTP_X_AMZ_DECODED_CONTENT_LENGTH") or environ.get("CONTENT_LENGTH") or 0)
        asked = environ["PATH_INFO"].removeprefix(f"/{self.bucket}").lstrip("/")
        query = environ.get("QUERY_STRING", "")
        self.requests.append((environ["REQUEST_METHOD"], f"{asked}?{query}" if query else asked, came))
        if self.answer is None:
            return self._inner(environ, start_response)
        status, code = self.answer
        start_response(status, [("Content-Type", "application/xml")])
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>so it is</Message></Error>"
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body.encode()]

    def start(self):
        self._server = make_server("127.0.0.1", self._port, self, threaded=True)
        self._port = self._server.port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self):
        self.start()
        self.files.create_dir(self.bucket)
        self.requests.clear()
        return self

    def __exit__(self, *error):
        self.stop()
