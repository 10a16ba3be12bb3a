# shellcheck shell=bash
# shellcheck disable=SC2034 # for the kinds that source this file
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# What the hosts with a kernel of their own (uml, vm) have in common: a process outside that is the machine, known by PID
# and start time, and commands that go in through the directory that both sides see (see jobs). A kind adds
# machine_start, which starts that process in the background and sets `outer`, and how many seconds booting may take.

JOBS=$TH/.jobs
machine_patience=0
memory=${SANDBOXD_TEST_MEMORY:-4G}

# Makes the host's disk, and sets `tree` and the kernel arguments of machine-init.
machine_files() {
        local debs
        tree=$("$LIB/tree")
        debs=$("$LIB/debs")
        truncate -s 32G "$STATE/disk"
        mkfs.ext4 -q -F -O ^has_journal -E nodiscard,lazy_itable_init=1 "$STATE/disk"
        arguments=(init="$HOST_D/machine-init" systemd.show_status=0
                th.tree="$tree" th.debs="$debs" th.source="$SOURCE" th.th="$TH")
}

start_time() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
host_running() {
        local pid start
        { read -r pid start <"$STATE/pid"; } 2>/dev/null || return 1
        [ "$(start_time "$pid")" = "$start" ] && outer=$pid
}

host_up() {
        local try
        rm -rf "$JOBS"
        machine_start
        for ((try = 0; try < machine_patience * 5; try++)); do
                [ ! -e "$JOBS/ready" ] || break
                if ! kill -0 "$outer" 2>/dev/null || grep -q 'Kernel panic' "$STATE/console"; then
                        head -n 20 "$STATE/console" >&2
                        kill -KILL "$outer" 2>/dev/null || :
                        return 1
                fi
                sleep 0.2
        done
        [ -e "$JOBS/ready" ] || { kill -KILL "$outer" && return 1; }
        echo "$outer $(start_time "$outer")" >"$STATE/pid"
        # Devices whose drivers load late, /dev/kvm among them.
        host_exec root udevadm settle --timeout="$machine_patience" </dev/null || :
        host_exec root systemctl is-system-running --wait </dev/null >/dev/null || :
        host_exec root systemctl --failed --no-legend --plain list-units </dev/null >&2
}

host_poweroff() {
        local try
        host_exec root systemctl --no-block poweroff </dev/null || :
        for ((try = 0; try < machine_patience * 5; try++)); do
                host_running || return 0
                sleep 0.2
        done
        say "the test host didn't power off: killing it"
}

host_clean() {
        ! host_running || kill -KILL "$outer"
        while host_running; do sleep 0.1; done
        rm -rf "$STATE"/{pid,disk,*.sock*} "$JOBS"
}

host_exec() {
        local user=$1
        shift
        /usr/bin/python3 "$HOST_D/jobs" run "$JOBS" --pid "$outer" --user "$user" -- "$@"
}

host_shell() { /usr/bin/python3 "$HOST_D/jobs" run "$JOBS" --pid "$outer" --user "$1" --tty -- bash -l; }
