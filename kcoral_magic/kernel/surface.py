"""Where a cell's outputs go: an ipykernel's iopub socket, or a terminal.

ipykernel's own stdout collects text for 0.2 s and keeps the two streams apart, which loses their order; stream
messages are therefore sent directly, with the parent of the cell that asked. Whoever redirected ``sys.stdout``
(``%%capture``, ``redirect_stdout``) gets the text written there instead.
"""

from __future__ import annotations

import getpass
import secrets
import sys
from typing import Any, Protocol

from kcoral_magic.display import html


class Surface(Protocol):
    """A place to show things in."""

    def stream(self, name: str, text: str) -> None:
        """Append text to stdout or stderr."""

    def stream_late(self, name: str, text: str) -> None:
        """Append text after the cell has ended, from any thread."""

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str | None, update: bool) -> None:
        """Show a MIME bundle."""

    def result(self, data: dict[str, Any], metadata: dict[str, Any], count: int) -> None:
        """Show the value of the last expression."""

    def clear(self, wait: bool) -> None:
        """Clear the cell's output."""

    def status(self, text: str) -> None:
        """Show one live line; empty text takes it away."""

    def settle(self, text: str) -> None:
        """Leave ``text`` behind, in the live line's place if one is shown."""

    def note(self, text: str) -> None:
        """A line of ours beside the cell's output."""

    def ask(self, prompt: str, *, is_password: bool) -> str:
        """A line from the person.

        Raises:
            StdinNotImplementedError: Nobody can be asked.
            KeyboardInterrupt: They pressed stop instead.
        """

    @property
    def takes_input(self) -> bool:
        """Whether somebody can be asked."""

    @property
    def renders_moves(self) -> bool:
        """Whether carriage returns and cursor moves are rendered by whatever shows the text."""


class NotebookSurface:
    """The current cell of an ipykernel."""

    renders_moves = False

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._is_alone = _is_top_level(shell)
        self._has_output = False
        self._status_id = ""
        streams: dict[str, Any] = {"stdout": sys.stdout, "stderr": sys.stderr}
        if not self._is_alone:  # what the cell has printed before comes first; a flush waits for ipykernel's thread
            for stream in streams.values():
                stream.flush()
        self._late: dict[str, tuple[Any, dict[str, Any]]] = {
            name: (stream, stream.parent_header) for name, stream in streams.items() if hasattr(stream, "pub_thread")
        }

    def stream(self, name: str, text: str) -> None:
        """Append text."""
        self._has_output = True
        stream = sys.stdout if name == "stdout" else sys.stderr
        if name not in self._late or self._late[name][0] is not stream:
            stream.write(text)
            return
        self.stream_late(name, text)

    def stream_late(self, name: str, text: str) -> None:
        """Append text to this cell, also after it has ended and from any thread."""
        if name not in self._late:
            return
        stream, parent = self._late[name]
        stream.session.send(
            stream.pub_thread, "stream", content={"name": name, "text": text}, parent=parent, ident=stream.topic
        )

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str | None, update: bool) -> None:
        """Show a bundle."""
        self._has_output = True
        transient = {"display_id": display_id} if display_id else {}
        self._shell.display_pub.publish(data, metadata, transient=transient, update=update)

    def result(self, data: dict[str, Any], metadata: dict[str, Any], count: int) -> None:
        """Show the value: as execute_result, which is what front ends and nbclient expect of a cell's value."""
        self._has_output = True
        hook = self._shell.displayhook
        publisher = self._shell.display_pub
        if not hasattr(hook, "pub_socket") or not hasattr(publisher, "pub_socket"):  # captured: it collects bundles
            publisher.publish(data, metadata)
            return
        hook.session.send(
            hook.pub_socket,
            "execute_result",
            content={"execution_count": count, "data": data, "metadata": metadata},
            parent=hook.parent_header,
            ident=hook.topic,
        )

    def clear(self, wait: bool) -> None:
        """Clear the cell."""
        self._shell.display_pub.clear_output(wait)
        self._status_id = ""

    def status(self, text: str) -> None:
        """A display that is updated in place; while the cell has no other output, it leaves nothing behind."""
        if not text and not self._status_id:
            return
        bundle = {"text/plain": text}
        if not self._status_id:
            self._status_id = secrets.token_hex(8)
            self._shell.display_pub.publish(bundle, {}, transient={"display_id": self._status_id})
        elif text or self._has_output or not self._is_alone:
            self._shell.display_pub.publish(bundle, {}, transient={"display_id": self._status_id}, update=True)
        else:
            self._shell.display_pub.clear_output()
            self._status_id = ""

    def settle(self, text: str) -> None:
        """The live line becomes a line of the output."""
        if self._status_id:
            bundle = {"text/plain": text}
            self._shell.display_pub.publish(bundle, {}, transient={"display_id": self._status_id}, update=True)
            self._status_id = ""
        else:
            self.stream("stdout", f"\n{text}\n")

    def note(self, text: str) -> None:
        """Small and grey, below what was shown so far."""
        self._has_output = True
        bundle = {"text/plain": f"kcoral: {text}", "text/html": html.note(text)}
        self._shell.display_pub.publish(bundle, {})

    def ask(self, prompt: str, *, is_password: bool) -> str:
        """As ``input()`` in a local cell."""
        kernel = self._shell.kernel
        self._has_output = True
        return str(kernel.getpass(prompt) if is_password else kernel.raw_input(prompt))

    @property
    def takes_input(self) -> bool:
        """What the front end said of this cell."""
        return bool(getattr(self._shell.kernel, "_allow_stdin", False))


