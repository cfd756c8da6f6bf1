#!/bin/sh
# Installs Debian packages and starts none of their services, now or at the next boot. Services that
# were there before are left as they are. Needs root.
#
# Debian's packages start what they bring, and enable it. /usr/sbin/policy-rc.d can forbid the first:
# it is asked before a service is started, and exits with 101 for no. For the second, links that
# appeared in /etc/rc?.d and /etc/systemd are taken away again, as `systemctl disable` does; packages
# respect that when they are upgraded.
set -eu

policy=/usr/sbin/policy-rc.d
kept=$policy.before-closloop
work=$(mktemp -d)

# Names of all services, as policy-rc.d is asked about them, without `.service`.
services() {
    for folder in /etc/init.d /etc/systemd/system /lib/systemd/system /usr/lib/systemd/system; do
        [ ! -d "$folder" ] || ls "$folder"
    done | sed 's/\.[a-z]*$//' | sort -u
}

# What starts at boot or at a login. The number in a link's name is left out: insserv changes it.
# /etc/rcS.d is left out too: what is there sets the machine up once, and does not go on running.
enabled() {
    find /etc/rc[2-5].d /etc/systemd -type l ! -name 'K*' 2>/dev/null |
        sed 's|^\(/etc/rc.\.d/\)S[0-9][0-9]|\1|' | sort
}

put_back() {
    rm -f "$policy"
    [ ! -e "$kept" ] || mv "$kept" "$policy"
    rm -rf "$work"
}

services >"$work/services"
enabled >"$work/enabled"
trap put_back EXIT
trap 'exit 1' HUP INT TERM
# One that was killed may have left its policy.
if [ -e "$policy" ] && ! grep -q "written by closloop" "$policy"; then
    mv "$policy" "$kept"
fi
cat >"$policy" <<END
#!/bin/sh
# written by closloop's scripts/install-unstarted.sh, and gone when it ends
if [ -r "$work/services" ]; then
    echo "\$1" | sed 's/\.[a-z]*$//' | grep -qxFf "$work/services" || exit 101
fi
# The service was there before. So its start is decided as before.
[ ! -x "$kept" ] || exec "$kept" "\$@"
END
chmod 755 "$policy"

apt-get update -qq
status=0
env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 "$@" || status=$?

enabled | comm -13 "$work/enabled" - | while read -r link; do
    case "$link" in
    /etc/rc?.d/*) update-rc.d "${link##*/}" disable ;;
    *) rm -f "$link" ;;
    esac
done
[ ! -d /run/systemd/system ] || systemctl daemon-reload
exit "$status"
