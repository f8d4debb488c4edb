"""What cells write: complete, in order, once. Public faults 1, 2, 4, 5, 6, 8, 9, 10, 11 and 20."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from kcoral_magic import Client
from kcoral_magic.client.results import Output
from kcoral_magic.client.session import NOTEBOOK
from kcoral_magic.client.sync import Session
from kcoral_magic.protocol import messages as m
from tests.support import until


@pytest.fixture
def session(client: Client) -> Session:
    session = client.session()
    session.run("pass")  # placed and started: what follows is the cell's own
    return session


def _outputs(session: Session, source: str) -> list[Output]:
    return list(session.execute(source))


def _order(outputs: list[Output]) -> list[str]:
    """What came, in order: text of streams by line, ``display`` for displays."""
    said: list[str] = []
    for output in outputs:
        match output.body:
            case m.Stream(name=name):
                said += [f"{name}:{line}" for line in output.text.splitlines()]
            case m.Display():
                said.append(f"display:{bytes(output.buffers[0]).decode()}")
            case m.Error(ename=ename):
                said.append(f"error:{ename}")
            case _:
                pass
    return said


def test_text_before_an_error_comes_before_it(session: Session) -> None:
    said = _order(_outputs(session, "print('hello'); raise RuntimeError('x')"))
    assert said == ["stdout:hello", "error:RuntimeError"]


def test_a_display_as_the_last_act_arrives_every_time(session: Session) -> None:
    session.run("from IPython.display import HTML, display")
    for _ in range(200):
        outputs = _outputs(session, "display(HTML('<b>x</b>'))")
        assert [type(output.body).__name__ for output in outputs] == ["Display", "Finished"]


def test_c_output_falls_in_line_with_python_prints_without_a_flush(session: Session) -> None:
    source = "import ctypes\nlibc = ctypes.CDLL(None)\nfor i in range(200):\n  print('A', i)\n  libc.puts(b'B%d' % i)"
    expected = [line for i in range(200) for line in (f"A {i}", f"B{i}")]
    assert session.run(source).stdout.splitlines() == expected


def test_a_very_chatty_child_on_both_streams_finishes_complete(session: Session) -> None:
    source = (
        "import subprocess, sys\n"
        "code = 'import sys; line = \"x\" * 99 + chr(10)\\n'\n"
        "code += 'for f in (sys.stderr, sys.stdout):\\n  for _ in range(500_000): f.write(line)'\n"
        "subprocess.run([sys.executable, '-c', code]).returncode"
    )
    result = session.run(source)
    assert result.text == "0"
    assert (len(result.stderr), len(result.stdout)) == (50_000_000, 50_000_000)


def test_bytes_that_are_no_text_are_replaced_and_split_characters_stay_whole(session: Session) -> None:
    assert session.run("import os; os.write(1, b'\\xff\\xfe\\n');").stdout == "��\n"
    source = "import time\nos.write(1, 'é'.encode()[:1]); time.sleep(0.05); os.write(1, 'é\\n'.encode()[1:]);"
    assert session.run(source).stdout == "é\n"
    assert session.run("print('next')").stdout == "next\n"


def test_random_prints_errors_displays_and_c_output_keep_their_order(session: Session) -> None:
    chosen = random.Random(7)
    kinds = [chosen.choice(["out", "out", "err", "display", "puts"]) for _ in range(4000)]
    # C's output right after Python's stderr is the one order that nobody can keep: nothing tells that C will write.
    kinds = ["out" if kind == "puts" and before == "err" else kind for before, kind in pairwise(["out", *kinds])]
    session.run(
        "import ctypes, sys\nfrom IPython.display import display\nlibc = ctypes.CDLL(None)\n"
        "class Show:\n  def __init__(self, i): self.i = i\n  def __repr__(self): return str(self.i)\n"
        "write = {'out': lambda i: print(i), 'err': lambda i: print(i, file=sys.stderr),\n"
        "         'display': lambda i: display(Show(i)), 'puts': lambda i: libc.puts(b'%d' % i)}"
    )
    said = _order(_outputs(session, f"for i, kind in enumerate({kinds!r}): write[kind](i)"))
    prefix = {"out": "stdout", "puts": "stdout", "err": "stderr", "display": "display"}
    assert said == [f"{prefix[kind]}:{i}" for i, kind in enumerate(kinds)]


def test_updates_reach_their_own_display_also_from_a_later_cell(session: Session) -> None:
    first = _outputs(session, "a = display('a0', display_id=True); b = display('b0', display_id=True); a.update('a1')")
    second = _outputs(session, "b.update('b1')")
    displays = [output for output in first + second if isinstance(output.body, m.Display)]
    shown = {}
    for output in displays:
        assert isinstance(output.body, m.Display)
        assert output.body.is_update == (output.body.display_id in shown)
        shown[output.body.display_id] = bytes(output.buffers[0]).decode()
    assert sorted(shown.values()) == ["'a1'", "'b1'"]


def test_top_level_await_and_asyncio_run_both_work(session: Session) -> None:
    assert session.run("import asyncio\nawait asyncio.sleep(0.01)\nprint('awaited')").stdout == "awaited\n"
    source = "async def f():\n  await asyncio.sleep(0.01)\n  return 5\nasyncio.run(f())"
    assert session.run(source).text == "5"


def test_a_flood_shows_its_head_and_tail_and_counts_the_rest(session: Session) -> None:
    execution = session.execute("for i in range(600_000): print(i)", view=NOTEBOOK)
    result = execution.result()
    complete = "".join(f"{i}\n" for i in range(600_000))
    head, _, rest = result.stdout.partition("\n[… ")
    marker, _, tail = rest.partition(" …]\n")
    assert f"{result.skipped_bytes:,} bytes in" in marker
    assert complete.startswith(head)
    assert complete.endswith(tail)
    assert 1024 * 1024 <= len(head) <= 1024 * 1024 + 300_000
    assert 256 * 1024 - 300_000 <= len(tail) <= 256 * 1024
    assert len(head) + result.skipped_bytes + len(tail) == len(complete)


def test_the_whole_of_a_cut_flood_can_be_fetched(client: Client, session: Session) -> None:
    execution = session.execute("for i in range(600_000): print(i)", view=NOTEBOOK)
    execution.result()
    assert client.attach(execution.execution_id).result().stdout == "".join(f"{i}\n" for i in range(600_000))


def test_one_line_of_fifty_megabytes_arrives_whole(session: Session) -> None:
    assert len(session.run("print('x' * 50_000_000)").stdout) == 50_000_001


def test_magics_run_remotely_or_fail_and_never_run_here(session: Session) -> None:
    assert "Wall time" in session.run("def f(): return 3\n%time f()").stdout
    assert session.run("!echo shell").stdout == "shell\r\n"
    assert session.run("%%bash\necho bash $((1 + 1))").stdout == "bash 2\n"
    session.run("%matplotlib inline")
    with pytest.raises(Exception, match="nosuch"):
        session.run("%nosuch")


def test_figures_tables_and_values_come_as_their_rich_types(session: Session) -> None:
    figure = session.run("import matplotlib.pyplot as plt\nplt.plot([1, 2]);").displays
    assert [sorted(bundle) for bundle in figure] == [["image/png", "text/plain"]]
    table = session.run("import pandas as pd\npd.DataFrame({'a': [1]})").value
    assert table is not None
    assert "<table" in str(table["text/html"])
    assert session.run("1 + 1;").value is None


def test_clear_output_arrives_in_its_place(session: Session) -> None:
    outputs = _outputs(
        session, "from IPython.display import clear_output\nprint('a')\nclear_output(wait=True)\nprint('b')"
    )
    kinds = [type(output.body).__name__ for output in outputs]
    assert [kind for kind in kinds if kind != "Names"] == ["Stream", "ClearOutput", "Stream", "Finished"]


def test_what_a_thread_prints_after_its_cell_is_late_and_not_lost(client: Client, session: Session) -> None:
    source = (
        "import threading\nstop = threading.Event()\n"
        "thread = threading.Thread(target=lambda: (stop.wait(20), print('late')))\nthread.start()"
    )
    execution = session.execute(source)
    execution.result()
    session.run("x = 1")
    assert client.attach(execution.execution_id).result().stdout == ""
    fourth = session.execute("stop.set(); thread.join(); print('own')")
    assert fourth.result().stdout == "late\nown\n"
    last = session.execute(f"{source}\nprint('now')\nstop.set()")
    assert last.result().stdout.startswith("now\n")
    until(lambda: client.attach(last.execution_id).result().stdout == "now\nlate\n", 5)


def test_line_numbers_and_sources_are_the_notebooks(session: Session) -> None:
    place = m.Place(count=3, first_line=2)
    session.run("def broken(n):\n    return n / 0", place=place)
    session.run("y = 1", place=m.Place(4, 2))
    with pytest.raises(ZeroDivisionError) as caught:
        session.run("\n\n\n\n\nbroken(1)", place=m.Place(5, 2))
    text = caught.value.__notes__[0]
    assert "Cell In[5], line 7" in text
    assert "Cell In[3], line 3, in broken(n)" in text
    assert "return n / 0" in text
    assert text.count("Cell In") == 2
    assert "site-packages" not in text


def test_a_syntax_error_points_at_its_column(session: Session) -> None:
    with pytest.raises(SyntaxError) as caught:
        session.run("a = 1\nb = = 2", place=m.Place(9, 2))
    lines = caught.value.__notes__[0].splitlines()
    at = next(i for i, line in enumerate(lines) if "b = = 2" in line)
    assert "Cell In[9], line 3" in lines[at - 1]
    assert lines[at + 1].index("^") == lines[at].index("= 2")


def test_multiprocessing_and_threads_do_what_they_do_locally(session: Session) -> None:
    source = (
        "import multiprocessing as mp\ndef square(x): return x * x\n"
        "with mp.get_context('fork').Pool(2) as pool: print(pool.map(square, range(5)))"
    )
    assert session.run(source).stdout == "[0, 1, 4, 9, 16]\n"


def test_input_says_that_it_cannot_ask(session: Session) -> None:
    with pytest.raises(Exception, match="takes no input"):
        session.run("input('name? ')")
