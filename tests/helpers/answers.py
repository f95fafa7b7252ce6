"""A server on loopback whose answers a test chooses."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer


class AnsweringServer(HTTPServer):
    """Answers every request with `answer`: a status and a text; `seen` has the logins of the requests."""

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.seen = answer, []
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def answer_to(self, path):
        return self.answer

    def __exit__(self, *error):
        self.shutdown()
        super().__exit__(*error)


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append(self.headers.get("Authorization", ""))
        status, text = self.server.answer_to(self.path)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST  # noqa: N815 - its name in http.server

    def log_message(self, *arguments): ...