def _is_top_level(shell: Any) -> bool:
    """Whether the whole cell is ours: only then may the status line be cleared with everything else."""
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    code = parent.get("content", {}).get("code", "") if isinstance(parent, dict) else ""
    return str(code).lstrip().startswith("%%kcoral")


class TerminalSurface:
    """A terminal, or a plain file."""

    renders_moves = True

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._status = ""

    def stream(self, name: str, text: str) -> None:
        """Write and flush."""
        self.status("")
        stream = sys.stdout if name == "stdout" else sys.stderr
        stream.write(text)
        stream.flush()

    def stream_late(self, name: str, text: str) -> None:
        """The same: a terminal has one place."""
        self.stream(name, text)

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str | None, update: bool) -> None:
        """Through IPython's publisher, which prints text."""
        self.status("")
        transient = {"display_id": display_id} if display_id else {}
        self._shell.display_pub.publish(data, metadata, transient=transient, update=update)

    def result(self, data: dict[str, Any], metadata: dict[str, Any], count: int) -> None:
        """As IPython prints a value."""
        self.status("")
        if hasattr(self._shell.display_pub, "outputs"):  # %%capture
            self._shell.display_pub.publish(data, metadata)
            return
        text = str(data.get("text/plain", ""))
        print(f"Out[{count}]: " + ("\n" if "\n" in text else "") + text)

    def clear(self, wait: bool) -> None:
        """As IPython does in a terminal: back to the start of the line, and erase it."""
        sys.stdout.write("\r\x1b[2K")
        sys.stdout.flush()

    def status(self, text: str) -> None:
        """One line on stderr, rewritten in place; nothing where stderr is no terminal."""
        if text == self._status or not sys.stderr.isatty():
            return
        self._status = text
        sys.stderr.write(f"\r\x1b[2K{text}")
        sys.stderr.flush()

    def settle(self, text: str) -> None:
        """A line of its own."""
        self.stream("stdout", f"\n{text}\n")

    def note(self, text: str) -> None:
        """A line on stderr."""
        self.stream("stderr", f"kcoral: {text}\n")

    def ask(self, prompt: str, *, is_password: bool) -> str:
        """As ``input()`` and ``getpass``."""
        self.status("")
        return getpass.getpass(prompt) if is_password else input(prompt)

    @property
    def takes_input(self) -> bool:
        """Whether a person is there."""
        return bool(sys.stdin is not None and sys.stdin.isatty())


def surface_for(shell: Any) -> Surface:
    """The surface of the cell that is running now."""
    return NotebookSurface(shell) if hasattr(shell, "kernel") else TerminalSurface(shell)
