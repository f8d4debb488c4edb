"""Multipart bodies, blobs and their negotiation, request ids, and what is no request at all."""

from __future__ import annotations

import dataclasses
import os

import pytest

from tests.conformance.wire import (
    BOUNDARY,
    BYTES,
    JSON,
    Endpoint,
    Part,
    blob,
    body_of,
    digest,
    multipart,
    program,
    read,
    returned,
    upload,
)

P = program(body_of("def main():\n    return 1"))
DATA = b"some data"
U = program([upload("bytes", DATA), returned("u")])
DISPOSITION, TYPE = 'Content-Disposition: form-data; name="program"', f"Content-Type: {JSON}"
ID = "0a0a0a0a-0000-4000-8000-00000000000a"


def headers(*lines: str) -> Part:
    return dataclasses.replace(P, headers=lines)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([], id="no part"),
        pytest.param([blob(DATA)], id="no program"),
        pytest.param([P, P], id="two programs"),
        pytest.param([U, blob(DATA), blob(DATA)], id="a blob twice"),
        pytest.param([P, blob(DATA)], id="a blob that nothing refers to"),
        pytest.param([P, Part("other", b"")], id="an unknown part"),
        pytest.param([U, Part(f"blob:{digest(DATA)}", b"other data")], id="another digest"),
        pytest.param([U, Part(f"blob:{digest(DATA)}", b"")], id="nothing under a digest"),
        pytest.param([U, Part(f"blob:{digest(DATA).upper()}", DATA)], id="a digest in capitals"),
        pytest.param([U, Part("blob:abc", DATA)], id="a short digest"),
        pytest.param([U, Part(f"blob:{digest(DATA)} ", DATA)], id="a digest with a space"),
        pytest.param([U, Part("blob", DATA)], id="no digest"),
        pytest.param([dataclasses.replace(P, content_type=BYTES)], id="a program as bytes"),
        pytest.param([dataclasses.replace(P, content_type="text/plain")], id="a program as text"),
        pytest.param([dataclasses.replace(P, content_type="")], id="an empty type"),
        pytest.param([U, dataclasses.replace(blob(DATA), content_type=JSON)], id="a blob as JSON"),
        pytest.param(
            [dataclasses.replace(P, content_type="multipart/mixed; boundary=q", data=b"--q\r\n\r\nx\r\n--q--")],
            id="a multipart inside",
        ),
        pytest.param([headers()], id="no headers"),
        pytest.param([headers(DISPOSITION)], id="no type"),
        pytest.param([headers(TYPE)], id="no disposition"),
        pytest.param([headers(DISPOSITION, DISPOSITION, TYPE)], id="two dispositions"),
        pytest.param([headers(DISPOSITION, TYPE, TYPE)], id="two types"),
        pytest.param([headers(DISPOSITION.replace("form-data", "attachment"), TYPE)], id="an attachment"),
        pytest.param([headers("Content-Disposition: form-data", TYPE)], id="no name"),
        pytest.param([headers('Content-Disposition: form-data; name=""', TYPE)], id="an empty name"),
        pytest.param([headers(DISPOSITION, TYPE, "no header")], id="a line that is no header"),
        *(
            pytest.param([headers(DISPOSITION, TYPE, f"Content-Transfer-Encoding: {name}")], id=name)
            for name in ("base64", "quoted-printable", "7bit", "other")
        ),
    ],
)
def test_a_part_that_breaks_a_rule_is_refused(endpoint: Endpoint, parts: list[Part]) -> None:
    assert endpoint.post(*parts).refusal == (400, "parse")


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(headers(TYPE, DISPOSITION), id="the other order"),
        pytest.param(headers(DISPOSITION.lower(), TYPE.lower()), id="small letters"),
        pytest.param(headers("Content-Disposition: form-data; name=program", TYPE), id="no quotes"),
        pytest.param(headers(DISPOSITION, TYPE, "X-Other: 1"), id="another header"),
        pytest.param(headers(DISPOSITION, f"{TYPE}; charset=utf-8"), id="a charset"),
        pytest.param(headers(DISPOSITION, TYPE, "Content-Transfer-Encoding: binary"), id="binary"),
        pytest.param(headers(DISPOSITION, TYPE, "Content-Transfer-Encoding: 8bit"), id="8bit"),
    ],
)
def test_what_form_data_may_look_like_is_taken(endpoint: Endpoint, part: Part) -> None:
    assert endpoint.post(part).result() == 1


def test_blobs_may_come_before_the_program(endpoint: Endpoint) -> None:
    assert endpoint.post(blob(DATA), U).result() == DATA


@pytest.mark.parametrize("data", [b"", b"\r\n", f"\r\n--{BOUNDARY[:-1]}\r\n--".encode(), bytes(range(256))])
def test_any_bytes_travel_both_ways(endpoint: Endpoint, data: bytes) -> None:
    assert endpoint.run([upload("bytes", data), returned("u")], data).result() == data


GOOD = multipart([P])
FORM = f"multipart/form-data; boundary={BOUNDARY}"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        pytest.param(None, b"", id="nothing"),
        pytest.param(JSON, P.data, id="the program alone"),
        pytest.param("application/x-www-form-urlencoded", b"program=1", id="a form"),
        pytest.param(FORM.replace("form-data", "mixed"), GOOD, id="another multipart"),
        pytest.param("multipart/form-data", GOOD, id="no boundary"),
        pytest.param("multipart/form-data; boundary=", GOOD, id="an empty boundary"),
        pytest.param("multipart/form-data; boundary=other", GOOD, id="another boundary"),
        pytest.param(FORM, b"", id="an empty body"),
        pytest.param(FORM, GOOD[:-4], id="an end without its dashes"),
        pytest.param(FORM, GOOD[: len(GOOD) // 2], id="half a body"),
        pytest.param(FORM, GOOD.replace(b"\r\n\r\n", b"\r\n", 1), id="no line between headers and data"),
    ],
)
def test_what_is_no_form_data_is_refused(endpoint: Endpoint, content_type: str | None, body: bytes) -> None:
    sent = {**endpoint.headers(), **({"Content-Type": content_type} if content_type else {})}
    answer = read(endpoint.http.post("/execute", content=body, headers=sent))
    assert answer.refusal == (400, "parse")


