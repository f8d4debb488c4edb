"""What of a remote bundle reaches the notebook: everything from a trusted gateway, nothing that runs from another."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoral_magic.display.mime import admit

HTML = '<b onclick="steal()">bold</b><script>steal()</script><a href="javascript:steal()">x</a><iframe src="//x">'
RUNS = ("application/javascript", "text/javascript", "image/svg+xml", "text/latex", "text/markdown")
WIDGET = "application/vnd.jupyter.widget-view+json"


def test_everything_of_a_trusted_gateway_passes() -> None:
    data = {"text/html": HTML, "application/javascript": "steal()", WIDGET: {"model_id": "1"}}
    assert admit(data, {"isolated": True}, is_trusted=True) == (data, {"isolated": True})


def test_text_pictures_and_data_of_a_stranger_pass() -> None:
    data = {"text/plain": "1", "image/png": "aGk=", "image/jpeg": "aGk=", "application/json": {"a": 1}}
    assert admit(data, {}, is_trusted=False)[0] == data


@pytest.mark.parametrize(
    "mime", [*RUNS, WIDGET, "application/vnd.vega.v5+json", "TEXT/HTML", "text/html; charset=utf-8"]
)
def test_nothing_else_of_a_stranger_passes(mime: str) -> None:
    shown, _ = admit({mime: "steal()", "text/plain": "safe"}, {}, is_trusted=False)
    assert shown == {"text/plain": "safe"}


def test_the_html_of_a_stranger_is_cleaned() -> None:
    shown, _ = admit({"text/html": HTML}, {}, is_trusted=False)
    assert list(shown) == ["text/html"]
    assert "<b>bold</b>" in str(shown["text/html"])
    for word in ("onclick", "script", "steal", "iframe"):
        assert word not in str(shown["text/html"])


def test_without_the_cleaner_no_html_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nh3", None)  # as if it were not installed
    assert admit({"text/html": "<b>1</b>", "text/plain": "1"}, {}, is_trusted=False)[0] == {"text/plain": "1"}


def test_html_that_is_no_text_does_not_pass() -> None:
    shown, _ = admit({"text/html": ["<script>"], "text/plain": "1"}, {}, is_trusted=False)
    assert shown == {"text/plain": "1"}


def test_where_nothing_may_be_shown_a_line_says_so_and_what_to_do() -> None:
    shown, _ = admit({"text/latex": "x", "application/javascript": "y"}, {}, is_trusted=False)
    assert list(shown) == ["text/plain"]
    assert "application/javascript, text/latex: not shown" in str(shown["text/plain"])
    assert "--trust" in str(shown["text/plain"])
    assert "nothing: not shown" in str(admit({}, {}, is_trusted=False)[0]["text/plain"])


def test_metadata_of_a_stranger_stays_with_the_types_it_belongs_to() -> None:
    data = {"image/png": "aGk=", "application/javascript": "y"}
    metadata = {"image/png": {"width": 5}, "application/javascript": {"a": 1}, "isolated": True}
    assert admit(data, metadata, is_trusted=False)[1] == {"image/png": {"width": 5}}


mimes = st.sampled_from(["text/plain", "text/html", "image/png", *RUNS, WIDGET]) | st.text(max_size=20)


@given(st.dictionaries(mimes, st.text(max_size=30), max_size=5))
def test_whatever_a_stranger_sends_only_safe_types_are_shown(data: dict[str, object]) -> None:
    shown, _ = admit(data, {}, is_trusted=False)
    safe = {"text/plain", "text/html", "image/png", "image/jpeg", "image/gif", "image/webp", "application/json"}
    assert shown
    assert set(shown) <= safe
    assert "<script" not in str(shown.get("text/html", "")).lower()
