"""Which gateway is used, and with what: arguments over environment over files."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from kcoral_magic.config import Target, config_dir, normalise, read_credentials, resolve, store_credentials
from kcoral_magic.errors import UsageError

URL = "wss://gpu.example:7878"


class Files:
    """A user's folder, and the environment that leads to it."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "kcoral"
        self.folder.mkdir()
        self.env = {"XDG_CONFIG_HOME": str(root)}

    def write(self, name: str, content: str | bytes) -> str:
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def credentials(self, **entry: str) -> None:
        self.write("credentials.json", json.dumps({URL: entry}))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    made = Files(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", made.env["XDG_CONFIG_HOME"])
    return made


# ── Addresses ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("gpu.example", "wss://gpu.example:7878"),
        ("gpu.example:80", "wss://gpu.example:80"),
        ("ws://GPU.example/", "ws://gpu.example:7878"),
        ("http://gpu.example:1/ws", "ws://gpu.example:1"),
        ("wss://gpu.example", "wss://gpu.example:7878"),
        ("https://gpu.example:443/", "wss://gpu.example:443"),
        ("127.0.0.1:7878", "ws://127.0.0.1:7878"),
        ("[::1]", "ws://[::1]:7878"),
        ("wss://[fe80::1]:9", "wss://[fe80::1]:9"),
    ],
)
def test_an_address_is_written_in_one_way(given: str, address: str) -> None:
    assert normalise(given) == address
    assert normalise(address) == address


@pytest.mark.parametrize(
    "given",
    [
        "",
        "://",
        "ws://",
        "ftp://gpu.example",
        "gpu.example:0",
        "gpu.example:99999",
        "gpu.example:http",
        "[::1",
        "a/b",
        "ws://a/other",
    ],
)
def test_what_is_no_address_of_a_gateway_is_refused(given: str) -> None:
    with pytest.raises(UsageError):
        normalise(given)


@pytest.mark.parametrize(
    "given",
    [
        "wss://kcoral_SECRET@gpu.example",
        "wss://user:SECRET@gpu.example",
        "wss://:SECRET@gpu.example",
        "user:SECRET@gpu.example:7878",
        "wss://gpu.example/ws?token=SECRET",
        "gpu.example?SECRET",
        "wss://gpu.example/#token=SECRET",
    ],
)
def test_an_address_with_a_secret_is_refused_without_repeating_it(given: str) -> None:
    with pytest.raises(UsageError, match="holds no token") as caught:
        normalise(given)
    assert "SECRET" not in str(caught.value)


# ── Precedence ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_with_nothing_configured_it_is_the_users_own_gateway(files: Files) -> None:
    target = resolve(environ=files.env)
    assert target == Target()
    assert target.is_trusted
    assert target.shown == "your own gateway on this machine"


def test_an_address_comes_from_the_argument_then_the_environment_then_the_file(files: Files) -> None:
    files.write("config.toml", 'url = "file.example"')
    assert resolve(environ=files.env).url == "wss://file.example:7878"
    env = {**files.env, "KCORAL_MAGIC_URL": "env.example"}
    assert resolve(environ=env).url == "wss://env.example:7878"
    assert resolve("argument.example", environ=env).url == "wss://argument.example:7878"
    assert resolve("argument.example", environ=env).shown == "wss://argument.example:7878"


def test_a_token_comes_from_the_first_place_that_has_one(files: Files) -> None:
    files.write("config.toml", f'token_file = "{files.write("token-of-config", "config-file")}"')
    env = dict(files.env)
    assert resolve(URL, environ=env).token == "config-file"
    files.credentials(token="stored")
    assert resolve(URL, environ=env).token == "stored"
    env["KCORAL_MAGIC_TOKEN"] = "environment"
    assert resolve(URL, environ=env).token == "environment"
    env["KCORAL_MAGIC_TOKEN_FILE"] = files.write("token-of-env", "environment-file\n")
    assert resolve(URL, environ=env).token == "environment-file"
    assert resolve(URL, token_file=files.write("token", "  argument-file \n"), environ=env).token == "argument-file"
    assert resolve(URL, token="argument", environ=env).token == "argument"


