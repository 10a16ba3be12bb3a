# SPDX-License-Identifier: LGPL-2.1-or-later
"""sandboxctl against a stand-in for sandboxd on a private bus: verbs, statuses, streams, terminals, restarts."""

import fcntl
import hashlib
import json
import os
import pty
import re
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


# --- the command line ---------------------------------------------------------------------------------------------------


def test_help_and_version(service):
    r = service.ctl("--help")
    assert r.returncode == 0 and "templates" in r.stdout and r.stderr == ""
    assert "--timeout" in service.ctl("exec", "--help").stdout
    assert "--timeout" not in service.ctl("rm", "--help").stdout
    assert re.fullmatch(r"sandboxctl \d\S*\n", service.ctl("--version").stdout)


@pytest.mark.parametrize("args, status, said", [
    (["frobnicate"], 1, "Unknown verb frobnicate"),
    (["list", "--frobnicate"], 1, "Unknown option --frobnicate"),
    (["list", "-Z"], 1, "Unknown option -Z"),
    (["list", "--memory=1G"], 1, "list has no option --memory"),
    (["create", "base", "--memory=lots"], 1, "--memory=lots is not a size"),
    (["create", "base", "--metadata=x"], 1, "--metadata=x is not KEY=VALUE"),
    (["create"], 1, "create needs more arguments"),
    (["ttl", "x", "10s", "y"], 1, "ttl takes fewer arguments"),
    (["ttl", "x", "soon"], 1, "soon is not a time"),
    (["rm"], 1, "either the names of sandboxes or --all"),
    (["exec", "--timeout", "x", "id", "true"], 125, "--timeout=x is not a time"),
    (["exec", "id"], 125, "exec needs more arguments"),
    (["run", "base"], 125, "run needs more arguments"),
    (["create", "--name"], 1, "--name needs an argument"),
    (["list", "--quiet=yes"], 1, "--quiet takes no argument"),
])
def test_bad_command_lines(service, args, status, said):
    r = service.ctl(*args)
    assert (r.returncode, r.stdout) == (status, "")
    assert said in r.stderr
    assert service.log() == [], "nothing may have been asked of the service"


def test_no_service(bus, tmp_path):
    s = Service(bus, tmp_path)
    r = s.ctl("list")
    assert r.returncode == 1 and "sandboxd isn't running" in r.stderr
    assert s.ctl("run", "base", "true").returncode == 125
    s.env["DBUS_SYSTEM_BUS_ADDRESS"] = "unix:path=/nonexistent"
    r = s.ctl("list")
    assert r.returncode == 1 and "Failed to connect to the system bus" in r.stderr


# --- sandboxes ----------------------------------------------------------------------------------------------------------


def test_create_passes_options(service):
    r = service.ctl("create", "base", "--name=box", "--ttl=10min", "--runtime-max", "infinity", "--memory=512M",
                    "--cpus=0.5", "--disk=4G", "--tasks-max=99", "--hostname=h", "--metadata=a=1", "--metadata=b=x=y",
                    "-eA=1", "--env", "FROM", "-e", "UNSET", env={"FROM": "caller"})
    assert r.returncode == 0, r.stderr
    assert re.fullmatch(r"[0-9a-f]{12}\n", r.stdout)
    assert service.log("CreateSandbox") == [["CreateSandbox", "base", {
        "Name": "box", "TTLUSec": 600 * 10**6, "RuntimeMaxUSec": 0, "MemoryMax": 512 << 20, "CPUs": 0.5,
        "DiskSize": 4 << 30, "TasksMax": 99, "Hostname": "h", "Metadata": {"a": "1", "b": "x=y"},
        "Environment": ["A=1", "FROM=caller"]}]]


def test_create_json(service):
    r = service.ctl("create", "base", "--json=short")
    assert service.sandboxes() == [json.loads(r.stdout)["id"]]


