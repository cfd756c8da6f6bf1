"""What `make quickstart` and `make test` install, and that nothing of it is started."""

import os
import re
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"
WITH_SERVICES = {"openssh-server", "redis-server", "lldpd", "victoria-metrics", "iperf3", "fio"}
ONLY_FOR_TESTS = {"chromium", "g++", "sudo", "perftest", "ibverbs-providers"}


@pytest.fixture
def asked_for(tmp_path):
    """Return a function that runs the script where no package is installed.

    It answers with the packages that would be installed, and with what was printed.
    """
    programs = {
        "dpkg-query": "exit 1",
        "id": "echo 1000",
        "sudo": 'echo "$@" >"$RECORD"',
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    record = tmp_path / "record"

    def run(*words):
        answer = subprocess.run(
            ["/bin/sh", SCRIPTS / "system-packages.sh", *words],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "RECORD": str(record)},
            capture_output=True,
            text=True,
            check=False,
        )
        words = record.read_text().split() if record.exists() else []
        return answer, words

    return run


@pytest.mark.parametrize(
    ("python", "compiler", "missing"),
    [
        ("exec true", "exec true", ""),
        ("exit 1", "exec true", "Python 3.11 or newer (apt-get install python3-venv, or name one"),
        ('[ "${2#import sys}" != "$2" ]', "exec true", "Python's venv (apt-get install python3-ve"),
        ("exec true", "exit 1", "a C compiler (apt-get install gcc libc6-dev)"),
    ],
)
def test_the_quickstart_installs_nothing_and_says_what_is_missing_in_one_line(
    tmp_path, asked_for, python, compiler, missing
):
    for name, body in {"python3": python, "cc": compiler}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    answer, installed = asked_for("quickstart")
    assert (answer.returncode, installed, answer.stdout) == (bool(missing), [], "")
    assert answer.stderr.startswith(f"missing: {missing}" if missing else "")
    assert len(answer.stderr.splitlines()) == bool(missing)


def test_make_quickstart_builds_no_kernel_and_asks_for_no_root():
    words = ["make", "--dry-run", "VENV=/nowhere", "quickstart"]
    shown = subprocess.run(words, cwd=SCRIPTS.parent, capture_output=True, text=True, check=True)
    steps = shown.stdout.splitlines()
    assert [step for step in steps if "system-packages.sh quickstart" in step]
    assert [step for step in steps if "closloop run examples/quickstart.yml" in step]
    assert not [step for step in steps if "sudo" in step or "kernel" in step or "tests" in step]


def test_the_kernel_asks_for_no_server_and_nothing_of_the_tests(asked_for):
    answer, (installer, *packages) = asked_for("kernel")
    assert answer.returncode == 0
    assert installer.endswith("/install-unstarted.sh")
    assert {"gcc", "flex", "bison", "bc", "gcc-bpf", "python3-venv"} <= set(packages)
    assert not set(packages) & (WITH_SERVICES | ONLY_FOR_TESTS)
    assert answer.stdout.splitlines()[0].startswith("to build the kernel: make gcc ")


def test_tests_ask_for_all_of_it_and_say_what_for(asked_for):
    _, (_, *kernel) = asked_for("kernel")
    answer, (_, *packages) = asked_for("tests")
    assert set(packages) > set(kernel) | WITH_SERVICES | ONLY_FOR_TESTS
    assert len(packages) == len(set(packages))
    said = [line.partition(":")[0] for line in answer.stdout.splitlines()]
    assert said[2:] == [
        "to test with ns-3",
        "to test virtual racks",
        "to test against SONiC's YANG models",
        "to test the InfluxDB sink",
        "to test the report",
    ]


def test_another_word_is_refused(asked_for):
    answer, installed = asked_for("everything")
    assert (answer.returncode, installed) == (2, [])
    assert "usage:" in answer.stderr


