"""Reports that no profiler writes: a profile or ``ReportInvalid``, soon, in bounded memory; and what is read is shown.

Seeded as ``test_framing_fuzz.py``: ``KCORAL_FUZZ_SEED`` and ``KCORAL_FUZZ_S`` run other and longer ones. Bytes that are
turned over rarely get beyond the first length, so messages are also taken apart and put together again with lengths
that fit, and metrics get values that no counter has.
"""

from __future__ import annotations

import json
import random
import struct
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from kcoral_magic.display.profile import Report
from kcoral_magic.errors import ReportInvalid
from kcoral_magic.reports import ncu_csv, ncu_log, ncu_rep
from kcoral_magic.reports.hotspots import disassembly
from kcoral_magic.reports.ncu import Profile
from tests.fuzz.test_framing_fuzz import SECONDS, SEED, turns
from tests.standins.kernels import saxpy
from tests.standins.ncu_writer import (
    MAGIC,
    Launch,
    Value,
    Writer,
    bars,
    curve,
    data,
    double,
    number,
    roofline,
    rule,
    section,
    varint,
)
from tests.unit.reports.samples import NAMES, sample
from tests.unit.reports.test_ncu_csv import HEAD, ROW, details

MiB = 1024 * 1024
# The constant: a field of two bytes is a tuple of about 128 while its message is read, here of at most 2**18 fields;
# and a kernel, of which 2**16 are read, takes 1.4 kB even if its row has five bytes. All else stays below 40 times the
# file's size.
MOST_TIMES, MOST_BYTES = 40, 96 * MiB
VERSION = struct.pack("<I", 2) + number(1, 7)
REPORT = Writer().report([saxpy(), saxpy(9_876.0, name="scale")], cubin=b"\x7fELF\0/home/somebody/k.cu\0")
TELLING = [b"\0", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff" * 9 + b"\x01", b"\x80" * 12, b"\xff" * 4, b"\0" * 4]
TELLING += [b"\x08", b"\x0a", b"\x0d", b"\x09", b"\x0b", b"\x0c", b"\x6a", b"\xff\xff\xff\x7f", MAGIC, VERSION]


class Closed(HTMLParser):
    """Every tag is closed in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        if tag != "br":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("x", "y", "cx", "cy", "width", "height", "r"):
                assert abs(float(value or "")) < 100_000, f"{name} of {tag} is {value}"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def shown(profile: Profile) -> None:
    """It renders, within its size, as HTML that is whole and JSON that browsers read (which have no NaN)."""
    bundle = Report(profile)._repr_mimebundle_()
    page = bundle["text/html"]
    assert len(page.encode()) < 1_000_000
    parser = Closed()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    for kind, value in bundle.items():
        if kind.endswith("json"):
            assert len(json.dumps(value, allow_nan=False)) <= 2.1 * MiB


def read_or_refused(read: Callable[[], Profile], what: bytes | str, *, shows: bool = True) -> Profile | None:
    """What was read and can be shown, or ``None``; anything else that is raised shows the bytes."""
    try:
        profile = read()
    except ReportInvalid as error:
        said = str(error)
        return None if 10 < len(said) < 600 else pytest.fail(f"no words for people: {said[:1000]}")
    except BaseException as error:
        pytest.fail(f"{type(error).__name__}: {error}\nseed {SEED}, {len(what)} long: {what[:800]!r}")
    try:
        if shows:
            shown(profile)
    except BaseException as error:
        pytest.fail(f"shown: {type(error).__name__}: {error}\nseed {SEED}, {len(what)} long: {what[:800]!r}")
    return profile


def outcome(report: bytes, *, shows: bool = True) -> Profile | None:
    return read_or_refused(lambda: ncu_rep.read(report), report, shows=shows)


def csv_outcome(text: str, *, shows: bool = True) -> Profile | None:
    return read_or_refused(lambda: ncu_csv.read(text), text, shows=shows)


def bounded(read: Callable[[], object], size: int, *, seconds: float = 12.0) -> None:
    """Within its time and memory. Watching memory makes it several times slower."""
    began = time.monotonic()
    tracemalloc.start()
    try:
        read()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_TIMES * size + MOST_BYTES, f"{peak:,} bytes of memory for {size:,}"
    assert time.monotonic() - began < seconds


# ── .ncu-rep: bytes ──


def mutated(chance: random.Random, report: bytes) -> bytes:
    """A valid report with a few things wrong."""
    made = bytearray(report)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(made) + 1)
        match chance.randrange(6):
            case 0 if at < len(made):
                made[at] ^= 1 << chance.randrange(8)
            case 1:
                telling = chance.choice(TELLING)
                made[at : at + len(telling)] = telling
            case 2:
                made[at:at] = chance.choice(TELLING) * chance.choice((1, 1, 2, 300))
            case 3:
                del made[at : at + chance.choice((1, 2, 4, 100))]
            case 4:
                other = chance.randrange(len(report))
                made[at:] = report[other:]
            case _:
                length = chance.choice((0, 1, 2**31, 2**32 - 1))
                made[at : at + 4] = struct.pack("<I", length)
    return bytes(made)


def test_a_report_that_breaks_off_anywhere_is_refused_or_lacks_its_last_kernels() -> None:
    kernels = set()
    for end in range(len(REPORT)):
        profile = outcome(REPORT[:end], shows=False)
        if profile is not None:
            kernels.add(len(profile))
    assert kernels == {0, 1}


def test_a_mutated_report_is_a_profile_that_shows_or_is_refused() -> None:
    outcomes = {True: 0, False: 0}
    for chance in turns():
        outcomes[outcome(mutated(chance, REPORT), shows=chance.random() < 0.3) is None] += 1
    assert min(outcomes.values()) > 10, f"the mutations are all alike: {outcomes}"


def test_random_bytes_behind_the_beginning_of_a_report_are_refused() -> None:
    for chance in turns():
        noise = b"".join(chance.choices([*TELLING, chance.randbytes(3), struct.pack("<I", 8)], k=chance.randrange(40)))
        outcome(MAGIC + noise)
        outcome(MAGIC + VERSION + noise)
        outcome(MAGIC + VERSION + struct.pack("<I", len(noise)) + noise)


@pytest.mark.parametrize("name", NAMES)
def test_a_mutated_real_report_is_a_profile_that_shows_or_is_refused(name: str) -> None:
    real, chance, began = sample(f"{name}.ncu-rep"), random.Random(SEED), time.monotonic()
    profile = outcome(real)
    assert profile is not None
    while time.monotonic() < began + SECONDS:  # real ones are slow to read: not so many turns
        outcome(mutated(chance, real))
        outcome(real[: chance.randrange(len(real))])


# ── .ncu-rep: messages ──


def split(message: bytes) -> list[tuple[int, int, bytes]] | None:
    """The fields of a message as ``(number, kind, bytes)``, lengths left out; none of what is no message."""
    found, at = [], 0

    def taken() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    try:
        while at < len(message):
            key = taken()
            start = at
            if key & 7 == 0:
                taken()
                found.append((key >> 3, 0, message[start:at]))
                continue
            size = {1: 8, 5: 4}[key & 7] if key & 7 != 2 else taken()
            if at + size > len(message):
                return None
            found.append((key >> 3, key & 7, message[at : at + size]))
            at += size
    except (IndexError, KeyError):
        return None
    return found


def joined(found: Sequence[tuple[int, int, bytes]]) -> bytes:
    return b"".join(
        varint(key << 3 | kind) + (varint(len(value)) if kind == 2 else b"") + value for key, kind, value in found
    )


LEAVES = [varint(2**64 - 1), varint(0), struct.pack("<d", float("nan")), struct.pack("<d", float("inf"))]
LEAVES += [struct.pack("<d", -1e308), b"", b"\xff\xfe", b"<b>&\"'\0", b"x" * 3000, "é\u2028".encode() * 40]


def reshaped(chance: random.Random, message: bytes, depth: int = 0) -> bytes:
    """The message with fields doubled, left out, swapped or made of another kind, somewhere inside; lengths fit."""
    found = split(message)
    if not found or depth > 8:
        return chance.choice(LEAVES)
    for _ in range(chance.choice((1, 1, 2))):
        at = chance.randrange(len(found))
        key, kind, value = found[at]
        match chance.randrange(8):
            case 0:
                found[at:at] = [found[at]] * chance.choice((1, 1, 50))
            case 1 if len(found) > 1:
                del found[at]
            case 2:
                other = chance.randrange(len(found))
                found[at], found[other] = found[other], found[at]
            case 3:
                found[at] = (key, 0, varint(chance.choice((0, 1, 5, 2**32, 2**63, 2**64 - 1))))
            case 4:
                found[at] = (key, 2, chance.choice(LEAVES))
            case 5:
                found[at] = (chance.choice((1, 2, 3, 4, 5, 13, 15, 17, 19, 500)), kind, value)
            case _:
                found[at] = (key, 2, reshaped(chance, value, depth + 1)) if kind == 2 else (key, 2, value)
    return joined(found)


def written(entry: bytes, strings: Sequence[str]) -> bytes:
    """A report of one kernel, of which this is the message."""
    writer = Writer()
    return writer.report([]) + writer._block(writer._sized(entry), results=1, strings=strings)


def test_a_kernel_with_other_fields_is_one_that_shows_or_is_refused() -> None:
    strings: list[str] = []
    entry = Writer()._entry(saxpy(), strings)
    outcomes = {True: 0, False: 0}
    for chance in turns():
        outcomes[outcome(written(reshaped(chance, entry), strings)) is None] += 1
    assert min(outcomes.values()) > 10, f"the mutations are all alike: {outcomes}"


def test_a_block_s_header_with_other_fields_is_one_or_is_refused() -> None:
    start = len(MAGIC) + len(VERSION)
    blocks, at = [], start
    while at < len(REPORT):
        (size,) = struct.unpack_from("<I", REPORT, at)
        head = REPORT[at + 4 : at + 4 + size]
        payload = next((value for key, _, value in split(head) or () if key == 5), b"\0")
        length = sum((byte & 127) << 7 * place for place, byte in enumerate(payload))
        blocks.append((head, REPORT[at + 4 + size : at + 4 + size + length]))
        at += 4 + size + length
    assert len(blocks) == 4
    for chance in turns():
        made = [
            (reshaped(chance, head) if chance.random() < 0.4 else head, rest)
            for head, rest in chance.sample(blocks, k=chance.randrange(1, 5))
        ]
        report = REPORT[:start] + b"".join(struct.pack("<I", len(head)) + head + rest for head, rest in made)
        outcome(report, shows=chance.random() < 0.3)


NASTY: list[Value] = [0, 0.0, -1.0, 1, 2**64 - 1, 1e308, -1e308, 5e-324, 1e-300, float("nan"), float("inf")]
NASTY += [-float("inf"), "", "n/a", "<script>", "a,b,,sm__inst_executed.avg.pct_of_peak_sustained_elapsed", "\0", 1e17]


def odd(chance: random.Random) -> Launch:
    """A kernel with values that no counter has."""
    plain = saxpy()
    share = chance.choice((0.02, 0.2, 0.9))
    metrics = {name: chance.choice(NASTY) if chance.random() < share else v for name, v in plain.metrics.items()}
    instances = {
        name: [
            tuple(chance.choice(NASTY) if chance.random() < share / 4 else one for one in pair) for pair in list(pairs)
        ]
        for name, pairs in plain.instances.items()
    }
    speed = (chance.choice((0, 1, 2, 9)), chance.choice((float("nan"), float("inf"), -1.0, 1e308)))
    odd_rule = rule("r", "", "s", chance.choice(("@url:a:b@. @", "x" * 5000, "@" * 90)), kind=99, speedup=speed)
    return replace(plain, metrics=metrics, instances=instances, rules=[*plain.rules, odd_rule])


def test_a_kernel_whose_counters_are_out_of_all_range_is_shown() -> None:
    chance, began, count = random.Random(SEED), time.monotonic(), 0
    while time.monotonic() < began + 2 * SECONDS:  # all of it is drawn each time
        count += 1
        report = Writer().report([odd(chance) for _ in range(chance.choice((1, 1, 2)))])
        assert outcome(report) is not None
    assert count > 20, "too slow to find anything"


def nested(depth: int) -> bytes:
    made = b""
    for _ in range(depth):
        made = data(5, made)
    return made


def kernel_of(fields: bytes, strings: Sequence[str] = ("gpu__time_duration.sum",)) -> bytes:
    return written(data(6, "k") + fields, strings)


def blocks_of(payload: bytes, *, sources: int = 0, results: int = 0) -> bytes:
    writer = Writer()
    return writer.report([]) + writer._block(payload, sources=sources, results=results)


SAME = [("gpu__time_duration.sum", "x" * 20)]
CURVED = data(5, data(1, curve("t", "x", "y", "gpu__time_duration.sum", "")))
POINTS = data(13, number(1, 0) + data(3, data(1, double(3, 1.0)) + data(2, double(3, 2.0))) * 4000)
POINTED = data(13, number(1, 0) + data(2, double(3, 7.0)))
BARRED = section("B", "", 1, [], [bars("t", "a", 100, SAME)])
FLOODS: dict[str, Callable[[], bytes]] = {
    "empty blocks": lambda: MAGIC + VERSION + bytes(MiB // 2),
    "blocks of nothing": lambda: MAGIC + VERSION + Writer()._block(b"") * 8_000,
    "empty kernels": lambda: blocks_of(bytes(MiB), results=MiB // 4),
    "empty codes": lambda: blocks_of(bytes(MiB), sources=MiB // 4),
    "codes that are the file": lambda: blocks_of(
        b"".join(Writer()._sized(number(1, place) + number(4, 0)) for place in range(20_000)), sources=20_000
    ),
    "fields of two bytes": lambda: kernel_of(number(1, 1) * (MiB // 4)),
    "strings": lambda: MAGIC + VERSION + Writer()._block(b"", strings=["ab"] * 100_000),
    "the same metric": lambda: kernel_of(POINTED * 10_000),
    "instances without anything": lambda: kernel_of(data(13, number(1, 0) + data(3, b"") * 60_000)),
    "instances of texts": lambda: kernel_of(data(13, number(1, 0) + data(3, data(1, data(1, "é12"))) * 20_000)),
    "rules without a text": lambda: kernel_of(data(19, b"") * 100_000),
    "rules": lambda: kernel_of(data(19, rule("r", "n", "s", "some text. And more.")) * 4_000),
    "a rule that is long": lambda: kernel_of(data(19, rule("r", "n", "s", "x. " * 300_000, title="t" * 300_000))),
    "a rule of marks": lambda: kernel_of(data(19, rule("r", "n", "s", ("@url:" + ":" * 700) * 2000))),
    "sections": lambda: kernel_of(data(17, b"") * 100_000),
    "sections of one name": lambda: kernel_of(POINTED + data(17, BARRED) * 2000),
    "a header of a section": lambda: kernel_of(POINTED + data(17, section("A", "A", 1, SAME * 20_000))),
    "nesting": lambda: kernel_of(data(17, nested(3000)) + data(19, nested(3000)) + data(21, nested(3000))),
    "curves over one metric": lambda: kernel_of(POINTS + data(17, section("A", "A", 1, []) + CURVED * 4000)),
    "roofs": lambda: kernel_of(
        data(17, section("A", "A", 1, [], [roofline("r", [("f", f"P{n}") for n in range(2000)])]))
    ),
    "a name": lambda: kernel_of(data(6, "é" * MiB) + data(7, "ü" * MiB)),
    "a device": lambda: kernel_of(
        data(13, number(1, 0) + data(2, data(1, "é" * MiB))), ["device__attribute_display_name"]
    ),
    "a breakdown": lambda: kernel_of(
        data(13, number(1, 0) + data(2, data(1, "gpu__time_duration.sum," * 12_000)))
        + data(13, number(1, 1) + data(2, double(3, 5.0))),
        ["breakdown:sm__x", "gpu__time_duration.sum"],
    ),
}


@pytest.mark.parametrize("made", FLOODS.values(), ids=FLOODS)
def test_a_flood_is_read_and_shown_or_refused_in_bounded_time_and_memory(made: Callable[[], bytes]) -> None:
    report = made()
    bounded(lambda: outcome(report), len(report))


@pytest.mark.parametrize("length", [2**31 - 1, 2**32, 2**63, 2**64 - 1, 2**70])
def test_a_length_of_a_field_is_not_believed(length: int) -> None:
    for key in (1, 3, 5, 6, 10, 13, 15, 17, 19, 21):
        report = kernel_of(varint(key << 3 | 2) + varint(length) + b"abc")
        bounded(lambda report=report: outcome(report), len(report))  # type: ignore[misc]
        assert outcome(report) is None


def test_a_message_of_more_fields_than_any_has_is_refused() -> None:
    assert outcome(kernel_of(number(1, 1) * (MiB + 2))) is None


def test_a_report_without_kernels_is_shown() -> None:
    for report in (MAGIC + VERSION, Writer().report([])):
        profile = outcome(report)
        assert profile is not None
        assert len(profile) == 0


# ── CSV ──

RAW = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","dram__bytes_read.sum","gpu__time_duration.sum"\n"","","","","","","","","","","","Mbyte","us"\n'
    + ROW
    + '"2.5","12.3"\n'
)
DETAILS = details(
    '"GPU Speed Of Light Throughput","Duration","us","6.75"',
    '"GPU Speed Of Light Throughput","Compute (SM) Throughput","%","9,15"',
    '"GPU Speed Of Light Roofline Chart","DRAM Frequency","Ghz","2.6"',
    '"Memory Workload Analysis","Memory Throughput","Gbyte/s","345.14"',
    '"Occupancy","","","","TheoreticalOccupancy","OPT","Use fewer registers","global","80.34"',
)
PIECES = [
    '"',
    '""',
    ",",
    ";",
    "\t",
    "\n",
    "\r",
    "\r\n",
    "\0",
    "\ufeff",
    "\u2028",
    "==PROF== x\n",
    "==ERROR== y\n",
    HEAD,
]
PIECES += [
    "²",
    "٣",
    "9" * 5000,
    "-",
    "+-inf",
    "nan",
    "1e999",
    "1,234.5",
    "1.234,5",
    "1'000",
    "n/a",
    "(",
    "(1, 2, ",
    RAW,
]
PIECES += ["ID,Kernel Name\n", "x" * 140_000, "<b>", "a::", "Metric Name", "%", "Tbyte", "1e308", "\u202f"]


def scrambled(chance: random.Random) -> str:
    """A page with a few things wrong."""
    text = chance.choice((DETAILS, RAW, RAW + DETAILS, DETAILS.replace('","', '";"'), DETAILS.replace('"', "")))
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(text) + 1)
        match chance.randrange(4):
            case 0:
                text = text[:at] + chance.choice(PIECES) + text[at:]
            case 1:
                text = text[:at] + text[at + chance.choice((1, 5, 100)) :]
            case 2:
                cells = text.split(",")
                cells[chance.randrange(len(cells))] = f'"{chance.choice(PIECES)}"'
                text = ",".join(cells)
            case _:
                lines = text.splitlines(keepends=True)
                chance.shuffle(lines)
                text = "".join(lines)
    return text


def test_a_scrambled_page_is_a_profile_that_shows_or_is_refused() -> None:
    outcomes = {True: 0, False: 0}
    for chance in turns():
        outcomes[csv_outcome(scrambled(chance), shows=chance.random() < 0.3) is None] += 1
    assert min(outcomes.values()) > 10, f"the mutations are all alike: {outcomes}"


@pytest.mark.parametrize(
    "name",
    [
        "csv_llmperfopt_k1_details",
        "csv_llmperfopt_k1_metrics",
        "csv_llmperfopt_k1_section_Occupancy",
        "csv_llmperfopt_k1_section_SpeedOfLight_RooflineChart",
        "csv_nsightful_copy_blocked_details",
    ],
)
def test_a_real_page_that_breaks_off_or_has_odd_cells_is_a_profile_that_shows_or_is_refused(name: str) -> None:
    text, chance, began = sample(f"{name}.csv").decode(), random.Random(SEED), time.monotonic()
    while time.monotonic() < began + SECONDS / 2:
        at = chance.randrange(len(text))
        csv_outcome(text[:at])
        csv_outcome(text[:at] + chance.choice(PIECES) + text[at + chance.choice((0, 1, 20)) :])


CSV_FLOODS: dict[str, Callable[[], str]] = {
    "launches": lambda: "ID,Kernel Name\n" + "1\n" * 100_000,
    "launches with a metric": lambda: (
        "ID,Kernel Name,Metric Name,Metric Value\n" + "".join(f"{n},k,m,1\n" for n in range(70_000))
    ),
    "columns": lambda: (
        "ID,Kernel Name," + ",".join(f"m{n}" for n in range(2_000)) + "\n" + ("0,k" + ",1" * 2_000 + "\n") * 20
    ),
    "metrics of one section": lambda: details(*(f'"S","label {n}","%","{n}"' for n in range(20_000))),
    "a cell": lambda: details('"S","l","%","' + "9" * 5_000_000 + '"'),
    "cells that are long": lambda: details('"S","l","%","' + "9" * 100_000 + '"', *['"S","l"'] * 20),
    "a name": lambda: "ID,Kernel Name\n" + "0," + "<" * 130_000 + "\n",
    "a quote that is open": lambda: details('"S","l","%","1') + "x,\n" * 300_000,
    "lines before the header": lambda: "ID\n" * 50_000 + DETAILS,
    "quotes": lambda: '"' * 2_000_000 + DETAILS,
}


@pytest.mark.parametrize("made", CSV_FLOODS.values(), ids=CSV_FLOODS)
def test_a_page_without_an_end_is_read_and_shown_or_refused_in_bounded_time_and_memory(made: Callable[[], str]) -> None:
    text = made()
    bounded(lambda: csv_outcome(text), len(text))


LONG = ["1," * 10_000, "9" * 1_000_000, "1" + ",111" * 90, "1" + ",111" * 100_000, "." * 400, "1." * 200, "-" * 100_000]
LONG += ["1e" + "9" * 390, "9" * 390, "+" * 399 + "1", " " * 1_000_000 + "1", "1" + "\u202f111" * 99, "1'" * 200]


@pytest.mark.parametrize("text", LONG, ids=lambda text: f"{text[:6]!r}*{len(text)}")
def test_a_number_that_is_long_is_read_or_stays_text_at_once(text: str) -> None:
    began = time.monotonic()
    assert isinstance(ncu_csv.number(text), int | float | str)
    assert time.monotonic() - began < 0.2


def test_random_cells_are_numbers_texts_or_nothing() -> None:
    for chance in turns():
        text = "".join(
            chance.choices("0123456789,.'+-eE \u00a0\u202f²٣nianfINF/%()", k=chance.choice((1, 2, 4, 8, 60)))
        )
        value = ncu_csv.number(text)
        assert value is None or isinstance(value, int | float | str)
        ncu_csv.based(value, chance.choice(("us", "s", "Tbyte", "hz", "%", "²", "")))


# ── what ncu and nvdisasm print ──

LOG_PIECES = [
    '==PROF== Profiling "',
    '"',
    " - 3 passes",
    "1" * 50,
    "9 pass",
    "\n",
    "==ERROR== ",
    "==WARNING==",
    " ",
    "\n" * 9,
]
SASS_PIECES = ['\t.section\t.text.f,"ax"\n', "//-- .text.g -\n", "Function : h\n", '//## File "', '", line ', "7", "\n"]
SASS_PIECES += ["/*0010*/ ", "/*", "*/", " " * 20, ";", "FFMA R1", "-" * 20, "²", "9" * 5000, "inlined at", "\x0b"]


def test_random_logs_and_listings_are_read() -> None:
    for chance in turns():
        ncu_log.read("".join(chance.choices(LOG_PIECES, k=chance.randrange(30))))
        disassembly("".join(chance.choices(SASS_PIECES, k=chance.randrange(30))))


N = 20_000
LOGS = {
    "quotes": '==PROF== Profiling "' + '"' * N,
    "quotes and digits": '==PROF== Profiling "' + '"1' * N,
    "digits": '==PROF== Profiling "k" ' + "1" * N,
    "digits of passes": '==PROF== Profiling "k" ' + "1" * N + " passes",
    "profilings": '==PROF== Profiling "' * N,
    "lines": '==PROF== Profiling "\n' * N,
    "empty errors": "==ERROR==\n" * N,
    "blanks": "==ERROR==" + " \n" * N,
    "unsupported": "is not supported unsupported not supported on " * N,
}


@pytest.mark.parametrize("text", LOGS.values(), ids=LOGS)
def test_a_log_that_is_made_to_be_slow_is_read_at_once(text: str) -> None:
    began = time.monotonic()
    ncu_log.read(text)
    assert time.monotonic() - began < 1


LISTINGS = {
    "blanks inside": "/*0010*/ x" + " " * N + "x",
    "comments inside": "/*0010*/ " + "/* */" * N + "x",
    "openings": "/*0010*/ " + "/*" * N,
    "semicolons": "/*0010*/ " + "; " * N + "x",
    "dashes": "//" + "-" * N,
    "blanks": " " * N,
    "a section without an end": ".section .text." + "x" * N,
    "hyphens": "//- .text." + "-" * N + "x",
    "files": '//## File "' * N,
    "a line number": '//## File "a", line ' + "1" * N,
    "an offset": "/*" + "f" * N + "*/ x",
}


@pytest.mark.parametrize("text", LISTINGS.values(), ids=LISTINGS)
def test_a_listing_that_is_made_to_be_slow_is_read_at_once(text: str) -> None:
    began = time.monotonic()
    disassembly("Function : f\n" + text)
    assert time.monotonic() - began < 1


def test_a_report_without_names_is_read_as_before_whatever_its_texts() -> None:
    """Paths are written over where they stand: never a length beside them."""
    for chance in turns():
        text = "".join(chance.choices(["/", "a", "L1/TEX ", "home/u", ".", "é", ":"], k=chance.randrange(60)))
        report = Writer(host=text[:9] or "h").report(
            [Launch("k", {text: 1.0, "b": text}, signature=text, rules=[rule("r", text[:47], "s", text * 2)])],
            cubin=b"\x7fELF\0/home/somebody/k.cu\0",
        )
        redacted = ncu_rep.redact(report)
        assert b"somebody" not in redacted
        assert len(ncu_rep.read(redacted)[0].metrics) == len(ncu_rep.read(report)[0].metrics), repr(text)
