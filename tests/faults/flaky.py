"""An HTTP server between a client and a store that lets one request in so many fail, each time in another way."""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WAYS = ("slow down", "internal error", "no answer", "half an answer")


class Flaky(ThreadingHTTPServer):
    """Hands requests on to `target` (host, port); of every `one_in` one fails. failed: how many, by the way they failed.

    damaged: what a file's name holds that can never be read.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, target: tuple[str, int], one_in: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.target = target
        self.one_in = one_in
        self.damaged = ""
        self.requests = 0
        self.failed: Counter[str] = Counter()
        self.counting = threading.Lock()

    def fault(self) -> str | None:
        """How the request that came now is to fail, or None."""
        with self.counting:
            self.requests += 1
            if self.requests % self.one_in:
                return None
            way = WAYS[self.requests // self.one_in % len(WAYS)]
            self.failed[way] += 1
            return way

    def handle_error(self, *_: object) -> None:
        """A client that goes away in the middle is what this is about."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        body = self._body()
        way = self.server.fault()
        if self.command == "GET" and self.server.damaged and self.server.damaged in self.path.partition("?")[0]:
            way = "internal error"
        if way == "slow down":
            self._refuse(503, "SlowDown", "Please reduce your request rate.")
        elif way == "internal error":
            self._refuse(500, "InternalError", "We encountered an internal error. Please try again.")
        elif way == "no answer":
            self.close_connection = True
        else:
            self._hand_on(body, half=way == "half an answer")

    def _body(self) -> bytes:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            pieces = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _hand_on(self, body: bytes, half: bool) -> None:
        connection = http.client.HTTPConnection(*self.server.target, timeout=60)
        headers = {
            name: value for name, value in self.headers.items() if name.lower() not in ("transfer-encoding", "expect")
        }
        headers["Content-Length"] = str(len(body))
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        self.wfile.write(f"HTTP/1.1 {answer.status} {answer.reason}\r\n".encode())
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.wfile.write(f"{name}: {value}\r\n".encode())
        length = answer.getheader("Content-Length") if self.command == "HEAD" else len(data)
        self.wfile.write(f"Content-Length: {length or 0}\r\n\r\n".encode())
        self.wfile.write(data[: len(data) // 2] if half else data)
        self.close_connection = half

    def _refuse(self, status: int, code: str, message: str) -> None:
        data = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'.encode()
        self.wfile.write(
            f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        )
        if self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def flaky(target: tuple[str, int], one_in: int):
    """A running Flaky, and the URL to use in the store's place."""
    server = Flaky(target, one_in)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
