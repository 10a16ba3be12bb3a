# SPDX-License-Identifier: LGPL-2.1-or-later
"""sandboxctl against a stand-in for the service, on a bus of their own."""

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import dbus.bus
import pytest


HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("SANDBOXD_BUILD", HERE.parent.parent / "build"))
SANDBOXCTL = BUILD / "src/sandboxctl/sandboxctl"
LIMIT = 30  # seconds for anything here; far more than it takes

BUS_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={0}/bus</listen>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
    <allow user="*"/>
  </policy>
</busconfig>
"""


def wait_for(condition, what):
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    pytest.fail(f"waited in vain for {what}")


@pytest.fixture(scope="session")
def bus(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bus")
    (directory / "bus.conf").write_text(BUS_CONFIG.format(directory))
    daemon = subprocess.Popen(["dbus-daemon", "--nofork", "--nopidfile", f"--config-file={directory}/bus.conf"])
    wait_for((directory / "bus").exists, "the bus")
    yield f"unix:path={directory}/bus"
    daemon.terminate()
    daemon.wait()


class Service:
    """The stand-in, which can be killed and started again on the same state."""

    def __init__(self, address, state):
        self.state = state
        self.env = {**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": address, "LC_ALL": "C", "TZ": "UTC"}
        self.env.pop("PAGER", None)
        self.bus = dbus.bus.BusConnection(address)
        self.process = None

    def owned(self):
        return self.bus.name_has_owner("org.sandboxd1")

    def start(self):
        self.process = subprocess.Popen([sys.executable, HERE / "mock_sandboxd.py", self.state], env=self.env)
        wait_for(self.owned, "the service")

    def kill(self):
        self.process.kill()
        self.process.wait()
        wait_for(lambda: not self.owned(), "the service's end")

    def log(self, member=None):
        path = self.state / "log"
        calls = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [c for c in calls if member in (None, c[0])]

    def ctl(self, *args, **options):
        options.setdefault("input" if "stdin" not in options else "text", "" if "stdin" not in options else True)
        return subprocess.run([SANDBOXCTL, *args], env={**self.env, **options.pop("env", {})}, text=True,
                              timeout=LIMIT, capture_output="stdout" not in options,
                              **{k: v for k, v in options.items() if k != "text"})

    def popen(self, *args, **options):
        return subprocess.Popen([SANDBOXCTL, *args], env=self.env, **options)

    def create(self, *args):
        r = self.ctl("create", *args, "base")
        assert r.returncode == 0, r.stderr
        return r.stdout.strip()

    def sandboxes(self):
        return [p.name for p in self.state.iterdir() if len(p.name) == 12]


@pytest.fixture
def service(bus, tmp_path):
    s = Service(bus, tmp_path)
    s.start()
    yield s
    for pid in tmp_path.glob("*/*/pid"):
        try:
            os.killpg(json.loads(pid.read_text()), signal.SIGKILL)
        except ProcessLookupError:
            pass
    s.process.kill()
    s.process.wait()
    wait_for(lambda: not s.owned(), "the service's end")
    s.bus.close()


class Terminal:
    """sandboxctl as the leader of a session with a terminal of its own."""

    def __init__(self, service, *args, columns=80, rows=24, env={}):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execve(SANDBOXCTL, ["sandboxctl", *args], {**service.env, "TERM": "dumb", **env})
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, bytes([rows, 0, columns, 0, 0, 0, 0, 0]))
        self.output = b""

    def read(self, timeout=LIMIT):
        if not select.select([self.master], [], [], timeout)[0]:
            pytest.fail(f"the terminal stays silent after {self.output[-200:]}")
        try:
            data = os.read(self.master, 65536)
        except OSError:  # the other end is closed
            data = b""
        self.output += data
        return data

    def expect(self, text):
        while text not in self.output:
            if not self.read():
                pytest.fail(f"{text} isn't in {self.output}")

    def write(self, data):
        os.write(self.master, data)

    def end(self):
        while self.read():
            pass
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.master)
        return status
