# SPDX-License-Identifier: LGPL-2.1-or-later
"""The system suite: run as root inside a test host by tests/check, or by hand:

    tests/host up && tests/host exec -- pytest -p no:cacheprovider /src/tests/system

SANDBOXD_TEST_HOST says which kind of host it is."""

import os
import subprocess
from pathlib import Path

import pytest

KIND = os.environ.get("SANDBOXD_TEST_HOST", "container")
TEMPLATE = "base"
# A root made of the packages of base.yaml, for hosts in which mmdebstrap takes minutes.
READY_ROOT = Path("/srv/debs/base.tar")


def pytest_configure(config):
    config.addinivalue_line("markers", "vm: needs a /dev/kvm on which a stock kernel boots; only the VM host has one")
    config.addinivalue_line("markers", "nobake: needs no template")


def run(*argv, timeout=1800):
    return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, text=True, check=False)


def templates():
    return run("sandboxctl", "templates", "--no-legend").stdout.split()


def use_ready_root():
    """An administrator's own base.yaml, which differs from the one that is shipped in where its root comes from."""
    lines, skipping = [], False
    for line in Path("/usr/share/sandboxd/templates/base.yaml").read_text().splitlines():
        skipping = line.startswith("packages:") or skipping and line.startswith(("-", " "))
        if not skipping and not line.startswith("suite:"):
            lines.append(line)
    target = Path("/etc/sandboxd/templates/base.yaml")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join([*lines, f"rootfs: {READY_ROOT}"]) + "\n")


@pytest.fixture(scope="session", autouse=True)
def base(request):
    """The template that nearly all of the suite makes its sandboxes from, baked once and kept for the next run."""
    if all(item.get_closest_marker("nobake") for item in request.session.items) or TEMPLATE in templates():
        return TEMPLATE
    if KIND != "container" and READY_ROOT.exists():
        use_ready_root()
    baked = run("sandboxctl", "bake", TEMPLATE)
    assert baked.returncode == 0, f"baking {TEMPLATE} failed:\n{baked.stdout}"
    return TEMPLATE


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failure comes with what the service said meanwhile."""
    outcome = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        said = run("journalctl", "--no-pager", "--output=short-precise", f"--since=@{int(call.start)}", "--lines=60",
                   "--unit=sandboxd.service")
        report.sections.append(("journal of sandboxd", said.stdout))
