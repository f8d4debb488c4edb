"""``Client`` and ``Program``."""

from __future__ import annotations

import hashlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
from kcoral import Client, KCoralError, Program, ProtocolError, ReturnedFile, ReturnedFolder, TransportError
from remote import ARRAYS
from support import Calls, main, raised


def health_has_what_kcoral_s_has(client: Client) -> None:
    health = client.health()
    assert health["status"] == "ok"
    assert health["gpu_count"] == 2
    assert set(health["load"]) == {"request_capacity", "requests_in_progress", "requests_waiting"}
    assert health["load"]["request_capacity"] > 0
    assert client.health()["instance_id"] == health["instance_id"]
    assert isinstance(health["versions"], dict)


def without_a_real_gpu_there_is_no_target(client: Client) -> None:
    assert "no compilation target" in str(raised(ProtocolError, client.target))


def uploads_of_every_kind_are_there_and_references_lead_to_them(client: Client) -> None:
    folder = Path("here")
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "x.txt").write_text("deep")
    (folder / ".hidden").write_text("hidden")
    program = Calls()
    tensor = program.upload(kind="tensor", value=np.arange(6, dtype="float32").reshape(2, 3))
    raw = program.upload(kind="bytes", value=bytes(range(256)))
    path = program.upload_file(blob=b"a file", path="./in//a.bin")
    program.upload_folder(folder, path="tree")
    program.call("add", tensor, tensor, key="tensor")
    program.call("add", raw, raw, key="bytes")
    program.call("read", path, key="file")
    program.call("read", "tree/deep/x.txt", key="folder")
    program.call("read", "tree/.hidden", key="hidden")
    program.call("same", {"inner": {"$ref": raw.id}}, key="nested")
    program.call("add", program.call("add", 1, 2), 3, key="chain")
    program.return_(key="called", value=program.run(fn=program.call("upper"), args=["up"]))
    program.return_(key="path", value=path)
    result = client.execute(program)
    assert result.completed, result.error
    assert np.array_equal(result["tensor"], np.arange(6).reshape(2, 3) * 2)
    assert result["tensor"].dtype == np.float32
    assert result["bytes"] == bytes(range(256)) * 2
    assert result["file"] == b"a file"
    assert (result["folder"], result["hidden"]) == (b"deep", b"hidden")
    assert result["nested"] == {"inner": {"$ref": raw.id}}
    assert (result["chain"], result["called"], result["path"]) == (6, "UP", "in/a.bin")


def library(client: Client, path: str) -> None:
    """A shared library with ``int add(int, int)``."""
    program = Calls()
    handle = program.upload(kind="library", value=Path(path).read_bytes())
    program.call("add", 2, 3, key="sum", of=handle)
    result = client.execute(program)
    assert result.completed, result.error
    assert result["sum"] == 5


def values_of_every_kind_come_back(client: Client) -> None:
    program = Calls()
    for name in ("plain", "mixed", "big", "odd_arrays"):
        program.call(name, key=name)
    for name in ARRAYS:
        program.call("array", name, key=name)
    result = client.execute(program)
    assert result.completed, result.error
    assert result["plain"] == [None, True, -3, 2.5, "téxt", [1, [2]], {"k": {"n": None}}]
    assert result["mixed"] == {"a": b"one", "b": [b"two", {"c": b""}]}
    assert result["big"] == 10**30
    empty, scalar, bfloat, flags = result["odd_arrays"]
    assert empty.shape == (0, 3)
    assert (scalar.shape, scalar) == ((), 7)
    assert (str(bfloat.dtype), bfloat.tolist()) == ("bfloat16", [1.0, 1.0])
    assert flags.tolist() == [True, False]
    for name in ARRAYS:
        assert result[name].dtype == name
        assert np.array_equal(result[name], np.arange(12).reshape(3, 4)[:, ::2])
    assert list(result.results) == ["plain", "mixed", "big", "odd_arrays", *ARRAYS]


def files_and_folders_come_back_and_are_saved(client: Client) -> None:
    program = Calls()
    program.return_folder(key="folder", path=program.call("write"))
    program.return_file(key="file", path="out/deep/.b")
    program.return_file(key="by value", path=program.call("name_of_file"))
    result = client.execute(program)
    assert result.completed, result.error
    file, folder = result["file"], result["folder"]
    assert type(file) is ReturnedFile
    assert file.read_bytes() == b"out/deep/.b" * 3
    assert result["by value"].read_bytes() == b"out/a.bin" * 3
    assert type(folder) is ReturnedFolder
    assert sorted(folder.files) == ["a.bin", "deep/.b"]
    assert list(folder.directories) == ["deep", "deep/empty"]
    folder.save("saved")
    saved = sorted(path.relative_to("saved").as_posix() for path in Path("saved").rglob("*"))
    assert saved == ["a.bin", "deep", "deep/.b", "deep/empty"]
    file.save("b")
    assert Path("b").read_bytes() == b"out/deep/.b" * 3
    raised(FileExistsError, file.save, "b")
    file.save("b", overwrite=True)


def what_is_printed_comes_back_and_of_much_the_beginning(client: Client) -> None:
    program = Calls()
    program.call("say_everywhere")
    result = client.execute(program)
    assert (result.stdout, result.stderr) == ("out\nchild\n", "err\n"), result
    assert not result.stdout_truncated
    assert not result.stderr_truncated
    assert result.queue_ms >= 0
    assert result.elapsed_ms > 0
    assert len(result.request_id) == 36
    result = client.execute(program, output_limit_bytes=6)
    assert (result.stdout, result.stderr) == ("out\nch", "err\n"), result
    assert result.stdout_truncated
    assert not result.stderr_truncated
    result = client.execute(program, output_limit_bytes=0)
    assert (result.stdout, result.stdout_truncated) == ("", False), result  # nothing was to be kept


