"""Who comes in, and where: addresses, credentials, TLS, the user's own gateway."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from kcoral_magic import Client
from kcoral_magic.client import embedded
from kcoral_magic.config import Target
from kcoral_magic.errors import AuthenticationError, GatewayUnreachable, NotConnectedError
from tests.support import GatewayProcess, until


def _get(gateway: GatewayProcess, **headers: str) -> tuple[int, dict[str, object]]:
    url = gateway.url.replace("ws:", "http:") + "/health"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_health_says_ok_to_strangers_and_more_to_those_who_may_know(gateway: GatewayProcess, token: str) -> None:
    assert _get(gateway) == (200, {"status": "ok"})
    assert _get(gateway, Authorization="Bearer kcoral_wrong") == (200, {"status": "ok"})
    status, details = _get(gateway, Authorization=f"Bearer {token}")
    assert status == 200
    assert (details["gpu_count"], details["is_simulated"]) == (2, True)


def test_foreign_hosts_and_origins_are_refused_on_every_path(gateway: GatewayProcess, token: str) -> None:
    assert _get(gateway, Host="evil.example")[0] == 421
    assert _get(gateway, Origin="http://evil.example")[0] == 403


def test_a_wrong_or_missing_token_is_told_what_to_do(gateway: GatewayProcess) -> None:
    for token, what in (("kcoral_wrong", "does not accept the token"), (None, "wants a token")):
        client = Client(target=Target(gateway.url, token))
        with pytest.raises(AuthenticationError, match=f"{what}.*kcoral-magic connect"):
            client.connect()
        client.disconnect()


def test_the_socket_lets_its_own_user_in_without_a_token(gateway: GatewayProcess) -> None:
    mode = os.stat(gateway.socket).st_mode
    assert mode & 0o077 == 0
    assert os.stat(gateway.state).st_mode & 0o077 == 0


def test_revoking_a_token_closes_its_connections(gateway: GatewayProcess) -> None:
    token = gateway.token("shortlived")
    command = [sys.executable, "-m", "kcoral_gateway", "--state", str(gateway.state), "token"]
    listed = subprocess.run([*command, "list"], capture_output=True, text=True, check=True).stdout
    token_id = next(line.split()[0] for line in listed.splitlines() if "shortlived" in line)
    assert token not in listed
    with gateway.client(token) as client:
        client.connect()
        subprocess.run([*command, "revoke", token_id], check=True, capture_output=True)
        until(lambda: not client.aio.is_connected, 10, "the connection is closed")


def test_no_token_is_in_the_log_or_in_a_file(gateway: GatewayProcess, token: str, client: Client) -> None:
    client.session().run("1")
    assert token not in gateway.log.read_text()
    files = [path for path in gateway.state.rglob("*") if path.is_file()]
    assert (gateway.state / "tokens.json") in files
    assert not [path for path in files if token.encode() in path.read_bytes()]
    assert [path for path in files if path.stat().st_mode & 0o077 and path.name != "lock"] == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--host", "0.0.0.0"], "is reachable from elsewhere: give --tls-cert and --tls-key"),
        (["--tls-cert", "x.pem"], "--tls-cert and --tls-key go together"),
    ],
)
def test_an_open_address_without_tls_is_refused(tmp_path: Path, options: list[str], why: str) -> None:
    command = [sys.executable, "-m", "kcoral_gateway", "--state", str(tmp_path / "s"), "--port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode != 0
    assert why in done.stderr


def test_a_second_gateway_on_one_state_folder_is_refused(gateway: GatewayProcess) -> None:
    command = [sys.executable, "-m", "kcoral_gateway", "--state", str(gateway.state), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert "a gateway runs already" in done.stderr


def test_tls_with_an_own_certificate_authority(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = subprocess.run(
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}".split(),
        capture_output=True,
    )
    if made.returncode:
        pytest.skip(f"openssl makes no certificate here: {made.stderr.decode()[-100:]}")
    gateway = GatewayProcess(tmp_path / "state", "--tls-cert", str(cert), "--tls-key", str(key))
    try:
        token = gateway.token()
        assert gateway.url.startswith("wss://")
        with Client(target=Target(gateway.url, token, str(cert))) as client:
            assert client.session().run("6 * 7").text == "42"
        stranger = Client(target=Target(gateway.url, token))
        with pytest.raises(GatewayUnreachable, match="certificate verify failed"):
            stranger.connect()
        stranger.disconnect()
        assert ssl.get_server_certificate(("127.0.0.1", int(gateway.url.rpartition(":")[2])))
    finally:
        gateway.stop()


def test_with_nothing_configured_the_first_cell_starts_the_users_own_gateway(own_home: Path) -> None:
    with Client() as first, Client() as second:
        assert first.session(gpus=0).run("1 + 1").text == "2"
        assert second.session(gpus=0).run("2 + 2").text == "4"
        assert first.connect().instance == second.connect().instance
        assert first.session().run("import sys; sys.executable").text == repr(sys.executable)
    run = json.loads((embedded.state_dir() / "gateway.json").read_text())
    assert (embedded.state_dir() / "gateway.json").stat().st_mode & 0o077 == 0
    assert psutil.pid_exists(run["pid"])


def test_two_first_cells_at_once_start_one_gateway(own_home: Path) -> None:
    source = (
        "from kcoral_magic import Client\n"
        "with Client() as client: client.session(gpus=0).run('1'); print(client.connect().instance)"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, cwd="/") for _ in range(2)
    ]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert said[0] == said[1] != ""


def test_the_next_cell_works_after_the_own_gateway_was_killed(own_home: Path) -> None:
    with Client() as client:
        session = client.session(gpus=0)
        session.run("x = 1")
        psutil.Process(json.loads((embedded.state_dir() / "gateway.json").read_text())["pid"]).kill()
        until(lambda: not client.aio.is_connected, 10)
        assert session.run("'x' in globals()").text == "False"


def test_a_base_install_names_the_extra(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    client = Client()
    with pytest.raises(NotConnectedError, match=r"kcoral-magic\[gateway\]"):
        client.session().run("1")
    client.disconnect()


def test_the_connect_command_stores_a_token_that_works_and_only_its_owner_reads(
    gateway: GatewayProcess, token: str, own_home: Path
) -> None:
    command = [sys.executable, "-m", "kcoral_magic.cli", "connect", gateway.url]
    done = subprocess.run(command, input=token + "\n", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert token not in done.stdout + done.stderr
    stored = own_home / ".config" / "kcoral" / "credentials.json"
    assert stored.stat().st_mode & 0o077 == 0
    with Client(gateway.url) as client:
        assert client.session().run("1").text == "1"
    refused = subprocess.run(command, input="kcoral_wrong\n", capture_output=True, text=True)
    assert refused.returncode != 0
    assert "does not accept the token" in refused.stderr
