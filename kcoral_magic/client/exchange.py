"""Values between a client and a session: what is offered, what the session is believed to have, what came back.

The session decides what it takes (it alone knows what it has); what is kept here only saves bytes. A small value that
the session is believed to lack goes along with the body at once, a large one when the session asks for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kcoral_magic.errors import UsageError, ValueRefused
from kcoral_magic.protocol import transfers as t

if TYPE_CHECKING:
    from kcoral_magic.values.codec import Packed

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
INLINE_BYTES = 64 * 1024  # of values that go along with a body unasked
_SHOWN_CHARS = 100


@dataclass
class Outgoing:
    """Values for one body, with their digests. ``problems`` says of a name why it cannot go."""

    values: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    forced: frozenset[str] = frozenset()
    problems: dict[str, str] = field(default_factory=dict)
    cell_of: Callable[[str], int | None] | None = None


def outgoing(
    forced: Mapping[str, Any], offered: Mapping[str, Any], *, cell_of: Callable[[str], int | None] | None = None
) -> Outgoing:
    """Look at values: those to be taken in any case, and those to be taken if the session lacks them."""
    from kcoral_magic.values.digest import digest  # not before a value travels: it loads cloudpickle

    made = Outgoing(forced=frozenset(forced), cell_of=cell_of)
    for name, value in {**offered, **forced}.items():
        try:
            made.digests[name], made.sizes[name] = digest(value, name)
            made.values[name] = value
        except ValueRefused as error:
            made.problems[name] = str(error)
    return made


@dataclass
class Belief:
    """What one session has of ours, as far as we know. Another namespace has nothing."""

    namespace: str = ""
    sent: dict[str, str] = field(default_factory=dict)
    received: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> our digest, the session's
    names: tuple[str, ...] = ()
    files: dict[str, t.FileIn] = field(default_factory=dict)  # placed there, by path
    python: str = ""  # of its worker, once it has said so
    local: dict[str, Any] = field(default_factory=dict)  # and what they were made from here, by path
    modules: set[str] = field(default_factory=set)  # whose files it follows
    synced: set[str] = field(default_factory=set)  # those of them that follow the files here

    def moved_to(self, namespace: str) -> None:
        """A body ended in this namespace."""
        if namespace and namespace != self.namespace:
            if self.namespace:
                self.forget()
            self.namespace = namespace

    def forget(self) -> None:
        """The session's state is gone."""
        self.forget_names()
        self.forget_files()

    def forget_files(self) -> None:
        """It is not known what it has of them."""
        self.files.clear()
        self.local.clear()
        self.synced.clear()

    def forget_names(self) -> None:
        """Its names are gone; its files are being sent anew."""
        self.namespace = self.python = ""
        self.names = ()
        self.sent.clear()
        self.received.clear()

    @property
    def basis(self) -> str:
        """By which the session knows whether it has these files."""
        return t.tree_digest({path: file.digest or "" for path, file in self.files.items()})

    def offers(self, out: Outgoing) -> tuple[t.Offer, ...]:
        """What a body may need. A value that came from the session and is unchanged goes by the session's digest."""
        from kcoral_magic.values.digest import shown

        made = []
        for name, value in out.values.items():
            own, theirs = self.received.get(name, ("", ""))
            digest = theirs if theirs and own == out.digests[name] else out.digests[name]
            made.append(t.Offer(name, digest, shown(value)[:_SHOWN_CHARS], name in out.forced))
        return tuple(made)

    def lacking(self, out: Outgoing) -> dict[str, Any]:
        """The values that the session probably lacks, if all of them are small; else none: it will ask."""
        names = [name for name, digest in out.digests.items() if name in out.values and not self.has(name, digest)]
        is_for_one_python = all(out.digests[name][0] in "vm" for name in names)
        if sum(out.sizes[name] for name in names) > INLINE_BYTES or not (self.python or is_for_one_python):
            return {}
        return {name: out.values[name] for name in names}

    def has(self, name: str, digest: str) -> bool:
        """Whether the session has this value, or one that came from it."""
        return self.sent.get(name) == digest or self.received.get(name, ("",))[0] == digest

    def bound(self, out: Outgoing, names: Sequence[t.BoundName]) -> None:
        """The session has told what it took."""
        for bound in names:
            if bound.what in ("new", "changed") and bound.name in out.digests:
                self.sent[bound.name] = out.digests[bound.name]
                self.received.pop(bound.name, None)


def inline(belief: Belief, out: Outgoing) -> bytes:
    """The parcel that goes along with a body; empty if the session has all, or what it lacks is too large."""
    values = belief.lacking(out)
    return packed(out, tuple(values), belief.python).parcel.joined() if values else b""


def packed(out: Outgoing | None, names: Sequence[str], peer: str = "") -> Packed:
    """The parcel of these names.

    Raises:
        ValueRefused: One was not offered, or cannot be packed after all.
    """
    from kcoral_magic.values import codec

    if out is None or not all(name in out.values for name in names):
        if names:
            raise ValueRefused("the session asks for names that were not offered: run the cell again")
        out = Outgoing()
    made = codec.pack(
        {name: out.values[name] for name in names},
        may_pickle=True,
        peer=peer or PYTHON,
        digests=out.digests,
        cell_of=out.cell_of,
    )
    if made.problems:
        raise ValueRefused("; ".join(made.problems.values()))
    return made


def wanted(wants: Sequence[str | tuple[str, str]]) -> tuple[t.Wanted, ...]:
    """Names, ``name=expression`` texts and pairs as wishes.

    Raises:
        UsageError: One is no name.
    """
    made = []
    for want in wants:
        name, _, expression = want.partition("=") if isinstance(want, str) else (want[0], "", want[1])
        name, expression = name.strip(), expression.strip() or name.strip()
        if not name.isidentifier():
            raise UsageError(f"what comes back needs a name, as in c or w=model.state_dict(), got {want!r}")
        made.append(t.Wanted(name, expression))
    return tuple(made)
