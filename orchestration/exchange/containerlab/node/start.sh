#!/bin/sh
# What every node of the lab runs: an SSH server with the keys that the lab's folder has.
#   sh start.sh               the node's own program: lldpd too, and it stays
#   sh start.sh background    beside other programs, which have an lldpd of their own (SONiC)
set -eu
mkdir -p /run/sshd /root/.ssh
chmod 700 /root/.ssh
# Copies, as sshd refuses a file of keys that belongs to somebody else, as a mounted one may.
umask 077
cat /closloop/authorized_keys >> /root/.ssh/authorized_keys
cat /closloop/host_key > /etc/ssh/closloop_host_key
umask 022
sshd() {
    exec /usr/sbin/sshd "$@" -o HostKey=/etc/ssh/closloop_host_key -o PasswordAuthentication=no \
        -o PermitRootLogin=prohibit-password
}
[ "${1:-}" != background ] || sshd
# Ports are announced by name, and often: neighbours that start later hear of them soon.
printf '%s\n' 'configure lldp portidsubtype ifname' 'configure lldp tx-interval 5' \
    > /etc/lldpd.d/closloop.conf
/usr/sbin/lldpd
sshd -D -e
