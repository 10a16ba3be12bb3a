# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands: streams, statuses, timeouts, and what misbehaves on either side of them."""

import hashlib
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from host import SLOW, TEMPLATE, ctl, guest, sandbox, sh, show, text, wait_for

MEGABYTE = 1024 * 1024


@pytest.fixture(scope="module")
def box():
    with sandbox("--ttl", "1h") as name:
        yield name


def test_run_keeps_streams_apart_and_passes_the_status():
    done = ctl("run", TEMPLATE, "--", "sh", "-c", "echo out; echo err >&2; uname -r; exit 7", check=False)
    assert done.returncode == 7
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "out" and len(lines) == 2
    # A kernel of its own, and not the host's.
    assert lines[1] != os.uname().release or "cloud" in lines[1]
    assert done.stderr == b"err\n"


@pytest.mark.parametrize("status", [0, 1, 42, 255])
def test_exit_status(box, status):
    assert ctl("exec", box, "--", "sh", "-c", f"exit {status}", check=False).returncode == status


def test_signal_status(box):
    assert ctl("exec", box, "--", "sh", "-c", "kill -TERM $$", check=False).returncode == 128 + 15


def test_not_found_and_not_executable(box):
    done = ctl("exec", box, "--", "no-such-command", check=False)
    assert done.returncode == 127 and b"no-such-command" in done.stderr
    done = ctl("exec", box, "--", "/etc/passwd", check=False)
    assert done.returncode == 126 and b"/etc/passwd" in done.stderr


def test_own_errors_are_125():
    done = ctl("exec", "no-such-sandbox", "--", "true", check=False)
    assert done.returncode == 125 and b"no-such-sandbox" in done.stderr


def test_environment_directory_user(box):
    done = text("exec", "--env", "A=x y", "--cwd", "/usr", "--user", "nobody", box, "--", "sh", "-c", "echo \"$A\" $PWD $(id -un)")
    assert done == "x y /usr nobody"
    done = ctl("exec", "--user", "nosuchuser", box, "--", "true", check=False)
    assert done.returncode in (125, 126, 127) and b"nosuchuser" in done.stderr
    done = ctl("exec", "--cwd", "/no/such", box, "--", "true", check=False)
    assert done.returncode != 0 and b"/no/such" in done.stderr


def test_sandbox_environment():
    with sandbox("--env", "A=1", "--env", "B=2") as name:
        assert text("exec", "--env", "B=3", name, "--", "sh", "-c", "echo $A $B") == "1 3"


def test_stdin_to_the_end(box):
    data = os.urandom((5 if SLOW else 50) * MEGABYTE)
    done = ctl("exec", "-i", box, "--", "sha256sum", input=data, timeout=600)
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_half_close(box):
    assert ctl("exec", "-i", box, "--", "cat", input=b"abc").stdout == b"abc"
    assert ctl("exec", "-i", box, "--", "cat", input=b"").stdout == b""


def test_output_is_byte_exact(box):
    done = ctl("exec", box, "--", "sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' '\\377'", timeout=600)
    assert done.stdout == b"\xff" * 20000000


def test_slow_reader_gets_all(box):
    last = 300000 if SLOW else 3000000
    with subprocess.Popen(["sandboxctl", "exec", box, "--", "seq", str(last)], stdout=subprocess.PIPE) as process:
        time.sleep(2)
        data = b""
        while chunk := process.stdout.read(MEGABYTE):
            data += chunk
            time.sleep(0.02)
        assert process.wait(60) == 0
    assert data == b"".join(b"%d\n" % i for i in range(1, last + 1))


def test_end_does_not_wait_for_stdin(box):
    with subprocess.Popen(["sleep", "1000"], stdout=subprocess.PIPE) as sleeper:
        done = subprocess.run(["sandboxctl", "exec", "-i", box, "--", "true"], stdin=sleeper.stdout, timeout=20, check=False)
        sleeper.kill()
    assert done.returncode == 0


