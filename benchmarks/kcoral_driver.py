"""KCoral's own client, told what to do line by line. Runs in KCoral's environment: nothing of ours can be imported.

A line on standard input is ``[name, url, …]``, the answer is a number: seconds, or requests per second. Programs are
built before the clock starts.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from kcoral import Client, Program, Register

_SOURCE = """
def add(a, b): return a + b
def size(data): return len(data)
def make(size): return bytes(size)
def same(data): return data
"""
_clients: dict[str, Client] = {}
_kept: dict[int, bytes] = {}


def _program(name: str, *args: object, data: bytes | None = None) -> Program:
    program = Program()
    given: list[object] = list(args)
    if data is not None:
        blob: Register = program.upload(kind="bytes", value=data)
        given.append(blob)
    module = program.upload(kind="module", source=_SOURCE)
    made = program.run(fn=program.get_function(module=module, name=name, cpu_only=True), args=given)
    program.return_(key="made", value=made)
    return program


def _timed(url: str, program: Program, expected: object) -> float:
    client = _clients.setdefault(url, Client(url))
    began = time.perf_counter()
    result = client.execute(program)
    took = time.perf_counter() - began
    if not result.completed or result["made"] != expected:
        raise RuntimeError(f"another answer was expected: {result.error}")
    return took


def trivial(url: str) -> float:
    return _timed(url, _program("add", 1, 2), 3)


def upload_known(url: str, size: int) -> float:
    """The same bytes each time: only the first call of this process sends them."""
    data = _kept.setdefault(size, os.urandom(size))
    return _timed(url, _program("size", data=data), size)


def upload_new(url: str, size: int) -> float:
    return _timed(url, _program("size", data=os.urandom(size)), size)


def get_back(url: str, size: int) -> float:
    return _timed(url, _program("make", size), bytes(size))


def echo(url: str, size: int) -> float:
    data = os.urandom(size)
    return _timed(url, _program("same", data=data), data)


def load(url: str, clients: int, seconds: float) -> float:
    """Requests per second of ``clients`` that each wait for their answer; those that end late count with their time."""
    counts = [0] * clients
    ready = threading.Barrier(clients + 1)

    def work(number: int) -> None:
        with Client(url) as client:
            program = _program("add", number, 1)
            ready.wait()
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                if client.execute(program)["made"] != number + 1:
                    raise RuntimeError("another answer was expected")
                counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    ready.wait()  # making a client costs more than a request
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


if __name__ == "__main__":
    actions = {f.__name__: f for f in (trivial, upload_known, upload_new, get_back, echo, load)}
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(actions[name](*arguments)), flush=True)
