# shellcheck shell=bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# What every script of the test hosts shares: where things are, how they speak, and a cache whose entries appear at once
# and whole. An entry's name carries the digest of all that it is made from, so nothing in the cache is ever stale; `use`
# and `keep` are the only two operations on it.

set -euo pipefail

# The interpreters and tools of the distribution, not what a developer's profile put before them.
PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive

# shellcheck disable=SC2034 # for the scripts that source this file
{
        LIB=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
        TESTS=$(dirname "$LIB")
        SOURCE=$(dirname "$TESTS")
        CACHE=${SANDBOXD_TEST_CACHE:-/var/cache/sandboxd-tests}
        SUITE=trixie
}

say() { echo "$*" >&2; }
die() { echo "${0##*/}: $*" >&2; exit 1; }

need_root() { [ "$(id -u)" = 0 ] || die "must run as root"; }

# The short digest of the arguments: the part of a cache entry's name that changes with its contents.
digest() { printf '%s\n' "$@" | sha256sum | cut -c1-12; }

# One maker per entry at a time: the second one waits, and then finds the entry made.
lock() {
        mkdir -p "$CACHE/locks"
        exec {LOCK_FD}>"$CACHE/locks/$1"
        flock "$LOCK_FD"
}
unlock() { exec {LOCK_FD}>&-; }

# keep TEMPORARY NAME: publishes what was made, and drops entries of the same kind (the part before the last dash) that
# nobody asked for in a week: a running test host may still stand on an older one.
keep() {
        mv -T "$1" "$CACHE/$2"
        find "$CACHE" -mindepth 1 -maxdepth 1 -name "${2%-*}-*" ! -name "$2" -mtime +7 -exec rm -rf --one-file-system {} +
}

# use NAME: prints the path of an entry that is there, and notes that it's in use.
use() {
        touch "$CACHE/$1"
        echo "$CACHE/$1"
}

# A scratch directory beside the entry that it will become, so that publishing it is a rename.
scratch() { mkdir -p "$CACHE" && mktemp -d "$CACHE/.new.XXXXXX"; }

# quietly LOG COMMAND…: its output goes to the log, and is shown if it fails.
quietly() {
        local log=$1
        shift
        "$@" >"$log" 2>&1 </dev/null || {
                local rc=$?
                tail -n 30 "$log" >&2
                say "${0##*/}: failed with status $rc: $* (all of it in $log)"
                return "$rc"
        }
}
