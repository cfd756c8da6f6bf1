"""Where InfluxDB is comes from the environment or a private file; the token is never shown."""

import traceback

import pytest

from collectors.sinks.influx import Server
from orchestration.core.errors import InputError, NotReadyError
from orchestration.telemetry.settings import load_settings

SECRET = "t0k3n-of-mine"
FULL = {
    "CLOSLOOP_INFLUX_URL": "http://127.0.0.1:8086/",
    "CLOSLOOP_INFLUX_ORG": "lab",
    "CLOSLOOP_INFLUX_BUCKET": "runs",
    "CLOSLOOP_INFLUX_TOKEN": SECRET,
}
TEXT = f'url = "http://db:8086"\norg = "lab"\nbucket = "runs"\ntoken = "{SECRET}"\n'


@pytest.fixture
def home(tmp_path):
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def private_file(tmp_path, text=TEXT, mode=0o600):
    folder = tmp_path / "closloop"
    folder.mkdir()
    path = folder / "influx.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_environment_is_enough(home):
    settings = load_settings(FULL | home)
    assert settings.server == Server("http://127.0.0.1:8086", "lab", "runs", SECRET)
    assert settings.spool_bytes == 256_000_000


def test_a_private_file_is_enough_and_the_environment_goes_before_it(tmp_path, home):
    private_file(tmp_path, TEXT + 'spool = "2MB"\n')
    settings = load_settings(home | {"CLOSLOOP_INFLUX_BUCKET": "other"})
    assert settings.server == Server("http://db:8086", "lab", "other", SECRET)
    assert settings.spool_bytes == 2_000_000


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606])
def test_a_file_that_others_may_read_is_refused(tmp_path, home, mode):
    path = private_file(tmp_path, mode=mode)
    with pytest.raises(NotReadyError) as caught:
        load_settings(home)
    assert caught.value.remedy == f"chmod 600 {path}"


def test_everything_that_is_missing_is_named(home):
    with pytest.raises(InputError) as caught:
        load_settings(home | {"CLOSLOOP_INFLUX_ORG": "lab"})
    assert "no url, no bucket, no token" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CLOSLOOP_INFLUX_URL", "127.0.0.1:8086"),
        ("CLOSLOOP_INFLUX_URL", f"http://me:{SECRET}@host:8086"),
        ("CLOSLOOP_INFLUX_SPOOL", "plenty"),
        ("CLOSLOOP_INFLUX_SPOOL", "10KB"),
        ("CLOSLOOP_INFLUX_FILE", "/nowhere/influx.toml"),
    ],
)
def test_what_is_wrong_is_refused_with_a_remedy(home, name, value):
    with pytest.raises(InputError) as caught:
        load_settings(FULL | home | {name: value})
    assert caught.value.problems[0].remedy
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("text", [TEXT + "token", TEXT + "\x00", "tokn = 'a'\n", "url = 5\n"])
def test_a_damaged_file_is_refused_without_quoting_it(tmp_path, home, text):
    private_file(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_settings(home)
    shown = "".join(traceback.format_exception(caught.value, chain=False))
    assert SECRET not in shown


def test_the_token_is_in_no_text_of_the_settings(home):
    settings = load_settings(FULL | home)
    assert SECRET not in f"{settings} {settings!r} {settings.server} {settings.server!r}"


def test_each_server_has_a_ledger_of_its_own(home, tmp_path):
    one = load_settings(FULL | home)
    other = load_settings(FULL | home | {"CLOSLOOP_INFLUX_BUCKET": "other"})
    new_token = load_settings(FULL | home | {"CLOSLOOP_INFLUX_TOKEN": "new"})
    assert one.home(tmp_path) == new_token.home(tmp_path)
    assert one.home(tmp_path) != other.home(tmp_path)
