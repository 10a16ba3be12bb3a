# SPDX-License-Identifier: LGPL-2.1-or-later
"""Options and arguments are taken strictly: what is wrong is refused by name, and nothing of the call happens."""

import subprocess

import dbus
import pytest
from client import Failure, JOB, MANAGER, PROCESS, ROOT, SANDBOX, TEMPLATE, strings, u64
from contract import methods
from world import MIB


@pytest.fixture
def sandbox(daemon):
    return daemon.root.create()[1]


def create_refusal(daemon, **options):
    with pytest.raises(Failure) as e:
        daemon.root.create(**options)
    assert e.value.name == "InvalidArgument"
    assert daemon.root.get(ROOT, MANAGER, "NSandboxes") == 0 and daemon.traces() == []
    return e.value.message


# Of each option a value of a wrong type, and the type that it has.
TYPES = {
    "CreateSandbox": {"Name": "s", "TTLUSec": "t", "RuntimeMaxUSec": "t", "MemoryMax": "t", "CPUs": "d", "TasksMax": "t",
                      "DiskSize": "t", "Hostname": "s", "Environment": "as", "Metadata": "a{ss}"},
    "ListSandboxes": {"Name": "s", "Template": "s", "State": "s", "Owner": "u", "Metadata": "a{ss}"},
    "BakeTemplate": {"Force": "b"},
    "GetUsage": {"Since": "t", "Sandbox": "s", "Limit": "t"},
    "Exec": {"Environment": "as", "WorkingDirectory": "s", "User": "s", "TimeoutUSec": "t", "StandardInput": "h",
             "StandardOutput": "h", "StandardError": "h", "Pipes": "as"},
    "Run": {"Environment": "as", "WorkingDirectory": "s", "User": "s", "TimeoutUSec": "t", "Input": "ay", "OutputMax": "t"},
}
FIRST = {"CreateSandbox": ("s", "base"), "ListSandboxes": None, "BakeTemplate": ("s", "x"), "GetUsage": None,
         "Exec": ("as", dbus.Array(["true"], "s")), "Run": ("as", dbus.Array(["true"], "s"))}


def call_with(daemon, sandbox, method, options):
    path, interface = (sandbox, SANDBOX) if method in ("Exec", "Run") else (ROOT, MANAGER)
    first = FIRST[method]
    signature, *values = first or ("",)
    return daemon.root.call(path, interface, method, signature + "a{sv}t", *values, options, 0)


def test_every_method_with_options_is_tried():
    assert {m for _, m, arguments in methods() if any(t == "a{sv}" for _, t in arguments)} == set(TYPES)


@pytest.mark.parametrize("method", TYPES)
def test_unknown_option(daemon, sandbox, method):
    with pytest.raises(Failure) as e:
        call_with(daemon, sandbox, method, {"Colour": "red"})
    assert (e.value.name, e.value.message) == ("InvalidArgument", "Unknown option Colour")


@pytest.mark.parametrize("method, option, signature", [(m, o, s) for m, options in TYPES.items() for o, s in options.items()])
def test_option_of_a_wrong_type(daemon, sandbox, method, option, signature):
    wrong = dbus.Int16(1)
    with pytest.raises(Failure) as e:
        call_with(daemon, sandbox, method, {option: wrong})
    assert (e.value.name, e.value.message) == ("InvalidArgument", f"Option {option} has type {signature}, not n")


def test_repeated_option(daemon, sandbox):
    command = ["busctl", f"--address={daemon.address}", "call", "org.sandboxd1"]
    for option, arguments in (("Name", [ROOT, MANAGER, "CreateSandbox", "sa{sv}t", "base"]),
                              ("User", [sandbox, SANDBOX, "Run", "asa{sv}t", "1", "true"])):
        arguments += ["2", option, "s", "a", option, "s", "b", "0"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True)
        assert done.returncode != 0 and f"Option {option} is given twice" in done.stderr


@pytest.mark.parametrize("interface, method, arguments", methods())
def test_flags(daemon, sandbox, interface, method, arguments):
    process, _, _ = daemon.root.exec(sandbox, "sleep", "60")
    job = daemon.root.manager("BakeTemplate", "sa{sv}t", "slow", {}, 0)
    path = {MANAGER: ROOT, SANDBOX: sandbox, PROCESS: process, JOB: job, TEMPLATE: ROOT + "/template/base"}[interface]
    samples = {"s": "base", "a{sv}": {}, "as": strings("true"), "i": dbus.Int32(15), "t": u64(0)}
    values = [samples[t] for _, t in arguments[:-1]] + [u64(1 << 40)]
    with pytest.raises(Failure) as e:
        daemon.root.call(path, interface, method, "".join(t for _, t in arguments), *values)
    assert (e.value.name, e.value.message) == ("InvalidArgument", "Unknown flags 0x10000000000")
    assert daemon.root.get(sandbox, SANDBOX, "State") == "running"
    assert daemon.root.get(sandbox, SANDBOX, "NCommands") == 1
    assert daemon.root.get(job, JOB, "State") == "running"
    assert daemon.root.get(ROOT + "/template/base", TEMPLATE, "Name") == "base"


@pytest.mark.parametrize("environment, number", [(["A=1", "B"], 2), (["=x"], 1), (["1A=x"], 1), (["A B=x"], 1), ([""], 1),
                                                 (["A=1", "A-B=1"], 2)])