@pytest.mark.parametrize("template, said", [
    ("bad", "sandboxctl: Failed to create sandbox from bad: vmm: it ended with status 1\n"),
    ("denied", "sandboxctl: Failed to create sandbox from denied: Creating sandboxes is not for you\n"),
    ("none", "sandboxctl: Failed to create sandbox from none: There is no template none\n"),
])
def test_create_fails(service, template, said):
    r = service.ctl("create", template)
    assert (r.returncode, r.stdout, r.stderr) == (1, "", said)
    r = service.ctl("run", template, "true")
    assert (r.returncode, r.stdout, r.stderr) == (125, "", said)


def test_list(service):
    assert service.ctl("list").stdout == "No sandboxes.\n"
    assert service.ctl("list", "--no-legend").stdout == ""
    assert json.loads(service.ctl("list", "--json=short").stdout) == []
    one, two = service.create("--name=one"), service.create("--ttl=2h")
    r = service.ctl()
    assert r.stdout.splitlines()[0].split() == ["ID", "NAME", "OWNER", "TEMPLATE", "STATE", "CREATED", "DEADLINE"]
    assert r.stdout.endswith("\n2 sandboxes listed.\n")
    assert re.search(rf"^{one} one +\S+ +base +running (now|\ds ago) +in 59min", r.stdout, re.M)
    assert len(service.ctl("list", "--no-legend").stdout.splitlines()) == 2
    assert sorted(service.ctl("list", "-q").stdout.split()) == sorted([one, two])
    assert service.ctl("list", "-q", "--name", "one").stdout == one + "\n"
    rows = json.loads(service.ctl("--json=pretty", "list").stdout)
    row = next(r for r in rows if r["name"] == "one")
    assert row["owner"] == os.getuid() and row["state"] == "running"
    assert abs(row["deadline_usec"] - row["created_usec"] - 3600 * 10**6) < 10**6


def test_list_filters(service):
    service.ctl("list", "--template=base", "--state=running", "--owner=0", "--metadata=k=v")
    assert service.log("ListSandboxes") == [["ListSandboxes", {"Template": "base", "State": "running", "Owner": 0,
                                                               "Metadata": {"k": "v"}}]]
    r = service.ctl("list", "--owner=nobody-of-that-name")
    assert r.returncode == 1 and "no user" in r.stderr


def test_status(service):
    box = service.create("--name=box", "--metadata=task=7")
    with service.popen("exec", box, "sleep", "100") as p:
        wait_for(lambda: service.log("Wait"), "the command")
        r = service.ctl("status", "box")
        p.kill()
    assert r.returncode == 0, r.stderr
    for text in (f"{box} - box", "base (version 000000000000)", "running since", f"sandbox-{box}.scope", "100M",
                 "peak: -", "max: 512M", "1.2s", "task=7", "generation 3", "1 running, 1 started", "1 sleep 100",
                 f"journalctl SANDBOX_ID={box}"):
        assert text in r.stdout
    r = service.ctl("status", "box", "nosuch")
    assert r.returncode == 1 and "There is no sandbox nosuch" in r.stderr and box in r.stdout


def test_show(service):
    box = service.create("--metadata=k=a b")
    lines = service.ctl("show", box).stdout.splitlines()
    assert f"Unit=sandbox-{box}.scope" in lines
    assert "Metadata='k=a b'" in lines
    assert "TimingsUSec=storage=70 total=90000" in lines
    assert "MemoryPeak=[not set]" in lines
    assert "CPUs=1.5" in lines
    assert service.ctl("show", box, "-p", "Unit,Leader").stdout == f"Unit=sandbox-{box}.scope\nLeader=1234\n"
    assert service.ctl("show", "-p", "Leader", "--value", box).stdout == "1234\n"
    shown = json.loads(service.ctl("show", box, "--json=short").stdout)
    assert shown[0]["Receipt"] == {"generation": 3, "steps": ["clock", "entropy"], "clock_step_nsec": -5,
                                   "entropy_bytes": 64}
    assert shown[0]["MemoryPeak"] is None and shown[0]["CPUUsageNSec"] == 1234567890
    assert shown[0]["Metadata"] == {"k": "a b"}
    assert service.ctl("show", "-p", "MissingControllers").stdout == "MissingControllers=cpu pids\n"
    r = service.ctl("show", box, "-p", "Nothing")
    assert r.returncode == 1 and "no property Nothing" in r.stderr


