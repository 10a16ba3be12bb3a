# shellcheck shell=bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# apt without touching the machine's configuration: lists of other suites live in the cache, fetched from the mirror that
# the machine itself uses.

KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

# The machine's own mirrors of Debian and of its security updates, and its release.
machine_mirror() { machine_mirrors | awk -F'|' '$2 == "Debian" { print $1; exit }'; }
machine_security() { machine_mirrors | awk -F'|' '$2 == "Debian-Security" { print $1; exit }'; }
machine_mirrors() {
        # shellcheck disable=SC2016 # apt expands it
        local format='$(REPO_URI)|$(LABEL)'
        apt-get indextargets --format "$format" 'Created-By: Packages' 2>/dev/null | sort -u
}
# shellcheck disable=SC1091 # not a file of ours
machine_suite() { (. /etc/os-release && echo "$VERSION_CODENAME"); }

# A machine that has no lists yet doesn't know the labels of its sources either.
machine_update() {
        [ -n "$(machine_mirror)" ] || apt-get -qq -o DPkg::Lock::Timeout=600 update || :
        [ -n "$(machine_mirror)" ] || die "no Debian mirror found in this machine's apt sources"
}

# private_apt NAME STATUS LINE…: makes (or renews) lists of the given sources, and leaves the configuration that reads them
# in $CACHE/apt/NAME/conf, for APT_CONFIG. STATUS is dpkg's record of what counts as installed.
private_apt() {
        local dir=$CACHE/apt/$1 status=$2 lines
        shift 2
        lines=$(printf '%s\n' "$@")
        [ ! -e "$dir/fetched" ] || [ "$(cat "$dir/sources.list")" != "$lines" ] || return 0
        mkdir -p "$dir"/{lists/partial,archives/partial}
        printf '%s\n' "$lines" >"$dir/sources.list"
        cat >"$dir/conf" <<EOF
Dir::Etc::sourcelist "$dir/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State::lists "$dir/lists";
Dir::State::status "$status";
Dir::Cache "$dir";
Dir::Cache::archives "$dir/archives";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::Retries "3";
DPkg::Lock::Timeout "600";
EOF
        rm -f "$dir/fetched"
        quietly "$dir/log" env APT_CONFIG="$dir/conf" apt-get -q update
        touch "$dir/fetched"
}

# The suite of the test hosts, read whatever the machine runs. Nothing installed counts: it is for downloads only.
suite_apt() {
        lock apt
        [ -e "$CACHE/apt/$SUITE/fetched" ] || machine_update
        [ -e "$CACHE/apt/$SUITE/fetched" ] ||
                private_apt "$SUITE" /dev/null "deb [signed-by=$KEYRING] $(machine_mirror) $SUITE main"
        unlock
        export APT_CONFIG=$CACHE/apt/$SUITE/conf
}

# The version that the lists in use have of a package.
candidate() { apt-cache madison "$1" | awk 'NR == 1 { print $3 }'; }

# download PACKAGE: its file into the current directory; lists that went stale are renewed once.
download() {
        apt-get -q download "$1" >&2 || { apt-get -q update >&2 && apt-get -q download "$1" >&2; }
}
