# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the runner adds to a restore: a bare QEMU with the same arguments, and a runner, in turns, from spawn to the
agent's receipt. Usage: bench_restore.py ROUNDS, in the environment of test_runner.py with RUNNER_TEST_FOLDER (where it
has left its template) and RUNNER_TEST_ARGS (the built machine-args)."""

import os
import socket
import statistics
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import runner_vm  # noqa: E402

FOLDER = os.environ['RUNNER_TEST_FOLDER']
TEMPLATE = FOLDER + '/template'


def handshake(s):
    nonce = os.urandom(16)
    hello = struct.pack('<IHHI', 24, 1, 0, 0) + struct.pack('<II', 1, 0) + nonce
    setup = (nonce + struct.pack('<QQ', 2, time.time_ns()) + os.urandom(96) + struct.pack('<QQIII', 0, 0, 0, 0, 0) +
             struct.pack('<I', 3) + b'box\0')
    s.sendall(hello + struct.pack('<IHHI', len(setup), 3, 0, 0) + setup)
    data = b''
    while len(data) < 12 + 24 + 12:
        data += s.recv(4096)


def bare(disk):
    pairs = {n: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM if n == 'network' else socket.SOCK_STREAM)
             for n in ('qmp', 'agent', 'console', 'network')}
    fds = {n: p[1].fileno() for n, p in pairs.items()}
    files = [os.open(p, f) for p, f in ((TEMPLATE + '/memory', os.O_RDONLY), (TEMPLATE + '/devices', os.O_RDONLY),
                                        (disk, os.O_RDWR))]
    fds |= dict(zip(('memory', 'devices', 'disk'), files))
    arguments = subprocess.check_output([os.environ['RUNNER_TEST_ARGS'], '/usr/bin/qemu-system-x86_64', 'tcg', 'restore',
                                         '-', '512', '4', *(f'{k}={v}' for k, v in fds.items())],
                                        text=True).splitlines()
    begin = time.monotonic()
    process = subprocess.Popen(arguments, pass_fds=fds.values(), stdin=subprocess.DEVNULL)
    pairs['qmp'][0].recv(1000)
    up = time.monotonic()
    handshake(pairs['agent'][0])
    end = time.monotonic()
    process.kill()
    process.wait()
    for fd in files:
        os.close(fd)
    for a, b in pairs.values():
        a.close()
        b.close()
    return {'total': end - begin, 'vmm': up - begin, 'agent': end - up}


def through_runner(disk):
    begin = time.monotonic()
    runner = runner_vm.Runner(os.environ['RUNNER_TEST_SPAWN'], os.environ['RUNNER_TEST_RUNNER'], FOLDER + '/run')
    spawned = time.monotonic()
    reply = runner.start('restore', disk, TEMPLATE + '/memory', TEMPLATE + '/devices')
    end = time.monotonic()
    assert reply['error'] == 0, reply
    runner.end()
    return {'total': end - begin, 'spawn': spawned - begin, 'start': end - spawned,
            **{k: v / 1e6 for k, v in reply['timings_usec'].items()}}


def report(name, rows):
    parts = []
    for key in rows[0]:
        values = sorted(r[key] * 1000 for r in rows)
        parts.append(f'{key} {statistics.median(values):.1f} (min {values[0]:.1f})')
    print(f'{name}: ' + ', '.join(parts) + ' ms')


def main():
    rounds = int(sys.argv[1])
    rows = {bare: [], through_runner: []}
    os.makedirs(FOLDER + '/run', exist_ok=True)
    for _ in range(rounds):
        for f in rows:
            disk = FOLDER + '/run/bench.raw'
            runner_vm.clone(TEMPLATE + '/disk.raw', disk)
            rows[f].append(f(disk))
    for f in rows:
        report(f.__name__, rows[f])
    print('ratio of medians: %.2f' % (statistics.median(r['total'] for r in rows[through_runner]) /
                                     statistics.median(r['total'] for r in rows[bare])))


main()