def test_a_certificate_authority_comes_from_the_first_place_that_has_one(files: Files) -> None:
    files.credentials(ca="stored.pem")
    assert resolve(URL, environ=files.env).ca == "stored.pem"
    files.write("config.toml", 'ca = "file.pem"')
    assert resolve(URL, environ=files.env).ca == "file.pem"
    env = {**files.env, "KCORAL_MAGIC_CA": "environment.pem"}
    assert resolve(URL, environ=env).ca == "environment.pem"
    assert resolve(URL, ca="argument.pem", environ=env).ca == "argument.pem"


def test_options_of_the_own_gateway_come_from_the_first_place_that_has_some(files: Files) -> None:
    files.write("config.toml", 'gateway_options = "--simulate-gpus 1"')
    assert resolve(environ=files.env).gateway_options == ("--simulate-gpus", "1")
    env = {**files.env, "KCORAL_GATEWAY_OPTIONS": "--simulate-gpus 2"}
    assert resolve(environ=env).gateway_options == ("--simulate-gpus", "2")
    assert resolve(gateway_options=("--sandbox", "user"), environ=env).gateway_options == ("--sandbox", "user")


def test_a_configured_gateway_is_trusted_only_when_the_user_said_so(files: Files) -> None:
    assert not resolve(URL, environ=files.env).is_trusted
    files.credentials(trust="yes")
    assert resolve(URL, environ=files.env).is_trusted
    assert not resolve("other.example", environ=files.env).is_trusted
    assert not resolve(URL, trust=False, environ=files.env).is_trusted
    files.credentials(trust="no")
    assert resolve(URL, trust=True, environ=files.env).is_trusted


def test_a_stored_token_is_used_at_its_own_address_only(files: Files) -> None:
    files.credentials(token="stored")
    assert resolve("ws://gpu.example:7878", environ=files.env).token is None  # unencrypted: another address
    assert resolve("https://GPU.example/", environ=files.env).token == "stored"


# ── Files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_folder_is_the_systems_place_for_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config_dir({"XDG_CONFIG_HOME": "/settings"}) == Path("/settings/kcoral")
    monkeypatch.setenv("HOME", "/home/ana")
    assert config_dir({}) == Path("/home/ana/.config/kcoral")


@pytest.mark.parametrize(
    "content",
    ["url = ", 'token = "in a file that others may read"', "url = 5", '[url]\nname = "x"', b"# caf\xe9\nurl = 'x'"],
)
def test_a_malformed_config_file_is_a_usage_error_that_names_it(files: Files, content: str | bytes) -> None:
    path = files.write("config.toml", content)
    with pytest.raises(UsageError, match=path):
        resolve(environ=files.env)


@pytest.mark.parametrize("content", ["{", b"\xff", json.dumps({URL: "token"})])
def test_a_malformed_credentials_file_is_a_usage_error_that_names_it(files: Files, content: str | bytes) -> None:
    path = files.write("credentials.json", content)
    with pytest.raises(UsageError, match=path):
        resolve(URL, environ=files.env)


@pytest.mark.parametrize("content", ["", " \n", "one\ntwo", b"\xff\xfe"])
def test_a_token_file_without_one_token_is_a_usage_error(files: Files, content: str | bytes) -> None:
    path = files.write("token", content)
    with pytest.raises(UsageError, match="token"):
        resolve(URL, token_file=path, environ=files.env)


def test_a_token_file_that_is_not_there_is_a_usage_error(files: Files) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        resolve(URL, token_file=str(files.folder / "nothing"), environ=files.env)


def test_stored_credentials_are_read_by_their_owner_only(files: Files) -> None:
    files.folder.rmdir()
    path = store_credentials(URL, token="t", ca="ca.pem", trust=True)
    assert path == files.folder / "credentials.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700
    assert read_credentials() == {URL: {"token": "t", "ca": "ca.pem", "trust": "yes"}}


def test_a_file_that_others_could_read_is_closed_when_it_is_written_again(files: Files) -> None:
    path = Path(files.write("credentials.json", "{}"))
    path.chmod(0o644)
    store_credentials(URL, token="t")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_storing_keeps_what_is_not_given_and_other_addresses(files: Files) -> None:
    store_credentials(URL, token="t", ca="ca.pem")
    store_credentials("ws://other:1", token="o")
    store_credentials(URL, trust=False)
    store_credentials(URL, token="new")
    assert read_credentials() == {
        URL: {"token": "new", "ca": "ca.pem", "trust": "no"},
        "ws://other:1": {"token": "o"},
    }
    assert [path.name for path in files.folder.iterdir()] == ["credentials.json"]
