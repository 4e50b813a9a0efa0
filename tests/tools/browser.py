"""A headless chromium that a test drives through the DevTools protocol, with nothing but Python's own library."""

import base64
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import urllib.request

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PATIENCE = 120  # seconds for one answer; only a hang meets it


def find_chromium():
    """The browser's path, or None. CAIRN_CHROMIUM names another one."""
    named = os.environ.get("CAIRN_CHROMIUM")
    return named or next((path for path in map(shutil.which, NAMES) if path), None)


class WebSocket:
    """RFC 6455, the client's side, as far as DevTools need it: text frames, pieces of such, pings."""

    def __init__(self, url):
        host, port, path = re.match(r"ws://([^:/]+):(\d+)(/.*)", url).groups()
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.buffer = b""
        while b"\r\n\r\n" not in self.buffer:
            self._receive()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise ConnectionError(head.decode(errors="replace"))

    def _receive(self):
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the browser has closed the connection")
        self.buffer += data

    def _take(self, count):
        while len(self.buffer) < count:
            self._receive()
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def send(self, text, opcode=1):
        data = text.encode() if isinstance(text, str) else text
        size = len(data)
        head = bytes([0x80 | opcode])
        if size < 126:
            head += bytes([0x80 | size])
        elif size < 1 << 16:
            head += bytes([0x80 | 126]) + struct.pack(">H", size)
        else:
            head += bytes([0x80 | 127]) + struct.pack(">Q", size)
        self.socket.sendall(head + bytes(4) + data)  # masked with zeros, which leaves it as it is

    def receive(self):
        text = b""
        while True:
            first, second = self._take(2)
            size = second & 127
            if size == 126:
                size, = struct.unpack(">H", self._take(2))
            elif size == 127:
                size, = struct.unpack(">Q", self._take(8))
            data = self._take(size)
            opcode = first & 15
            if opcode == 8:
                raise ConnectionError("the browser has closed the connection")
            if opcode == 9:
                self.send(data, opcode=10)
            elif opcode in (0, 1):
                text += data
                if first & 0x80:
                    return text.decode()

    def close(self):
        self.socket.close()


class Browser:
    """One page at a time. What goes wrong in it, and what it writes to its console, is in `complaints`."""

    def __init__(self, width=1440, height=900):
        self.profile = tempfile.mkdtemp(prefix="cairn-browser-")
        command = [find_chromium(), "--headless", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0", "--mute-audio",
                   "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
                   "--user-data-dir=" + self.profile, f"--window-size={width},{height}", "about:blank"]
        if os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # it refuses to run as root with one
        environment = {**os.environ, "HOME": self.profile, "XDG_CONFIG_HOME": self.profile, "XDG_CACHE_HOME": self.profile}
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        start_new_session=True, env=environment)
        self.complaints, self.requests, self._last = [], [], 0
        try:
            said = []
            for line in self.process.stderr:
                said.append(line)
                listening = re.search(r"DevTools listening on ws://([^/]+)/", line)
                if listening:
                    break
            else:
                raise RuntimeError("chromium has ended: " + "".join(said))
            with urllib.request.urlopen(f"http://{listening.group(1)}/json/list", timeout=PATIENCE) as answer:
                pages = [target for target in json.load(answer) if target["type"] == "page"]
            self.connection = WebSocket(pages[0]["webSocketDebuggerUrl"])
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(domain + ".enable")
            self.resize(width, height)
        except BaseException:
            self.close()
            raise

    def close(self):
        if hasattr(self, "connection"):
            self.connection.close()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process.stderr.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _next(self):
        message = json.loads(self.connection.receive())
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(" ".join(str(it.get("value", it.get("description"))) for it in parameters["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        return message

    def call(self, method, **parameters):
        self._last += 1
        number = self._last
        self.connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = self._next()
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def open(self, path):
        """Until all of it is loaded and drawn."""
        self.complaints, self.requests = [], []
        self.call("Page.navigate", url="file://" + os.path.abspath(path))
        while self._next().get("method") != "Page.loadEventFired":
            pass
        self.drawn()

    def drawn(self):
        """Waits until what was asked for is on the screen: two frames from now."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return result["result"].get("value")

    def click(self, x, y):
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="none" if kind == "mouseMoved" else "left", clickCount=1,
                      buttons=1 if kind == "mousePressed" else 0)
        self.drawn()

    def press(self, key):
        """A key by its name (KeyboardEvent.key)."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        code = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text if kind == "keyDown" else "", windowsVirtualKeyCode=code)
        self.drawn()

    def type(self, text):
        self.call("Input.insertText", text=text)
        self.drawn()

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def prefer(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.drawn()
