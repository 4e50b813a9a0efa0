"""Runs a command with a terminal as its standard output."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios


def on_terminal(*command, columns=None, **environment):
    """Returns what the command writes; a command that fails raises."""
    master, slave = pty.openpty()
    if columns is not None:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen([str(word) for word in command], stdout=slave, stderr=subprocess.DEVNULL,
                               env={**inherited, "TERM": "xterm", **environment})
    os.close(slave)
    written = b""
    with contextlib.suppress(OSError):  # the terminal is gone with its last user
        while part := os.read(master, 65536):
            written += part
    os.close(master)
    if process.wait() != 0:
        raise subprocess.CalledProcessError(process.returncode, command, written)
    return written.decode()