def test_ttl(service):
    box = service.create()
    for argument in ("90", "1h30min", "infinity", "none", "0"):
        assert service.ctl("ttl", box, argument).returncode == 0
    assert [c[1] for c in service.log("SetTTL")] == [90 * 10**6, 5400 * 10**6, 0, 0, 0]
    r = service.ctl("ttl", "nosuch", "90")
    assert r.returncode == 1 and "There is no sandbox nosuch" in r.stderr


def test_remove(service):
    one, two, three = service.create("--name=one"), service.create(), service.create()
    r = service.ctl("rm", "nosuch", "one")
    assert r.returncode == 1 and "There is no sandbox nosuch" in r.stderr
    assert sorted(service.sandboxes()) == sorted([two, three]), "the others are removed all the same"
    assert service.ctl("rm", one).returncode == 1
    assert service.ctl("rm", "-f", one, "nosuch").returncode == 0
    assert service.ctl("rm", "--all").returncode == 0
    assert service.sandboxes() == []
    assert service.log("ListSandboxes") == [["ListSandboxes", {"Owner": os.getuid()}]]
    assert service.ctl("rm", "--all", "--force").returncode == 0


# --- commands -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script, status", [
    ("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 128 + 15), ("kill -KILL $$", 128 + 9),
])
def test_exec_status(service, script, status):
    box = service.create()
    assert service.ctl("exec", box, "sh", "-c", script).returncode == status


def test_exec_failures(service, tmp_path):
    box = service.create()
    r = service.ctl("exec", box, "no-such-command")
    assert r.returncode == 127 and "not found: no-such-command" in r.stderr
    (tmp_path / "plain").write_text("")
    assert service.ctl("exec", box, str(tmp_path / "plain")).returncode == 126
    assert service.ctl("exec", "nosuch", "true").returncode == 125
    assert service.ctl("exec", box, "--timeout=200ms", "--", "sleep", "100").returncode == 124


