"""The names of the session: which offers of its client it takes, what it has of its own, and what goes back.

The worker decides, since only it knows what it has. A value that was sent is remembered by two digests, the client's
and its own: the first tells whether the notebook's value is another by now, the second whether the session has changed
its own (in place; a rebound name is the session's anyway). What the session has made or changed is kept, and that the
notebook has another is said once for each of its values.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kcoral_magic.errors import ValueRefused
from kcoral_magic.protocol import framing
from kcoral_magic.protocol import messages as m
from kcoral_magic.protocol import transfers as t
from kcoral_magic.values import codec
from kcoral_magic.values.digest import digest, shown

_NAMES = 1500  # of a session that are told of; their message is a head, and bounded
_TEXT = 1000  # characters of one problem


@dataclass(frozen=True)
class _Origin:
    """A value as it came. ``own`` is this process's digest of it then."""

    sent: str
    own: str
    shown: str
    identity: int


class SessionNames:
    """The namespace as the client's side sees it."""

    def __init__(
        self, namespace: dict[str, Any], hidden: Callable[[], Mapping[str, Any]], on_source: Callable[[str, int], None]
    ) -> None:
        self._namespace = namespace
        self._hidden = hidden
        self._on_source = on_source
        self._origins: dict[str, _Origin] = {}
        self._told: dict[str, str] = {}  # the notebook's digest for which "kept" was said
        self._names: set[str] = set()
        self._private: set[str] = set()  # IPython's, and those that begin with an underscore

    # ── in ──

    def sort(self, offers: Sequence[t.Offer]) -> tuple[list[t.BoundName], list[t.BoundName]]:
        """Offers that are needed, and those that are not taken though the notebook's value is another."""
        needed: list[t.BoundName] = []
        kept: list[t.BoundName] = []
        for offer in offers:
            verdict = self._verdict(offer)
            if verdict is not None:
                (kept if verdict.what == "kept" else needed).append(verdict)
        return needed, kept

    def _verdict(self, offer: t.Offer) -> t.BoundName | None:
        name = offer.name
        hidden = self._hidden()
        if name not in self._namespace or (name in hidden and self._namespace[name] is hidden[name]):
            return t.BoundName(name, "new")
        value, origin = self._namespace[name], self._origins.get(name)
        if origin is not None and (origin.identity != id(value) or origin.own != _digest(value)):
            del self._origins[name]  # from here on it is the session's own
            origin = None
        if origin is not None:
            return None if origin.sent == offer.digest else t.BoundName(name, "changed", origin.shown)
        if self._told.get(name) == offer.digest and not offer.is_forced:
            return None
        if offer.digest[:1] in "vfpm" and _digest(value) == offer.digest:
            return None
        if offer.is_forced:
            return t.BoundName(name, "changed", shown(value)[:100])
        self._told[name] = offer.digest
        return t.BoundName(name, "kept", shown(value)[:100])

    def bind(self, parcel: framing.Buffer, verdicts: Sequence[t.BoundName]) -> list[t.BoundName]:
        """Take the values of ``verdicts`` out of a parcel. What came of each; of a ``missing`` one, ``was`` says why.

        Raises:
            ValueRefused: The bytes are no parcel.
        """
        wanted = {verdict.name: verdict for verdict in verdicts}
        done: list[t.BoundName] = []
        unpacked = codec.Unpacked(parcel, takes_pickles=True, is_trusted_writer=True, on_source=self._on_source)
        for entry, value in unpacked.values():
            verdict = wanted.pop(entry.name, None)
            if verdict is None:
                continue
            if isinstance(value, ValueRefused):
                done.append(t.BoundName(entry.name, "missing", str(value)[:500]))
                continue
            self._namespace[entry.name] = value
            self._told.pop(entry.name, None)
            self._origins[entry.name] = _Origin(entry.digest, _digest(value), entry.shown[:100], id(value))
            done.append(verdict)
        return done

    # ── out ──

    def returned(
        self, wants: Sequence[t.Wanted], peer: m.Peer, evaluate: Callable[[str], Any]
    ) -> tuple[codec.Packed, dict[str, str]]:
        """The values that are to go back, packed, and why some cannot."""
        problems: dict[str, str] = {}
        values: dict[str, Any] = {}
        for wanted in wants:
            try:
                values[wanted.name] = evaluate(wanted.expression)
            except Exception as error:  # noqa: BLE001 - the expression is user code
                problems[wanted.name] = f"{type(error).__name__}: {error}"[:_TEXT]
        packed = codec.pack(values, may_pickle=peer.takes_pickles, peer=peer.python or codec.VERSION)
        problems |= {name: text[:_TEXT] for name, text in packed.problems.items()}
        return packed, problems

    def changed(self) -> t.Names | None:
        """The names of the session, if they are others than when this was last asked.

        A long session has thousands of history names: what is known of those is not looked at again.
        """
        keys = self._namespace.keys()
        new, gone = keys - self._private - self._names, self._names - keys
        if not new and not gone:
            return None
        hidden = self._hidden()
        private = {name for name in new if name.startswith("_") or name in hidden}
        self._private |= private
        if new == private and not gone:
            return None
        self._names = (self._names | (new - private)) - gone
        return t.Names(tuple(sorted(name for name in self._names if len(name) <= 60)[:_NAMES]))


def _digest(value: Any) -> str:
    if isinstance(value, types.ModuleType):
        return f"m{value.__name__}"
    try:
        return digest(value)[0]
    except ValueRefused:
        return ""
