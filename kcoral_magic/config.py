"""Which gateway to use, and with what: arguments over environment over files.

Files lie in ``$XDG_CONFIG_HOME/kcoral`` (or ``~/.config/kcoral``): ``config.toml`` is yours (``url``, ``ca``,
``token_file``, ``gateway_options``), ``credentials.json`` is written 0600 by ``kcoral-magic connect``. A token never
stands in a URL, on a magic's line or in a notebook.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from kcoral_magic.errors import UsageError

DEFAULT_PORT = 7878
_SCHEMES = {"ws": "ws", "http": "ws", "wss": "wss", "https": "wss"}


@dataclass(frozen=True)
class Target:
    """A gateway and how to come in. ``url=None`` is the user's own gateway on this machine."""

    url: str | None = None
    token: str | None = None
    ca: str | None = None
    is_trusted: bool = True
    gateway_options: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """What people are told about where it is."""
        return self.url or "your own gateway on this machine"


def config_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The folder of our files."""
    env = os.environ if environ is None else environ
    base = env.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "kcoral"


def normalise(url: str) -> str:
    """``host``, ``host:port`` or a ws/http URL as ``ws[s]://host:port``; without a scheme wss, but for loopback.

    Raises:
        UsageError: It is no address of a gateway, or holds a secret.
    """
    try:
        parts = urlsplit(url if "://" in url else f"wss://{url}")
        if "://" not in url and parts.hostname in ("localhost", "127.0.0.1", "::1"):
            parts = parts._replace(scheme="ws")
    except ValueError:
        raise UsageError(f"a gateway's address looks like wss://gpu.example:7878, got {url!r}") from None
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            "an address holds no token: store it with `kcoral-magic connect URL`, "
            "or use KCORAL_MAGIC_TOKEN or --token-file"
        )
    scheme = _SCHEMES.get(parts.scheme)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if scheme is None or not parts.hostname or port == 0 or parts.path not in ("", "/", "/ws"):
        raise UsageError(f"a gateway's address looks like wss://gpu.example:7878, got {url!r}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{scheme}://{host}:{port or DEFAULT_PORT}"


def resolve(
    url: str | None = None,
    *,
    token: str | None = None,
    token_file: str | None = None,
    ca: str | None = None,
    trust: bool | None = None,
    gateway_options: tuple[str, ...] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Target:
    """The gateway that arguments, environment and files name together.

    Raises:
        UsageError: A file or an address is malformed.
    """
    env = os.environ if environ is None else environ
    file = _read_config(env)
    address = url or env.get("KCORAL_MAGIC_URL") or file.get("url")
    if gateway_options is None:
        gateway_options = tuple((env.get("KCORAL_GATEWAY_OPTIONS") or file.get("gateway_options") or "").split())
    if not address:
        return Target(gateway_options=gateway_options)
    address = normalise(address)
    stored = read_credentials(env).get(address, {})
    token_path = token_file or env.get("KCORAL_MAGIC_TOKEN_FILE")
    if token is None and token_path:
        token = _read_token(token_path)
    token = token or env.get("KCORAL_MAGIC_TOKEN") or stored.get("token")
    if token is None and file.get("token_file"):
        token = _read_token(file["token_file"])
    trusted = trust if trust is not None else stored.get("trust") == "yes"
    return Target(
        address, token, ca or env.get("KCORAL_MAGIC_CA") or file.get("ca") or stored.get("ca"), trusted, gateway_options
    )


def _read_config(env: Mapping[str, str]) -> dict[str, str]:
    path = config_dir(env) / "config.toml"
    try:
        text = path.read_text("utf-8")
        import tomllib  # not without a file

        content = tomllib.loads(text)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:  # no TOML, or no UTF-8
        raise UsageError(f"{path} cannot be read: {error}") from None
    known = {"url", "ca", "token_file", "gateway_options"}
    for name, value in content.items():
        if name not in known or not isinstance(value, str):
            raise UsageError(f"{path}: {name} is not one of {', '.join(sorted(known))}, or is not a string")
    return content


def _read_token(path: str) -> str:
    try:
        token = Path(os.path.expanduser(path)).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the token file cannot be read: {error}") from None
    if not token or "\n" in token:
        raise UsageError(f"{path} should hold one token on one line")
    return token


def read_credentials(environ: Mapping[str, str] | None = None) -> dict[str, dict[str, str]]:
    """What ``connect`` has stored, by address."""
    path = config_dir(environ) / "credentials.json"
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}; delete it and connect again") from None
    if not isinstance(content, dict) or not all(isinstance(entry, dict) for entry in content.values()):
        raise UsageError(
            f"{path} cannot be read: one object for each address was expected; delete it and connect again"
        )
    return content


def store_credentials(url: str, *, token: str | None = None, ca: str | None = None, trust: bool | None = None) -> Path:
    """Remember how to come in at ``url``, in a file only its owner reads."""
    folder = config_dir()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = read_credentials()
    entry = content.setdefault(url, {})
    new = {"token": token, "ca": ca, "trust": None if trust is None else ("yes" if trust else "no")}
    entry.update({name: value for name, value in new.items() if value is not None})
    descriptor, name = tempfile.mkstemp(dir=folder)  # made 0600
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
    os.replace(name, folder / "credentials.json")
    return folder / "credentials.json"
