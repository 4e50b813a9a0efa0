"""A proxy before an S3 server that plants faults: every n-th request meets the next one of FAULTS, or requests chosen at random meet one
kind of fault.

The client must get over each of FAULTS: none loses, repeats or damages what it writes and reads. KINDS has all kinds. Some of them, if they
last, make a call fail.
"""

import contextlib
import hashlib
import itertools
import pathlib
import random
import re
import select
import socket
import socketserver
import ssl
import struct
import subprocess
import threading
import urllib.parse

from metadata_server import RunsAsContext

FAULTS = ["drop", "lose_answer", "reset", "error_500", "slow_down", "conflict", "short_answer", "lie_about_length", "damage_request", "delay",
          "foreign_404", "foreign_200", "foreign_502_after", "empty_200_after", "failed_condition", "expired", "skewed", "no_etag", "no_length",
          "chunked", "duplicate", "long_answer"]

PAGE = "<html><body>It works</body></html>"
RETRY = {"Retry-After": "1"}


def error(code):
    return f"<Error><Code>{code}</Code></Error>"


# Answers that the server under test never gives, or not to this request: status, fields, body.
ANSWERS = {
    "error_500": ("500 Internal Server Error", {}, error("InternalError")),
    "error_500_retry": ("500 Internal Server Error", RETRY, error("InternalError")),
    "slow_down": ("503 Slow Down", {}, error("SlowDown")),
    "slow_down_retry": ("503 Slow Down", RETRY, error("SlowDown")),
    "throttled": ("429 Too Many Requests", {}, error("TooManyRequests")),
    "throttled_retry": ("429 Too Many Requests", RETRY, error("TooManyRequests")),
    "conflict": ("409 Conflict", {}, error("ConcurrentModification")),
    "failed_condition": ("412 Precondition Failed", {}, error("PreconditionFailed")),
    "skewed": ("403 Forbidden", {}, error("RequestTimeTooSkewed")),
    "expired": ("400 Bad Request", {}, error("ExpiredToken")),
    "denied": ("403 Forbidden", {}, error("AccessDenied")),
    "unknown_key": ("403 Forbidden", {}, error("InvalidAccessKeyId")),
    "no_bucket": ("404 Not Found", {}, error("NoSuchBucket")),
    "other_region": ("400 Bad Request", {}, "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-north-1</Region></Error>"),
    "redirect": ("307 Temporary Redirect", {"Location": "http://127.0.0.1:1/"}, error("TemporaryRedirect")),
    "moved": ("301 Moved Permanently", {"Location": "http://127.0.0.1:1/"}, PAGE),
    "foreign_404": ("404 Not Found", {}, "default backend - 404"),
    "foreign_404_page": ("404 Not Found", {"Content-Type": "text/html"}, PAGE),
    "foreign_403": ("403 Forbidden", {}, "blocked"),
    "foreign_200": ("200 OK", {"Content-Type": "text/html", "ETag": '"5f-1"'}, PAGE),
    "foreign_502": ("502 Bad Gateway", {}, PAGE),
    "empty_200": ("200 OK", {}, ""),
    "error_200": ("200 OK", {}, error("InternalError")),
}
# The server carries the request out, and its answer is replaced.
ANSWERS_AFTER = {kind + "_after": ANSWERS[kind] for kind in (
    "error_500", "error_500_retry", "slow_down", "slow_down_retry", "throttled", "throttled_retry", "conflict", "failed_condition", "empty_200",
    "error_200", "foreign_404", "foreign_200", "foreign_502")}

KINDS = [*ANSWERS, *ANSWERS_AFTER, "drop", "reset", "lose_answer", "reset_answer", "short_answer", "long_answer", "lie_about_length", "delay",
         "damage_request", "damage_answer", "stale_list", "duplicate", "duplicate_first", "late", "no_etag", "no_length", "chunked", "swallowed"]


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
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
    back = threading.Thread(target=pass_on, args=(other, one), daemon=True)
    back.start()
    pass_on(one, other)
    back.join()


def operation_of(method, target):
    """Returns which kind of request this is: list, part, GET, PUT, POST or DELETE."""
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(target).query, keep_blank_values=True)
    if method == "GET" and ("list-type" in query or "uploads" in query):
        return "list"
    return "part" if "partNumber" in query else method


