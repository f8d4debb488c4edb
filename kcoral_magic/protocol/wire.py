"""What every message of the wire is made of: the base of its structs, and the bounded types of its fields."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

ExecutionId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{8,64}\Z")]
SessionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{0,64}\Z")]  # "" is the client's own session
Short = Annotated[str, Meta(max_length=512)]
Text = Annotated[str, Meta(max_length=16 * 1024)]
Number = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
GpuCount = Annotated[int, Meta(ge=0, le=1024)]
Gpus = GpuCount | Literal["all"] | None

_SESSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_session_name(name: str) -> bool:
    """Whether a person may call a session so."""
    return _SESSION_NAME.fullmatch(name) is not None


class Wire(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=True):
    """Strict: an array on the wire, tagged with the class name, unknown elements refused."""
