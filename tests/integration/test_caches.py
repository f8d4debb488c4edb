"""What compilers keep outlives a program's worker, for its principal alone. A stand-in for triton: no GPU here."""

from __future__ import annotations

import pytest

from kcoral_magic import Client, Program
from kcoral_magic.client.returned import ProgramResult
from tests.support import GatewayProcess

TRITON = """
import os, pathlib
cache = pathlib.Path(os.environ["TRITON_CACHE_DIR"])
def compile(name, size=10):
    path = cache / name / "kernel.cubin"
    if path.exists(): return "warm"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return "cold"
"""
SOURCE = f"""
import os, pathlib, sys
pathlib.Path("triton.py").write_text({TRITON!r})
sys.path.insert(0, "")
def run(name, size=10):
    import triton
    return triton.compile(name, size)
def look():
    return os.path.exists(os.environ["TRITON_CACHE_DIR"])
"""


@pytest.fixture(autouse=True)
def spares(gateway: GatewayProcess) -> None:
    gateway.spares = 7


def called(client: Client, name: str, *args: object) -> ProgramResult:
    program = Program()
    module = program.upload(kind="module", source=SOURCE)
    function = program.get_function(module=module, name=name, cpu_only=True)
    program.return_(key="said", value=program.run(fn=function, args=args))
    result = client.execute(program)
    assert result.completed, result.error
    return result


@pytest.mark.parametrize("size", [10, 2_000_000])
def test_a_kernel_is_compiled_once_for_a_principal_and_not_seen_by_another(
    gateway: GatewayProcess, client: Client, size: int
) -> None:
    kernel = f"kernel-{size}"
    assert called(client, "run", kernel, size)["said"] == "cold"
    assert called(client, "run", kernel, size)["said"] == "warm"
    assert called(client, "run", f"other-{size}")["said"] == "cold"
    assert called(client, "run", kernel, size)["said"] == "warm"
    with gateway.client(gateway.token("stranger")) as stranger:
        assert called(stranger, "run", kernel, size)["said"] == "cold"


def test_a_program_without_a_compiler_unpacks_nothing(client: Client) -> None:
    called(client, "run", "before")
    assert called(client, "look")["said"] is False


def test_caches_beyond_the_limit_lose_their_oldest_and_harm_nothing(client: Client) -> None:
    for number in range(3):
        assert called(client, "run", f"large-{number}", 30_000_000)["said"] == "cold"
    assert called(client, "run", "large-2", 30_000_000)["said"] == "warm"
    assert called(client, "run", "large-0", 30_000_000)["said"] == "cold"
    assert client.storage().used_bytes < 70_000_000
