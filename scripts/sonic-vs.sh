#!/bin/sh
# Runs tests of SONiC switches against SONiC's own virtual switch, the container docker-sonic-vs:
#
#   scripts/sonic-vs.sh start IMAGE       e.g. docker-sonic-vs:latest, as `docker load` named it
#   scripts/sonic-vs.sh test [OPTION ...] pytest's options
#   scripts/sonic-vs.sh stop
#
# Needs docker, iproute2, util-linux and root. The image comes from SONiC's builds
# (docker-sonic-vs.gz); docs/sonic.md says what is tried on it and what is not.
set -eu

name=closloop-sonic-vs
# not in /tmp, where any account could put a link in its place
folder=${CLOSLOOP_SONIC_VS_FOLDER:-/run/$name}
socket=$folder/redis.sock
ports=32

case "${1:-}" in
start)
    for program in docker nsenter ip; do
        command -v "$program" >/dev/null || {
            echo "there is no $program: it is needed to start the virtual switch" >&2
            exit 1
        }
    done
    image=${2:?name the image}
    mkdir -p "$folder"
    # a network namespace with the interfaces that the switch's ports are made of, there before it starts
    docker run -d --name "$name-net" --privileged --network none --entrypoint sleep "$image" infinity
    pid=$(docker inspect -f '{{.State.Pid}}' "$name-net")
    number=0
    while [ "$number" -le "$ports" ]; do
        nsenter -t "$pid" -n ip link add "eth$number" type dummy
        nsenter -t "$pid" -n ip link set "eth$number" up
        number=$((number + 1))
    done
    docker run -d --name "$name" --privileged --network "container:$name-net" \
        -v "$folder:/var/run/redis" "$image"
    echo "waiting for its ports, up to three minutes"
    tries=180
    until [ "$(docker exec "$name" redis-cli -n 0 exists PORT_TABLE:PortInitDone 2>/dev/null)" = 1 ]; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || {
            echo "it does not start: see 'docker logs $name' and its /var/log/syslog" >&2
            exit 1
        }
        sleep 1
    done
    # who asked for it, and nobody else: it is root's way into a privileged container
    chown "${SUDO_UID:-0}" "$socket"
    echo "its Redis is $socket"
    ;;
test)
    shift
    cd "$(dirname "$0")/.."
    CLOSLOOP_SONIC_VS=$socket exec "${PYTHON:-.venv/bin/python}" -m pytest \
        tests/hardware/test_sonic_provision.py tests/hardware/test_sonic_readings.py \
        tests/hardware/test_sonic_switch.py "$@"
    ;;
stop)
    docker rm -f "$name" "$name-net"
    ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
