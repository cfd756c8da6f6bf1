#!/bin/sh
# What closloop needs of the system:
#
#   scripts/system-packages.sh quickstart    checks for what RoCE campaigns need; installs nothing
#   scripts/system-packages.sh kernel        installs what building the virtual-time kernel needs
#   scripts/system-packages.sh tests         installs that, and the programs that tests run
#
# The first needs no root and any Linux; $PYTHON and $CC name the Python and the C compiler to use.
# The others install the Debian packages that are missing, and only those, which needs root or sudo.
# Nothing that they install is started, now or at the next boot.
set -eu

# To build the virtual-time kernel from Debian's source, and the BPF program that some tuners use.
kernel="make gcc libc6-dev flex bison bc xz-utils tar util-linux ca-certificates"
kernel="$kernel debian-archive-keyring gcc-bpf"
# For .venv.
python="python3 python3-venv"
# For tests only. ns-3's programs are C++.
simulator="g++"
# The virtual rack's devices: SSH, cabling, SONiC's database, RDMA, generators of traffic.
rack="iproute2 openssh-server openssh-client sudo lldpd redis-server"
rack="$rack ibverbs-providers perftest iperf3 fio"
# Its devices as containers: what runs them, and what builds their image.
rack="$rack runc mmdebstrap"
# Checks data against YANG models, SONiC's.
yang="libyang-tools"
# A database for the InfluxDB sink.
sink="victoria-metrics"
# Prints reports, and opens them.
browser="chromium fonts-dejavu-core"

# Names in $2 ... that are not installed are added to $missing; $1 says what they are for.
want() {
    purpose=$1
    shift
    absent=""
    for package in "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "install ok installed" ||
            absent="$absent $package"
    done
    if [ -n "$absent" ]; then
        echo "$purpose:$absent"
        missing="$missing$absent"
    fi
}

# Prints what is missing of Python and of a C compiler, with how to get it, in one line.
check() {
    missing=""
    python=${PYTHON:-python3}
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        missing="; Python 3.11 or newer (apt-get install python3-venv, or name one: make PYTHON=...)"
    elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        missing="; Python's venv (apt-get install python3-venv)"
    fi
    compiler=${CC:-}
    for name in cc gcc clang; do
        [ -n "$compiler" ] || ! command -v "$name" >/dev/null || compiler=$name
    done
    # A compiler without the C library's headers is of no use.
    if [ -z "$compiler" ] || ! echo '#include <stdlib.h>' | $compiler -E - >/dev/null 2>&1; then
        missing="$missing; a C compiler (apt-get install gcc libc6-dev)"
    fi
    [ -z "$missing" ] || echo "missing: ${missing#; }" >&2
    [ -z "$missing" ]
}

missing=""
# shellcheck disable=SC2086 # lists of words
case "${1:-}" in
quickstart)
    check || exit 1
    exit
    ;;
kernel | tests)
    want "to build the kernel" $kernel
    want "to make .venv" $python
    ;;
*)
    echo "usage: $0 quickstart|kernel|tests" >&2
    exit 2
    ;;
esac
# shellcheck disable=SC2086
if [ "$1" = tests ]; then
    want "to test with ns-3" $simulator
    want "to test virtual racks" $rack
    want "to test against SONiC's YANG models" $yang
    want "to test the InfluxDB sink" $sink
    want "to test the report" $browser
fi
[ -n "$missing" ] || exit 0

as_root=""
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
        echo "installing these needs root: run 'apt-get install$missing' as root, then this again" >&2
        exit 1
    }
    as_root="sudo"
fi
# shellcheck disable=SC2086
exec $as_root "$(dirname "$0")/install-unstarted.sh" $missing
