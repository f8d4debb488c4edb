"""The worker host's loop: one worker, one gateway, one thread.

It reads the worker's pipes and channel, numbers nothing and keeps nothing: what a cell produced goes to the gateway at
once, in order. Everything the worker sends is checked as a stranger's bytes. A host whose gateway has gone ends its
worker and itself: taking up again (``orphan_s`` of the map) comes with adoption.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import assert_never

import msgspec

from kcoral_gateway.config import HostSpec
from kcoral_gateway.host import processes
from kcoral_gateway.host.exchange import Exchange, Load
from kcoral_gateway.host.launch import Worker, launch
from kcoral_gateway.host.memory import MemoryWatch
from kcoral_gateway.host.outbox import Outbox
from kcoral_gateway.host.output import OutputBatcher, StreamName
from kcoral_gateway.host.verdict import cause, where
from kcoral_magic.errors import KCoralError, ProtocolError
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import steps as s
from kcoral_magic.protocol import transfers as t

_READ_BYTES = 256 * 1024
_STARTUP_BYTES = 4096
_BACKLOG_BYTES = 4 * 1024 * 1024  # to the gateway; above it the worker is not read, so it blocks in its own writes
_MEMORY_EVERY_S = 0.1
_IDLE_LOOK_S = 0.5  # what earlier cells left running goes on using memory
_SEND_S = 1.0  # an idle worker reads at once
_DEATH_S = 5.0  # from SIGKILL to the end
_LEAVE_S = 2.0  # for a worker that closed its channel to end by itself
_KILL_ROUNDS = 3
_START_S = 60.0  # a cold interpreter on a slow disk
_PIPE_PAUSE_S = 0.004  # between two reads of a pipe that is being written; a worker that waits rings
_FREE_BYTES = 32 * 1024 * 1024  # of an execution's text at full speed …
_FLOOD_BYTES_PER_S = 64 * 1024 * 1024  # … and then this much: a flood must not take the gateway from other sessions
# Of a worker's head: it goes on inside two more messages, which must fit as well.
_HEAD_BYTES = framing.MAX_HEAD_BYTES - 1024
_FREE_MESSAGES = 1000  # of displays and the like of one execution; nobody sees more updates a second than this
_FLOOD_MESSAGES_PER_S = 5000
_FLOOD_READ_BYTES = 16 * 1024  # then: the pause that one read earns must stay short


class _Gone(Exception):
    """Leave the loop: nothing more can come from the worker or the gateway."""


class Host:
    """One worker's life."""

    def __init__(self, spec: HostSpec, gateway: socket.socket) -> None:
        self._spec = spec
        self._gateway = gateway
        self._worker: Worker = launch(spec)
        self._began_s = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._from_worker = framing.Decoder[m.FromWorker](m.FromWorker, max_head_bytes=_HEAD_BYTES)
        self._worker_splitter = framing.StreamSplitter()
        self._from_gateway = framing.Decoder[m.ToHost](m.ToHost)
        self._gateway_splitter = framing.StreamSplitter()
        self._outbox = Outbox(gateway, self._selector)
        self._memory = MemoryWatch(self._worker, spec.limits.memory_bytes)
        self._is_reading = True
        # One buffer for all reads: a new one of this size is mapped and unmapped by the kernel at every read.
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._resting: dict[int, StreamName] = {}  # pipes just read, and from when they are watched again
        self._rest_until_s = 0.0
        self._drained_s = float("-inf")  # when the worker last rang
        self._batcher = OutputBatcher()
        self._exchange = Exchange(spec.folder)
        self._loads: deque[Iterator[Load]] = deque()  # on their way to the worker, a piece in each turn
        self._execution = ""  # the running one, or the last one
        self._is_running = False
        self._has_begun = False  # the running body has been sent to the worker
        self._is_ready = False
        self._startup_text = b""  # what its interpreter has said of why it does not start
        self._run_ticks = 0
        self._pid: int | None = None  # the worker's interpreter
        self._old_processes: set[int] = set()  # that earlier cells left running
        self._has_left = False  # the worker closed its channel: it is ending by itself
        self._stream_bytes = 0
        self._messages = 0
        self._flood_until_s = 0.0
        self._interrupted_s: float | None = None
        self._has_asked_where = False
        self._next_memory_s = 0.0
        self._verdict: tuple[str, str] | None = None
        self._fault_text = ""

    def serve(self) -> None:
        """Run until the worker or the gateway is gone; leaves no process behind."""
        worker = self._worker
        try:
            self._gateway.setblocking(False)
            self._selector.register(self._gateway, selectors.EVENT_READ, "gateway")
            self._watch_worker(True)
            while True:
                self._turn()
        except _Gone:
            pass
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending already
            if self._has_left:
                with contextlib.suppress(subprocess.TimeoutExpired):  # its exit code tells why
                    worker.process.wait(_LEAVE_S)
            worker.kill()
            self._last_words()
            self._exchange.close()
            worker.close()

    # ── the loop ──

    def _watch_worker(self, wanted: bool) -> None:
        worker = self._worker
        for what, name in (
            (worker.channel.fileno(), "channel"),
            (worker.stdout, "stdout"),
            (worker.stderr, "stderr"),
            (worker.fault, "fault"),
        ):
            if wanted:
                self._selector.register(what, selectors.EVENT_READ, name)
            elif what in self._selector.get_map():
                self._selector.unregister(what)
        self._resting.clear()
        self._is_reading = wanted

    def _turn(self) -> None:
        now = time.monotonic()
        ready = self._selector.select(self._timeout(now))
        names = {key.data: mask for key, mask in ready}
        now = time.monotonic()
        # Channel before pipes: a worker sends on its channel only when both pipes are empty, so bytes that are in a
        # pipe now were written after it. One read each: what arrives meanwhile waits for the next turn.
        if "channel" in names:
            self._read_channel(now)
        for name in ("stdout", "stderr"):
            if name in names:
                self._read_pipe(name, now)
        if "fault" in names:
            self._read_fault(now)
        if "results" in names:
            self._read_results()
        mask = names.get("gateway", 0)
        if mask & selectors.EVENT_WRITE:
            try:
                self._outbox.flush()
            except OSError:
                raise _Gone from None
        if mask & selectors.EVENT_READ:
            self._read_gateway()
        if self._loads:
            self._load_worker()
        self._timers(now)

    def _timeout(self, now: float) -> float:
        if self._loads:
            return 0.0
        wake = now + (_MEMORY_EVERY_S if self._is_running else _IDLE_LOOK_S)
        if (due := self._batcher.due_s) is not None:
            wake = min(wake, due)
        if not self._is_reading and self._flood_until_s > now:
            wake = min(wake, self._flood_until_s)
        if self._resting:
            wake = min(wake, self._rest_until_s)
        return max(0.0, wake - now)

    def _timers(self, now: float) -> None:
        due = self._batcher.due_s
        if due is not None and now >= due:
            self._emit_output(self._batcher.take(now))
        if self._resting and now >= self._rest_until_s:
            self._end_rest()
        if now >= self._next_memory_s:
            self._next_memory_s = now + _MEMORY_EVERY_S
            if (verdict := self._memory.look()) is not None:
                self._verdict = ("lost", verdict)
                raise _Gone
            if self._worker.process.poll() is not None:
                raise _Gone
        if not self._is_ready and now - self._began_s > _START_S:
            self._verdict = ("lost", f"the worker did not start within {_START_S:.0f} s")
            raise _Gone
        if self._interrupted_s is not None and not self._has_asked_where:
            if now - self._interrupted_s >= self._spec.interrupt_patience_s:
                self._has_asked_where = True
                self._fault_text = ""
                self._signal_worker(signal.SIGUSR1)
        wanted = self._outbox.waiting_bytes < _BACKLOG_BYTES and now >= self._flood_until_s
        if wanted != self._is_reading:
            self._watch_worker(wanted)

    def _read_results(self) -> None:
        source = self._exchange.source
        try:
            count = self._exchange.receive()
        except ProtocolError as error:
            self._verdict = ("lost", f"the worker broke the protocol and was ended: {error}")
            raise _Gone from None
        if source is not None and count == 0:
            self._selector.unregister(source)

    def _end_results(self) -> None:
        """The pipe is not watched any more: it has been closed, or ``Written`` says the rest."""
        source = self._exchange.source
        if source is not None and source in self._selector.get_map():
            self._selector.unregister(source)

    # ── the worker ──

    def _read_channel(self, now: float) -> None:
        room = self._worker_splitter.room
        try:
            if room is not None:
                data = room[: self._worker.channel.recv_into(room)]
            else:
                size = _READ_BYTES if self._messages < _FREE_MESSAGES else _FLOOD_READ_BYTES
                data = self._buffer[: self._worker.channel.recv_into(self._buffer, size)]
        except BlockingIOError:
            return
        except OSError:
            data = self._buffer[:0]
        if not data:
            self._has_left = True
            raise _Gone
        try:
            if room is None:
                frames: Iterable[framing.Buffer] = self._worker_splitter.split(data)
            else:
                whole = self._worker_splitter.filled(data.nbytes)
                frames = () if whole is None else (whole,)
            for frame in frames:
                message = self._from_worker.decode(frame)
                if message is not None:
                    self._handle(message, now)
        except ProtocolError as error:
            self._verdict = ("lost", f"the worker broke the protocol and was ended: {str(error)[:300]}")
            raise _Gone from None

    def _handle(self, message: framing.Message[m.FromWorker], now: float) -> None:
        body, buffers = message.body, message.buffers
        if not self._is_ready:
            if not isinstance(body, m.Ready):
                raise ProtocolError(f"the first message is Ready, got {type(body).__name__}")
            self._is_ready = True
            self._pid = self._worker.pid
            self._send(m.HostReady(body.python, (now - self._began_s) * 1000))
            return
        if isinstance(body, m.Drain):
            # Not read here: the ring may be stale, and what is in a pipe now may come after a message behind it. The
            # next look at everything that is ready puts them in order.
            self._drained_s = now
            self._end_rest()
            return
        self._messages += 1
        if self._messages > _FREE_MESSAGES:
            self._flood_until_s = max(now, self._flood_until_s) + 1 / _FLOOD_MESSAGES_PER_S
        self._emit_output(self._batcher.take(now))
        match body:
            case m.Ready():
                raise ProtocolError("Ready came twice")
            case m.Ended():
                self._ended(body, now)
            case m.Unheard():
                if self._is_running and self._interrupted_s is not None:
                    self._signal_worker(signal.SIGINT)
            case m.Display(mimes=mimes) | m.Result(mimes=mimes):
                if len(buffers) != len(mimes) + 1:
                    raise ProtocolError(f"a bundle of {len(mimes)} types has {len(buffers)} buffers")
                self._emit(body, buffers)
            case m.Error():
                if len(buffers) != 3:
                    raise ProtocolError(f"an Error has 3 buffers, got {len(buffers)}")
                self._emit(body, buffers)
            case t.Returned():
                told, loads = self._exchange.returned(body, buffers)
                self._emit(told, buffers)
                self._loads.append(loads)
                self._load_worker()
                if self._exchange.source is not None:
                    self._selector.register(self._exchange.source, selectors.EVENT_READ, "results")
            case t.Written():
                self._end_results()
                self._exchange.written()
            case m.ClearOutput() | t.Want() | t.Bound() | t.Names() | t.InputRequest() | s.Step() | s.Failed():
                self._emit(body, ())
            case s.Turn(is_wanted=is_wanted):
                if self._is_running:
                    self._send(s.TurnAsked(self._execution, is_wanted))
            case _:
                assert_never(body)

    def _ended(self, body: m.Ended, now: float) -> None:
        if not self._is_running:
            raise ProtocolError("Ended came while nothing ran")
        self._end_results()
        self._exchange.close()  # it may have been interrupted while it wrote them
        self._emit_output(self._batcher.finish(now))
        if self._interrupted_s is not None:
            for _ in range(_KILL_ROUNDS):  # one that forks while it is listed is found in the next round
                processes.send_signal(self._started_by_cell(), signal.SIGKILL)
        self._is_running = False
        self._interrupted_s = None
        if body.poison:  # before Finished: no later cell may slip into this worker
            self._send(m.Replace(body.poison))
        self._emit(m.Finished(body.status, max(0.0, body.elapsed_ms), exit_code=body.exit_code))
        self._old_processes = processes.started_by(self._pid) if self._pid else set()

    def _started_by_cell(self) -> list[int]:
        """The running cell's processes: they end with it when it is interrupted, those of earlier cells stay."""
        return [
            pid
            for pid in self._worker.below()
            if pid != self._pid
            and pid not in self._old_processes
            and processes.started_ticks(pid) >= self._run_ticks  # a process id may be used again
        ]

    def _read_pipe(self, name: StreamName, now: float) -> None:
        descriptor = self._worker.stdout if name == "stdout" else self._worker.stderr
        try:
            data = bytes(self._buffer[: os.readv(descriptor, [self._buffer])])
        except BlockingIOError:
            return
        if not data:  # every writer has closed it; the channel says the rest
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
            return
        if now - self._drained_s > _PIPE_PAUSE_S and descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)
            self._resting[descriptor] = name
            self._rest_until_s = now + _PIPE_PAUSE_S
        if not self._execution:  # what the interpreter says while it starts is nobody's cell
            if not self._is_ready and name == "stderr":
                self._startup_text = (self._startup_text + data)[-_STARTUP_BYTES:]
            return
        self._batcher.feed(name, data)
        self._stream_bytes += len(data)
        if self._stream_bytes > _FREE_BYTES:
            self._flood_until_s = max(now, self._flood_until_s) + len(data) / _FLOOD_BYTES_PER_S

    def _end_rest(self) -> None:
        for descriptor, name in self._resting.items():
            self._selector.register(descriptor, selectors.EVENT_READ, name)
        self._resting.clear()

    def _emit_output(self, parts: list[tuple[StreamName, bytes]]) -> None:
        for name, text in parts:
            self._emit(m.Stream(name, not self._is_running), (text,))

    def _read_fault(self, now: float) -> None:
        try:
            data = os.read(self._worker.fault, 16 * 1024)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(self._worker.fault)
            return
        self._fault_text = (self._fault_text + data.decode("utf-8", "replace"))[: 32 * 1024]
        if self._interrupted_s is not None and self._is_running and (place := where(self._fault_text)):
            self._emit(m.Stuck(now - self._interrupted_s, place))
            self._fault_text = ""

    # ── the gateway ──

    def _read_gateway(self) -> None:
        try:
            data = self._buffer[: self._gateway.recv_into(self._buffer)]
        except BlockingIOError:
            return
        except OSError:
            raise _Gone from None
        if not data:
            raise _Gone
        for frame in self._gateway_splitter.feed(data):
            message = self._from_gateway.decode(frame)
            if message is not None:
                self._obey(message)

    def _obey(self, message: framing.Message[m.ToHost]) -> None:
        match message.body:
            case m.Run(execution_id=execution_id) | s.RunProgram(execution_id=execution_id):
                # What earlier cells' threads wrote is theirs: send it before the name changes.
                self._emit_output(self._batcher.restart())
                self._end_rest()
                self._execution = execution_id
                self._is_running = True
                self._has_begun = False
                self._run_ticks = processes.now_ticks()
                self._stream_bytes = self._messages = 0
                self._has_asked_where = False
                if isinstance(message.body, s.RunProgram) or len(message.buffers) == 1:  # nothing goes with it
                    self._has_begun = True
                    self._to_worker(framing.pack(framing.encode(message.body, message.buffers)))
                else:
                    self._loads.append(self._exchange.run(message.body, message.buffers))
                    self._load_worker()
            case m.Deliver(execution_id=execution_id):
                if self._is_running and execution_id == self._execution:
                    self._loads.append(self._exchange.deliver(message.body, message.buffers))
            case t.InputReply(execution_id=execution_id) | s.TurnGranted(execution_id=execution_id):
                if self._is_running and execution_id == self._execution:
                    self._to_worker(framing.pack(framing.encode(message.body, message.buffers)))
            case m.Stop(execution_id=execution_id, kill=kill):
                if self._is_running and execution_id == self._execution:
                    self._stop(kill)
            case m.Shutdown():
                raise _Gone
            case _:
                assert_never(message.body)

    def _stop(self, kill: bool) -> None:
        if kill:
            self._verdict = ("lost", "the worker was killed as asked")
            raise _Gone
        if self._loads:  # the body has not begun, or waits for what is on its way: what came of it is not used
            self._loads.clear()
            if not self._has_begun:
                self._is_running = False
                self._emit(m.Finished("interrupted"))
                return
        if self._interrupted_s is None:
            self._interrupted_s = time.monotonic()
        processes.send_signal(self._started_by_cell(), signal.SIGINT)
        self._signal_worker(signal.SIGINT)

    def _signal_worker(self, number: signal.Signals) -> None:
        if self._pid is not None:
            processes.send_signal([self._pid], number)

    def _load_worker(self) -> None:
        try:
            data, descriptors = next(self._loads[0])
        except StopIteration:
            self._loads.popleft()
            self._has_begun = True
            return
        self._to_worker(data, descriptors)
        if not descriptors and len(data) < framing.MAX_CHUNK_BYTES:
            self._load_worker()  # small pieces at once: most bodies are one

    def _to_worker(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        channel = self._worker.channel
        channel.setblocking(True)  # the worker is idle: it reads at once
        channel.settimeout(_SEND_S)
        try:
            if descriptors:
                sent = socket.send_fds(channel, [data], descriptors)
                data = data[sent:]
            channel.sendall(data)
        except OSError:
            self._verdict = ("lost", f"the worker does not take what it is sent within {_SEND_S:g} s and was ended")
            raise _Gone from None
        finally:
            channel.setblocking(False)

    def _emit(self, body: m.EventBody, buffers: tuple[framing.Buffer, ...] = ()) -> None:
        if self._execution:
            self._send(m.Emit(self._execution, body), buffers)

    def _send(self, body: object, buffers: tuple[framing.Buffer, ...] = ()) -> None:
        try:
            self._outbox.send(framing.pack(framing.encode(body, buffers)))
        except OSError:
            raise _Gone from None

    # ── the end ──

    def _last_words(self) -> None:
        """Send what the dead worker still had in its pipes, and why it is dead."""
        worker = self._worker
        try:
            worker.process.wait(_DEATH_S)
        except subprocess.TimeoutExpired:
            self._verdict = ("lost", "the worker was killed but does not end: it hangs in the kernel, say in a driver")
        try:
            for name, descriptor in (("stdout", worker.stdout), ("stderr", worker.stderr)):
                self._drain(name, descriptor)  # type: ignore[arg-type]  # the literals above
            self._emit_output(self._batcher.finish(time.monotonic()))
            self._drain_fault()
            if not self._is_ready:
                self._drain_startup()
            code, message = self._verdict or ("lost", self._cause())
            self._send(m.Gone(code, message))
            self._outbox.finish(_DEATH_S)
        except (_Gone, OSError):  # the gateway has gone too: nobody is left to tell
            pass

    def _drain(self, name: StreamName, descriptor: int) -> None:
        left = 4 * 1024 * 1024
        while self._execution and left > 0:
            try:
                data = os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                return
            left -= len(data)
            self._batcher.feed(name, data)

    def _drain_startup(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._worker.stderr, _READ_BYTES):
                self._startup_text = (self._startup_text + data)[-_STARTUP_BYTES:]

    def _drain_fault(self) -> None:
        try:
            self._fault_text += os.read(self._worker.fault, 16 * 1024).decode("utf-8", "replace")
        except BlockingIOError:
            pass

    def _cause(self) -> str:
        cgroup = self._worker.cgroup
        if cgroup is not None and cgroup.was_out_of_memory:
            limit = self._spec.limits.memory_bytes / 2**30
            return f"the worker used more than its limit of {limit:.2f} GiB of memory: the system ended it"
        code = self._worker.process.returncode or 0
        return cause(
            code, self._fault_text, is_ready=self._is_ready, said=self._startup_text.decode("utf-8", "replace")
        )


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Gone


def main(spec_json: bytes) -> None:
    """Be the host of a ``HostSpec``: dial the gateway, serve."""
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the gateway's terminal is the gateway's to handle
    spec = msgspec.json.decode(spec_json, type=HostSpec)
    gateway = socket.socket(socket.AF_UNIX)
    try:
        gateway.connect(spec.socket)
        gateway.sendall(framing.pack(framing.encode(m.HostHello(spec.ticket))))
    except OSError:  # the gateway has gone meanwhile
        return
    try:
        host = Host(spec, gateway)
    except _Gone:
        return
    except (KCoralError, OSError) as error:
        gateway.sendall(framing.pack(framing.encode(m.Gone("no_sandbox", f"the worker did not start: {error}"))))
        return
    host.serve()
