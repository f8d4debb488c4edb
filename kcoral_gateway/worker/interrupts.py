"""When SIGINT raises KeyboardInterrupt: while a body runs, and never in the middle of a message.

Python looks at signals between the parts of a ``sendall``: a KeyboardInterrupt there would leave half a message on the
channel, and the host would rightly end a worker that sends one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import FrameType


class Interrupts:
    """The worker's SIGINT handler."""

    def __init__(self) -> None:
        self.is_running = False
        self._held = 0
        self._is_pending = False
        self._is_unheard = False

    def begin(self) -> bool:
        """A body begins; whether an interrupt came since the last one ended. It may have been meant for this one: the
        host signals what it has sent, and this worker may have read its message only now."""
        self.is_running = True
        was, self._is_unheard = self._is_unheard, False
        return was

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Python calls it in the main thread."""
        if not self.is_running:
            self._is_unheard = True
            return
        if self._held:
            self._is_pending = True
        else:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside, an interrupt waits; it is raised on the way out. Other threads are never interrupted anyway."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if not self._held and self._is_pending:
                self._is_pending = False
                if self.is_running:
                    raise KeyboardInterrupt
