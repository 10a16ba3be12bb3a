# SPDX-License-Identifier: LGPL-2.1-or-later
"""sandboxctl: exec and run, with streams, terminals and signals, also over restarts of the service."""

import fcntl
import hashlib
import json
import os
import pty
import re
import signal
import subprocess
import time

import pytest

from ctl_service import LIMIT, SANDBOXCTL, Terminal, bus, service, wait_for  # noqa: F401 (fixtures)


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
