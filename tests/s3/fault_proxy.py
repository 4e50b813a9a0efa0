"""A proxy before an S3 server that plants faults: every n-th request meets the next one of FAULTS.

The client must get over each of them: none loses, repeats or damages what it writes and reads.
"""

import itertools
import pathlib
import re
import select
import socket
import socketserver
import ssl
import struct
import subprocess
import threading

from metadata_server import RunsAsContext

FAULTS = ["drop", "lose_answer", "reset", "error_500", "slow_down", "conflict", "short_answer", "lie_about_length", "damage_request", "delay"]

# Answers that the server under test never gives.
ANSWERS = {
    "error_500": ("500 Internal Server Error", "<Code>InternalError</Code>"),
    "slow_down": ("503 Slow Down", "<Code>SlowDown</Code>"),
    "conflict": ("409 Conflict", "<Code>ConcurrentModification</Code>"),
    "other_region": ("400 Bad Request", "<Code>AuthorizationHeaderMalformed</Code><Region>eu-north-1</Region>"),
}


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


def join(one, other):
    """Passes on what either socket receives, until one of them ends."""
    def pass_on(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
    back = threading.Thread(target=pass_on, args=(other, one), daemon=True)
    back.start()
    pass_on(one, other)
    back.join()


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
        target = request.first_line.split()[1]
        self.server.seen.append((target, request.fields.get("host")))
        if request.first_line.startswith("CONNECT "):
            self.wfile.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            host, port = target.split(":")
            with socket.create_connection((host, int(port))) as other:
                join(self.request, other)
            raise Gone
        # As a proxy is asked. Servers want the path alone.
        request.head = request.head.replace(target.encode(), re.sub("^http://[^/]*", "", target).encode(), 1)
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
        if fault in ANSWERS:
            status, error = ANSWERS[fault]
            body = f"<Error>{error}</Error>".encode() if not request.first_line.startswith("HEAD") else b""
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
        if fault in ("short_answer", "stall", "trickle") and answer.body:
            self.wfile.write(answer.head + answer.body[:len(answer.body) // 2])
            if fault == "stall":
                self.rfile.read(1)  # until the client gives up
            rest = answer.body[len(answer.body) // 2:] if fault == "trickle" else b""
            for byte in rest:
                self.wfile.write(bytes([byte]))
                if select.select([self.request], [], [], 0.05)[0]:
                    break  # the client has given up
            raise Gone
        if fault == "lie_about_length" and answer.body and "content-length" in answer.fields:
            answer.body = answer.body[:len(answer.body) // 2]
            answer.head = re.sub(rb"(?i)(\ncontent-length:) *\d+", b"\\1 %d" % len(answer.body), answer.head)
        if fault == "delay":
            self.server.wait_for_another()
        self.server.count_answer()
        self.wfile.write(answer.head + answer.body)


class Server(RunsAsContext, socketserver.ThreadingTCPServer):
    """Passes connections on to `upstream`, an address. Runs as a context."""

    daemon_threads = True
    block_on_close = False
    scheme = "http"

    def __init__(self, upstream, handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.upstream = upstream
        self.url = f"{self.scheme}://127.0.0.1:{self.server_address[1]}"


class TlsConnection(socketserver.BaseRequestHandler):
    def handle(self):
        try:
            with self.server.context.wrap_socket(self.request, server_side=True) as client, \
                    socket.create_connection(self.server.upstream) as upstream:
                join(client, upstream)
        except (ssl.SSLError, ConnectionError):
            pass  # the client does not trust us


class TlsFront(Server):
    """Speaks TLS before `upstream`. Its certificate, for 127.0.0.1, is from an authority of its own, whose certificate is `authority`."""

    scheme = "https"

    def __init__(self, upstream, directory):
        super().__init__(upstream, TlsConnection)
        def openssl(*arguments):
            subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority", "-days", "2")
        openssl("req", *new_key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server")
        pathlib.Path(directory, "names").write_text("subjectAltName=IP:127.0.0.1\n", encoding="ascii")
        openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names",
                "-out", "server.pem", "-days", "2")
        self.authority = f"{directory}/ca.pem"
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(f"{directory}/server.pem", f"{directory}/server.key")


class FaultProxy(Server):
    """Passes requests on to `upstream`, an address, as a context. Of `period` requests one meets a fault. `seen`: the targets and hosts
    of all requests."""

    def __init__(self, upstream, period=1, faults=(None,)):
        super().__init__(upstream, Connection)
        self.requests = itertools.count(1)
        self.faults = itertools.cycle(faults)
        self.period = period
        self.lock = threading.Lock()
        self.met = 0
        self.seen = []
        self.answers = 0
        self.answered = threading.Condition()

    def next_fault(self):
        with self.lock:
            if next(self.requests) % self.period:
                return None
            self.met += 1
            return next(self.faults)

    def count_answer(self):
        with self.answered:
            self.answers += 1
            self.answered.notify_all()

    def wait_for_another(self):
        """Until the answer to a later request was sent; not for ever, as there may be none."""
        with self.answered:
            before = self.answers
            self.answered.wait_for(lambda: self.answers > before, timeout=0.2)
