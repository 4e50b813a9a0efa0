"""A proxy before an S3 server that plants faults: every n-th request meets the next one of FAULTS.

The client must get over each of them: none loses, repeats or damages what it writes and reads.
"""

import itertools
import socket
import socketserver
import struct
import threading

FAULTS = ["drop", "lose_answer", "reset", "error_500", "slow_down", "short_answer", "damage_request"]


class Gone(Exception):
    """A connection has ended."""


class Message:
    """A request or an answer of HTTP/1.1, as the bytes that came."""

    def __init__(self, source, has_body=True):
        self.head = self.body = b""
        while not self.head.endswith(b"\r\n\r\n"):
            byte = source.readline()
            if not byte:
                raise Gone
            self.head += byte
        lines = self.head.decode("latin-1").split("\r\n")
        self.first_line = lines[0]
        self.fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
        self.has_body = has_body

    def read_body(self, source):
        if not self.has_body:
            return
        if self.fields.get("transfer-encoding") == "chunked":
            while True:
                size = source.readline()
                chunk = source.read(int(size, 16) + 2)
                self.body += size + chunk
                if len(chunk) == 2:
                    return
        length = int(self.fields.get("content-length", 0))
        self.body = source.read(length)
        if len(self.body) < length:
            raise Gone


class Connection(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self):
        with socket.create_connection(self.server.upstream) as upstream:
            upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answers = upstream.makefile("rb")
            try:
                while True:
                    self.pass_on(upstream, answers)
            except (Gone, ConnectionError):
                pass  # libcurl's, or planted

    def pass_on(self, upstream, answers):
        request = Message(self.rfile)
        fault = self.server.next_fault()
        if fault == "drop":
            raise Gone
        if request.fields.get("expect"):
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if fault == "reset" and int(request.fields.get("content-length", 0)) > 1:
            self.rfile.read(int(request.fields["content-length"]) // 2)
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise Gone
        request.read_body(self.rfile)
        if fault in ("error_500", "slow_down"):
            status, code = ("500 Internal Server Error", "InternalError") if fault == "error_500" else ("503 Slow Down", "SlowDown")
            body = f"<Error><Code>{code}</Code></Error>".encode() if not request.first_line.startswith("HEAD") else b""
            self.wfile.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            return
        if fault == "damage_request" and request.body:
            request.body = bytes([request.body[0] ^ 1]) + request.body[1:]
        upstream.sendall(request.head + request.body)
        has_body = not request.first_line.startswith("HEAD")
        answer = Message(answers, has_body)
        while " 100 " in answer.first_line:
            answer = Message(answers, has_body)
        answer.has_body = has_body and " 204 " not in answer.first_line
        answer.read_body(answers)
        if fault == "lose_answer":
            raise Gone
        if fault == "short_answer" and answer.body:
            self.wfile.write(answer.head + answer.body[:len(answer.body) // 2])
            raise Gone
        self.wfile.write(answer.head + answer.body)


class FaultProxy(socketserver.ThreadingTCPServer):
    """Passes requests on to `upstream`, an address, as a context. `period`: of which one request meets a fault."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, upstream, period):
        super().__init__(("127.0.0.1", 0), Connection)
        self.upstream = upstream
        self.requests = itertools.count(1)
        self.faults = itertools.cycle(FAULTS)
        self.period = period
        self.lock = threading.Lock()
        self.met = 0

    def next_fault(self):
        with self.lock:
            if next(self.requests) % self.period:
                return None
            self.met += 1
            return next(self.faults)

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception):
        self.shutdown()
        self.server_close()