def test_unread_stdout_does_not_hold_stderr(box):
    script = "echo first >&2; head -c 50000000 /dev/zero; echo last >&2"
    with subprocess.Popen(["sandboxctl", "exec", box, "--", "sh", "-c", script], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        assert process.stderr.readline() == b"first\n"
        # Nobody reads the output: the command is held, other commands aren't, and it can be ended.
        assert guest(box, "echo", "other") == "other"
        assert process.poll() is None
        # The first signal is passed on, and what the command wrote waits for its reader; the second one is a kill.
        process.terminate()
        time.sleep(1)
        process.terminate()
        assert process.wait(30) in (128 + 9, 128 + 15)


def test_timeout_takes_the_whole_tree(box):
    done = ctl("exec", "--timeout", "1", box, "--", "sh", "-c", "setsid sleep 999 & sleep 999", check=False)
    assert done.returncode == 124
    assert ctl("exec", box, "--", "sh", "-c", "cat /proc/[0-9]*/comm | grep -c '^sleep$'",
               check=False).stdout == b"0\n"


def test_exit_of_the_leader_ends_the_command(box):
    start = time.monotonic()
    ctl("exec", box, "--", "sh", "-c", "sleep 60 >/dev/null 2>&1 &")
    ctl("exec", box, "--", "sh", "-c", "sleep 60 &")
    assert time.monotonic() - start < 30


def test_quiet_command_is_not_cut(box):
    assert guest(box, "sh", "-c", "sleep 50; echo ok", timeout=120) == "ok"


def test_one_hanging_command_harms_no_other(box):
    with subprocess.Popen(["sandboxctl", "exec", "-i", box, "--", "cat"], stdin=subprocess.PIPE) as hanging:
        for i in range(5):
            assert guest(box, "echo", str(i)) == str(i)
        hanging.terminate()
        hanging.wait(30)


def test_many_fast_commands(box):
    """No status is stolen by the reaper of orphans."""
    script = "for i in $(seq 300); do (exit $((i % 7))); [ $? = $((i % 7)) ] || exit 99; done; (sleep 0.1 &) ; exit 5"
    assert ctl("exec", box, "--", "sh", "-c", script, check=False, timeout=300).returncode == 5


def test_zombies_are_reaped(box):
    ctl("exec", box, "--", "sh", "-c", "for i in 1 2 3 4 5; do (sh -c 'sleep 0.2 &' ); done")
    time.sleep(1)
    states = guest(box, "sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null | sed 's/.*) //' | cut -d' ' -f1 | sort | uniq -c")
    assert "Z" not in states


def test_unknown_status_is_not_zero(box):
    with subprocess.Popen(["sandboxctl", "exec", box, "--", "sleep", "5"]) as process:
        def row():
            rows = json.loads(text("ps", box, "--json=short") or "[]")
            return [r for r in rows if "sleep" in str(r) and r.get("state") == "running"]
        running = wait_for(row, 10, "the command in ps")
        assert running[0]["status"] in (-1, None)
        process.wait(60)


def test_secrets_stay_off_the_hosts_command_lines(box):
    secret = "s3cr3t-" + os.urandom(8).hex()
    with subprocess.Popen(["sandboxctl", "exec", "--env", "SECRET", box, "--", "sh", "-c", "echo $SECRET; sleep 3"],
                          env={**os.environ, "SECRET": secret}, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline().decode().strip() == secret
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert secret.encode() not in path.read_bytes(), path
            except (FileNotFoundError, ProcessLookupError):
                pass
        process.wait(30)


def test_large_arguments_pass(box):
    argument = "x" * 100000
    assert guest(box, "sh", "-c", "echo ${#1}", "sh", argument) == "100000"


def test_terminal_is_pumped(box):
    done = sh("script", "-qec", f"sandboxctl exec {box} -- echo hello", "/dev/null")
    assert b"hello" in done.stdout


def test_busctl_alone(box):
    """create, run with captured output, and remove with busctl only."""
    manager = ["busctl", "--json=short", "--", "call", "org.sandboxd1", "/org/sandboxd1", "org.sandboxd1.Manager"]
    identifier, path = json.loads(sh(*manager, "CreateSandbox", "sa{sv}t", TEMPLATE, 0, 0).stdout)["data"]
    call = ["busctl", "--json=short", "--", "call", "org.sandboxd1", path, "org.sandboxd1.Sandbox"]
    done = json.loads(sh(*call, "Run", "asa{sv}t", 3, "sh", "-c", "echo out; echo err >&2; exit 3", 1, "Environment", "as", 1,
                         "A=b", 0).stdout)["data"]
    assert done[:2] == ["exited", 3]
    assert bytes(done[2]) == b"out\n" and bytes(done[3]) == b"err\n"
    assert done[4:6] == [0, 0]
    sh(*call, "Remove", "t", 0)
    assert identifier not in text("list")


def test_run_keeps_head_and_tail(box):
    path = json.loads(sh("busctl", "--json=short", "--", "call", "org.sandboxd1", "/org/sandboxd1", "org.sandboxd1.Manager",
                         "GetSandbox", "st", box, 0).stdout)["data"][0]
    done = json.loads(sh("busctl", "--json=short", "--", "call", "org.sandboxd1", path, "org.sandboxd1.Sandbox", "Run", "asa{sv}t", 2,
                         "seq", 100000, 1, "OutputMax", "t", 1000, 0).stdout)["data"]
    output = bytes(done[2])
    assert len(output) == 1000 and output.startswith(b"1\n2\n") and output.endswith(b"99999\n100000\n")
    assert done[4] == len("".join(f"{i}\n" for i in range(1, 100001))) - 1000


def test_command_usage_comes_back(box):
    path = json.loads(sh("busctl", "--json=short", "--", "call", "org.sandboxd1", "/org/sandboxd1", "org.sandboxd1.Manager",
                         "GetSandbox", "st", box, 0).stdout)["data"][0]
    done = json.loads(sh("busctl", "--json=short", "--", "call", "org.sandboxd1", path, "org.sandboxd1.Sandbox", "Run", "asa{sv}t", 3,
                         "python3", "-c", "x = bytearray(50_000_000)\nfor i in range(300000): pass", 0, 0,
                         timeout=300).stdout)["data"]
    assert done[0] == "exited" and done[6] > 1000 and done[7] > 50_000_000


def test_output_does_not_grow_the_hosts_memory(box):
    """Output goes past the daemon, and through the runner in bounded buffers."""
    def resident(pid):
        return int([l for l in Path(f"/proc/{pid}/status").read_text().splitlines() if l.startswith("VmRSS")][0].split()[1])
    daemon = int(sh("systemctl", "show", "-P", "MainPID", "sandboxd.service").stdout)
    runner = show(box)["Leader"]
    before = resident(daemon), resident(runner)
    size = (20 if SLOW else 200) * MEGABYTE
    with subprocess.Popen(["sandboxctl", "exec", box, "--", "head", "-c", str(size), "/dev/zero"],
                          stdout=subprocess.PIPE) as process:
        total = 0
        while chunk := process.stdout.read(MEGABYTE):
            total += len(chunk)
        assert process.wait(60) == 0
    assert total == size
    after = resident(daemon), resident(runner)
    assert after[0] - before[0] < 16 * 1024 and after[1] - before[1] < 16 * 1024
