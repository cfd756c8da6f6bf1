#!/bin/sh
# Installs the Debian packages that are missing, and only those:
#
#   scripts/system-packages.sh quickstart    what building the kernel and running campaigns needs
#   scripts/system-packages.sh tests         that, and the programs that tests run
#
# Nothing that it installs is started, now or at the next boot. Needs Debian (or a relative) and, if
# something is missing, root or sudo.
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

missing=""
# shellcheck disable=SC2086 # lists of words
case "${1:-}" in
quickstart | tests)
    want "to build the kernel" $kernel
    want "to make .venv" $python
    ;;
*)
    echo "usage: $0 quickstart|tests" >&2
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
