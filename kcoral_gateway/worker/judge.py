"""Judges a solution from outside: another process runs it, on inputs it has not seen, against a clock it cannot touch.

A benchmark that shares a process with what it times believes whatever that says: timers were patched, results of the
last run handed out again, work put off until nobody measured. Here the judge holds the seed, the clock and the
reference; the candidate's process gets inputs through a socket and gives plain values back, which are never unpickled.
The candidate can patch its side of that socket, and work while inputs come or results go. So a third process takes the
same inputs and gives the same results with a solution that does nothing: longer than that is work out of the clock's
sight. Calls alone, at the end, show a solution that looks ahead to the other inputs of its round and computes them at
once; one that wins less than a few hundred microseconds by that is not seen.

A judge's file defines ``inputs(rng)`` (``random.Random``), ``reference(*inputs)``, and may define ``check(result,
expected)``, ``bytes(*inputs)``, ``flops(*inputs)``, ``peak_byte_per_s``, ``peak_flop_per_s``.
"""

from __future__ import annotations

import ctypes
import linecache
import os
import random
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kcoral_gateway.worker.bench import is_close
from kcoral_magic.errors import ValueRefused
from kcoral_magic.reports.statistics import median, relative_width
from kcoral_magic.values import codec

ENTRY = "solution"
_PR_SET_DUMPABLE = 4
_MOST_CALLS = 512  # of a round
_ROUND_S = 0.05  # about, so that the cost of a message is small beside it
_ROUND_BYTES = 256 * 1024 * 1024
_WELL_KNOWN = 0.02
_ROUNDS = (8, 200)
_ANSWER_S = 60.0
_LATE = 0.5  # of the calls' time, spent before "go" or after "done"
_TRAVEL = 0.3  # of what the idle one takes: memory that is touched first, copies from a GPU
_LEAST_S = 1e-3
_IDLE = f"def {ENTRY}(*given): return given[0]"
_ALONE, _ALONE_TIMES, _ALONE_S = 5, 3.0, 300e-6  # calls alone; caches are colder then, and a message is not free
_OWN_CLOCK = 0.5  # of our time, by the candidate's clock
_LENGTH = struct.Struct("<Q")
_MOST_BYTES = 2 * 1024 * 1024 * 1024


def run(source: str, judge: str, seconds: float) -> dict[str, Any]:
    """Judge ``source``, which defines ``solution``, by the text of a judge's file.

    Returns:
        ``verdict`` (RIGHT, WRONG, SUSPECT, FAILED), ``reasons``, ``samples`` in seconds a call, ``reference_s``.
    """
    rules: dict[str, Any] = {"__name__": "judge"}
    linecache.cache["<judge>"] = (len(judge), None, judge.splitlines(keepends=True), "<judge>")  # for tracebacks
    exec(compile(judge, "<judge>", "exec"), rules)  # the user's own code, in the judge's process
    for name in ("inputs", "reference"):
        if not callable(rules.get(name)):
            raise ValueError(f"a judge's file defines inputs(rng) and reference(*inputs); {name} is missing")
    workspace = os.path.realpath(".")  # what we import from here on is not what a candidate wrote
    sys.path[:] = [
        place for place in sys.path if place and os.path.commonpath((workspace, os.path.realpath(place))) != workspace
    ]
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)  # the candidate has our user id: it may not look into our memory
    with _Candidate(source) as candidate, _Candidate(_IDLE) as idle:
        return _Trial(rules, candidate, idle, seconds).verdict()


class _Failed(Exception):
    """The candidate's process raised, or went away."""


class _Candidate:
    """The other process. What comes from it is a stranger's."""

    def __init__(self, source: str) -> None:
        ours, theirs = socket.socketpair()
        library = str(Path(__file__).resolve().parents[2])
        code = f"sys.path.append({library!r}); from kcoral_gateway.worker.judge import serve; serve({theirs.fileno()})"
        command = [sys.executable, "-c", f"import sys; {code}"]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self._socket = ours
        ours.settimeout(_ANSWER_S)
        self._source = source

    def __enter__(self) -> _Candidate:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def define(self) -> None:
        """Have it run the source."""
        self._ask("define", self._source)

    def load(self, inputs: list[Any]) -> float:
        """Send the inputs of the next round's calls; how long that took."""
        start = time.perf_counter()
        self._ask("load", inputs)
        return time.perf_counter() - start

    def time(self, calls: int) -> tuple[float, float]:
        """Seconds of so many calls, by our clock and by its own."""
        start = time.perf_counter()
        own = self._ask("go", calls)
        took = time.perf_counter() - start
        return took, own if isinstance(own, float) else 0.0

    def results(self) -> tuple[list[Any], float]:
        """Those of the last round, and how long they took to come."""
        start = time.perf_counter()
        found = self._ask("give", None)
        return found if isinstance(found, list) else [], time.perf_counter() - start

    def _ask(self, verb: str, value: Any) -> Any:
        try:
            _send(self._socket, {"verb": verb, "value": value}, may_pickle=True)
            said = _receive(self._socket, takes_pickles=False)
        except TimeoutError:
            raise _Failed(f"its process did not answer within {_ANSWER_S:.0f} s") from None
        except (OSError, EOFError, ValueRefused) as error:
            raise _Failed(f"its process went away or sent no value ({type(error).__name__}: {error})") from None
        if said.get("error") is not None:
            raise _Failed(str(said["error"])[:2000])
        if isinstance(said.get("value"), ValueRefused):
            raise _Failed(str(said["value"])[:2000])
        return said.get("value")


