"""Which MIME types of a remote bundle may reach the notebook.

A notebook runs the HTML and JavaScript of a cell's output with the user's own rights. From a trusted gateway (the
user's own, or ``--trust``) everything passes. From any other, JavaScript never does, and HTML only cleaned by nh3;
without nh3, text and pictures.
"""

from __future__ import annotations

from collections.abc import Mapping

_SAFE = ("text/plain", "image/png", "image/jpeg", "image/gif", "image/webp", "application/json")


def admit(
    data: Mapping[str, object], metadata: Mapping[str, object], *, is_trusted: bool
) -> tuple[dict[str, object], dict[str, object]]:
    """The bundle's types that may be shown, and their metadata."""
    if is_trusted:
        return dict(data), dict(metadata)
    shown = {mime: value for mime, value in data.items() if mime in _SAFE}
    html = data.get("text/html")
    if isinstance(html, str) and (clean := _clean(html)) is not None:
        shown["text/html"] = clean
    if not shown:
        types = ", ".join(sorted(data)) or "nothing"
        shown["text/plain"] = f"[{types}: not shown, this gateway is not trusted (%kcoral connect URL --trust)]"
    return shown, {mime: value for mime, value in metadata.items() if mime in shown}


def _clean(html: str) -> str | None:
    try:
        import nh3
    except ImportError:
        return None
    cleaned: str = nh3.clean(html)
    return cleaned