def exchange(upstream, answers, request):
    """Passes a request on. Returns the whole answer."""
    upstream.sendall(request.head + request.body)
    has_body = not request.first_line.startswith("HEAD")
    answer = Message(answers, has_body)
    while " 100 " in answer.first_line:
        answer = Message(answers, has_body)
    answer.has_body = has_body and " 204 " not in answer.first_line
    answer.read_body(answers)
    return answer


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
        method = request.first_line.split()[0]
        operation = operation_of(method, target)
        fault = self.server.next_fault(operation)
        if fault == "drop":
            raise Gone
        if request.fields.get("expect"):
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if fault == "reset" and int(request.fields.get("content-length", 0)) > 1:
            self.rfile.read(int(request.fields["content-length"]) // 2)
            self.reset()
        request.read_body(self.rfile)
        if fault in ANSWERS:
            return self.answer(method, *ANSWERS[fault])
        if fault == "late":
            if method != "GET":
                self.server.do_later(request)
            raise Gone
        if fault == "swallowed" and method in ("PUT", "DELETE"):
            etag = hashlib.md5(request.body).hexdigest()
            return self.answer(method, *(("200 OK", {"ETag": f'"{etag}"'}, "") if method == "PUT" else ("204 No Content", {}, "")))
        if fault == "stale_list" and target in self.server.lists:
            self.wfile.write(self.server.lists[target])
            return None
        if fault == "damage_request" and request.body:
            request.body = bytes([request.body[0] ^ 1]) + request.body[1:]
        answer = exchange(upstream, answers, request)
        if fault in ("duplicate", "duplicate_first"):
            again = exchange(upstream, answers, request)
            answer = again if fault == "duplicate" else answer
        if fault == "lose_answer":
            raise Gone
        if fault in ANSWERS_AFTER:
            return self.answer(method, *ANSWERS_AFTER[fault])
        if operation == "list" and not fault:
            self.server.lists[target] = answer.head + answer.body
        if fault == "reset_answer":
            self.wfile.write((answer.head + answer.body)[:(len(answer.head) + len(answer.body)) // 2])
            self.reset()
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
        if fault == "damage_answer" and answer.body:
            middle = len(answer.body) // 2
            answer.body = answer.body[:middle] + bytes([answer.body[middle] ^ 1]) + answer.body[middle + 1:]
        if fault == "no_etag":
            answer.head = re.sub(rb"(?i)\netag:[^\n]*", b"", answer.head)
        if fault in ("no_length", "chunked") and method != "HEAD" and answer.body and answer.fields.get("transfer-encoding") != "chunked":
            answer.head = re.sub(rb"(?i)\ncontent-length:[^\n]*", b"\nTransfer-Encoding: chunked\r" if fault == "chunked" else b"", answer.head)
            if fault == "chunked":
                answer.body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(answer.body), answer.body)
        if fault == "delay":
            self.server.wait_for_another()
        self.server.count_answer()
        self.wfile.write(answer.head + answer.body + (b"more" if fault == "long_answer" else b""))
        if fault in ("no_length", "long_answer"):
            raise Gone
        return None

    def answer(self, method, status, fields, body):
        body = b"" if method == "HEAD" else body.encode()
        fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        length = "" if status.startswith("204") else f"Content-Length: {len(body)}\r\n"
        self.wfile.write(f"HTTP/1.1 {status}\r\n{fields}{length}\r\n".encode() + body)

    def reset(self):
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise Gone


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
    of all requests. `plant` chooses other requests."""

    def __init__(self, upstream, period=1, faults=(None,)):
        super().__init__(upstream, Connection)
        self.requests = itertools.count(1)
        self.faults = itertools.cycle(faults)
        self.period = period
        self.lock = threading.Lock()
        self.planted = None
        self.met = 0
        self.seen = []
        self.lists = {}  # the last answer to each request for a list that met no fault
        self.late = []
        self.answers = 0
        self.answered = threading.Condition()

    def plant(self, kind, rate, operations, seed):
        """From now on requests of these operations (see operation_of; none: all) meet a fault at this rate."""
        with self.lock:
            self.planted = (kind, rate, operations, random.Random(seed))
            self.met = 0

    def clear(self):
        """No request meets a fault any more, and all late ones are carried out."""
        with self.lock:
            self.planted = None
            late, self.late = self.late, []
        for thread in late:
            thread.join()

    def next_fault(self, operation):
        with self.lock:
            if self.planted:
                kind, rate, operations, chance = self.planted
                if (operations and operation not in operations) or chance.random() >= rate:
                    return None
            elif next(self.requests) % self.period:
                return None
            else:
                kind = next(self.faults)
            self.met += 1
            return kind

    def do_later(self, request):
        """Carries a request out when the client has given up on it."""
        def act():
            self.wait_for_another()
            with socket.create_connection(self.upstream) as upstream, contextlib.suppress(Gone, ConnectionError):
                exchange(upstream, upstream.makefile("rb"), request)
        thread = threading.Thread(target=act, daemon=True)
        with self.lock:
            self.late.append(thread)
        thread.start()

    def count_answer(self):
        with self.answered:
            self.answers += 1
            self.answered.notify_all()

    def wait_for_another(self):
        """Until the answer to a later request was sent; not for ever, as there may be none."""
        with self.answered:
            before = self.answers
            self.answered.wait_for(lambda: self.answers > before, timeout=0.2)
