#!/bin/sh
# Installs the system packages that are missing, and only those. Needs Debian (or a relative) and,
# if something is missing, root or sudo.
set -eu

packages="make gcc g++ gcc-bpf libc6-dev flex bison bc xz-utils tar util-linux ca-certificates"
packages="$packages python3-venv debian-archive-keyring"
# The virtual rack's devices: SSH, cabling, SONiC's database, RDMA, generators of traffic.
packages="$packages iproute2 openssh-server openssh-client sudo lldpd redis-server"
packages="$packages ibverbs-providers perftest iperf3 fio"
# A server for the tests of the InfluxDB sink.
packages="$packages victoria-metrics"
# Prints reports, and opens them in tests.
packages="$packages chromium fonts-dejavu-core"

missing=""
for package in $packages; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "install ok installed" ||
        missing="$missing $package"
done
[ -n "$missing" ] || exit 0

echo "installing:$missing"
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    as_root="sudo"
fi
$as_root apt-get update -qq
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
