"""What a gateway refuses before it listens."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kcoral_gateway.app import check_addresses
from kcoral_gateway.config import Config
from kcoral_magic.errors import UsageError


def config(tmp_path: Path, host: str | None, **options: object) -> Config:
    return Config(state_dir=tmp_path, host=host, **options)  # type: ignore[arg-type]  # as each test names them


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tls")
    made = {"tls_cert": folder / "cert.pem", "tls_key": folder / "key.pem"}
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=gpu.example"
    try:
        subprocess.run(
            [*command.split(), "-out", made["tls_cert"], "-keyout", made["tls_key"]], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"openssl makes no certificate here: {error}")
    return made


@pytest.mark.parametrize("host", [None, "127.0.0.1", "::1", "localhost"])
def test_this_machine_alone_needs_no_encryption(tmp_path: Path, host: str | None) -> None:
    check_addresses(config(tmp_path, host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "gpu.example", "192.168.0.7", ""])
def test_beyond_this_machine_encryption_is_needed_unless_told_otherwise(tmp_path: Path, host: str) -> None:
    with pytest.raises(UsageError, match="--tls-cert and --tls-key, tunnel to"):
        check_addresses(config(tmp_path, host))
    check_addresses(config(tmp_path, host, is_insecure=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("name", ["tls_cert", "tls_key"])
def test_half_of_a_certificate_is_refused(tmp_path: Path, host: str, name: str) -> None:
    with pytest.raises(UsageError, match="go together"):
        check_addresses(config(tmp_path, host, is_insecure=True, **{name: tmp_path / "x.pem"}))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_certificate_with_its_key_is_taken(tmp_path: Path, certificate: dict[str, Path], host: str) -> None:
    check_addresses(config(tmp_path, host, **certificate))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_certificate_that_cannot_be_read_is_refused(tmp_path: Path, host: str, content: str | None) -> None:
    path = tmp_path / "x.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match="cannot be read"):
        check_addresses(config(tmp_path, host, tls_cert=path, tls_key=path))
