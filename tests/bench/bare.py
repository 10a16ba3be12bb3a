# SPDX-License-Identifier: LGPL-2.1-or-later
"""A bare restore: QEMU alone, with the runner's own arguments, on a reflink of the template's disk."""

import fcntl
import itertools
import json
import os
import socket
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

STORAGE = Path("/var/lib/sandboxd")
FICLONE = 0x40049409
HELLO, HELLO_REPLY, SETUP, RECEIPT, EXEC, EXITED = 1, 2, 3, 4, 9, 17


def frame(kind, payload, stream=0):
    return struct.pack("<IHHI", len(payload), kind, 0, stream) + payload


def text(value):
    return struct.pack("<I", len(value)) + value + b"\0"


class Agent:
    """Just enough of the agent's protocol to set a machine up and run one command."""

    def __init__(self, connection):
        self.connection = connection
        self.data = b""

    def wait(self, kind):
        while True:
            while len(self.data) >= 12:
                length, got, _, _ = struct.unpack_from("<IHHI", self.data)
                if len(self.data) < 12 + length:
                    break
                self.data = self.data[12 + length:]
                if got == kind:
                    return
            more = self.connection.recv(65536)
            if not more:
                raise EOFError("the agent's channel has closed")
            self.data += more

    def set_up(self):
        nonce = os.urandom(16)
        self.connection.sendall(frame(HELLO, struct.pack("<II", 1, 0) + nonce))
        self.wait(HELLO_REPLY)
        self.connection.sendall(frame(SETUP, nonce + struct.pack("<QQ", 2, time.time_ns()) + os.urandom(96) +
                                      struct.pack("<QQIII", 0, 0, 0, 0, 0) + text(b"bare")))
        self.wait(RECEIPT)

    def run(self, argument):
        strings = struct.pack("<I", 1) + text(argument)
        self.connection.sendall(frame(EXEC, struct.pack("<IQ", 0, 0) + text(b"") + text(b"") + strings +
                                      struct.pack("<I", 0), stream=1))
        self.wait(EXITED)


class BareRestore:
    def __init__(self, template):
        published = json.loads((STORAGE / "templates" / f"{template}.json").read_text())
        self.snapshot = STORAGE / "snapshots" / published["snapshot"]
        self.manifest = json.loads((self.snapshot / "manifest.json").read_text())
        build = os.environ.get("SANDBOXD_BUILD", str(Path(__file__).resolve().parents[2] / "build"))
        self.arguments = build + "/tests/runner/machine-args"
        self.numbers = itertools.count()
        self.lock = threading.Lock()

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(dir=STORAGE / "work", prefix="bench-")
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def clone(self):
        with self.lock:
            path = f"{self.folder.name}/{next(self.numbers)}.raw"
        source = os.open(self.snapshot / "disk.raw", os.O_RDONLY)
        target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.ioctl(target, FICLONE, source)
        os.close(source)
        os.unlink(path)
        return target

    def once(self):
        """Seconds from nothing to the receipt, and to the end of the first command. Preparing the command line isn't
        counted."""
        pairs = {n: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM if n == "network" else socket.SOCK_STREAM)
                 for n in ("qmp", "agent", "console", "network")}
        fds = {n: p[1].fileno() for n, p in pairs.items()}
        fds["memory"] = os.open(self.snapshot / "memory", os.O_RDONLY)
        fds["devices"] = os.open(self.snapshot / "devices", os.O_RDONLY)
        fds["disk"] = os.open("/dev/null", os.O_RDWR)
        argv = subprocess.check_output(
            [self.arguments, "/usr/bin/qemu-system-x86_64", self.manifest["accelerator"], "restore", "-",
             str(self.manifest["memory"] >> 20), str(self.manifest["volumes"]), *(f"{k}={v}" for k, v in fds.items())],
            text=True).splitlines()
        start = time.monotonic()
        disk = self.clone()
        os.dup2(disk, fds["disk"])
        os.close(disk)
        with subprocess.Popen(argv, pass_fds=fds.values(), stdin=subprocess.DEVNULL) as process:
            try:
                agent = Agent(pairs["agent"][0])
                pairs["qmp"][0].recv(1000)
                agent.set_up()
                ready = time.monotonic() - start
                agent.run(b"true")
                took = time.monotonic() - start
            finally:
                process.kill()
        for name in "memory", "devices", "disk":
            os.close(fds[name])
        for a, b in pairs.values():
            a.close()
            b.close()
        return ready, took
