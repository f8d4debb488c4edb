"""Output: floods, lines without end and bytes that are no text neither fill the gateway nor break what comes after."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcoral_gateway.config import MiB
from kcoral_gateway.execution.journal import Journal
from kcoral_magic.client.session import NOTEBOOK
from kcoral_magic.protocol import messages as m
from tests.attacks.cells import Cell
from tests.attacks.layouts import BoxedGateway, one_layout
from tests.support import until

pytestmark = pytest.mark.attack
FLOODS = {
    "yes": "subprocess.run(['yes'])",
    "shell": "get_ipython().system('yes')",
    "print": "while True: print('y' * 200)",
    "no-newline": "while True: os.write(1, b'y' * 65536)",
    "ansi": "while True: print('\\x1b[2J\\x1b[31m\\x1b[5;5H\\x1b]0;title\\x07' * 20)",
    "carriage-returns": "while True: os.write(1, b'\\r50%\\r' * 10_000)",
    "both": "while True:\n    print('o'); print('e', file=sys.stderr)",
    "not-utf8": "while True: os.write(1, bytes(range(128, 256)) * 500)",
}


@pytest.fixture
def bounded(gateway: BoxedGateway, other: Cell) -> Iterator[None]:
    """The gateway's memory grows by less than 64 MiB, whatever happens."""
    before = gateway.rss_bytes()
    yield
    assert gateway.rss_bytes() - before < 64 * MiB


def _journals_bytes(gateway: BoxedGateway) -> int:
    return sum(path.stat().st_size for path in (gateway.state / "journals").rglob("*.events"))


def test_a_flood_is_stopped_within_two_seconds_in_either_layout(cell: Cell, bounded: None) -> None:
    _is_stopped(cell, "yes")


@one_layout
@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_is_stopped_within_two_seconds_and_the_next_cell_prints_right(
    flood: str, cell: Cell, bounded: None
) -> None:
    _is_stopped(cell, flood)


def _is_stopped(cell: Cell, flood: str) -> None:
    running = cell.start(FLOODS[flood], view=NOTEBOOK)
    until(lambda: running.look() or len(running.outputs) > 5, 10, "it floods")
    began = time.monotonic()
    running.execution.interrupt()
    ended = running.end()
    assert time.monotonic() - began < 2
    assert isinstance(ended, KeyboardInterrupt | None)  # a shell command takes the signal itself
    result = cell.session.run("print('after', '\\x1b[0mé')")
    assert (result.stdout, result.stderr) == ("after \x1b[0mé\n", "")


@one_layout
def test_a_flood_does_not_slow_another_session(cell: Cell, other: Cell, bounded: None) -> None:
    quiet_s = other.latency_s()
    running = cell.start(FLOODS["no-newline"], view=NOTEBOOK)
    until(lambda: running.look() or len(running.text) > 500_000, 10, "it floods")
    during_s = other.latency_s(30)
    running.execution.interrupt(kill=True)
    running.end(5)
    assert during_s < max(4 * quiet_s, 0.05), f"{quiet_s * 1e3:.1f} ms before, {during_s * 1e3:.1f} ms during"


@one_layout
def test_a_reader_who_stops_reading_costs_the_gateway_no_memory(
    cell: Cell, gateway: BoxedGateway, bounded: None
) -> None:
    before = _journals_bytes(gateway)
    running = cell.start(FLOODS["no-newline"])  # nobody looks at what arrives
    until(lambda: _journals_bytes(gateway) - before > 100 * MiB, 20, "100 MiB wait in the journal")
    running.execution.interrupt()
    # The end waits behind the text that was not read: an interrupt is seen by the worker all the same.
    assert until(lambda: cell.state() == "idle", 5, "the cell has ended")


def test_a_line_of_100_mb_arrives_cut_and_counted(cell: Cell, bounded: None) -> None:
    running = cell.start("_ = sys.stdout.write('x' * 100_000_000)", view=NOTEBOOK)
    assert running.end(20) is None
    shown = sum(len(output.text) for output in running.outputs)
    result = running.execution.collected()
    assert result.skipped_bytes + shown == 100_000_000
    assert shown < 2 * MiB
    assert f"{result.skipped_bytes:,} bytes" in result.stdout
    assert cell.session.run("print('next')").stdout == "next\n"


@one_layout
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("os.write(1, b'\\xff\\xfea\\n')", "\ufffd\ufffda\n"),
        ("os.write(1, b'\\xe2\\x82'); time.sleep(0.05); os.write(1, b'\\xac\\n')", "€\n"),
        ("for byte in 'é€😀\\n'.encode(): os.write(1, bytes([byte])); time.sleep(0.02)", "é€😀\n"),
        ("os.write(1, b'half \\xe2\\x82')", "half \ufffd"),
        ("os.write(1, b'a\\xe2\\x82b\\n')", "a\ufffdb\n"),
        ("os.write(1, b'\\xed\\xa0\\x80\\n')", "\ufffd\ufffd\ufffd\n"),  # a lone surrogate
        ("os.write(1, b'\\xc0\\xaf\\n')", "\ufffd\ufffd\n"),  # a slash in too many bytes
        ("print('\\ud800')", "\\ud800\n"),
        ("os.write(1, b'\\0\\x07\\x08\\n')", "\0\x07\x08\n"),
        ("_ = sys.stdout.write('x' + 'é' * 400_000 + '\\n')", "x" + "é" * 400_000 + "\n"),
    ],
)
def test_bytes_become_text_however_they_are_cut(body: str, text: str, cell: Cell) -> None:
    running = cell.start(f"_ = None\n{body.replace('os.write', '_ = os.write')}")
    assert running.end() is None
    assert running.text == text
    assert cell.session.run("print('nächste')").stdout == "nächste\n"


@one_layout
def test_a_flood_of_a_program_left_in_the_background_lets_its_cell_end(cell: Cell, bounded: None) -> None:
    # A second, so that the pipe is full: the host reads a long flood more slowly than a program writes it.
    running = cell.start("started = subprocess.Popen(['yes'])\ntime.sleep(1)", view=NOTEBOOK)
    assert running.end(6) is None
    cell.session.run("started.kill(); _ = started.wait()")
    assert cell.session.run("print('next')").stdout.endswith("next\n")


def test_a_flood_after_its_cell_s_end_stays_within_what_a_journal_keeps(tmp_path: Path) -> None:
    # What a daemon of a finished cell prints goes to that cell's journal, for as long as the session lives.
    journal = Journal(tmp_path / "events", "an-execution", stream_bytes=MiB, tail_bytes=MiB // 4)
    journal.append(m.Finished("ok"))
    for _ in range(100):
        journal.append(m.Stream("stdout", True), (b"y" * 65536,))
    journal.flush()
    assert journal.stream_bytes == 100 * 65536
    assert (tmp_path / "events").stat().st_size < 1.5 * MiB


@one_layout
@pytest.mark.parametrize(
    "body",
    [
        "from IPython.display import clear_output\nfor _ in range(45_000): clear_output()",
        "from IPython.display import display\nfor _ in range(30_000): display(1)",
    ],
    ids=["clear_output", "display"],
)
def test_many_small_events_reach_a_reader_to_the_last_one(body: str, cell: Cell, bounded: None) -> None:
    # What the gateway counts as unread and what a reader acknowledges must be the same bytes.
    running = cell.start(body)
    assert running.end(15) is None
    assert isinstance(running.outputs[-1].body, m.Finished)
