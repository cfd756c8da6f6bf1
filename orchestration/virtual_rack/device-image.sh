#!/bin/sh
# The files of a device that is a container, from Debian's packages alone:
#
#   device-image.sh TREE [MIRROR]
#
# makes the folder TREE. `closloop rack image` runs it, keeps what it makes by the hash of this file,
# and sees to it that nothing stays mounted. Needs root, mmdebstrap, and a mirror of Debian.
set -eu
tree=$1
mirror=${2:-http://deb.debian.org/debian}

# catatonit is the first process of the container and does nothing else.
system="catatonit iproute2 iputils-ping procps ethtool tcpdump"
# How the controller comes in: the agent and Ansible's modules are Python programs.
access="openssh-server openssh-client sudo python3"
# What devices say of themselves, and programs that send traffic.
programs="lldpd iperf3 fio"

exec mmdebstrap --mode=root --variant=minbase --format=directory \
    --aptopt='Acquire::Languages "none"' --aptopt='Acquire::Retries "5"' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --include="$(echo "$system $access $programs" | tr ' ' ',')" \
    --customize-hook='rm -f "$1"/etc/ssh/ssh_host_*' \
    bookworm "$tree" "$mirror"
