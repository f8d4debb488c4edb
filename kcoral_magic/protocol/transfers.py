"""The messages that values, files and answers travel in.

A value goes as part of a *parcel* (``values.parcel``). A small parcel is a buffer of the message that needs it; a large
one is a *blob*: bytes that the gateway holds for one principal under their digest, uploaded by ``Have`` and ``Chunk``,
downloaded by ``Fetch``, each resumable at any offset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kcoral_magic.errors import ProtocolError
from kcoral_magic.protocol.wire import ExecutionId, Number, Short, Text, Wire

Digest = Annotated[str, Meta(pattern=r"^(sha256|xxh3)-[0-9a-f]{32,64}\Z")]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Expression = Annotated[str, Meta(min_length=1, max_length=4096)]
FilePath = Annotated[str, Meta(min_length=1, max_length=4096)]


class Offer(Wire, frozen=True):
    """A value that a body may need: its digest, and whether it is to be taken even if the session has another."""

    name: Name
    digest: Short
    shown: Short = ""
    is_forced: bool = False


class Wanted(Wire, frozen=True):
    """A value that is to come back, and the expression that it has in the session."""

    name: Name
    expression: Expression


class FileIn(Wire, frozen=True):
    """A file for the session: where it goes, and the blob that it holds. Without a digest it is removed there."""

    path: FilePath
    digest: Digest | None
    size: Number = 0
    mode: Number = 0o644


class Manifest(Wire, frozen=True):
    """What goes with a body, as a buffer of its own: a tree of files fits no head.

    ``files`` are changes to what the session was sent before, whose digest is ``files_basis``; if it has another (it
    was lost, or somebody else sent some), it wants all of them. ``cwd`` is the folder below the workspace that the body
    runs in.
    """

    offers: tuple[Offer, ...] = ()
    wants: tuple[Wanted, ...] = ()
    files: tuple[FileIn, ...] = ()
    files_basis: Short = ""
    cwd: FilePath | None = None


_EMPTY = Manifest()
_manifests = msgspec.msgpack.Decoder(Manifest)


def read_manifest(buffer: bytes | bytearray | memoryview) -> Manifest:
    """The manifest of a buffer; an empty one of an empty buffer.

    Raises:
        ProtocolError: It is none.
    """
    if not len(buffer):
        return _EMPTY
    try:
        return _manifests.decode(buffer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"the manifest cannot be read: {error}") from None


def tree_digest(placed: Mapping[str, str]) -> str:
    """One digest for paths with their digests, by which both sides know whether a session has them; empty for none."""
    if not placed:
        return ""
    lines = "".join(f"{path}\0{digest}\n" for path, digest in sorted(placed.items()))
    return hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()


# ── Events ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Want(Wire, frozen=True):
    """The worker waits for these values (and, if ``files``, for all files anew), by ``Supply``.

    ``python`` is its version: functions of another minor version must not be sent as bytecode.
    """

    names: tuple[Name, ...]
    files: bool = False
    python: Short = ""


class BoundName(Wire, frozen=True):
    """What became of an offer; ``was`` is what the session had, as it is shown."""

    name: Name
    what: Literal["new", "changed", "kept", "missing"]
    was: Short = ""


class Bound(Wire, frozen=True):
    """Offers that were taken, or not taken though the session has another value. Nothing else is told."""

    names: tuple[BoundName, ...]


class Returned(Wire, frozen=True):
    """The values that were asked for, with the parcel's digest and size.

    Buffers: the parcel, if it is small; else it is being written to ``blob``, whose bytes can be fetched as they come.

    ``is_cache``: no result, but what compilers keep for the principal's next program; no client ever sees it.
    """

    digest: Digest
    size: Number
    problems: tuple[tuple[Name, Text], ...] = ()
    blob: Digest | None = None
    is_cache: bool = False


class Names(Wire, frozen=True):
    """The names that the session has now, when they are others than at the end of its last body."""

    names: tuple[Name, ...]


class InputRequest(Wire, frozen=True):
    """The body waits for a line of text, by ``InputReply``."""

    prompt: Text
    is_password: bool = False


# ── Client → gateway → host ─────────────────────────────────────────────────────────────────────────────────────────


class Supply(Wire, frozen=True):
    """The values an execution waits for. Buffers: a ``Manifest`` of files or nothing, their parcel or nothing.

    A large parcel is the blob ``digest`` of ``size`` bytes.

    ``problem``: they cannot come; the body then does not run.
    """

    execution_id: ExecutionId
    digest: Digest | None = None
    size: Number = 0
    problem: Text = ""


class InputReply(Wire, frozen=True):
    """The line that was asked for. Buffers: the text, UTF-8. ``is_refused``: nobody can be asked."""

    execution_id: ExecutionId
    is_refused: bool = False


class Have(Wire, frozen=True):
    """How much of these blobs does the gateway hold? Asks for ``Held``."""

    request: Number
    blobs: tuple[tuple[Digest, Number], ...]


class Chunk(Wire, frozen=True):
    """The bytes of a blob of ``size`` bytes from ``offset`` on, at most 1 MiB. Asks for ``Held``."""

    request: Number
    digest: Digest
    size: Number
    offset: Number


class Fetch(Wire, frozen=True):
    """Send ``length`` bytes (at most 1 MiB) of a blob. Asks for ``Piece``."""

    request: Number
    digest: Digest
    offset: Number
    length: Annotated[int, Meta(ge=0, le=1024 * 1024)]


class Drop(Wire, frozen=True):
    """The blob of a result is not needed any more."""

    digest: Digest


class Held(Wire, frozen=True):
    """Reply to ``Have`` and ``Chunk``: of each blob, how many bytes are there, from its beginning on."""

    request: Number
    offsets: tuple[Number, ...]


class ListStorage(Wire, frozen=True):
    """Asks for a ``Storage`` reply."""

    request: Number


class Storage(Wire, frozen=True):
    """Reply to ``ListStorage``: what the principal's files and values take at the gateway, and may take."""

    request: Number
    used_bytes: Number
    limit_bytes: Number


class Piece(Wire, frozen=True):
    """Reply to ``Fetch``. Buffers: the bytes."""

    request: Number


# ── Host ⇄ worker ───────────────────────────────────────────────────────────────────────────────────────────────────


class FilePart(Wire, frozen=True):
    """A piece of a file on its way into the workspace. Buffers: the bytes. Without a ``size`` the file is removed."""

    path: FilePath
    size: Number | None
    offset: Number
    mode: Number = 0o644
    digest: Short = ""


class Supplied(Wire, frozen=True):
    """What was wanted is here. Buffers: a parcel, or nothing and a descriptor of ``size`` bytes comes along."""

    execution_id: ExecutionId
    size: Number = 0
    problem: Text = ""


class Spool(Wire, frozen=True):
    """Write the results that a ``Returned`` has announced to the descriptor that comes along."""


class Written(Wire, frozen=True):
    """They are written."""