def failure(client: Client, name: str, kind: str, op: str, text: str) -> None:
    """``name`` of ``remote.py`` fails in this way; what was before it is kept."""
    program = Calls()
    program.call("say", "before", key="before")
    program.call(name, key="after")
    result = client.execute(program)
    assert result.status == "FAILED"
    error = result.error
    assert (error["kind"], error["instruction_op"]) == (kind, op), error
    assert text in error["message"], error
    place = program.instructions[error["instruction_index"]]
    assert (place["op"], place.get("id")) == (op, error["instruction_id"])
    assert result.results == {"before": "before"}
    assert result.stdout == "before\n"
    if kind == "engine":
        assert f"in {name}" in error["traceback"], error["traceback"]
        assert "kcoral_gateway" not in error["traceback"], error["traceback"]


def what_is_not_there_or_cannot_be_read_fails_where_it_is_asked_for(client: Client) -> None:
    def failed(program: Program) -> tuple[str, str, str]:
        error = client.execute(program).error
        return error["kind"], error["instruction_op"], error["message"]

    kind, op, message = failed(Calls("def f(:"))
    assert (kind, op) == ("parse", "upload")
    assert "SyntaxError" in message
    assert failed(Calls("raise ValueError('no')"))[1:] == ("upload", "ValueError: no")
    program = Calls("x = 1")
    program.get_function(module=program.module, name="f")
    assert failed(program)[:2] == ("parse", "get_function")
    program = Calls("x = 1")
    program.call("x")
    assert failed(program)[:2] == ("runtime", "run")
    program = Program()
    program.return_file(key="file", path="not/there")
    assert failed(program)[:2] == ("serialization", "return")
    program = Calls()
    program.return_folder(key="folder", path=program.call("link"))
    kind, op, message = failed(program)
    assert (kind, op) == ("serialization", "return")
    assert "link" in message
    program = Program()
    program.upload(kind="library", value=b"not a library")
    assert failed(program)[:2] == ("parse", "upload")


def gpus_are_named_and_more_than_there_are_is_refused(client: Client) -> None:
    program = Calls(cpu_only=False)
    program.call("gpus", key="gpus")
    result = client.execute(program, gpu_count=2)
    assert sorted(result.gpu_ids) == [0, 1]
    assert result["gpus"].count("GPU-") == 2
    result = client.execute(program)
    assert len(result.gpu_ids) == result["gpus"].count("GPU-") == 1
    error = raised(KCoralError, client.execute, program, gpu_count=3)
    assert (error.status_code, error.kind) == (400, "parse")
    assert "3" in error.message
    assert "2" in error.message


def big_blobs(client: Client, size: str) -> None:
    """Two blobs of about ``size`` bytes, one of them used twice."""
    data = hashlib.shake_128(b"seed").digest(int(size))
    program = Calls()
    program.call("size", program.upload(kind="bytes", value=data), key="size")
    program.upload_file(blob=data[1:], path="a file")
    program.upload(kind="bytes", value=data)
    assert client.execute(program)["size"] == int(size)


def a_program_that_takes_too_long_is_ended_and_what_it_printed_is_told(client: Client) -> None:
    program = Calls()
    program.call("say", "begun")
    program.call("sleep", 60)
    began = time.monotonic()
    error = raised(KCoralError, client.execute, program, timeout_seconds=1)
    assert time.monotonic() - began < 20
    assert (error.status_code, error.kind) == (504, "timeout"), error
    assert "1 s" in error.message
    assert len(error.request_id) == 36
    # KCoral's client shows the message of an error only; what was printed is in the body beside it.
    text = json.dumps({"instructions": program.instructions, "options": {"timeout_seconds": 1}})
    files = {"program": (None, text, "application/json")}
    answer = httpx.post(os.environ["KCORAL_URL"] + "/execute", files=files, timeout=30)
    assert answer.status_code == 504
    assert answer.json()["stdout"] == "begun\n", answer.json()


def refused(client: Client) -> None:
    """The token is none of this gateway's."""
    program = Program()
    program.return_(key="x", value=program.upload(kind="bytes", value=b"x"))
    error = raised(KCoralError, client.execute, program)
    assert (error.status_code, error.kind) == (401, "unauthenticated"), error
    assert "token" in error.message
    assert client.health()["status"] == "ok"  # without a word of what there is
    assert set(client.health()) == {"status"}


def unreachable(client: Client) -> None:
    """Nobody listens."""
    raised(TransportError, client.health)


def each_program_has_a_fresh_worker_whose_state_and_files_nobody_sees(client: Client) -> None:
    program = Calls()
    program.call("mark", key="found")
    for _ in range(6):
        assert client.execute(program)["found"] == [0, []]


def many_clients_at_once_have_their_own_answers(client: Client) -> None:
    def one(number: int) -> tuple[int, str]:
        with Client(os.environ["KCORAL_URL"]) as own:
            program = Calls()
            program.call("say", number, key="n")
            result = own.execute(program)
            return result["n"], result.stdout

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(one, range(24))) == [(number, f"{number}\n") for number in range(24)]


if __name__ == "__main__":
    main(globals())
