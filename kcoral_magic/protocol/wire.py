"""What every message of the wire is made of: the base of its structs, and the bounded types of its fields."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kcoral_magic.errors import UsageError

ExecutionId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{8,64}\Z")]
SessionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{0,64}\Z")]  # "" is the client's own session
Short = Annotated[str, Meta(max_length=512)]
Text = Annotated[str, Meta(max_length=16 * 1024)]
Number = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
ExitCode = Annotated[int, Meta(ge=0, le=255)]  # of a program: 128 + N after signal N
GpuCount = Annotated[int, Meta(ge=0, le=1024)]
Gpus = GpuCount | Literal["all"] | None

_SESSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_session_name(name: str) -> bool:
    """Whether a person may call a session so."""
    return _SESSION_NAME.fullmatch(name) is not None


def check(message: msgspec.Struct) -> None:
    """Refuse here what the other side's decoder would: structs that are made are not looked at.

    Raises:
        UsageError: A field has a value that its type does not allow; the message names field and value.
    """
    try:
        msgspec.convert(msgspec.to_builtins(message), type(message))
    except (msgspec.ValidationError, TypeError, OverflowError) as error:
        name, value = _culprit(message, str(error))
        why = str(error).partition(" - at ")[0].replace("`", "")
        raise UsageError(f"{name}: {why[:1].lower()}{why[1:]}; got {value!r:.80}") from None


def _culprit(message: msgspec.Struct, text: str) -> tuple[str, object]:
    """The field that a path like ``$[2][1]`` leads to: an array begins with its tag."""
    name, value = type(message).__name__, message
    found: object = value
    for place in re.findall(r"\[(\d+)\]", text.partition(" - at ")[2]):
        if not isinstance(found, Wire) or not 0 < int(place) <= len(found.__struct_fields__):
            break
        name = found.__struct_fields__[int(place) - 1]
        found = getattr(found, name)
    return name, found


class Wire(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=True):
    """Strict: an array on the wire, tagged with the class name, unknown elements refused."""