def test_bad_environment(daemon, environment, number):
    message = f"Environment entry {number} isn't NAME=value"
    assert create_refusal(daemon, Environment=strings(*environment)) == message
    _, path = daemon.root.create()
    for method in ("Exec", "Run"):
        with pytest.raises(Failure) as e:
            daemon.root.call(path, SANDBOX, method, "asa{sv}t", ["true"], {"Environment": strings(*environment)}, 0)
        assert (e.value.name, e.value.message) == ("InvalidArgument", message)


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a/b", "ä", "a" * 65, "a\n"])
def test_bad_names(daemon, name):
    rule = "1 to 64 of A-Z a-z 0-9 . _ -, first a letter or digit"
    assert create_refusal(daemon, Name=name) == f'"{name}" can\'t be a name: {rule}'


@pytest.mark.parametrize("name", ["abcd", "0123456789ab", "a" * 64])
def test_names_like_ids(daemon, name):
    assert create_refusal(daemon, Name=name) == f'"{name}" can\'t be a name: it could be taken for an id'


@pytest.mark.parametrize("name", ["a", "0", "a.b_c-D", "g" * 64, "abc"])
def test_good_names(daemon, name):
    _, path = daemon.root.create(Name=name)
    assert daemon.root.get(path, SANDBOX, "Name") == name


@pytest.mark.parametrize("hostname", ["", "-a", "a-", "a_b", "a b", "ä", "a" * 64, "a..b", ".a", "a."])
def test_bad_hostnames(daemon, hostname):
    assert create_refusal(daemon, Hostname=hostname) == f'"{hostname}" can\'t be a hostname'


def test_hostname_follows_the_name(daemon):
    id, path = daemon.root.create()
    assert daemon.root.get(path, SANDBOX, "Hostname") == f"sandbox-{id}"
    _, path = daemon.root.create(Name="web")
    assert daemon.root.get(path, SANDBOX, "Hostname") == "web"


@pytest.mark.parametrize("options, message", [
    ({"MemoryMax": u64(1 << 50)}, "MemoryMax must be between 16777216 and the 268435456 bytes of template base"),
    ({"MemoryMax": u64(4096)}, "MemoryMax must be between"), ({"MemoryMax": u64(256 * MIB + 1)}, "MemoryMax must be between"),
    ({"CPUs": 2.5}, "CPUs must be between 0.01 and the 2 of template base"), ({"CPUs": -1.0}, "CPUs must be"),
    ({"CPUs": 0.001}, "CPUs must be"), ({"CPUs": float("nan")}, "CPUs must be"), ({"CPUs": float("inf")}, "CPUs must be"),
    ({"DiskSize": u64(MIB)}, "DiskSize must be at least the 8388608 bytes of template base and at most 16 TiB"),
    ({"DiskSize": u64(1 << 45)}, "DiskSize must be"), ({"DiskSize": u64((1 << 64) - 1)}, "DiskSize must be"),
    ({"TTLUSec": u64((1 << 64) - 1)}, "TTLUSec is too large"),
    ({"TasksMax": u64(1)}, "TasksMax must be between 16 and the service's 256"), ({"TasksMax": u64(257)}, "TasksMax must be"),
    ({"TasksMax": u64((1 << 64) - 1)}, "TasksMax must be"),
])
def test_sizes_out_of_range(daemon, options, message):
    assert message in create_refusal(daemon, **options)


@pytest.mark.parametrize("options, message", [
    ({"OutputMax": u64(16 * MIB + 1)}, "OutputMax is over 16777216"), ({"TimeoutUSec": u64(1 << 63)}, "TimeoutUSec is too large"),
    ({"WorkingDirectory": dbus.ByteArray(b"/a\0b")}, "Option WorkingDirectory has an invalid value")])
def test_run_out_of_range(daemon, sandbox, options, message):
    with pytest.raises(Failure) as e:
        daemon.root.run(sandbox, "true", **options)
    assert (e.value.name, e.value.message) == ("InvalidArgument", message)


@pytest.mark.parametrize("argv", [[], [""]])
def test_no_command(daemon, sandbox, argv):
    for method in ("Exec", "Run"):
        with pytest.raises(Failure) as e:
            daemon.root.call(sandbox, SANDBOX, method, "asa{sv}t", strings(*argv), {}, 0)
        assert (e.value.name, e.value.message) == ("InvalidArgument", "No command is given")


@pytest.mark.parametrize("pipes, message", [(["stdio"], 'no stream is called "stdio"'),
                                            (["stdin", "stdin"], '"stdin" is given twice')])
def test_bad_pipes(daemon, sandbox, pipes, message):
    with pytest.raises(Failure) as e:
        daemon.root.exec(sandbox, "true", Pipes=strings(*pipes))
    assert e.value.name == "InvalidArgument" and message in e.value.message
    assert daemon.root.get(sandbox, SANDBOX, "NCommands") == 0


@pytest.mark.parametrize("signal", [0, -1, 65, 1000])
def test_bad_signals(daemon, sandbox, signal):
    process, _, _ = daemon.root.exec(sandbox, "sleep", "60")
    for path, interface, method in ((sandbox, SANDBOX, "Kill"), (process, PROCESS, "Signal")):
        with pytest.raises(Failure) as e:
            daemon.root.call(path, interface, method, "it", signal, 0)
        assert (e.value.name, e.value.message) == ("InvalidArgument", f"{signal} isn't a signal")


def test_bad_ttl(daemon, sandbox):
    with pytest.raises(Failure) as e:
        daemon.root.call(sandbox, SANDBOX, "SetTTL", "tt", u64((1 << 64) - 1), 0)
    assert e.value.name == "InvalidArgument"


def test_bad_template_names(daemon):
    for name in ("", "a/b", "../x", "-x"):
        with pytest.raises(Failure) as e:
            daemon.root.manager("BakeTemplate", "sa{sv}t", name, {}, 0)
        assert e.value.name == "InvalidArgument"
        with pytest.raises(Failure) as e:
            daemon.root.create(name)
        assert e.value.name in ("NoSuchTemplate", "InvalidArgument")
