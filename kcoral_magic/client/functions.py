"""``@client.function(gpus=1)``: a function of this program that runs elsewhere, with its arguments and its result.

The function travels as any value does, with the globals that it reads; a function of a module beside the program brings
the module's file. Without a session each call runs in a worker that nobody has used, and that is thrown away after.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from kcoral_magic.client import exchange
from kcoral_magic.client.files import Digests, FileSet
from kcoral_magic.client.results import Result
from kcoral_magic.client.sources import Sources
from kcoral_magic.errors import UsageError, ValueRefused
from kcoral_magic.names.reach import code_names, codes_of, imported, reached
from kcoral_magic.protocol import messages as m

if TYPE_CHECKING:
    from kcoral_magic.client.aio import AsyncClient
    from kcoral_magic.client.execution import AsyncExecution
    from kcoral_magic.client.sync import Client, Execution

T = TypeVar("T")
# Names of the session that a call uses; the underscores keep them out of what the session tells of itself.
_FUNCTION, _ARGUMENTS, _KEYWORDS, _RESULT = "__kcoral_function", "__kcoral_args", "__kcoral_kwargs", "__kcoral_result"
_CALL = f"{_FUNCTION}(*{_ARGUMENTS}, **{_KEYWORDS})"


@dataclass(frozen=True)
class Options:
    """Where and how a function's calls run; ``Client.function`` says what each means."""

    gpus: int | Literal["all"] | None = None
    session: str | None = None
    python: str | None = None
    timeout_s: float | None = None
    queue_timeout_s: float | None = None
    cpu_only: bool = False
    is_live: bool = True

    def __post_init__(self) -> None:
        if self.cpu_only and (self.gpus or self.session is not None):
            raise UsageError("a cpu_only function holds no GPU and runs alone: leave gpus and session out")


class _Function:
    """What both kinds of remote function have. Called plainly, it runs here, as it always did."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        if not callable(function):
            raise UsageError(f"a function was expected, got {type(function).__name__}: write @client.function()")
        self._function = function
        self._options = options
        self._digests = Digests()
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    @property
    def _shape(self) -> dict[str, Any]:
        options = self._options
        gpus = 0 if options.cpu_only else options.gpus
        return {"name": options.session or "", "gpus": gpus, "python": options.python}

    def _body(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The source of a call, and what ``Session.execute`` is told with it."""
        namespace = vars(sys.modules["__main__"])
        read = {name for code in codes_of(self._function, namespace) for name in code_names(code)[0]}
        found = {name: value for name, value in reached(sorted(read), namespace).items() if value is not self}
        modules = {getattr(self._function, "__module__", "")} | imported([self._function, *found.values()], namespace)
        files = Sources(Path.cwd(), self._digests).of_modules(modules - {"__main__", ""})
        is_coroutine = asyncio.iscoroutinefunction(self._function)
        options = {
            "out": exchange.outgoing({_FUNCTION: self._function, _ARGUMENTS: args, _KEYWORDS: kwargs}, found),
            "wants": [("result", _RESULT)],
            "files": FileSet(files, is_sync=True) if files else None,
            "timeout_s": self._options.timeout_s,
            "queue_timeout_s": self._options.queue_timeout_s,
            "is_alone": self._options.session is None,
            "place": m.Place(1, 1),
        }
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        return f"# {name}(…)\n{_RESULT} = {'await ' if is_coroutine else ''}{_CALL}", options


@contextlib.contextmanager
def _explained(unsent: Mapping[str, str]) -> Iterator[None]:
    """A name that could not go along is missing there: say why, not only that."""
    try:
        yield
    except NameError as error:
        name = next(iter(str(error).split("'")[1:2]), "")
        if name in unsent:
            raise ValueRefused(f"the function reads {name}, which could not go along: {unsent[name]}") from None
        raise


def _value(result: Result) -> Any:
    """What the function gave back: never what stands for it."""
    from kcoral_magic.values.codec import Opaque

    value = result.values["result"]
    if isinstance(value, Opaque):
        text = f"the function gave back {value!r:.200}, which cannot travel from a gateway that is not trusted"
        raise ValueRefused(f"{text}: return plain values, arrays or tensors, or connect with --trust")
    return value


async def _ended(call: Awaitable[T]) -> Callable[[], T]:
    """Gives the result, or raises. A task must not raise KeyboardInterrupt: that would end the whole event loop."""
    try:
        value = await call
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
        return functools.partial(_raise, error)
    return lambda: value


def _raise(error: BaseException) -> Any:
    raise error


