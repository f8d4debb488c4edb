"""The kernel's side of the connection: one client, which cell waits for which execution, and the stop button.

While a cell waits, SIGINT is ours: it must not land in the middle of publishing an output. A press becomes an entry
of the queue the cell waits on; the first interrupts the remote cell, and once that is stuck in native code the second
kills its worker.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import re
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from logging import getLogger
from typing import Any

from kcoral_magic.client.results import Output, Progress, Result
from kcoral_magic.client.sync import Client, Execution
from kcoral_magic.config import Target
from kcoral_magic.errors import KCoralError
from kcoral_magic.kernel.relay import Relay
from kcoral_magic.kernel.surface import Surface
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t

_log = getLogger(__name__)
_LOOK_S = 1.0  # the longest wait between two looks at the clock
_PATIENT_PRESSES = 2  # without a connection: the first is passed on when it is back, the next leaves the cell alone


class Proxy:
    """The connection of one kernel."""

    def __init__(self) -> None:
        self._client: Client | None = None
        self._client_id = kernel_id()
        self.last_execution_id = ""
        atexit.register(self.close)

    @property
    def is_connected(self) -> bool:
        """Whether there is a client with a path to its gateway."""
        return self._client is not None and self._client.aio.is_connected

    def client(self, target: Callable[[], Target]) -> Client:
        """The client, made for ``target`` when there is none."""
        if self._client is None:
            self._client = Client(target=target(), client_id=self._client_id)
        return self._client

    @property
    def current(self) -> Client | None:
        """The client, if there is one."""
        return self._client

    def id_of(self, session: str) -> str:
        """What tells this kernel's sessions apart from others'."""
        return session or self._client_id[-12:]

    def close(self) -> None:
        """End the kernel's own session and the connection."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(KCoralError, RuntimeError):  # it may have gone; nothing is left to do here
                client.close()

    def leave(self) -> None:
        """End the connection; sessions stay."""
        client, self._client = self._client, None
        if client is not None:
            client.disconnect()

    def run(
        self,
        execution: Execution,
        relay: Relay,
        surface: Surface,
    ) -> Result:
        """Wait for an execution and relay it.

        Raises:
            Exception: What the cell raised, or why it was lost.
        """
        self.last_execution_id = execution.execution_id
        with StopButton(lambda: execution.outputs.put(_PRESS)) as button:
            self._relay(execution, relay, surface, button)
        relay.finish()
        execution.on_late(lambda output: _late(surface, output))
        error = execution.exception()
        if error is not None:
            raise error
        return execution.collected()

    def _ask(self, execution: Execution, request: t.InputRequest, surface: Surface, button: StopButton) -> None:
        """Have the person answer; the stop button is the front end's meanwhile."""
        try:
            with button.released():
                text = surface.ask(request.prompt, is_password=request.is_password)
        except KeyboardInterrupt:
            execution.interrupt()
            return
        except Exception as error:  # noqa: BLE001 - a front end without stdin, or one that went away
            _log.info("no answer", exc_info=error)
            text = None
        execution.answer(text)

    def _relay(self, execution: Execution, relay: Relay, surface: Surface, button: StopButton) -> None:
        away_presses = 0
        while True:
            try:
                output = execution.outputs.get(timeout=min(relay.tick() or _LOOK_S, _LOOK_S))
            except queue.Empty:
                execution.check_sent()
                continue
            if output is _PRESS:
                away_presses += relay.is_away
                if away_presses >= _PATIENT_PRESSES:
                    raise KeyboardInterrupt(
                        f"left while there was no connection: the cell may go on there, "
                        f"%kcoral output {execution.execution_id} shows it later"
                    )
                execution.interrupt(kill=relay.is_stuck)
                continue
            if isinstance(output.body, Progress):
                execution.check_sent()
                if not output.body.size:
                    continue
            if isinstance(output.body, t.InputRequest):
                self._ask(execution, output.body, surface, button)
                continue
            execution.take(output)
            relay.publish(output)
            if isinstance(output.body, m.Finished):
                return


_PRESS = Output(-1, m.Starting())


def _late(surface: Surface, output: Output) -> None:
    """What a thread of the cell prints after it has ended goes to that cell."""
    if isinstance(output.body, m.Stream):
        surface.stream_late(output.body.name, output.text)


class StopButton:
    """SIGINT calls ``press`` meanwhile. Off the main thread there is no SIGINT to catch."""

    def __init__(self, press: Callable[[], object]) -> None:
        self._press = press
        self._former: Any = None
        self._is_ours = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> StopButton:
        if self._is_ours:
            self._former = signal.signal(signal.SIGINT, lambda number, frame: self._press())
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_ours:
            signal.signal(signal.SIGINT, self._former)

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Inside, SIGINT is as it was before."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()


def kernel_id() -> str:
    """Stable over a notebook's kernel restarts (Jupyter keeps the connection file), fresh elsewhere."""
    try:
        if "ipykernel" not in sys.modules:  # importing it would load ZeroMQ into a plain terminal
            return secrets.token_hex(8)
        from ipykernel.connect import get_connection_file

        name = re.sub(r"[^A-Za-z0-9_-]", "-", str(get_connection_file()).replace("\\", "/").rpartition("/")[2])
        return name.removesuffix("-json")[-64:].rjust(8, "k")
    except (ImportError, RuntimeError):
        return secrets.token_hex(8)
