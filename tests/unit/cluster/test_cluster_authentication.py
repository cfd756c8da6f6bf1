"""The token of a cluster: where it is while the cluster runs, and that it goes with it."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from orchestration.cluster.authentication import new_token, own_token
from orchestration.cluster.launcher import _MADE_FOLDER, _script

# In place of `ray start`: shows what it finds, and runs until it is ended.
PROGRAM = """\
echo "$RAY_AUTH_MODE ${RAY_AUTH_TOKEN-unset} $(cat "$RAY_AUTH_TOKEN_PATH")"
stat -c '%a %n' "$RAY_AUTH_TOKEN_PATH" "${RAY_AUTH_TOKEN_PATH%/*}"
exec sleep 600
"""


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("end", ["closed", signal.SIGTERM, signal.SIGHUP])
def test_the_shell_that_holds_ray_keeps_the_token_to_itself_and_removes_it(shell, end):
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    token = new_token()
    script = _script(["sh", "-c", PROGRAM], _MADE_FOLDER, token)
    assert token not in script
    process = subprocess.Popen(
        [shell, "-c", script],
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "the-users", "ray": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        process.stdin.write(f"{token}\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"token unset {token}\n"
        file_mode, file = process.stdout.readline().split()
        folder_mode, folder = process.stdout.readline().split()
        assert (file_mode, folder_mode) == ("600", "700")
        assert Path(file).parent == Path(folder)
        if end == "closed":
            process.stdin.close()
        else:
            process.send_signal(end)
        assert process.stdout.read().splitlines()[-1] == "closloop: ray ended"
        assert process.wait() == 0
        assert not Path(folder).exists()
    finally:
        process.kill()
        process.wait()


def test_variables_of_a_token_of_our_own_come_and_go(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "the-users")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    before = dict(os.environ)
    with own_token():
        file = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
        assert os.environ["RAY_AUTH_MODE"] == "token"
        assert "RAY_AUTH_TOKEN" not in os.environ
        modes = [path.stat().st_mode & 0o777 for path in (file, file.parent)]
        assert modes == [0o600, 0o700]
        assert len(file.read_text()) == len(new_token()) >= 43
    assert dict(os.environ) == before
    assert not file.parent.exists()
