"""Programs that import ``kcoral`` where they run: this gateway's own environment has it, and no torch and no tvm."""

from __future__ import annotations

import numpy as np
from kcoral import Client
from support import Calls, main

_SOURCE = """
import kcoral.builtins
from kcoral.errors import ExecutionError

def compiled():
    return kcoral.builtins.compile_tirx(None)

def measured():
    return kcoral.builtins.benchmark(len)

def judged(kind):
    raise ExecutionError(kind, "by the program")

def version():
    return kcoral.__version__
"""


def kcoral_can_be_imported(client: Client) -> None:
    program = Calls(_SOURCE)
    program.call("version", key="version")
    result = client.execute(program)
    assert result.completed, result.error
    assert result["version"] == "0.1.1"


def builtins_say_what_they_lack(client: Client) -> None:
    program = Calls(_SOURCE)
    program.call("compiled")
    error = client.execute(program).error
    assert (error["kind"], error["instruction_op"]) == ("unavailable", "run"), error
    assert "tvm" in error["message"]
    program = Calls(_SOURCE)
    program.call("measured")
    error = client.execute(program).error
    assert error["kind"] == "engine", error
    assert "torch" in error["message"]


def an_error_of_kcoral_s_keeps_its_kind(client: Client) -> None:
    for kind in ("parse", "compile", "runtime", "correctness", "serialization", "unavailable", "engine"):
        program = Calls(_SOURCE)
        program.call("judged", kind)
        error = client.execute(program).error
        assert (error["kind"], error["message"]) == (kind, "by the program"), error
    program = Calls(_SOURCE)
    program.call("judged", "of no kind")
    assert client.execute(program).error["kind"] == "engine"


def tensors_need_torch_and_say_so(client: Client) -> None:
    program = Calls(_SOURCE)
    program.upload(kind="tensor", value=np.zeros(3))
    error = client.execute(program).error
    assert (error["kind"], error["instruction_op"]) == ("unavailable", "upload"), error
    assert "torch" in error["message"]


if __name__ == "__main__":
    main(globals())
