"""``input()`` and its kin in a body: the question goes to the notebook, the answer comes back.

Where the front end takes no questions (papermill, an agent), they raise at once what a kernel raises there.
"""

from __future__ import annotations

import builtins
import getpass
import io
import sys

from IPython.core.error import StdinNotImplementedError

from kcoral_gateway.worker.inbox import Inbox
from kcoral_gateway.worker.output import Output
from kcoral_magic.protocol import transfers as t

_PROMPT_CHARS = 4000


class Stdin(io.TextIOBase):
    """``sys.stdin`` of the worker; ``pdb`` and ``%debug`` ask through ``input``."""

    def __init__(self, output: Output, inbox: Inbox) -> None:
        super().__init__()
        self._output = output
        self._inbox = inbox
        self.is_allowed = False

    def install(self) -> None:
        """Become what asks."""
        builtins.input = self.input
        getpass.getpass = self.getpass
        sys.stdin = self

    def input(self, prompt: object = "", /) -> str:
        """As the built-in."""
        return self._ask(str(prompt), is_password=False)

    def getpass(self, prompt: str = "Password: ", stream: object = None, *, echo_char: str | None = None) -> str:
        """As ``getpass.getpass``."""
        return self._ask(prompt, is_password=True)

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]  # typeshed: int only
        """A line, as a terminal gives it."""
        return self._ask("", is_password=False) + "\n"

    def readable(self) -> bool:
        """It can be read from, by lines."""
        return True

    def isatty(self) -> bool:
        """Not a terminal, as in a notebook."""
        return False

    # ── bytes, for a tool's standard input: the same question, answered by the next piece ──

    def ask_piece(self) -> None:
        """Ask for the next piece."""
        self._output.send(t.InputRequest(""))

    def has_piece(self, timeout_s: float | None, *others: int) -> bool:
        """Wait for an answer, ``timeout_s`` or one of the descriptors ``others``; whether it is an answer."""
        return self._inbox.wait(timeout_s, *others)

    def piece(self) -> bytes | None:
        """The answer; ``None`` at the end of the input. What is no answer is passed over."""
        message = self._inbox.next()
        while not isinstance(message.body, t.InputReply):
            message = self._inbox.next()
        return None if message.body.is_refused else bytes(message.buffers[0])

    def _ask(self, prompt: str, *, is_password: bool) -> str:
        if not self.is_allowed or not self._output.is_owner:
            raise StdinNotImplementedError("input() was called, but this front end takes no input: say it in the cell")
        self._output.send(t.InputRequest(prompt[:_PROMPT_CHARS], is_password))
        while True:
            message = self._inbox.next()
            if not isinstance(message.body, t.InputReply):
                continue  # of a body that was interrupted before
            if message.body.is_refused:
                raise StdinNotImplementedError(
                    "nobody answered: the notebook has gone, or its front end takes no input"
                )
            return bytes(message.buffers[0]).decode("utf-8", "replace")
