# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands: started, watched, signalled, ended."""

import os
import signal

import dbus
import pytest
from client import Failure, OBJECTS, PROCESS, PROPERTIES, ROOT, SANDBOX, strings, u64
from world import MIB, wait_for


@pytest.fixture
def sandbox(daemon):
    return daemon.root.create()[1]


def text(values):
    return bytes(values)


def read_all(fd):
    chunks = []
    while chunk := os.read(fd, 65536):
        chunks.append(chunk)
    os.close(fd)
    return b"".join(chunks)


def error_of(pending):
    with pytest.raises(Failure) as e:
        pending.result()
    return e.value.name, e.value.message


def test_run_returns_what_was_written(daemon, sandbox):
    result, status, out, err, *rest = daemon.root.run(sandbox, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (result, status, text(out), text(err)) == ("exited", 7, b"out\n", b"err\n")
    assert rest == [0, 0, 1234, 4096]  # truncated, CPU, memory


def test_run_takes_input(daemon, sandbox):
    data = bytes(range(256)) * 100
    assert text(daemon.root.run(sandbox, "cat", Input=dbus.ByteArray(data))[2]) == data
    assert text(daemon.root.run(sandbox, "cat", Input=dbus.ByteArray(b""))[2]) == b""
    assert text(daemon.root.run(sandbox, "cat")[2]) == b""


def test_run_keeps_head_and_tail(daemon, sandbox):
    done = daemon.root.run(sandbox, "sh", "-c", "seq 1000; echo error >&2", OutputMax=u64(100))
    whole = "".join(f"{i}\n" for i in range(1, 1001)).encode()
    assert text(done[2]) == whole[:50] + whole[-50:]
    assert (done[4], done[5]) == (len(whole) - 100, 0)


def test_run_returns_megabytes(daemon, sandbox):
    done = daemon.root.run(sandbox, "head", "-c", str(3 * MIB), "/dev/zero", OutputMax=u64(4 * MIB))
    assert len(done[2]) == 3 * MIB and done[4] == 0
    done = daemon.root.run(sandbox, "head", "-c", str(3 * MIB), "/dev/zero")
    assert len(done[2]) == MIB and done[4] == 2 * MIB


def test_what_the_runner_is_told(daemon, sandbox):
    id = sandbox.rpartition("/")[2]
    daemon.root.run(sandbox, "true", Environment=strings("A=1", "LANG=C"), WorkingDirectory="/", User="nobody",
                    TimeoutUSec=u64(5_000_000), OutputMax=u64(10))
    daemon.root.exec(sandbox, "true")
    daemon.root.exec(sandbox, "true", WorkingDirectory=dbus.ByteArray(b"/tmp"))
    first, second, third = [r for r in daemon.requests(id) if r["type"] == "exec"]
    expected = {"process": 1, "argv": ["true"], "environment": ["LANG=C.UTF-8", "A=1", "LANG=C"], "user": "nobody",
                "directory": "/", "timeout_usec": 5_000_000, "capture": 10}
    assert {k: first[k] for k in expected} == expected
    assert (second["process"], second["user"], second["directory"], second["capture"]) == (2, "", "/tmp", 0)
    assert third["directory"] == "/tmp"


def test_sandboxs_environment_comes_before_the_commands(daemon):
    _, path = daemon.root.create(Environment=strings("A=sandbox", "B=sandbox"))
    out = text(daemon.root.run(path, "sh", "-c", "echo $LANG $A $B", Environment=strings("B=command"))[2])
    assert out == b"C.UTF-8 sandbox command\n"


@pytest.mark.parametrize("command, start", [("/nothing", "not found: "), ("nothing", "not found: "), ("/etc", ""),
                                            ("/etc/passwd", "")])
def test_not_executable(daemon, sandbox, command, start):
    for pending in (daemon.root.start_run(sandbox, command), daemon.root.start_exec(sandbox, command)):
        name, message = error_of(pending)
        assert name == "NotExecutable" and message.startswith(start) and message
    assert daemon.root.get(sandbox, SANDBOX, "NRunning") == 0


def test_exec_passes_descriptors_on(daemon, sandbox):
    ins, out, err = os.pipe(), os.pipe(), os.pipe()
    ours = {"StandardInput": ins[0], "StandardOutput": out[1], "StandardError": err[1]}
    process, id, pipes = daemon.root.exec(sandbox, "sh", "-c", "cat; echo bad >&2; exit 3",
                                          **{name: dbus.types.UnixFd(fd) for name, fd in ours.items()})
    for fd in (ins[0], out[1], err[1]):
        os.close(fd)
    assert (process, id, list(pipes)) == (f"{sandbox}/process/1", 1, [])
    os.write(ins[1], b"through")
    os.close(ins[1])
    assert (read_all(out[0]), read_all(err[0])) == (b"through", b"bad\n")
    assert daemon.root.wait(process) == ["exited", 3, 1234, 4096]


def test_exec_makes_pipes_in_the_order_asked_for(daemon, sandbox):
    process, _, pipes = daemon.root.exec(sandbox, "sh", "-c", "cat; echo bad >&2", Pipes=strings("stderr", "stdin", "stdout"))
    err, ins, out = [p.take() for p in pipes]
    os.write(ins, b"in")
    os.close(ins)
    assert (read_all(out), read_all(err)) == (b"in", b"bad\n")
    assert daemon.root.wait(process)[:2] == ["exited", 0]


def test_pipe_beside_a_descriptor_for_the_same_stream(daemon, sandbox):
    with open("/dev/null") as null:
        pending = daemon.root.start_exec(sandbox, "true", StandardInput=dbus.types.UnixFd(null.fileno()), Pipes=strings("stdin"))
        name, message = error_of(pending)
    assert name == "InvalidArgument" and '"stdin"' in message


def test_properties_of_a_life(daemon, sandbox):
    changed = daemon.root.listen(dbus_interface=PROPERTIES, signal_name="PropertiesChanged")
    process, id, _ = daemon.root.exec(sandbox, "sleep", "60", User="someone")
    values = daemon.root.get_all(process, PROCESS)
    assert {k: values[k] for k in ("Id", "Sandbox", "Argv", "User", "State", "Result", "Status", "EndedUSec")} == {
        "Id": 1, "Sandbox": sandbox, "Argv": ["sleep", "60"], "User": "someone", "State": "running", "Result": "", "Status": -1,
        "EndedUSec": 0}
    assert values["PID"] > 0
    assert daemon.root.get(sandbox, SANDBOX, "NRunning") == 1
    daemon.root.call(process, PROCESS, "Signal", "it", signal.SIGTERM, 0)
    assert daemon.root.wait(process) == ["signaled", 15, 1234, 4096]
    values = daemon.root.get_all(process, PROCESS)
    assert {k: values[k] for k in ("State", "Result", "Status", "CPUUsageNSec", "MemoryPeak", "Leftovers")} == {
        "State": "ended", "Result": "signaled", "Status": 15, "CPUUsageNSec": 1234000, "MemoryPeak": 4096, "Leftovers": 0}
    assert values["EndedUSec"] >= values["StartedUSec"] > 0
    assert (daemon.root.get(sandbox, SANDBOX, "NRunning"), daemon.root.get(sandbox, SANDBOX, "NCommands")) == (0, 1)
    # Signals go to everybody, so they say that State has changed, and not to what.
    assert [(dict(v[1]), "State" in v[2]) for _, p, v in changed if p == process] == [({}, True)]


def test_all_who_wait_are_answered(daemon, sandbox):
    process, _, _ = daemon.root.exec(sandbox, "sleep", "60")
    waiting = [daemon.root.start(process, PROCESS, "Wait", "t", u64(0)) for _ in range(3)]
    daemon.root.call(process, PROCESS, "Signal", "it", 9, 0)
    assert [w.result()[:2] for w in waiting] == [["signaled", 9]] * 3
    assert daemon.root.wait(process)[:2] == ["signaled", 9]


def test_signals(daemon, sandbox):
    id = sandbox.rpartition("/")[2]
    one, _, _ = daemon.root.exec(sandbox, "sleep", "60")
    two, _, _ = daemon.root.exec(sandbox, "sleep", "60")
    for number in (signal.SIGCONT, signal.SIGKILL):
        daemon.root.call(one, PROCESS, "Signal", "it", number, 0)
    assert daemon.root.wait(one)[:2] == ["signaled", 9]
    daemon.root.call(sandbox, SANDBOX, "Kill", "it", signal.SIGTERM, 0)
    assert daemon.root.wait(two)[:2] == ["signaled", 15]
    asked = [(r["process"], r["signal"], r["tree"]) for r in daemon.requests(id) if r["type"] == "signal"]
    assert asked == [(1, 18, False), (1, 9, True), (0, 15, True)]
    with pytest.raises(Failure) as e:
        daemon.root.call(one, PROCESS, "Signal", "it", 9, 0)
    assert e.value.name == "NoSuchProcess"
    daemon.root.call(sandbox, SANDBOX, "Kill", "it", 9, 0)


def test_list(daemon, sandbox):
    one, _, _ = daemon.root.exec(sandbox, "sh", "-c", "exit 5")
    daemon.root.wait(one)
    two, _, _ = daemon.root.exec(sandbox, "sleep", "60")
    rows = sorted(daemon.root.call(sandbox, SANDBOX, "ListProcesses", "t", 0), key=lambda r: r[0])
    assert [list(r[:5]) + [r[6]] for r in rows] == [[1, ["sh", "-c", "exit 5"], "ended", "exited", 5, one],
                                                    [2, ["sleep", "60"], "running", "", -1, two]]


def test_exits_are_forgotten_by_the_runner_and_kept_here(daemon, sandbox):
    id = sandbox.rpartition("/")[2]
    for _ in range(66):
        daemon.root.run(sandbox, "true")
    wait_for(lambda: [r["process"] for r in daemon.requests(id) if r["type"] == "forget"] == list(range(1, 67)), "all forgotten")
    rows = daemon.root.call(sandbox, SANDBOX, "ListProcesses", "t", 0)
    assert sorted(r[0] for r in rows) == list(range(3, 67))
    assert daemon.root.get(sandbox, SANDBOX, "NCommands") == 66


def test_removal_ends_commands_and_answers_all(daemon, sandbox):
    process, _, _ = daemon.root.exec(sandbox, "sleep", "60")
    waiting = daemon.root.start(process, PROCESS, "Wait", "t", u64(0))
    running = daemon.root.start_run(sandbox, "sh", "-c", "echo some; exec sleep 60")
    wait_for(lambda: daemon.root.get(sandbox, SANDBOX, "NRunning") == 2, "both commands")
    daemon.root.remove(sandbox)
    assert waiting.result()[:2] == ["lost", 9]
    assert running.result()[:2] == ["lost", 9]


def test_removal_answers_a_command_that_is_being_started(daemon, sandbox):
    daemon.behave(exec="hang")
    pending = [daemon.root.start_exec(sandbox, "true"), daemon.root.start_run(sandbox, "true")]
    wait_for(lambda: len(daemon.requests(sandbox.rpartition("/")[2])) == 3, "the requests")
    daemon.root.remove(sandbox)
    for p in pending:
        assert error_of(p)[0] in ("Unavailable", "NoSuchSandbox")


def test_end_of_the_machine_answers_all(daemon, sandbox):
    """Also where the runner's last words are still unread when its end is noticed."""
    daemon.behave(exec="hang")
    pending = [daemon.root.start_exec(sandbox, "true") for _ in range(3)]
    wait_for(lambda: len(daemon.requests(sandbox.rpartition("/")[2])) == 4, "the requests")
    daemon.behave()
    pending.append(daemon.root.start_exec(sandbox, "!ended", "vmm"))
    for p in pending:
        assert error_of(p)[0] in ("Unavailable", "NoSuchSandbox")


def test_too_much_for_one_message(daemon, sandbox):
    big = [f"A{i}=" + "x" * 100_000 for i in range(25)]
    for pending in (daemon.root.start_exec(sandbox, "true", Environment=strings(*big)),
                    daemon.root.start_run(sandbox, "true", Environment=strings(*big))):
        assert error_of(pending)[0] == "LimitExceeded"
    assert daemon.root.run(sandbox, "true")[:2] == ["exited", 0]


def test_frozen_runner_is_removed(daemon, sandbox):
    process, _, _ = daemon.root.exec(sandbox, "sleep", "60")
    os.kill(daemon.leader(sandbox), signal.SIGSTOP)
    pending = daemon.root.start_exec(sandbox, "true")
    daemon.root.call(sandbox, SANDBOX, "Remove", "t", 0, timeout=5)
    assert error_of(pending)[0] in ("Unavailable", "NoSuchSandbox")
    assert daemon.traces() == []


def test_ttl_is_moved(daemon, sandbox):
    id = sandbox.rpartition("/")[2]
    before = daemon.root.get(sandbox, SANDBOX, "DeadlineUSec")
    changed = daemon.root.listen(dbus_interface=PROPERTIES, signal_name="PropertiesChanged")
    daemon.root.call(sandbox, SANDBOX, "SetTTL", "tt", u64(7200_000_000), 0)
    after = daemon.root.get(sandbox, SANDBOX, "DeadlineUSec")
    assert 3500e6 < after - before < 3700e6
    told = [r["deadline_usec"] for r in daemon.requests(id) if r["type"] == "ttl"]
    wait_for(lambda: [daemon.record(id)["deadline_boot_usec"]] == told, "the record")
    assert any("DeadlineUSec" in v[1] for _, _, v in changed)
    daemon.root.call(sandbox, SANDBOX, "SetTTL", "tt", 0, 0)
    assert daemon.root.get(sandbox, SANDBOX, "DeadlineUSec") == 0


def test_ttl_that_the_runner_refuses(daemon, sandbox):
    before = daemon.root.get(sandbox, SANDBOX, "DeadlineUSec")
    daemon.behave(ttl={"error": 5, "message": "no"})
    with pytest.raises(Failure) as e:
        daemon.root.call(sandbox, SANDBOX, "SetTTL", "tt", 1000, 0)
    assert (e.value.name, e.value.message) == ("Unavailable", "no")
    assert abs(daemon.root.get(sandbox, SANDBOX, "DeadlineUSec") - before) < 1000


def test_objects_come_and_go(daemon, sandbox):
    heard = daemon.root.listen(dbus_interface=OBJECTS)
    process, _, _ = daemon.root.exec(sandbox, "true")
    daemon.root.wait(process)
    daemon.root.remove(sandbox)
    daemon.root.get(ROOT, "org.sandboxd1.Manager", "Version")
    assert [(m, v[0]) for m, _, v in heard][:1] == [("InterfacesAdded", process)]
    assert sorted((m, v[0]) for m, _, v in heard[1:]) == [("InterfacesRemoved", sandbox), ("InterfacesRemoved", process)]
