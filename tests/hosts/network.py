"""Hosts on one machine: network namespaces, whose packets this process forwards, with delay, loss and cuts.

Everything ends with this process: a namespace lives as long as its processes and open files.
"""

import ctypes
import fcntl
import heapq
import os
import random
import selectors
import shutil
import socket
import struct
import subprocess
import threading
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
PACKET_MAX = 65536
PROGRAMS = ("ip", "nsenter", "unshare", "mount")

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def missing():
    """Why this machine cannot have such hosts, or ''."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    for program in PROGRAMS:
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if os.geteuid() != 0:
        return "namespaces need root"
    try:
        Network(1).close()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"this machine makes no network namespaces with TUN devices: {error}"
    return "" if subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0 else "this machine makes no mount namespaces"


def is_opening(packet):
    """Whether an IPv4 packet is the first of a TCP connection: SYN without ACK."""
    return packet[9] == socket.IPPROTO_TCP and packet[(packet[0] & 15) * 4 + 13] & 0x12 == 0x02


class Host:
    """A network namespace. Its interface net0 leads to the other hosts; other0 leads to nobody."""

    def __init__(self, number, devices):
        self.number = number
        self.name = f"node{number}"
        self.address = f"10.77.0.{number + 1}"
        self.stray_address = f"10.88.{number}.1"
        self.cut = False
        self.not_reached = set()  # hosts to which no connection can be made from here; the other way it can
        with open("/proc/thread-self/ns/net", "rb") as home:
            _checked(_libc.unshare(CLONE_NEWNET))
            try:
                self.namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
                devices.append(self.namespace)
                self.packets = self.make_device("net0", devices)
                self.make_device("other0", devices)
                for words in ("link set lo up", f"address add {self.address}/24 dev net0", "link set net0 up",
                              f"address add {self.stray_address}/24 dev other0", "link set other0 up"):
                    subprocess.run(["ip", *words.split()], check=True)
            finally:
                _checked(_libc.setns(home.fileno(), CLONE_NEWNET))

    @staticmethod
    def make_device(name, devices):
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        devices.append(device)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
        return device

    def command(self, command, hosts_file, private=()):
        """The command line that runs a command on this host, with an /etc/hosts of its own. `private`: directories that the host has for
        itself, empty ones."""
        script = 'mount --bind "$0" /etc/hosts; for at in $1; do mount -t tmpfs host "$at"; done; shift; exec "$@"'
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.namespace}", "unshare", "-m", "sh", "-ec", script, str(hosts_file),
                " ".join(map(str, private)), *map(str, command)]


class Network:
    """Hosts, connected by a thread that forwards their packets. `delay` is in seconds each way, `loss` a fraction of all packets."""

    def __init__(self, size, delay=0.0, loss=0.0, seed=1):
        self.delay, self.loss = delay, loss
        self.lost = 0
        self.random = random.Random(seed)
        self.devices = []
        self.ended = False
        try:
            self.hosts = [Host(number, self.devices) for number in range(size)]
            self.wake, self.end = os.pipe2(os.O_CLOEXEC)
        except BaseException:
            self.close_devices()
            raise
        self.devices += [self.wake, self.end]
        self.thread = threading.Thread(target=self.forward, daemon=True)
        self.thread.start()

    def close(self):
        os.write(self.end, b"x")
        self.thread.join()
        self.close_devices()

    def close_devices(self):
        for device in self.devices:
            os.close(device)
        self.devices.clear()

    def forward(self):
        ready = selectors.DefaultSelector()
        ready.register(self.wake, selectors.EVENT_READ)
        for host in self.hosts:
            ready.register(host.packets, selectors.EVENT_READ, host)
        by_address = {bytes(map(int, host.address.split("."))): host for host in self.hosts}
        waiting, order = [], 0
        while True:
            left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            for key, _ in ready.select(left):
                if key.data is None:
                    return
                try:
                    packet = os.read(key.data.packets, PACKET_MAX)
                except BlockingIOError:
                    continue
                to = by_address.get(packet[16:20])  # of an IPv4 header
                if packet[0] >> 4 != 4 or to is None or (to in key.data.not_reached and is_opening(packet)):
                    continue
                if self.random.random() < self.loss:
                    self.lost += 1
                    continue
                order += 1
                heapq.heappush(waiting, (time.monotonic() + self.delay, order, key.data, to, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, source, to, packet = heapq.heappop(waiting)
                if source.cut or to.cut:
                    continue
                try:
                    os.write(to.packets, packet)
                except OSError:  # the queue is full, or the device is gone: lost, as on a real network
                    self.lost += 1
