"""Who may come in: tokens that are stored hashed, compared in constant time, and forgotten at once."""

from __future__ import annotations

import hmac
import json
import os
import stat
from pathlib import Path

import pytest

from kcoral_gateway.auth import Principal, TokenStore, authenticate
from kcoral_magic.errors import UsageError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "tokens.json"


@pytest.fixture
def store(path: Path) -> TokenStore:
    return TokenStore(path)


def test_a_token_stands_for_its_name(store: TokenStore) -> None:
    ana, ben = store.add("ana"), store.add("ben@host")
    stored = store.stored()
    assert [one.name for one in stored] == ["ana", "ben@host"]
    assert store.find(ana) == Principal("ana", stored[0].token_id)
    assert store.find(ben) == Principal("ben@host", stored[1].token_id)


@pytest.mark.parametrize("wrong", ["", "kcoral_", "x", "ä", "\ud800", "kcoral_" + "A" * 43])
def test_what_is_no_token_stands_for_nobody(store: TokenStore, wrong: str) -> None:
    assert store.find(wrong) is None
    token = store.add("ana")
    assert store.find(wrong) is None
    for near in (token[:-1], token + "x", token.upper(), f" {token}", store.stored()[0].sha256):
        assert store.find(near) is None


def test_two_tokens_of_one_name_are_two(store: TokenStore) -> None:
    first, second = store.add("ana"), store.add("ana")
    assert first != second
    assert store.find(first) != store.find(second)
    assert len(first) >= 40


def test_a_token_itself_is_nowhere_on_disk(store: TokenStore, path: Path) -> None:
    token = store.add("ana")
    text = path.read_text()
    assert token not in text
    assert token.removeprefix("kcoral_") not in text
    assert [path.name for path in path.parent.iterdir()] == ["tokens.json"]


def test_the_tokens_are_read_by_their_owner_only(store: TokenStore, path: Path) -> None:
    store.add("ana")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    store.add("ben")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_every_stored_hash_is_compared_in_constant_time_whatever_matches(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [store.add(f"user-{number}") for number in range(5)]
    compared = []
    genuine = hmac.compare_digest

    def counted(a: str, b: str) -> bool:
        compared.append(a)
        return genuine(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    hashes = [one.sha256 for one in store.stored()]
    for token in (tokens[0], tokens[4], "wrong"):
        compared.clear()
        store.find(token)
        assert compared == hashes


def test_a_token_is_forgotten_at_once_and_others_stay(store: TokenStore) -> None:
    ana, ben = store.add("ana"), store.add("ben")
    principal = store.find(ana)
    assert principal is not None
    assert store.is_valid(principal)
    assert store.revoke(principal.token_id).name == "ana"
    assert store.find(ana) is None
    assert not store.is_valid(principal)
    assert store.find(ben) is not None


def test_forgetting_what_is_not_stored_names_what_is(store: TokenStore) -> None:
    with pytest.raises(UsageError, match="stored ids: none"):
        store.revoke("0123")
    store.add("ana")
    with pytest.raises(UsageError, match=f"no token is '0123'; stored ids: {store.stored()[0].token_id}"):
        store.revoke("0123")


def test_a_running_gateway_sees_what_another_process_changes(store: TokenStore, path: Path) -> None:
    assert store.stored() == []
    other = TokenStore(path)
    token = other.add("ana")
    principal = store.find(token)
    assert principal is not None
    for _ in range(20):  # also within one tick of the file system's clock
        second = other.add("ben")
        assert store.find(second) is not None
        other.revoke(other.stored()[-1].token_id)
        assert store.find(second) is None
    other.revoke(principal.token_id)
    assert not store.is_valid(principal)
    path.unlink()
    assert store.stored() == []


def test_tokens_survive_a_restart(store: TokenStore, path: Path) -> None:
    token = store.add("ana")
    assert TokenStore(path).find(token) == store.find(token)
    assert len(json.loads(path.read_text())) == 1


@pytest.mark.parametrize("name", ["", "a b", "ä", "-a", ".a", "uid:0", "a/b", "x" * 65, "ana\n"])
def test_a_malformed_name_gets_no_token(store: TokenStore, name: str) -> None:
    with pytest.raises(UsageError, match="1–64"):
        store.add(name)
    assert store.stored() == []


@pytest.mark.parametrize("name", ["a", "ana.b_c-d@host", "x" * 64])
def test_a_name_may_hold_what_addresses_hold(store: TokenStore, name: str) -> None:
    assert store.find(store.add(name)) is not None


# ── A request ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_comes_in_with_a_bearer_token(store: TokenStore) -> None:
    token = store.add("ana")
    for header in (f"Bearer {token}", f"bearer {token}", f"BEARER   {token} "):
        principal = authenticate(store, header, None, 1000)
        assert principal is not None
        assert principal.name == "ana"


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic {}", "{}", "Token {}", "Bearer {}x", "Bearer x {}"])
def test_a_request_with_another_header_does_not_come_in_not_even_over_the_socket(
    store: TokenStore, header: str
) -> None:
    token = store.add("ana")
    for peer_uid in (None, 1000, 0):
        assert authenticate(store, header.format(token), peer_uid, 1000) is None


def test_over_the_unix_socket_the_own_user_and_root_come_in() -> None:
    store = TokenStore(Path("/nonexistent/tokens.json"))
    assert authenticate(store, None, 1000, 1000) == Principal("uid:1000")
    assert authenticate(store, None, 0, 1000) == Principal("uid:0")
    assert authenticate(store, None, 1001, 1000) is None
    assert authenticate(store, None, None, 1000) is None
    assert authenticate(store, None, None, os.geteuid()) is None


def test_a_peer_of_the_socket_needs_no_token_to_stay() -> None:
    assert TokenStore(Path("/nonexistent/tokens.json")).is_valid(Principal("uid:1000"))
