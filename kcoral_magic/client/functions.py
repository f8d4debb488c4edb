"""``@client.function(gpus=1)``: a function of this program that runs in a session, with its arguments and its result.

The function travels as any value does, with the globals that it reads; a function of a module beside the program brings
the module's file. Without a session each call runs in a worker that nobody has used, and that is thrown away after.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kcoral_magic.client.files import Digests, FileSet
from kcoral_magic.client.results import Output, Result
from kcoral_magic.client.sources import Sources
from kcoral_magic.errors import UsageError
from kcoral_magic.names.reach import code_names, codes_of, imported, reached
from kcoral_magic.protocol import messages as m

if TYPE_CHECKING:
    from kcoral_magic.client.sync import Client, Execution, Session

# Names of the session that a call uses; the underscores keep them out of what the session tells of itself.
_FUNCTION, _ARGUMENTS, _KEYWORDS, _RESULT = "__kcoral_function", "__kcoral_args", "__kcoral_kwargs", "__kcoral_result"
_SOURCE = f"{_RESULT} = {_FUNCTION}(*{_ARGUMENTS}, **{_KEYWORDS})"


@dataclass(frozen=True)
class Options:
    """Where and how a function's calls run."""

    gpus: int | Literal["all"] | None = None
    session: str | None = None
    timeout_s: float | None = None
    is_live: bool = True


class RemoteFunction:
    """A function whose calls run elsewhere. Called plainly, it runs here, as it always did."""

    def __init__(self, client: Client, function: Callable[..., Any], options: Options) -> None:
        self._client = client
        self._function = function
        self._options = options
        self._digests = Digests()
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call it there and wait; what it prints is printed here meanwhile.

        Raises:
            Exception: What the function raised, by its own type where that is loaded here.
            KCoralError: It could not run, or its arguments or result cannot travel.
        """
        return self.spawn(*args, **kwargs).result()

    def spawn(self, *args: Any, **kwargs: Any) -> Job:
        """Call it there and go on here."""
        options = self._options
        session = self._client.session(options.session or "", gpus=options.gpus)
        return Job(self._execute(session, args, kwargs), is_live=options.is_live)

    def map(self, items: Iterable[Any], *, workers: int = 1) -> Iterator[Any]:
        """The results for ``items``, in their order, ``workers`` calls at a time."""
        if workers < 1:
            raise UsageError(f"workers must be 1 or more, got {workers}")
        with ThreadPoolExecutor(workers, thread_name_prefix="kcoral-map") as pool:
            yield from pool.map(self.remote, items)

    def _execute(self, session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Execution:
        namespace = vars(sys.modules["__main__"])
        read = {name for code in codes_of(self._function, namespace) for name in code_names(code)[0]}
        found = {name: value for name, value in reached(sorted(read), namespace).items() if value is not self}
        modules = {getattr(self._function, "__module__", "")} | imported([self._function, *found.values()], namespace)
        files = Sources(Path.cwd(), self._digests).of_modules(modules - {"__main__", ""})
        return session.execute(
            _SOURCE,
            send={_FUNCTION: self._function, _ARGUMENTS: args, _KEYWORDS: kwargs},
            offer=found,
            wants=[("result", _RESULT)],
            files=FileSet(files, is_sync=True) if files else None,
            timeout_s=self._options.timeout_s,
            is_fresh=self._options.session is None,
            place=m.Place(1, 1),
        )


class Job:
    """A call that runs elsewhere. Its result may be asked for later, or never."""

    def __init__(self, execution: Execution, *, is_live: bool = True) -> None:
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
            for output in self._execution:
                if self._is_live:
                    _print(output)
            self._result = self._execution.result()
        return self._result.values["result"]


def _print(output: Output) -> None:
    if isinstance(output.body, m.Stream):
        stream = sys.stdout if output.body.name == "stdout" else sys.stderr
        stream.write(output.text)
        stream.flush()
