"""From an execution's outputs to the cell that asked.

Waiting shows one live line after ``quiet_s``, gone when output starts; what was cut, lost or replaced leaves a line;
everything else is the cell's own output and looks as if it had run here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, assert_never

from kcoral_magic.client.results import Output, Progress, Reconnected, Reconnecting, skipped_text
from kcoral_magic.display import html, mime
from kcoral_magic.display.terminal import Live, Plain, Screen
from kcoral_magic.errors import ProtocolError
from kcoral_magic.kernel.surface import Surface
from kcoral_magic.protocol import bundle, steps
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t


class Relay:
    """One execution's way into one cell."""

    def __init__(
        self,
        surface: Surface,
        *,
        prefix: str,
        is_trusted: bool,
        is_quiet: bool = False,
        quiet_s: float = 2.0,
        says: Callable[[tuple[t.BoundName, ...]], list[str]] | None = None,
    ) -> None:
        self._says = says  # what was sent, kept or missing, in lines for people
        self._surface = surface
        self._prefix = prefix  # of display ids, so that two sessions' ids stay apart and later cells find them
        self._is_trusted = is_trusted
        self._is_quiet = is_quiet
        self._quiet_s = quiet_s
        self._began_s = time.monotonic()
        self._waiting = "connecting"
        self._skipped = (0, 0)
        self._screens = {"stdout": Screen(), "stderr": Screen()}
        self._live_ids: dict[str, str] = {}
        self._live_count = 0
        self.is_stuck = False
        self.is_away = False

    def tick(self) -> float | None:
        """Show the waiting line when it is due; when to call again (seconds), if ever."""
        if not self._waiting or self._is_quiet:
            return None
        left = self._began_s + self._quiet_s - time.monotonic()
        if left > 0:
            return left
        waited = html.duration(time.monotonic() - self._began_s)
        self._surface.status(f"kcoral: {self._waiting} · {waited}")
        return 1.0

    def publish(self, output: Output) -> None:
        """Show the next output."""
        body = output.body
        match body:
            case m.Queued(ahead=ahead, gpu_count=count, principals=principals):
                whose = f" ({', '.join(principals)})" if principals else ""
                self._wait(
                    f"queued: {ahead} ahead{whose}"
                    if ahead
                    else f"queued: next, waiting for {_gpus(count) if count else 'a worker'}"
                )
            case m.Behind(ahead=ahead):
                self._wait(f"behind {ahead} earlier cell{'s' if ahead != 1 else ''} of this session")
            case m.Placed(gpus=gpus):
                self._placed(gpus)
            case m.Starting():
                self._wait(f"starting a worker{self._where()}")
            case m.Started():
                self._wait(f"running{self._where()}")
            case m.Notice(text=text):
                self._say(text)
            case m.Stream(name=name, is_late=is_late):
                self._stream(name, output.text, is_late)
            case m.Display(mimes=mimes, display_id=display_id, is_update=is_update):
                self._output_begins()
                shown_id = None if display_id is None else f"{self._prefix}{display_id}"
                self._surface.display(*self._bundle(mimes, output), shown_id, is_update)
            case m.Result(mimes=mimes, count=count):
                self._output_begins()
                self._surface.result(*self._bundle(mimes, output), count)
            case m.ClearOutput(wait=wait):
                self._output_begins()
                self._screens = {"stdout": Screen(), "stderr": Screen()}
                self._surface.clear(wait)
            case m.Stuck(where=where):
                self.is_stuck = True
                self._say(
                    f"the cell has not ended on the interrupt: it is at {where}, inside native code or going on after "
                    "it caught it. Stop again to kill its worker; the session's state is then lost"
                )
            case m.Skip(stream_bytes=stream_bytes, lines=lines):
                self._skipped = (self._skipped[0] + stream_bytes, self._skipped[1] + lines)
                if not self._is_quiet:
                    self._surface.status(f"kcoral: {html.size(self._skipped[0])} more so far, not shown")
            case Reconnecting(lost_s=lost_s, error=error):
                self.is_away = True
                if not self._is_quiet:
                    ago = f" for {html.duration(lost_s)}" if lost_s >= 1 else ""
                    self._surface.status(f"kcoral: no connection{ago}; the cell goes on, trying again ({error})")
            case Reconnected(lost_s=lost_s):
                self.is_away = False
                if not self._is_quiet:
                    self._surface.settle(f"[kcoral: the connection was away for {html.duration(lost_s)}]")
            case Progress(what=what, done=done, size=size):
                self._wait(f"{what} {html.bar(done, size)} {html.size(done)} of {html.size(size)}", is_anew=True)
            case t.Bound(names=names):
                self._bound(names)
            case m.CaughtUp() | t.Want() | t.Returned() | t.Names() | t.InputRequest() | steps.Step() | steps.Failed():
                pass
            case m.Error() | m.Finished():
                self._output_begins()
            case _:
                assert_never(body)

    def finish(self) -> None:
        """The execution has ended: nothing of ours stays on screen."""
        self._waiting = ""
        for name, screen in self._screens.items():
            self._show(name, screen.flush())
        self._tell_skipped()
        self._surface.status("")

    def _wait(self, text: str, *, is_anew: bool = False) -> None:
        if is_anew and not self._waiting:  # values come after the output
            self._began_s = time.monotonic()
        self._waiting = text
        self.tick()

    def _bound(self, names: tuple[t.BoundName, ...]) -> None:
        if self._is_quiet or self._says is None:
            return
        self._output_begins()
        for line in self._says(names):
            self._surface.note(line)

    def _placed(self, gpus: tuple[m.Gpu, ...]) -> None:
        self._gpus = gpus
        self._wait(f"placed{self._where()}")

    _gpus: tuple[m.Gpu, ...] = ()

    def _where(self) -> str:
        if not self._gpus:
            return ""
        name = self._gpus[0].name
        return f" on {_gpus(len(self._gpus))} ({name})"

    def _output_begins(self) -> None:
        if self._waiting:
            self._waiting = ""
            self._surface.status("")
        self._tell_skipped()

    def _tell_skipped(self) -> None:
        skipped, self._skipped = self._skipped, (0, 0)
        if skipped[0]:
            self._surface.settle(skipped_text(*skipped))

    def _say(self, text: str) -> None:
        self._output_begins()
        self._surface.stream("stderr", f"kcoral: {text}\n")

    def _stream(self, name: str, text: str, is_late: bool) -> None:
        if is_late:
            self._surface.stream_late(name, text)
            return
        self._output_begins()
        if self._surface.renders_moves:
            self._surface.stream(name, text)
            return
        self._show(name, self._screens[name].feed(text))

    def _show(self, name: str, pieces: list[Plain | Live]) -> None:
        for piece in pieces:
            match piece:
                case Plain(text=plain):
                    self._surface.stream(name, plain)
                case Live(text=shown, is_new=is_new):
                    if is_new:
                        self._live_count += 1
                        self._live_ids[name] = f"{self._prefix}live-{self._live_count}"
                    self._surface.display({"text/plain": shown}, {}, self._live_ids[name], not is_new)
                case _:
                    assert_never(piece)

    def _bundle(self, mimes: tuple[str, ...], output: Output) -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            data, metadata = bundle.unpack(mimes, output.buffers)
        except ProtocolError as error:  # the worker is hostile until checked; its cell shows what it sent
            return {"text/plain": f"[a malformed display: {error}]"}, {}
        return mime.admit(data, metadata, is_trusted=self._is_trusted)


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' if count != 1 else ''}"
