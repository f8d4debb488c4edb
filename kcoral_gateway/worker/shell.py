"""IPython's own InteractiveShell without ZMQ: magics, displays, top-level await and tracebacks are the real ones.

The compiler shifts line numbers to where the body stands in its notebook (a cell's body begins below the ``%%kcoral``
line), and tracebacks show user frames only.
"""

from __future__ import annotations

import ast
import contextlib
import json
import linecache
import os
import types
from typing import Any

import IPython
from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Type

from kcoral_gateway.worker.output import Output
from kcoral_magic.protocol import bundle
from kcoral_magic.protocol import messages as m

_HIDDEN = (os.path.dirname(IPython.__file__), os.path.dirname(os.path.dirname(__file__)))
_TOOLS = tuple(os.path.join(os.path.dirname(__file__), f"{name}.py") for name in ("bench", "judge", "torch_profile"))
_FRAMES_SHOWN = 24  # at each end; facts: IPython takes seconds to format a recursion error in full
_NAME_BYTES = 500  # below the wire's limit for names
_TEXT_BYTES = 256 * 1024  # of one error's text or traceback


class _Compiler(CachingCompiler):
    """Gives every cell the line numbers it has in its notebook."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # IPython is partly annotated
        self.first_line = 1
        self._shifts: dict[str, int] = {}

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        name: str = super().cache(transformed_code, number=number, raw_code=raw_code)
        shift = self.first_line - 1
        self._shifts[name] = shift
        if shift:
            size, modified, lines, path = linecache.cache[name]  # type: ignore[misc]  # IPython fills it whole
            linecache.cache[name] = (size, modified, ["\n"] * shift + lines, path)
        return name

    def name_cell(self, file: str, count: int) -> None:
        """Code of ``file`` is shown as the notebook's cell ``count``."""
        self._filename_map[file] = count

    def ast_parse(self, source: str, filename: str = "<unknown>", symbol: str = "exec") -> ast.AST:
        shift = self._shifts.get(filename, 0)
        try:
            tree: ast.AST = super().ast_parse(source, filename, symbol)
        except SyntaxError as error:
            if error.lineno is not None:
                error.lineno += shift
            if error.end_lineno is not None:
                error.end_lineno += shift
            raise
        return ast.increment_lineno(tree, shift) if shift else tree


class _DisplayPublisher(DisplayPublisher):
    def publish(  # type: ignore[override]  # IPython's own subclasses narrow it the same way
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        output: Output = self.shell.output
        if not output.is_owner:
            print(data.get("text/plain", ""))
            return
        mimes, buffers = bundle.pack(data, metadata or {})
        display_id = (transient or {}).get("display_id")
        output.send(m.Display(mimes, None if display_id is None else str(display_id)[:_NAME_BYTES], update), buffers)

    def clear_output(self, wait: bool = False) -> None:
        if self.shell.output.is_owner:
            self.shell.output.send(m.ClearOutput(bool(wait)))


class _DisplayHook(DisplayHook):
    def write_output_prompt(self) -> None:
        """The notebook draws its own prompt."""

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        mimes, buffers = bundle.pack(format_dict, md_dict or {})
        assert self.shell is not None
        self.shell.output.send(m.Result(mimes, self.prompt_count), buffers)

    def finish_displayhook(self) -> None:
        self._is_active = False


class Shell(InteractiveShell):
    compiler_class = Type(_Compiler)
    display_pub_class = Type(_DisplayPublisher)
    displayhook_class = Type(_DisplayHook)
    output: Output
    compile: _Compiler
    has_exited = False

    def _tee(self, channel: str) -> Any:
        """IPython would keep a copy of everything printed; a flood must not fill the worker's memory."""
        return contextlib.nullcontext()

    def ask_exit(self) -> None:
        self.has_exited = True

    def enable_gui(self, gui: str | None = None) -> None:
        """There is no screen."""

    def showtraceback(  # type: ignore[no-untyped-def]  # IPython's signature, unannotated there
        self, exc_tuple=None, filename=None, tb_offset=None, exception_only=False, running_compiled_code=False
    ) -> None:
        etype, value, tb = self._get_exc_info(exc_tuple)  # type: ignore[no-untyped-call]  # IPython
        is_of_tool = any(node.tb_frame.f_code.co_filename in _TOOLS for node in _nodes(tb))
        if value is not None and (is_of_tool or not issubclass(etype, SyntaxError)):
            value.__traceback__ = tb = _user_frames(tb)
            tb_offset = 0
            running_compiled_code = running_compiled_code and not is_of_tool
            exception_only = exception_only or tb is None  # a tool said it, before or after anybody's code ran
        super().showtraceback((etype, value, tb), filename, tb_offset, exception_only, running_compiled_code)

    def show_usage_error(self, exc: BaseException) -> None:
        self._showtraceback(type(exc), exc, [f"UsageError: {exc}"])

    def _showtraceback(self, etype: type[BaseException], evalue: BaseException, stb: list[str]) -> None:
        try:
            text = str(evalue)
        except Exception as error:  # noqa: BLE001 - a user's __str__ may do anything
            text = f"<str() failed: {type(error).__name__}>"
        args = b""
        if all(isinstance(arg, str | int | float | bool | None) for arg in evalue.args):
            with contextlib.suppress(ValueError):
                args = json.dumps(evalue.args).encode()
        self.output.send(
            m.Error(
                etype.__name__[:_NAME_BYTES],
                str(etype.__module__)[:_NAME_BYTES],
                etype.__qualname__[:_NAME_BYTES],
                issubclass(etype, KeyboardInterrupt),
            ),
            (_clip(text), _clip("\n".join(stb)), args if len(args) <= _TEXT_BYTES else b""),
        )


def _clip(text: str) -> bytes:
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= _TEXT_BYTES:
        return data
    half = _TEXT_BYTES // 2
    return data[:half] + f"\n… {len(data) - 2 * half} bytes left out …\n".encode() + data[-half:]


def _nodes(tb: types.TracebackType | None) -> list[types.TracebackType]:
    nodes: list[types.TracebackType] = []
    while tb is not None:
        nodes.append(tb)
        tb = tb.tb_next
    return nodes


def _user_frames(tb: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback without IPython's and our frames, and with the middle of a very deep one left out.

    A tool of ours (``bench``) is called by a line of ours that stands where a cell would: neither is shown.
    """
    nodes = _nodes(tb)
    tools = [place for place, node in enumerate(nodes) if node.tb_frame.f_code.co_filename in _TOOLS]
    inside = nodes[tools[0] :] if tools else nodes
    shown = [node for node in inside if not node.tb_frame.f_code.co_filename.startswith((*_HIDDEN, "<timed "))]
    shown = shown or ([] if tools else nodes[-1:])
    if len(shown) > 2 * _FRAMES_SHOWN:
        shown = shown[:_FRAMES_SHOWN] + shown[-_FRAMES_SHOWN:]
    chain: types.TracebackType | None = None
    for node in reversed(shown):
        chain = types.TracebackType(chain, node.tb_frame, node.tb_lasti, node.tb_lineno)
    return chain
