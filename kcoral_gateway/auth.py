"""Who is asking: tokens (stored hashed, shown once) and, on a unix socket, the peer's user id.

A token is 32 random bytes, so a fast hash is enough: there is nothing to guess. Comparing runs over every stored hash
in constant time, whatever matches.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kcoral_magic.errors import UsageError

_PREFIX = "kcoral_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._-]{0,63}")


class StoredToken(msgspec.Struct, frozen=True):
    """One token as it lies on disk."""

    token_id: str
    name: str
    sha256: str
    created_s: float


@dataclass(frozen=True)
class Principal:
    """Who a credential stands for. ``token_id`` is empty for a peer of the unix socket."""

    name: str
    token_id: str = ""


class TokenStore:
    """The tokens file, read again when it changed, so that adding and revoking need no restart."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._tokens: list[StoredToken] = []

    def add(self, name: str) -> str:
        """A new token for ``name``: the only time it can be seen.

        Raises:
            UsageError: The name is malformed.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(f"a name is 1–64 of letters, digits, '@', '.', '_' and '-', got {name!r}")
        token = _PREFIX + secrets.token_urlsafe(32)
        entry = StoredToken(secrets.token_hex(4), name, _hash(token), time.time())
        self._write([*self.stored(), entry])
        return token

    def stored(self) -> list[StoredToken]:
        """What is stored, oldest first."""
        self._refresh()
        return list(self._tokens)

    def revoke(self, which: str) -> StoredToken:
        """Forget a token, by its id or by a name that no other token has; its connections are closed within seconds.

        Raises:
            UsageError: None is meant, or several are.
        """
        tokens = self.stored()
        found = [token for token in tokens if which in (token.token_id, token.name)]
        if len(found) != 1:
            known = ", ".join(f"{token.token_id} ({token.name})" for token in found or tokens) or "none"
            if found:
                raise UsageError(f"{len(found)} tokens are called {which!r}: give the id of one of {known}")
            raise UsageError(f"no token is {which!r}; stored ids: {known}")
        self._write([token for token in tokens if token is not found[0]])
        return found[0]

    def find(self, token: str) -> Principal | None:
        """Who ``token`` stands for."""
        wanted = _hash(token)
        found = None
        for stored in self.stored():
            if hmac.compare_digest(stored.sha256, wanted):
                found = Principal(stored.name, stored.token_id)
        return found

    def is_valid(self, principal: Principal) -> bool:
        """Whether the credential a connection came with still stands."""
        return not principal.token_id or any(token.token_id == principal.token_id for token in self.stored())

    def _refresh(self) -> None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._tokens, self._stamp = [], None
            return
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._stamp:
            self._tokens = msgspec.json.decode(self._path.read_bytes(), type=list[StoredToken])
            self._stamp = stamp

    def _write(self, tokens: list[StoredToken]) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._path.parent)  # 0600
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(tokens))
        os.replace(name, self._path)
        self._stamp = None


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _token_of(authorization: str) -> str | None:
    """A bearer token, or the password of Basic credentials: what HTTP clients make of ``http://x:TOKEN@host``."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    basic = _basic(authorization)
    return None if basic is None else basic[1]


def user_of(authorization: str) -> str:
    """The user name of Basic credentials; empty for others. It is nobody's: the token says who it is."""
    basic = _basic(authorization)
    return "" if basic is None else basic[0]


def _basic(authorization: str) -> tuple[str, str] | None:
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, _, password = base64.b64decode(credentials.strip(), validate=True).decode().partition(":")
    except ValueError:
        return None
    return name, password


def authenticate(store: TokenStore, authorization: str | None, peer_uid: int | None, own_uid: int) -> Principal | None:
    """The principal of a request, from its ``Authorization`` header or its unix socket's peer.

    On the unix socket the gateway's own user and root come in without a token; they could read its memory anyway.
    """
    if authorization is not None:
        token = _token_of(authorization)
        return store.find(token) if token is not None else None
    if peer_uid is not None and peer_uid in (own_uid, 0):
        return Principal(f"uid:{peer_uid}")
    return None
