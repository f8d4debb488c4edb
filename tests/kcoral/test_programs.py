"""``kcoral.Client``, ``Program`` and ``@client.function``, unmodified, against our gateway: see the scripts."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.kcoral.environment import Kcoral, cases, relay
from tests.support import GatewayProcess


@pytest.mark.parametrize("name", [name for name in cases("programs") if name not in ("refused", "unreachable")])
def test_programs(kcoral: Kcoral, name: str) -> None:
    kcoral.case("programs", name)


@pytest.mark.parametrize("name", cases("functions"))
def test_functions(kcoral: Kcoral, name: str) -> None:
    kcoral.case("functions", name)


@pytest.mark.parametrize(
    ("name", "kind", "op", "text"),
    [
        ("key_error", "engine", "run", "KeyError: 'none'"),
        ("differ", "engine", "run", "AssertionError: they differ"),
        ("leave", "runtime", "run", "exit(3)"),
        ("end", "runtime", "run", "exit code 7"),
        ("crash", "runtime", "run", "SIGSEGV"),
        ("a_set", "serialization", "return", "set"),
        ("not_a_number", "serialization", "return", "nan"),
        ("an_object", "serialization", "return", "object"),
    ],
)
def test_a_failure_has_kcoral_s_kind_and_names_its_instruction(
    kcoral: Kcoral, name: str, kind: str, op: str, text: str
) -> None:
    kcoral.case("programs", "failure", name, kind, op, text)


@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler makes the library")
def test_a_library_s_functions_are_called(kcoral: Kcoral) -> None:
    source, library = kcoral.folder / "add.c", kcoral.folder / "add.so"
    source.write_text("int add(int a, int b) { return a + b; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    kcoral.case("programs", "library", str(library))


def test_a_blob_is_uploaded_once_and_another_token_has_to_upload_it_too(
    kcoral: Kcoral, gateway: GatewayProcess, address_of: Callable[[str], str]
) -> None:
    size, slack = 8 * 1024 * 1024, 64 * 1024
    sent = []
    with relay(gateway.url) as counted:
        for url in (kcoral.url, kcoral.url, address_of(gateway.token("another"))):
            before = counted.sent
            kcoral.case("programs", "big_blobs", str(size), url=counted.url(url))
            sent.append(counted.sent - before)
    assert 2 * size <= sent[0] < 2 * size + slack  # two blobs, each once
    assert sent[1] < slack
    assert 2 * size <= sent[2] < 2 * size + slack


def test_a_wrong_token_is_refused_and_none_as_well(kcoral: Kcoral, address_of: Callable[[str], str]) -> None:
    kcoral.case("programs", "refused", url=address_of("kcoral_wrong"))
    kcoral.case("programs", "refused", url=f"http://{kcoral.url.rpartition('@')[2]}")


def test_a_gateway_that_is_not_there_is_a_transport_error(kcoral: Kcoral) -> None:
    kcoral.case("programs", "unreachable", url="http://x:y@127.0.0.1:1")