class _Trial:
    def __init__(self, rules: dict[str, Any], candidate: _Candidate, idle: _Candidate, seconds: float) -> None:
        self._rules = rules
        self._candidate = candidate
        self._idle = idle
        self._seconds = seconds
        self._rng = random.Random(os.urandom(32))  # nobody knows it, and no run repeats it
        self._suspect: dict[str, None] = {}
        self._samples: list[float] = []
        self._reference: list[float] = []
        self._former: list[Any] = []  # results of the first calls, and of the last
        self._early = self._late = self._own = 0

    def verdict(self) -> dict[str, Any]:
        try:
            self._idle.define()
            self._candidate.define()
            wrong = self._rounds() or self._alone()
        except _Failed as error:
            return self._told("FAILED", [str(error)])
        if wrong:
            return self._told("WRONG", [wrong])
        self._look()
        return self._told("SUSPECT" if self._suspect else "RIGHT", list(self._suspect))

    def _told(self, verdict: str, reasons: list[str]) -> dict[str, Any]:
        reference = median(self._reference) if self._reference else None
        return {"verdict": verdict, "reasons": reasons, "samples": self._samples, "reference_s": reference}

    def _rounds(self) -> str:
        """Round after round with fresh inputs, until the time is known or over; what was wrong, if anything was."""
        calls, end = 1, time.perf_counter() + self._seconds
        while len(self._samples) < _ROUNDS[1]:
            inputs = [self._inputs() for _ in range(calls)]
            in_s = self._candidate.load(inputs)
            idle, _ = self._candidate.time(0)
            took, own = self._candidate.time(calls)
            results, first_s = self._candidate.results()
            second_s = self._candidate.results()[1]  # the second time they only travel
            if wrong := self._wrong(inputs, results):
                return wrong
            a_call = max(took - idle, 1e-9) / calls
            if took < _ROUND_S and calls < _MOST_CALLS and not self._samples:
                grown = min(_MOST_CALLS, max(calls * 2, int(calls * _ROUND_S / max(took, 1e-6))))
                calls = min(grown, max(1, _ROUND_BYTES // max(_size(inputs[0]), 1)))
                if calls > len(inputs):
                    continue
            self._samples.append(a_call)
            spare = _LATE * (took - idle) + _LEAST_S
            idle_in_s, idle_out_s = self._travels(inputs, results)
            self._early += in_s - idle_in_s > spare + _TRAVEL * idle_in_s
            late = max(first_s - second_s, min(first_s, second_s) - idle_out_s)
            self._late += late > spare + _TRAVEL * idle_out_s
            self._own += own < _OWN_CLOCK * (took - idle) and took - idle > _LEAST_S
            if len(self._samples) >= _ROUNDS[0] and (
                relative_width(self._samples) < _WELL_KNOWN or time.perf_counter() > end
            ):
                break
        return ""

    def _alone(self) -> str:
        """Calls whose inputs come one by one; what was wrong, if anything was."""
        times = []
        for _ in range(_ALONE):
            inputs = [self._inputs()]
            self._candidate.load(inputs)
            idle, _ = self._candidate.time(0)
            took, _ = self._candidate.time(1)
            if wrong := self._wrong(inputs, self._candidate.results()[0]):
                return wrong
            times.append(took - idle)
        in_round, alone = median(self._samples), median(times)
        if alone > _ALONE_TIMES * in_round + _ALONE_S:
            text = f"a call alone takes {alone:.3g} s, one among others {in_round:.3g} s: it looked ahead in its inputs"
            self._suspect[text] = None
        return ""

    def _travels(self, inputs: list[Any], results: list[Any]) -> tuple[float, float]:
        """How long inputs take to come, and results to go, where nothing is computed."""
        in_s = self._idle.load(inputs)
        self._idle.load([(result,) for result in results])
        self._idle.time(len(results))
        out_s = self._idle.results()[1]
        self._idle.load([])
        return in_s, out_s

    def _inputs(self) -> tuple[Any, ...]:
        made = self._rules["inputs"](self._rng)
        return made if isinstance(made, tuple) else (made,)

    def _wrong(self, inputs: list[Any], results: list[Any]) -> str:
        if len(results) != len(inputs):
            return f"it gave {len(results)} results for {len(inputs)} calls"
        check = self._rules.get("check", is_close)
        for place, (given, result) in enumerate(zip(inputs, results, strict=True)):
            start = time.perf_counter()
            expected = self._rules["reference"](*given)
            self._reference.append(time.perf_counter() - start)
            try:
                is_right = bool(check(result, expected))
            except Exception as error:  # noqa: BLE001 - a result of another kind than the check takes
                return f"call {place} gave {result!r:.150}, which the check does not take ({error!r:.200})"
            if not is_right:
                if any(bool(check(result, former)) for former in self._former):
                    return f"call {place} gave an earlier call's result: it was replayed"
                return f"call {place} gave {result!r:.150} instead of {expected!r:.150}"
            self._former = [*self._former[:2], expected]
        return ""

    def _look(self) -> None:
        """What makes right results doubtful."""
        middle = median(self._samples)
        given = self._inputs()
        for amount, peak in (("bytes", "peak_byte_per_s"), ("flops", "peak_flop_per_s")):
            if callable(self._rules.get(amount)) and self._rules.get(peak):
                least = float(self._rules[amount](*given)) / float(self._rules[peak])
                if middle < least:
                    text = f"{middle:.3g} s a call is below the roofline: {amount} alone take {least:.3g} s"
                    self._suspect[text] = None
        rounds = len(self._samples)
        if self._early > rounds / 2:
            self._suspect["it computed while its inputs came, before the clock ran"] = None
        if self._late > rounds / 2:
            self._suspect["it computed after it had said that it was done"] = None
        if self._own > rounds / 2:
            self._suspect["its own clock runs slower than the judge's: a timer was patched"] = None


def _size(value: Any) -> int:
    """About how many bytes a value has."""
    if isinstance(value, list | tuple):
        return sum(map(_size, value)) + 16
    nbytes = getattr(value, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else sys.getsizeof(value)


# ── the candidate's side ──


def serve(descriptor: int) -> None:
    """Run what the judge asks for until it hangs up."""
    connection = socket.socket(fileno=descriptor)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    inputs: list[Any] = []
    results: list[Any] = []
    while True:
        try:
            asked = _receive(connection, takes_pickles=True)
        except (OSError, EOFError):
            return
        said: dict[str, Any] = {"value": None}
        try:
            match asked["verb"]:
                case "define":
                    exec(compile(asked["value"], "<solution>", "exec"), namespace)  # the candidate
                    if not callable(namespace.get(ENTRY)):
                        raise NameError(f"the cell must define {ENTRY}(…)")
                case "load":
                    inputs, results = asked["value"], []
                case "go":
                    solution = namespace[ENTRY]
                    start = time.perf_counter()
                    for given in inputs[: asked["value"]]:
                        results.append(solution(*given))
                    _synchronise()
                    said["value"] = time.perf_counter() - start
                case "give":
                    said["value"] = results
        except BaseException as error:  # noqa: BLE001 - anybody's code
            said["error"] = f"{type(error).__name__}: {error}"
        _send(connection, said, may_pickle=False)


def _synchronise() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _send(connection: socket.socket, values: dict[str, Any], *, may_pickle: bool) -> None:
    packed = codec.pack(values, may_pickle=may_pickle)
    if packed.problems:
        packed = codec.pack({"error": "; ".join(packed.problems.values())[:2000]}, may_pickle=False)
    data = packed.parcel.joined()
    connection.sendall(_LENGTH.pack(len(data)))
    connection.sendall(data)


def _receive(connection: socket.socket, *, takes_pickles: bool) -> dict[str, Any]:
    (size,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if size > _MOST_BYTES:
        raise ValueRefused(f"a message of {size:,} bytes")
    unpacked = codec.Unpacked(_exactly(connection, size), takes_pickles=takes_pickles, is_trusted_writer=takes_pickles)
    return {entry.name: value for entry, value in unpacked.values()}


def _exactly(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while len(view):
        got = connection.recv_into(view)
        if not got:
            raise EOFError("the other side hung up")
        view = view[got:]
    return data