def test_every_program_that_builds_the_kernel_is_asked_for(asked_for):
    from orchestration.kernel.build import _TOOLS

    _, (_, *packages) = asked_for("kernel")
    assert set(_TOOLS.values()) <= set(packages)


@pytest.fixture
def installed(tmp_path):
    """Return a function that runs install-unstarted.sh on folders of its own.

    Instead of apt-get a script runs that acts like a package with two services, and asks for the
    policy as packages do. `policy` is the policy that was there before.
    """
    root = tmp_path / "root"
    wants = root / "etc/systemd/system/multi-user.target.wants"
    for folder in (wants, root / "etc/rc2.d", root / "etc/init.d", root / "usr/sbin"):
        folder.mkdir(parents=True)
    (root / "etc/init.d/old").touch()
    (root / "etc/rc2.d/S01old").symlink_to("../init.d/old")
    (wants / "old.service").symlink_to("/lib/systemd/system/old.service")
    text = (SCRIPTS / "install-unstarted.sh").read_text()
    for place in ("/usr/sbin/policy", "/etc/rc", "/etc/init.d", "/etc/systemd"):
        text = re.sub(rf"(?<![\w/]){re.escape(place)}", f"{root}{place}", text)
    text = text.replace("/run/systemd/system", f"{root}/run/systemd/system")
    text = text.replace(" /lib/systemd/system /usr/lib/systemd/system", "")
    script = tmp_path / "install.sh"
    script.write_text(text)
    policy = root / "usr/sbin/policy-rc.d"
    package = f"""
        [ "$1" != update ] || exit 0
        for service in old old.service new new.service; do
            {policy} $service start; echo "$service $?"
        done
        touch {root}/etc/init.d/new
        ln -s ../init.d/new {root}/etc/rc2.d/S03new
        mv {root}/etc/rc2.d/S01old {root}/etc/rc2.d/S02old
        ln -s /lib/systemd/system/new.service {wants}/new.service
        exit $RESULT"""
    disable = f'[ "$2" = disable ] && mv {root}/etc/rc2.d/S??"$1" {root}/etc/rc2.d/K01"$1"'
    for name, body in {"apt-get": package, "update-rc.d": disable}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)

    def run(before="", result=0):
        if before:
            policy.write_text(before)
            policy.chmod(0o755)
        answer = subprocess.run(
            ["/bin/sh", script, "new"],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "RESULT": str(result)},
            capture_output=True,
            text=True,
            check=False,
        )
        links = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink())
        after = policy.read_text() if policy.exists() else ""
        assert [path.name for path in policy.parent.iterdir()] == [policy.name] * bool(after)
        return answer, dict(line.split() for line in answer.stdout.splitlines()), links, after

    return run


LEFT = [
    "etc/rc2.d/K01new",
    "etc/rc2.d/S02old",
    "etc/systemd/system/multi-user.target.wants/old.service",
]


def test_what_is_new_is_not_started_nor_enabled_and_what_was_there_is_left_alone(installed):
    answer, asked, links, policy = installed()
    assert (answer.returncode, answer.stderr) == (0, "")
    assert asked == {"old": "0", "old.service": "0", "new": "101", "new.service": "101"}
    assert links == LEFT
    assert policy == ""


def test_the_policy_that_was_there_decides_on_its_services_and_comes_back(installed):
    theirs = "#!/bin/sh\nexit 104\n"
    _, asked, links, policy = installed(theirs)
    assert asked == {"old": "104", "old.service": "104", "new": "101", "new.service": "101"}
    assert links == LEFT
    assert policy == theirs


def test_a_policy_that_a_killed_run_left_is_taken_away(installed):
    _, asked, _, policy = installed("#!/bin/sh\n# written by closloop's script\nexit 101\n")
    assert asked["old"] == "0"
    assert policy == ""


def test_a_failed_installation_is_reported_and_leaves_nothing_enabled(installed):
    answer, _, links, policy = installed(result=100)
    assert answer.returncode == 100
    assert links == LEFT
    assert policy == ""