def test_a_boundary_that_is_longer_than_any_is_refused(ours: Endpoint) -> None:
    sent = {**ours.headers(), "Content-Type": f"multipart/form-data; boundary={'b' * 5000}"}
    assert read(ours.http.post("/execute", content=GOOD, headers=sent)).refusal == (400, "parse")


@pytest.mark.parametrize(
    "content_type",
    [f'multipart/form-data; boundary="{BOUNDARY}"', f"Multipart/Form-Data; Boundary={BOUNDARY}", f"{FORM}; x=y"],
)
def test_the_boundary_may_be_written_otherwise(endpoint: Endpoint, content_type: str) -> None:
    sent = {**endpoint.headers(), "Content-Type": content_type}
    assert read(endpoint.http.post("/execute", content=GOOD + b"\r\nepilogue", headers=sent)).result() == 1


# ── negotiation ──


def test_unknown_blobs_are_named_once_each_and_nothing_runs(endpoint: Endpoint) -> None:
    one, two = os.urandom(9), os.urandom(9)
    uploads = [upload("bytes", one, "a"), upload("bytes", two, "b"), upload("bytes", one, "c"), returned("c")]
    miss = endpoint.run(uploads)
    assert (miss.status, set(miss.body)) == (200, {"status", "request_id", "missing_blobs"})
    assert miss.body["status"] == "CACHE_MISS"
    assert sorted(miss.body["missing_blobs"]) == sorted([digest(one), digest(two)])
    assert endpoint.run(uploads, one).body["missing_blobs"] == [digest(two)]
    assert endpoint.run(uploads, two).result() == one
    assert endpoint.run(uploads).result() == one


def test_a_file_is_known_too_once_it_was_sent(endpoint: Endpoint) -> None:
    data = os.urandom(9)
    uploads = [upload("file", data, path="x"), returned("u")]
    assert endpoint.run(uploads).body["missing_blobs"] == [digest(data)]
    assert endpoint.run(uploads, data).result() == "x"
    assert endpoint.run(uploads).result() == "x"


def test_a_blob_that_came_with_a_false_digest_is_not_kept(endpoint: Endpoint) -> None:
    data = os.urandom(9)
    uploads = program([upload("bytes", data), returned("u")])
    assert endpoint.post(uploads, Part(f"blob:{digest(data)}", b"false")).refusal == (400, "parse")
    assert endpoint.post(uploads).body["missing_blobs"] == [digest(data)]


def test_an_invalid_program_is_refused_before_blobs_are_asked_for(endpoint: Endpoint) -> None:
    assert endpoint.run([upload("bytes", os.urandom(9)), returned("other")]).refusal == (400, "parse")


# ── request ids, other paths ──


@pytest.mark.parametrize("given", [ID, "00000000-0000-0000-0000-000000000000"])
def test_a_canonical_request_id_is_kept(endpoint: Endpoint, given: str) -> None:
    assert endpoint.post(P, headers={"X-Request-ID": given}).body["request_id"] == given
    assert endpoint.post(headers={"X-Request-ID": given}).body["request_id"] == given


@pytest.mark.parametrize("given", ["", "1", ID.upper(), f"{{{ID}}}", ID.replace("-", ""), f"{ID}, {ID}", f"{ID}0"])
def test_any_other_request_id_is_replaced(endpoint: Endpoint, given: str) -> None:
    assert endpoint.post(P, headers={"X-Request-ID": given}).body["request_id"].lower() != ID


def test_two_request_ids_are_replaced_and_no_two_new_ones_are_alike(endpoint: Endpoint) -> None:
    sent = [*endpoint.headers().items(), ("Content-Type", FORM), ("X-Request-ID", ID), ("X-Request-ID", ID)]
    first = read(endpoint.http.post("/execute", content=GOOD, headers=sent)).body["request_id"]
    second = endpoint.post(P).body["request_id"]
    assert len({ID, first, second}) == 3


def test_a_router_s_header_changes_nothing(endpoint: Endpoint) -> None:
    assert endpoint.post(P, headers={"X-KCoral-Node": "node-1"}).result() == 1


@pytest.mark.parametrize(
    ("method", "path", "status", "detail"),
    [
        ("GET", "/", 404, "Not Found"),
        ("POST", "/nothing", 404, "Not Found"),
        ("GET", "/execute/more", 404, "Not Found"),
        ("GET", "/execute", 405, "Method Not Allowed"),
        ("PUT", "/execute", 405, "Method Not Allowed"),
        ("POST", "/health", 405, "Method Not Allowed"),
        ("DELETE", "/health", 405, "Method Not Allowed"),
    ],
)
def test_other_paths_and_methods_are_told_in_json(
    endpoint: Endpoint, method: str, path: str, status: int, detail: str
) -> None:
    response = endpoint.http.request(method, path, headers=endpoint.headers())
    assert (response.status_code, response.json()) == (status, {"detail": detail})
    if status == 405:
        assert ("POST" if path == "/execute" else "GET") in response.headers["allow"]
