# shellcheck shell=bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# Builds of this checkout, each in a directory of its own beside the sources.

# build_in LOG DIRECTORY [SETUP-OPTION…]: sets the directory up if it isn't, and compiles.
build_in() {
        local log=$1 dir=$SOURCE/$2
        shift 2
        [ -e "$dir/build.ninja" ] || quietly "$log" meson setup "$dir" "$SOURCE" --prefix=/usr --werror "$@"
        quietly "$log" ninja -C "$dir"
}

build_gcc() { build_in "$1" build --buildtype=debugoptimized; }
build_clang() { CC=clang build_in "$1" build-clang --buildtype=debugoptimized; }
build_asan() { build_in "$1" build-asan --buildtype=debug -Db_sanitize=address,undefined -Db_lundef=false; }