class RemoteFunction(_Function):
    """A function whose calls run elsewhere, for code without an event loop (and ``aremote`` for code with one)."""

    def __init__(self, client: Client, function: Callable[..., Any], options: Options) -> None:
        super().__init__(function, options)
        self._client = client

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call it there and wait; what it prints is printed here meanwhile.

        Raises:
            Exception: What the function raised, by its own type where that is loaded here.
            KCoralError: It could not run, or its arguments or result cannot travel.
        """
        return self.spawn(*args, **kwargs).result()

    async def aremote(self, *args: Any, **kwargs: Any) -> Any:
        """As ``remote``, without blocking the event loop; cancelled, it stops there."""
        return await self.spawn(*args, **kwargs)

    def spawn(self, *args: Any, **kwargs: Any) -> Job:
        """Call it there and go on here."""
        source, options = self._body(args, kwargs)
        execution = self._client.session(**self._shape).execute(source, **options)
        return Job(execution, options["out"].problems, is_live=self._options.is_live)

    def map(self, items: Iterable[Any], *, workers: int = 1) -> Iterator[Any]:
        """The results for ``items``, in their order, ``workers`` calls at a time."""
        if workers < 1:
            raise UsageError(f"workers must be 1 or more, got {workers}")
        with ThreadPoolExecutor(workers, thread_name_prefix="kcoral-map") as pool:
            yield from pool.map(self.remote, items)


class Job:
    """A call that runs elsewhere. Its result may be asked for later, awaited, or never."""

    def __init__(self, execution: Execution, unsent: Mapping[str, str] | None = None, *, is_live: bool = True) -> None:
        """``unsent`` says why a global that the function may read did not go along."""
        self._unsent = unsent or {}
        self._execution = execution
        self._is_live = is_live
        self._result: Result | None = None

    @property
    def execution_id(self) -> str:
        """By which ``Client.attach`` and ``%kcoral output`` know it."""
        return self._execution.execution_id

    def done(self) -> bool:
        """Whether it has ended."""
        return self._result is not None or self._execution.is_finished

    def cancel(self) -> None:
        """One press of stop."""
        self._execution.interrupt()

    def result(self) -> Any:
        """Wait for it.

        Raises:
            Exception: What the function raised.
            KCoralError: It could not run, or its result cannot travel.
        """
        if self._result is None:
            self._execution.follow(lambda output: output.print() if self._is_live else None)
            with _explained(self._unsent):
                self._result = self._execution.result()
        return _value(self._result)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        waiting = asyncio.create_task(_ended(asyncio.to_thread(self.result)))
        try:
            return (await asyncio.shield(waiting))()
        except asyncio.CancelledError:
            if not waiting.done():
                await asyncio.to_thread(self.cancel)
            raise


class AsyncRemoteFunction(_Function):
    """A function whose calls run elsewhere, for an ``AsyncClient``."""

    def __init__(self, client: AsyncClient, function: Callable[..., Any], options: Options) -> None:
        super().__init__(function, options)
        self._client = client

    async def remote(self, *args: Any, **kwargs: Any) -> Any:
        """As ``RemoteFunction.remote``; cancelled, it stops there."""
        return await (await self.spawn(*args, **kwargs))

    aremote = remote

    async def spawn(self, *args: Any, **kwargs: Any) -> AsyncJob:
        """As ``RemoteFunction.spawn``."""
        source, options = await asyncio.to_thread(self._body, args, kwargs)
        execution = await self._client.session(**self._shape).execute(source, **options)
        return AsyncJob(execution, options["out"].problems, is_live=self._options.is_live)

    async def map(self, items: Iterable[Any], *, workers: int = 1) -> AsyncIterator[Any]:
        """As ``RemoteFunction.map``: an async iterator."""
        if workers < 1:
            raise UsageError(f"workers must be 1 or more, got {workers}")
        waiting: list[asyncio.Task[Callable[[], Any]]] = []
        try:
            for item in items:
                waiting.append(asyncio.create_task(_ended(self.remote(item))))
                if len(waiting) >= workers:
                    yield (await waiting.pop(0))()
            while waiting:
                yield (await waiting.pop(0))()
        finally:
            for task in waiting:
                task.cancel()


class AsyncJob:
    """As ``Job``: ``await job`` is its result."""

    def __init__(
        self, execution: AsyncExecution, unsent: Mapping[str, str] | None = None, *, is_live: bool = True
    ) -> None:
        self._unsent = unsent or {}
        self._execution = execution
        self._waiting = asyncio.create_task(_ended(self._read(is_live)))

    @property
    def execution_id(self) -> str:
        """By which ``AsyncClient.attach`` and ``%kcoral output`` know it."""
        return self._execution.execution_id

    def done(self) -> bool:
        """Whether it has ended."""
        return self._waiting.done()

    async def cancel(self) -> None:
        """One press of stop."""
        await self._execution.interrupt()

    async def result(self) -> Any:
        """Wait for it, as ``Job.result``."""
        return await self

    def __await__(self) -> Generator[Any, None, Any]:
        return self._result().__await__()

    async def _result(self) -> Any:
        try:
            return (await asyncio.shield(self._waiting))()
        except asyncio.CancelledError:
            if not self._waiting.done():
                await self.cancel()
            raise

    async def _read(self, is_live: bool) -> Any:
        async for output in self._execution:
            if is_live:
                output.print()
        with _explained(self._unsent):
            return _value(await self._execution.result())
