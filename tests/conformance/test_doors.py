"""Who comes in, what each may see, and ``GET /health``."""

from __future__ import annotations

import base64
import datetime as dt
import os
import re
from typing import Any

import pytest

from tests.conformance.conftest import SECRET
from tests.conformance.wire import BOUNDARY, Endpoint, body_of, digest, multipart, program, read, returned, upload

P = program(body_of("def main():\n    return 1"))
BLOBS = "/run/kcoral/blobs/sha256-"  # where this gateway's programs find their own
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


# ── health ──


def test_health_tells_what_clients_choose_by(endpoint: Endpoint) -> None:
    health = endpoint.health()
    assert health["status"] == "ok"
    assert health["instance_id"] == endpoint.health()["instance_id"] != ""
    assert health["started_at"].endswith("Z")
    started = dt.datetime.fromisoformat(health["started_at"])
    assert dt.timedelta(0) <= dt.datetime.now(dt.UTC) - started < dt.timedelta(days=1)
    assert type(health["gpu_count"]) is int
    assert health["gpu_count"] >= 0
    load = health["load"]
    assert load.keys() == {"request_capacity", "requests_in_progress", "requests_waiting"}
    assert load["request_capacity"] >= 1
    assert (load["requests_in_progress"], load["requests_waiting"]) == (0, 0)
    assert all(isinstance(version, str) for version in health["versions"].values())


def test_health_names_the_gpu_s_architecture_as_compilers_do(endpoint: Endpoint) -> None:
    target = endpoint.health()["target"]
    assert target == {} or re.fullmatch(r"sm_\d+a?", target["arch"])


# ── credentials ──


def basic(token: str, user: str = "kcoral") -> str:
    return "Basic " + base64.b64encode(f"{user}:{token}".encode()).decode()


@pytest.mark.parametrize("form", ["bearer", "BEARER", "basic", "basic without a user"])
def test_a_token_comes_as_bearer_or_as_the_password_of_basic(ours: Endpoint, form: str) -> None:
    token = ours.token or ""
    credential = {
        "bearer": f"Bearer {token}",
        "BEARER": f"BEARER {token}",
        "basic": basic(token),
        "basic without a user": basic(token, ""),
    }[form]
    sent = {"Authorization": credential}
    assert read(ours.http.post("/execute", content=multipart([P]), headers={**FORM, **sent})).result() == 1
    assert "instance_id" in ours.http.get("/health", headers=sent).json()


WRONG = [
    pytest.param(None, id="none"),
    pytest.param("Bearer kcoral_wrong", id="a wrong token"),
    pytest.param("Bearer", id="no token"),
    pytest.param("{token}", id="no scheme"),
    pytest.param("Digest {token}", id="another scheme"),
    pytest.param(basic("kcoral_wrong"), id="a wrong password"),
    pytest.param("Basic !!!", id="no base64"),
    pytest.param("Basic " + base64.b64encode(b"\xff\xfe").decode(), id="no text"),
    pytest.param("Basic {swapped}", id="the token as the user"),
]


@pytest.mark.parametrize("credential", WRONG)
def test_without_a_credential_that_holds_nobody_comes_in_and_basic_is_never_offered(
    ours: Endpoint, credential: str | None
) -> None:
    token = ours.token or ""
    swapped = base64.b64encode(f"{token}:".encode()).decode()
    sent = {} if credential is None else {"Authorization": credential.format(token=token, swapped=swapped)}
    response = ours.http.post("/execute", content=multipart([P]), headers={**FORM, **sent})
    assert read(response).refusal == (401, "unauthenticated")
    assert response.headers.get_list("www-authenticate") == ["Bearer"]  # a browser would ask its person for Basic
    assert ours.http.get("/health", headers=sent).json() == {"status": "ok"}


def test_a_stranger_is_told_nothing_of_what_is_wrong_with_the_request(ours: Endpoint) -> None:
    assert read(ours.http.post("/execute", content=b"no multipart")).refusal == (401, "unauthenticated")


# ── pages of other sites ──


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", ""])
def test_a_request_of_a_foreign_page_is_refused_even_with_a_token(ours: Endpoint, origin: str) -> None:
    sent = {**ours.headers(), "Origin": origin}
    ran = ours.http.post("/execute", content=multipart([P]), headers={**FORM, **sent})
    assert (ran.status_code, ran.json().keys()) == (403, {"error"})
    assert ours.http.get("/health", headers=sent).status_code == 403
    assert ours.http.options("/execute", headers=sent).status_code == 403
    assert "access-control-allow-origin" not in ran.headers


def test_a_request_to_a_foreign_name_is_refused(ours: Endpoint) -> None:
    for path in ("/health", "/execute"):
        assert ours.http.get(path, headers={**ours.headers(), "Host": "evil.example"}).status_code == 421


# ── what is whose ──


@pytest.mark.parametrize("kind", ["bytes", "file", "library", "tensor"])
def test_knowing_a_digest_gives_nobody_another_s_bytes(ours: Endpoint, kind: str) -> None:
    data = os.urandom(16)
    assert ours.run([upload("bytes", data), returned("u")], data).result() == data
    more: dict[str, dict[str, Any]] = {"file": {"path": "x"}, "tensor": {"dtype": "uint8", "shape": [16]}}
    theirs = program([upload(kind, data, **more.get(kind, {}))])
    answer = ours.post(theirs, token=ours.stranger)
    assert (answer.body["status"], answer.body.get("missing_blobs")) == ("CACHE_MISS", [digest(data)])


def test_a_stranger_s_same_bytes_are_their_own(ours: Endpoint) -> None:
    data = os.urandom(16)
    uploads = [upload("bytes", data), returned("u")]
    assert ours.post(program(uploads), token=ours.stranger).body["status"] == "CACHE_MISS"
    assert ours.run(uploads, data).result() == data
    assert ours.post(program(uploads), token=ours.stranger).body["status"] == "CACHE_MISS"


def test_a_program_cannot_open_another_principal_s_blob(ours: Endpoint) -> None:
    data = os.urandom(16)
    ours.run([upload("bytes", data)], data)
    look = program(body_of("import os\ndef main(path):\n    return os.path.exists(path)", BLOBS + digest(data)))
    assert ours.post(look).result() is True  # else the place is another, and the next line says nothing
    assert ours.post(look, token=ours.stranger).result() is False


def test_secrets_of_the_gateway_s_environment_are_out_of_a_program_s_reach(ours: Endpoint) -> None:
    source = (
        "import os, subprocess\ndef main():\n    seen = [repr(os.environ), subprocess.getoutput('env')]\n"
        "    for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "        for name in ('environ', 'cmdline'):\n"
        "            try:\n                seen.append(open(f'/proc/{pid}/{name}', errors='replace').read())\n"
        "            except OSError:\n                pass\n"
        "    return seen"
    )
    seen = "\0".join(ours.run(body_of(source)).result())
    assert "PATH=" in seen
    for secret in (SECRET, "FOO_SECRET", "KCORAL_NODE_TOKEN", ours.token or "", ours.stranger or ""):
        assert secret not in seen
