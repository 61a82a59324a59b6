#!/usr/bin/env bash
# The quick tests on the other Pythons of this machine, and on a minimal Debian 13, which has nothing that is not needed.
#   scripts/matrix.sh [3.11] [3.12] [3.13] [3.14] [debian]    all of them, or those named
# What was set up in build/matrix is removed after its tests; KEEP=1 keeps it for the next call.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
PLACE=build/matrix
# torch as PyPI gives it for Linux, with CUDA, and pip's copy of the download.
NEEDED_GIB=10
RESULTS=()
FAILED=0

main() {
    local own name
    own=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    mkdir -p "$PLACE"
    [ $# -gt 0 ] || set -- 3.11 3.12 3.13 3.14 debian
    for name in "$@"; do
        if [ "$name" = "$own" ]; then
            note "$name" "left out" "make test uses it"
        elif [ "$name" = debian ]; then
            try_debian
        else
            try_python "$name"
        fi
    done
    printf '\n%-10s %-10s %s\n' python result ""
    printf '%s\n' "${RESULTS[@]}"
    return $FAILED
}

note() {
    RESULTS+=("$(printf '%-10s %-10s %s' "$@")")
}

try_python() {
    local python
    if ! python=$(find_python "$1"); then
        note "$1" "not there" "no python$1 on PATH or in pyenv"
    elif has_room "$1"; then
        judge "$1" nice -n 10 make test PYTHON="$python" VENV="$PLACE/$1"
    fi
}

# A shim of pyenv may be on PATH and start nothing.
find_python() {
    local python
    for python in "python$1" "$(pyenv root 2>/dev/null)/versions/$1."*/bin/python; do
        if "$python" -c "import sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            command -v "$python"
            return
        fi
    done
    return 1
}

try_debian() {
    if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
        note debian "not there" "needs root and debootstrap"
    elif has_room debian; then
        judge debian run_in_debian "$PLACE/debian"
    fi
}

run_in_debian() {
    set_up_debian "$1" && in_debian "$1" nice -n 10 make test PYTHON=python3 VENV=/venv
}

set_up_debian() {
    local file
    [ ! -e "$1/.set-up" ] || return 0
    rm -rf "$1"
    nice -n 10 debootstrap --variant=minbase --include=python3,python3-venv,make,git,ca-certificates trixie "$1" || return
    cp -L /etc/resolv.conf "$1/etc/resolv.conf" || return
    # The files that pip's settings name: certificates, constraints.
    for file in $({ pip_settings && env | grep -E '^(PIP_|SSL_CERT_FILE=|REQUESTS_CA_BUNDLE=)'; } | cut -d = -f 2-); do
        [ ! -f "$file" ] || install -D -m 644 "$file" "$1$file" || return
    done
    mkdir -p "$1/src" && touch "$1/.set-up"
}

# The mounts are in a namespace of its own and end with it, however it ends.
in_debian() {
    local settings=()
    mapfile -t settings < <(pip_settings)
    env -u TMPDIR -u PYTHONPATH -u PYTHONHOME "${settings[@]}" HOME=/root LANG=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        unshare --mount --propagation private bash -euc '
            mount -t proc proc "$1/proc"
            mount --rbind /dev "$1/dev"
            mount --rbind /sys "$1/sys"
            mount --bind . "$1/src"
            exec chroot "$1" sh -c "cd /src && exec \"\$@\"" - "${@:2}"
        ' - "$@"
}

# pip there does not see this machine's configuration files: each of their settings becomes a variable.
pip_settings() {
    "$PYTHON" - <<'END'
import ast, os, subprocess, sys

listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
for line in listed.splitlines():
    name, _, value = line.partition("=")
    section, _, option = name.rpartition(".")
    variable = "PIP_" + option.upper().replace("-", "_")
    if section in ("global", "install") and variable not in os.environ:
        print(f"{variable}={' '.join(ast.literal_eval(value).split())}")
END
}

has_room() {
    local free
    free=$(($(df -Pk "$PLACE" | awk 'NR == 2 { print $4 }') / 1024 / 1024))
    [ -e "$PLACE/$1" ] || [ "$free" -ge "$NEEDED_GIB" ] || { note "$1" "no room" "needs $NEEDED_GIB GB, $free are free"; return 1; }
}

# judge NAME COMMAND...: by its exit status; pytest's last line says how many and how long.
judge() {
    local name=$1 log=$PLACE/$1.log result=passed said
    echo "$name: see $log"
    if ! "${@:2}" >"$log" 2>&1 </dev/null; then
        result=failed
        FAILED=1
    fi
    said=$(grep -E '^=+ .* in [0-9.]+s.* =+$' "$log" | tail -n 1 | sed -E 's/^=+ | =+$//g') || said="ended before the tests did"
    note "$name" "$result" "$said"
    [ -n "${KEEP:-}" ] || rm -rf "${PLACE:?}/$name"
}

main "$@"
