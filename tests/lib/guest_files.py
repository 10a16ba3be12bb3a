# SPDX-License-Identifier: LGPL-2.1-or-later
"""What boots a guest without sandboxd: a kernel, an initrd with the agent, and a root file system.

SANDBOXD_TEST_KERNEL, _INITRD and _ROOT name them; on a test host with a baked template they are found or made."""

import functools
import json
import os
import subprocess
import tempfile
from pathlib import Path

STORAGE = Path("/var/lib/sandboxd")
LIBEXEC = Path("/usr/lib/sandboxd")


def find_kernel():
    return str(max(Path("/boot").glob("vmlinuz-*-cloud-amd64")))


@functools.cache
def make_initrd():
    release = Path(find_kernel()).name.removeprefix("vmlinuz-")
    path = tempfile.mkdtemp(prefix="initrd-") + "/initrd"
    subprocess.run([LIBEXEC / "mkinitrd", "--agent", LIBEXEC / "sandbox-agent", "--kernel-release", release, "--modules",
                    f"/usr/lib/modules/{release}", "-o", path], check=True)
    return path


def find_root():
    published = json.loads((STORAGE / "templates" / "base.json").read_text())
    return str(STORAGE / "snapshots" / published["snapshot"] / "disk.raw")


def get(what):
    """Its path, or None where there is none."""
    given = os.environ.get(f"SANDBOXD_TEST_{what.upper()}")
    if given or "SANDBOXD_TEST_HOST" not in os.environ:
        return given
    return {"kernel": find_kernel, "initrd": make_initrd, "root": find_root}[what]()


def need(what):
    import pytest

    return get(what) or pytest.skip(f"SANDBOXD_TEST_{what.upper()} isn't set")
