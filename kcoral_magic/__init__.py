"""kcoral-magic: run a notebook cell on a GPU machine elsewhere as if it ran here.

Names are loaded when they are first used (PEP 562), so that importing this package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kcoral_magic.protocol import __version__

_PUBLIC = {
    "AsyncClient": "kcoral_magic.client.aio",
    "Client": "kcoral_magic.client.sync",
    "KCoralError": "kcoral_magic.errors",
    "Program": "kcoral_magic.client.program",
    "RemoteError": "kcoral_magic.errors",
    "load_report": "kcoral_magic.tools.ncu_report",
}
__all__ = [
    "AsyncClient",
    "Client",
    "KCoralError",
    "Program",
    "RemoteError",
    "__version__",
    "load_ipython_extension",
    "load_report",
    "unload_ipython_extension",
]

if TYPE_CHECKING:
    from kcoral_magic.client.aio import AsyncClient
    from kcoral_magic.client.program import Program
    from kcoral_magic.client.sync import Client
    from kcoral_magic.errors import KCoralError, RemoteError
    from kcoral_magic.tools.ncu_report import load_report


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext kcoral_magic``: silent and repeatable."""
    from kcoral_magic.kernel.magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext kcoral_magic``: everything is as it was."""
    from kcoral_magic.kernel.magics import unload

    unload(shell)