def test_exec_streams_apart(service):
    box = service.create()
    r = service.ctl("exec", box, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (r.returncode, r.stdout, r.stderr) == (3, "out\n", "err\n")


def test_exec_options(service):
    box = service.create("-eA=sandbox", "-eB=sandbox")
    r = service.ctl("exec", "-eA=exec", "-e", "FROM", box, "-w", "/usr", "--", "sh", "-c", "echo $A $B $FROM; pwd",
                    env={"FROM": "caller"})
    assert r.stdout == "exec sandbox caller\n/usr\n"
    service.ctl("exec", "-u", "nobody", "--timeout", "1min", box, "true")
    assert service.log("Exec")[-1][2] == {"User": "nobody", "TimeoutUSec": 60 * 10**6}


@pytest.mark.parametrize("args", [
    ["BOX", "echo", "-n", "--json=short"], ["BOX", "--", "echo", "-n", "--json=short"],
    ["--", "BOX", "echo", "-n", "--json=short"], ["-q", "BOX", "--timeout=1min", "echo", "-n", "--json=short"],
])
def test_command_keeps_its_options(service, args):
    box = service.create()
    r = service.ctl("exec", *[box if a == "BOX" else a for a in args])
    assert (r.returncode, r.stdout) == (0, "--json=short"), r.stderr
    assert service.log("Exec")[-1][1] == ["echo", "-n", "--json=short"]


def test_exec_stdin(service):
    box = service.create()
    assert service.ctl("exec", "-i", box, "cat", input="abc").stdout == "abc"
    assert service.ctl("exec", box, "cat", input="abc").stdout == "", "without -i nothing is read"
    assert [c[3] for c in service.log("Exec")] == [[True, True, True], [False, True, True]]


def test_exec_stdin_file_and_null(service, tmp_path):
    box = service.create()
    data = os.urandom(3 << 20)
    (tmp_path / "data").write_bytes(data)
    with open(tmp_path / "data", "rb") as f, open(tmp_path / "out", "wb") as out:
        assert subprocess.run([SANDBOXCTL, "exec", "-i", box, "cat"], stdin=f, stdout=out, env=service.env,
                              timeout=LIMIT).returncode == 0
    assert (tmp_path / "out").read_bytes() == data
    r = subprocess.run([SANDBOXCTL, "exec", "-i", box, "cat"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       env=service.env, timeout=LIMIT)
    assert r.returncode == 0


def test_exec_bulk(service):
    box = service.create()
    data = os.urandom(50 << 20)
    r = subprocess.run([SANDBOXCTL, "exec", "-i", box, "sha256sum"], input=data, capture_output=True, env=service.env,
                       timeout=LIMIT)
    assert r.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_exec_slow_reader(service):
    box = service.create()
    p = service.popen("exec", box, "seq", "300000", stdout=subprocess.PIPE)
    time.sleep(0.3)
    assert p.stdout.read().splitlines()[-1] == b"300000"
    assert p.wait(LIMIT) == 0


def test_exec_ends_before_its_stdin(service):
    box = service.create()
    with subprocess.Popen(["sleep", "1000"], stdout=subprocess.PIPE) as endless:
        start = time.monotonic()
        r = service.ctl("exec", "-i", box, "true", stdin=endless.stdout)
        assert r.returncode == 0 and time.monotonic() - start < 5
        endless.kill()


def test_exec_reader_goes_away(service):
    box = service.create()
    p = service.popen("exec", box, "yes", stdout=subprocess.PIPE)
    assert p.stdout.readline() == b"y\n"
    p.stdout.close()
    assert p.wait(LIMIT) == 128 + signal.SIGPIPE


def test_exec_closed_descriptors(service):
    box = service.create()
    r = subprocess.run(["sh", "-c", f"exec {SANDBOXCTL} exec -i {box} sh -c 'cat; echo out; exit 4' <&- >&-"],
                       env=service.env, capture_output=True, timeout=LIMIT)
    assert (r.returncode, r.stderr) == (4, b"")


def test_exec_full_device(service):
    """A device that isn't for passing on: what it refuses is told, and the command's status is still its own."""
    box = service.create()
    with open("/dev/full", "w") as full:
        r = service.ctl("exec", box, "sh", "-c", "echo x; exit 5", stdout=full, stderr=subprocess.PIPE)
    assert r.returncode == 5
    assert "No space left on device" in r.stderr


def test_exec_endless_device(service):
    box = service.create()
    with open("/dev/zero", "rb") as zero:
        r = service.ctl("exec", "-i", box, "head", "-c", "300000", stdin=zero)
    assert r.returncode == 0 and r.stdout == "\0" * 300000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_exec_passes_signals_on(service, number):
    box = service.create()
    p = service.popen("exec", box, "sleep", "1000")
    wait_for(lambda: service.log("Wait"), "the command")
    p.send_signal(number)
    assert p.wait(LIMIT) == 128 + number
    assert service.log("Signal") == [["Signal", 1, number]]


def test_exec_second_signal_kills(service):
    box = service.create()
    p = service.popen("exec", box, "sh", "-c", "trap '' INT; echo ready; while :; do sleep 0.1; done",
                      stdout=subprocess.PIPE)
    assert p.stdout.readline() == b"ready\n"
    p.send_signal(signal.SIGINT)
    wait_for(lambda: service.log("Signal"), "the first signal")
    time.sleep(0.2)
    assert p.poll() is None
    p.send_signal(signal.SIGINT)
    assert p.wait(LIMIT) == 128 + signal.SIGKILL


def test_exec_lost(service):
    box = service.create()
    p = service.popen("exec", box, "sleep", "1000", stderr=subprocess.PIPE, text=True)
    wait_for(lambda: service.log("Wait"), "the command")
    assert service.ctl("rm", box).returncode == 0
    assert p.wait(LIMIT) == 125 and "sandbox ended before the command" in p.stderr.read()


def test_run(service):
    r = service.ctl("run", "base", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (r.returncode, r.stdout, r.stderr) == (7, "out\n", "err\n")
    assert service.sandboxes() == []
    r = service.ctl("run", "--ttl=1h", "-eA=x", "base", "-i", "sh", "-c", "echo $A; cat", input="in")
    assert r.stdout == "x\nin"
    assert service.log("CreateSandbox")[-1][2] == {"TTLUSec": 3600 * 10**6}, "the environment is the command's alone"
    assert service.ctl("run", "base", "cat", input="in").stdout == ""


@pytest.mark.parametrize("command, status", [
    (["no-such-command"], 127), (["sh", "-c", "kill -9 $$"], 137), (["--timeout=100ms", "sleep", "100"], 124),
])
def test_run_removes_always(service, command, status):
    assert service.ctl("run", "base", *command).returncode == status
    assert service.sandboxes() == [] and len(service.log("Remove")) == 1


def test_run_interrupted(service):
    p = service.popen("run", "base", "sleep", "1000")
    wait_for(lambda: service.log("Wait"), "the command")
    p.send_signal(signal.SIGINT)
    assert p.wait(LIMIT) == 130
    assert service.sandboxes() == []


def test_run_interrupted_while_creating(service):
    p = service.popen("run", "slow", "true")
    wait_for(lambda: service.log("CreateSandbox"), "the creation")
    p.send_signal(signal.SIGTERM)
    p.send_signal(signal.SIGINT)
    assert p.wait(LIMIT) in (128 + 15, 128 + 2)
    assert service.sandboxes() == [] and service.log("Exec") == [] and len(service.log("Remove")) == 1


def test_ps_and_kill(service):
    box = service.create()
    assert service.ctl("ps", box).stdout == "No commands.\n"
    service.ctl("exec", box, "sh", "-c", "exit 3")
    sleepers = [service.popen("exec", box, "sleep", "1000") for _ in range(3)]
    wait_for(lambda: len(service.log("Wait")) == 4, "the commands")
    rows = json.loads(service.ctl("ps", box, "--json=short").stdout)
    assert rows[0] | {"started_usec": 0} == {"id": 1, "state": "ended", "result": "exited", "status": 3,
                                             "started_usec": 0, "argv": ["sh", "-c", "exit 3"]}
    assert rows[1]["status"] is None and rows[1]["result"] is None
    text = service.ctl("ps", box).stdout
    assert re.search(r"^1 ended +exited +3 .* sh -c 'exit 3'$", text, re.M)
    assert re.search(r"^2 running - +- .* sleep 1000$", text, re.M)
    assert service.ctl("kill", box, "--process=2", "-s", "USR1").returncode == 0
    assert service.log("Signal")[-1] == ["Signal", 2, signal.SIGUSR1]
    wait_for(lambda: [p.poll() for p in sleepers].count(None) == 2, "one end")
    assert service.ctl("kill", box).returncode == 0
    assert service.log("Kill") == [["Kill", signal.SIGTERM]]
    assert sorted(p.wait(LIMIT) for p in sleepers) == [128 + 10, 128 + 15, 128 + 15]
    r = service.ctl("kill", box, "--process=99")
    assert r.returncode == 1 and "no command 99" in r.stderr


# --- terminals ----------------------------------------------------------------------------------------------------------


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


def test_terminal_both_directions(service):
    box = service.create()
    t = Terminal(service, "exec", "-i", box, "--", "sh", "-c", "echo ready; read a; echo got:$a >&2; cat; exit 9")
    t.expect(b"ready\r\n")
    t.write(b"hello\n")
    t.expect(b"got:hello\r\n")
    t.write(b"more\n")
    t.expect(b"more\r\nmore\r\n")
    t.write(b"\x04")  # end of input
    assert t.end() == 9


def test_terminal_full_delivery(service):
    box = service.create()
    t = Terminal(service, "exec", box, "sh", "-c", "seq 100000; echo end >&2")
    time.sleep(0.5)
    assert t.end() == 0
    lines = t.output.split(b"\r\n")
    assert lines[:100000] == [b"%d" % i for i in range(1, 100001)]
    assert lines[100000] == b"end", "both on one terminal: in their order"


def test_terminal_interrupt(service):
    box = service.create()
    t = Terminal(service, "exec", "-i", box, "--", "sh", "-c", "echo ready; exec sleep 1000")
    t.expect(b"ready")
    t.write(b"\x03")
    assert t.end() == 130


def test_terminal_ends_with_the_command(service):
    box = service.create()
    start = time.monotonic()
    assert Terminal(service, "exec", "-i", box, "true").end() == 0
    assert time.monotonic() - start < 5


def test_terminal_leftovers_dont_hold(service):
    """What the command left running still has its output; its end is the command's."""
    box = service.create()
    start = time.monotonic()
    t = Terminal(service, "exec", box, "sh", "-c", "sleep 1000 & echo left")
    assert t.end() == 0 and b"left" in t.output
    assert time.monotonic() - start < 5


def test_terminal_stays_blocking(service):
    """Whether a terminal blocks is shared with the shell, and no business of ours."""
    box = service.create()
    r, w = pty.openpty()
    flags = fcntl.fcntl(w, fcntl.F_GETFL)
    p = service.popen("exec", box, "sh", "-c", "echo x; sleep 0.5", stdout=w, stdin=w)
    os.read(r, 100)
    assert fcntl.fcntl(w, fcntl.F_GETFL) == flags
    assert p.wait(LIMIT) == 0


def test_pager(service, tmp_path):
    for _ in range(12):
        service.create()
    env = {"PAGER": f"sed s/^/paged:/ | tee {tmp_path}/paged"}
    t = Terminal(service, "list", rows=10, env=env)
    assert t.end() == 0 and b"paged:ID" in t.output
    (tmp_path / "paged").unlink()
    for args in (["list", "--no-pager"], ["list", "-q", "--name=none"]):
        assert Terminal(service, *args, rows=10, env=env).end() == 0
    assert not (tmp_path / "paged").exists()


# --- the service is restarted -------------------------------------------------------------------------------------------


def test_exec_survives_a_restart(service, tmp_path):
    box = service.create()
    p = service.popen("exec", "-i", box, "sh", "-c", "echo one; read x; echo $x; exit 6", stdin=subprocess.PIPE,
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert p.stdout.readline() == b"one\n"
    wait_for(lambda: service.log("Wait"), "the first question")
    service.kill()
    time.sleep(0.3)
    assert p.poll() is None
    service.start()
    wait_for(lambda: len(service.log("Wait")) == 2, "the second question")
    service.kill()
    p.stdin.write(b"two\n")
    p.stdin.flush()
    assert p.stdout.readline() == b"two\n", "streams don't need the service"
    service.start()
    assert p.wait(LIMIT) == 6
    assert p.stderr.read() == b""


def test_run_survives_a_restart(service):
    p = service.popen("run", "base", "sh", "-c", "sleep 0.5; exit 6")
    wait_for(lambda: service.log("Wait"), "the command")
    service.kill()
    time.sleep(1)
    service.start()
    assert p.wait(LIMIT) == 6
    assert service.sandboxes() == []


def test_signal_after_a_restart(service):
    box = service.create()
    p = service.popen("exec", box, "sleep", "1000")
    wait_for(lambda: service.log("Wait"), "the command")
    service.kill()
    service.start()
    wait_for(lambda: len(service.log("Wait")) == 2, "the second question")
    p.terminate()
    assert p.wait(LIMIT) == 128 + 15


def test_command_unknown_after_a_restart(service):
    box = service.create()
    p = service.popen("exec", box, "sleep", "1000", stderr=subprocess.PIPE)
    wait_for(lambda: service.log("Wait"), "the command")
    service.kill()
    os.rename(service.state / box, service.state / "gone")
    service.start()
    assert p.wait(LIMIT) == 125
    # The command may still have the descriptor: its end isn't to be waited for.
    assert b"Failed to wait for the command" in os.read(p.stderr.fileno(), 4096)


# --- templates, jobs, usage, events -------------------------------------------------------------------------------------


def test_templates(service):
    r = service.ctl("templates")
    assert re.search(r"^base 0123456789ab 2h ago +512M +2 +2G +0$", r.stdout, re.M)
    assert json.loads(service.ctl("templates", "--json=short").stdout)[0]["memory"] == 512 << 20


def test_bake(service):
    r = service.ctl("bake", "base", "--force")
    assert (r.returncode, r.stdout, r.stderr) == (0, "", "")
    service.ctl("bake", "base")
    assert [c[2] for c in service.log("BakeTemplate")] == [{"Force": True}, {}]
    r = service.ctl("bake", "broken")
    assert r.returncode == 1
    assert r.stderr == ("sandboxctl: Failed to bake broken: The command of step 2 failed\n"
                        "last line of the console\\x1b]0;evil\\x07\n")
    r = service.ctl("bake", "none")
    assert r.returncode == 1 and "There is no none.yaml" in r.stderr


def test_bake_progress(service):
    t = Terminal(service, "bake", "base", columns=32)
    assert t.end() == 0
    lines = t.output.split(b"\r\x1b[K")
    assert b"[ 25%] base: packing\\x1b[31m fi" in lines, lines
    assert lines[-1] == b"Template base is ready.\r\n"
    t = Terminal(service, "bake", "base", "-q")
    assert t.end() == 0 and t.output == b""


def test_bake_canceled(service):
    p = service.popen("bake", "slow", stderr=subprocess.PIPE, text=True)
    wait_for(lambda: service.log("BakeTemplate"), "the job")
    rows = wait_for(lambda: json.loads(service.ctl("jobs", "--json=short").stdout), "the list")
    assert rows[0]["target"] == "slow" and rows[0]["state"] == "running"
    assert "1 job listed." in service.ctl("jobs").stdout
    p.send_signal(signal.SIGINT)
    assert p.wait(LIMIT) == 1 and "canceled" in p.stderr.read()
    assert service.log("Cancel") == [["Cancel", 1]]
    assert json.loads(service.ctl("jobs", "--json=short").stdout) == []


def test_bake_service_lost(service):
    p = service.popen("bake", "slow", stderr=subprocess.PIPE, text=True)
    wait_for(lambda: service.log("BakeTemplate"), "the job")
    time.sleep(0.2)
    service.kill()
    assert p.wait(LIMIT) == 1 and "sandboxd went away" in p.stderr.read()
    service.start()


def test_usage(service):
    gone, lives = service.create("--name=gone"), service.create()
    service.ctl("exec", gone, "true")
    service.ctl("rm", gone)
    text = service.ctl("usage").stdout
    assert re.search(rf"^{gone} gone .* base .* 1min 5s 1\.2s +- +1 removed$", text, re.M)
    assert re.search(rf"^{lives} .* \(running\)$", text, re.M)
    records = json.loads(service.ctl("usage", "--json=short").stdout)
    assert [r["id"] for r in records] == [gone, lives]
    assert records[0]["cpu_usec"] == 1234567 and records[0]["memory_peak"] is None and records[0]["source"] == "cgroup"
    service.ctl("usage", "gone", "--since=@1700000000", "-n", "5")
    assert service.log("GetUsage")[-1] == ["GetUsage", {"Sandbox": "gone", "Since": 1700000000 * 10**6, "Limit": 5}]
    service.ctl("usage", "--since", "2025-11-30 12:00")
    assert service.log("GetUsage")[-1][1] == {"Since": 1764504000 * 10**6}


def test_usage_broken_record(service):
    (service.state / "usage").write_text('{"id": "x"\n')
    r = service.ctl("usage")
    assert r.returncode == 1 and "Record 1 can't be read" in r.stderr and r.stdout == ""


def test_monitor(service):
    p = service.popen("monitor", "--json=short", stdout=subprocess.PIPE, text=True)
    # It says nothing before something happens: try until it hears.
    while not select.select([p.stdout], [], [], 0.3)[0]:
        assert p.poll() is None
        service.ctl("rm", service.create("--name=first"))
    box = service.create("--name=box")
    service.ctl("ttl", box, "1h")
    service.ctl("exec", box, "true")
    service.ctl("rm", box)
    service.ctl("bake", "broken")
    events = []
    while not any(e["event"] == "removed" and e["name"] == "job/1" for e in events):
        events.append(json.loads(p.stdout.readline()))
    p.send_signal(signal.SIGINT)
    assert p.wait(LIMIT) == 0
    mine = [(e["event"], e["name"]) for e in events if box in e["name"]]
    assert mine == [("created", f"sandbox/{box}"), ("changed", f"sandbox/{box}"),
                    ("added", f"sandbox/{box}/process/1"), ("removed", f"sandbox/{box}")]
    assert events[-1]["properties"]["Result"] == "failed"
    created = next(e for e in events if e["event"] == "created" and box in e["name"])
    assert created["properties"]["Name"] == "box" and abs(created["timestamp_usec"] / 1e6 - time.time()) < LIMIT


def test_monitor_text(service):
    p = service.popen("monitor", stdout=subprocess.PIPE, text=True)
    while not select.select([p.stdout], [], [], 0.3)[0]:
        box = service.create("--name=box")
    line = p.stdout.readline()
    service.kill()
    service.start()
    rest = ""
    while "service-started" not in rest:
        rest += p.stdout.readline()
    p.terminate()
    assert p.wait(LIMIT) == 0
    assert re.fullmatch(rf"\d\d:\d\d:\d\d sandbox/{box} created Name=box Owner=\d+ Template=base State=running\n", line)
    assert "service-stopped" in rest


def test_output_is_checked(service):
    with open("/dev/full", "w") as full:
        r = service.ctl("create", "base", stdout=full, stderr=subprocess.PIPE)
        assert r.returncode == 1 and "No space left" in r.stderr
        r = service.ctl("list", stdout=full, stderr=subprocess.PIPE)
        assert r.returncode == 1 and "No space left" in r.stderr


# --- what is written about it -------------------------------------------------------------------------------------------


def manual(page):
    return (HERE.parent.parent / "man" / f"{page}.scd").read_text()


def test_manual_of_sandboxctl(service):
    """Every verb and option is in the manual page, and no other."""
    text = service.ctl("--help").stdout
    verbs = re.findall(r"^  ([a-z]+)", text.split("Verbs:")[1].split("Options")[0], re.M)
    assert len(verbs) > 10
    options = set()
    for verb in verbs:
        options |= set(re.findall(r"^ +(?:-., )?(--[a-z-]+)", service.ctl(verb, "--help").stdout, re.M))
    page = manual("sandboxctl.1")
    assert verbs and set(re.findall(r"^\*([a-z]+)(?:\*| --all\*)", page.split("# VERBS")[1].split("# OPTIONS")[0], re.M)) == set(verbs)
    explained = set(re.findall(r"\*(--[a-z-]+)=?\*", page.split("# OPTIONS")[1].split("# STREAMS")[0]))
    assert explained == options


def test_manual_of_the_configuration():
    known = set(re.findall(r'KEY\("(\w+)"', (HERE.parent.parent / "src/shared/conf.c").read_text()))
    assert known and set(re.findall(r"^\*(\w+)=\*$", manual("sandboxd.conf.5"), re.M)) == known


@pytest.mark.parametrize("interface", ["Manager", "Sandbox", "Process", "Template", "Job"])
def test_manual_of_the_bus(interface):
    page = manual("org.sandboxd1.5").split(f"# ORG.SANDBOXD1.{interface.upper()}\n")[1].split("\n# ")[0]
    xml = (HERE.parent.parent / f"dbus/org.sandboxd1.{interface}.xml").read_text()
    for kind, member in re.findall(r'<(method|signal|property) name="(\w+)"', xml):
        assert re.search(rf"\b{member}\b", page), f"{kind} {member} isn't explained"
    for member in re.findall(r"^(?:Signal )?\*(\w+)\*\(", page, re.M):
        assert f'name="{member}"' in xml, f"{member} doesn't exist"
