# SPDX-License-Identifier: LGPL-2.1-or-later
"""sandboxctl: verbs that look, change and wait, and its manual pages."""

import json
import os
import re
import select
import signal
import subprocess
import time

import pytest

from ctl_service import HERE, LIMIT, Service, Terminal, bus, service, wait_for  # noqa: F401 (fixtures)


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
