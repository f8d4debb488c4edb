"""Names, lines and questions of marked cells in a real kernel: what goes, what is said of it, who answers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.notebooks.kernels import Cell, Kernel
from tests.support import GatewayProcess

pytestmark = pytest.mark.notebook


def notes(cell: Cell) -> list[str]:
    """Our own lines of a cell."""
    return [text.removeprefix("kcoral: ") for text in cell.shown() if text.startswith("kcoral: ")]


def output(cell: Cell) -> list[str]:
    """The others."""
    return [text for text in cell.shown() if not text.startswith("kcoral: ")]


def matches(kernel: Kernel, code: str) -> list[str]:
    kernel.client.complete(code, len(code))
    return sorted(kernel.client.get_shell_msg(timeout=10)["content"]["matches"])


def question(kernel: Kernel) -> dict[str, Any]:
    """The next input request."""
    message: dict[str, Any] = kernel.client.get_stdin_msg(timeout=15)
    assert message["msg_type"] == "input_request"
    return message


def answered(kernel: Kernel, source: str, *lines: str) -> tuple[Cell, list[str]]:
    """Run a cell and answer its questions in order; the cell, and the prompts."""
    cell, prompts = kernel.send(source), []
    for line in lines:
        prompts.append(question(kernel)["content"]["prompt"])
        kernel.client.input(line)
    return kernel.wait(cell), prompts


# ── what is said of values ──


def test_a_value_is_sent_once_and_again_when_it_changes_and_each_is_said(kernel: Kernel) -> None:
    kernel.run("lr = 0.001")
    first = kernel.run("%%kcoral\nlr")
    assert (notes(first), output(first)) == (["sent lr (0.001)"], ["0.001"])
    assert kernel.run("%%kcoral\nlr * 1").shown() == ["0.001"]
    kernel.run("lr = 0.0001")
    changed = kernel.run("%%kcoral\nlr")
    assert (notes(changed), output(changed)) == (["sent again lr 0.001 → 0.0001"], ["0.0001"])


def test_large_values_are_said_with_type_and_size(kernel: Kernel) -> None:
    kernel.run("import numpy as np\nweights = np.ones((250, 1000))")
    assert notes(kernel.run("%%kcoral\n_ = weights.sum()")) == ["sent weights (float64 [250, 1000], 2.0 MB)"]
    kernel.run("weights[0] = 2")
    cell = kernel.run("%%kcoral\nfloat(weights.sum())")
    assert notes(cell) == ["sent again weights (float64 [250, 1000], changed)"]
    assert output(cell) == ["251000.0"]


def test_what_the_session_made_is_kept_and_that_is_said_once(kernel: Kernel) -> None:
    kernel.run("%%kcoral\nsteps = 5")
    kernel.run("steps = 7")
    cell = kernel.run("%%kcoral\nsteps")
    assert output(cell) == ["5"]
    (note,) = notes(cell)
    for part in ("steps", "the session's own (5)", "the notebook's (7) was not sent", "-i steps"):
        assert part in note
    assert kernel.run("%%kcoral\nsteps").shown() == ["5"]
    forced = kernel.run("%%kcoral -i steps\nsteps")
    assert (notes(forced), output(forced)) == (["sent again steps 5 → 7"], ["7"])


def test_secrets_are_held_back_and_go_when_named(kernel: Kernel) -> None:
    kernel.run("api_key = 'sk-' + 'a1B2' * 12")
    cell = kernel.run("%%kcoral\nlen(api_key)")
    assert notes(cell) == ["api_key looks like a secret and was not sent: -i api_key sends it"]
    assert cell.ename == "NameError"
    assert "a1B2" not in cell.traceback
    assert output(kernel.run("%%kcoral -i api_key\nlen(api_key)")) == ["51"]


def test_no_capture_sends_nothing_and_the_error_says_what_would(kernel: Kernel) -> None:
    kernel.run("batch = 32")
    cell = kernel.run("%%kcoral --no-capture\nbatch")
    assert cell.ename == "NameError"
    assert "the notebook has batch; -i batch sends it" in cell.traceback
    assert output(kernel.run("%%kcoral --no-capture -i batch\nbatch")) == ["32"]


def test_more_than_the_limit_is_refused_with_variable_size_and_option(kernel: Kernel) -> None:
    kernel.run("blob, small = bytes(3_000_000), 1\n%config KCoral.capture_bytes = 2**20")
    try:
        text = kernel.run("%%kcoral\nran = True\nlen(blob), small").text("stderr")
        for word in ("blob (3.0 MB)", "1 MiB", "-i blob", "--no-capture", "KCoral.capture_bytes"):
            assert word in text
        assert kernel.run("%%kcoral\n'ran' in globals()").shown() == ["False"]
        assert output(kernel.run("%%kcoral -i blob\nlen(blob)")) == ["3000000"]
    finally:
        kernel.run("%config KCoral.capture_bytes = 64 * 2**20")


def test_quiet_says_nothing(kernel: Kernel) -> None:
    kernel.run("hushed = 1")
    assert kernel.run("%%kcoral --quiet\nhushed").shown() == ["1"]


def test_what_cannot_travel_is_said_and_does_not_stop_the_cell(kernel: Kernel) -> None:
    kernel.run("import threading\nheld = {'lock': threading.Lock()}")
    cell = kernel.run("%%kcoral\ntry: held\nexcept NameError: print('without')")
    assert output(cell) == ["without\n"]
    assert "held['lock'] is a _thread.lock" in notes(cell)[0]
    refused = kernel.run("%%kcoral -i held\nprint('never')")
    assert refused.ename == "ValueRefused"
    assert "held['lock']" in refused.traceback
    assert "never" not in refused.text()


def test_of_several_named_values_those_that_can_travel_go(kernel: Kernel) -> None:
    kernel.run("import threading\nheld, fine = {'lock': threading.Lock()}, 3")
    refused = kernel.run("%%kcoral -i held,fine\nprint('never')")
    assert refused.ename == "ValueRefused"
    assert "never" not in refused.text()
    assert kernel.run("%%kcoral --no-capture\nfine").shown() == ["3"]


def test_functions_go_with_what_they_read_and_keep_their_place_in_the_notebook(kernel: Kernel) -> None:
    count = kernel.run(
        "scale = 4\ndef inner(n):\n    return n / zero\ndef outer(n):\n    return scale * inner(n)\nzero = 0"
    )
    number = count.reply["content"]["execution_count"]
    cell = kernel.run("%%kcoral\nouter(1)")
    assert cell.ename == "ZeroDivisionError"
    assert f"Cell In[{number}], line 3, in inner(n)" in cell.traceback
    assert "return n / zero" in cell.traceback
    kernel.run("zero = 2")
    assert output(kernel.run("%%kcoral\nouter(1)")) == ["2.0"]


def test_an_instance_of_a_cell_s_dataclass_is_one_there_too(kernel: Kernel) -> None:
    kernel.run(
        "from dataclasses import dataclass\n@dataclass\nclass Settings:\n    width: int = 3\nsettings = Settings()"
    )
    assert output(kernel.run("%%kcoral\nsettings.width")) == ["3"]


def test_a_member_of_a_cell_s_enum_is_one_there_too(kernel: Kernel) -> None:
    kernel.run("import enum\nclass Color(enum.Enum):\n    RED = 1\ncolor = Color.RED")
    assert output(kernel.run("%%kcoral\ncolor is Color.RED")) == ["True"]


# ── back ──


def test_names_and_expressions_come_back(kernel: Kernel) -> None:
    kernel.run("%%kcoral -o c,d -o \"w=[c, d['k']]\" -o n=len(d)\nc, d = 1, {'k': 2.5}")
    assert kernel.run("c, d, w, n").shown() == ["(1, {'k': 2.5}, [1, 2.5], 1)"]
    # Come from there and unchanged here, it does not travel again.
    assert kernel.run("%%kcoral\nd").shown() == ["{'k': 2.5}"]
    kernel.run("d['k'] = 3")
    kernel.run("%%kcoral -i d\nassert d == {'k': 3}")


def test_one_that_cannot_come_back_is_named_and_the_others_come(kernel: Kernel) -> None:
    cell = kernel.run("%%kcoral -o came,lost\ncame = 11")
    assert cell.ename == "ValueRefused"
    assert "lost" in cell.traceback
    assert kernel.run("came").shown() == ["11"]


def test_without_trust_an_object_comes_as_type_and_text(kernel: Kernel) -> None:
    cell = kernel.run("%%kcoral -o thing\nclass Thing: pass\nthing = Thing()")
    assert "thing came as type and text only" in notes(cell)[0]
    assert "--trust" in notes(cell)[0]
    assert kernel.run("thing").shown()[0].startswith("<Thing of the session:")


@pytest.mark.parametrize(
    ("line", "what"), [("-i bulk", "sending values"), ("-o bulk_there", "fetching results")], ids=["in", "out"]
)
def test_stop_while_a_value_is_on_its_way_ends_the_cell_and_nothing_else(kernel: Kernel, line: str, what: str) -> None:
    kernel.run("bulk = bytes(2**29)\n%config KCoral.quiet_s = 0.01")
    kernel.run("%%kcoral\nkept = 1")
    cell = kernel.send(f"%%kcoral {line} --no-capture\nbulk_there = bytes(2**29)")
    kernel.wait(cell, until=lambda c: what in str(c.of("display_data", "update_display_data")))
    pressed = time.monotonic()
    kernel.interrupt()
    cell = kernel.wait(cell)
    assert time.monotonic() - pressed < 2.0
    assert cell.ename == "KeyboardInterrupt"
    kernel.run("del bulk\n%config KCoral.quiet_s = 2.0")
    assert kernel.run("%%kcoral\nkept").shown() == ["1"]


def test_tab_completes_names_of_the_right_side(kernel: Kernel) -> None:
    kernel.run("tab_here_one = tab_here_two = 1")
    kernel.run("%%kcoral --no-capture\ntab_there = 1")
    assert matches(kernel, "%%kcoral -i tab_") == ["tab_here_one", "tab_here_two"]
    assert matches(kernel, "%%kcoral -i tab_here_one,tab_here_t") == ["tab_here_one,tab_here_two"]
    assert matches(kernel, "%%kcoral -o tab_") == ["tab_there"]
    kernel.run("%%kcoral --session tabs --gpus 0\ntab_in_named = 1")
    assert matches(kernel, "%%kcoral --session tabs -o tab_") == ["tab_in_named"]
    kernel.run("%kcoral close tabs")


def test_a_local_name_error_says_which_session_has_the_name(kernel: Kernel) -> None:
    kernel.run("%%kcoral\nonly_there = 1")
    assert "only_there lives in the remote session: %%kcoral -o only_there" in kernel.run("only_there").traceback
    kernel.run("%%kcoral --session named --gpus 0\nonly_named = 1")
    found = kernel.run("only_named").traceback
    assert "only_named lives in session 'named': %%kcoral --session named -o only_named" in found
    kernel.run("%kcoral close named")
    assert "kcoral" not in kernel.run("nowhere_at_all").traceback


# ── less typing ──


def test_use_sets_defaults_and_clear_forgets_them(kernel: Kernel) -> None:
    kernel.run("%kcoral use --session used --gpus 0")
    try:
        kernel.run("%%kcoral\nmark = 1")
        assert kernel.run("%%kcoral --session used\nmark").shown() == ["1"]
        assert "--session" in kernel.run("%kcoral use").shown()[0]
    finally:
        kernel.run("%kcoral use --clear")
    assert kernel.run("%%kcoral\n'mark' in globals()").shown() == ["False"]
    kernel.run("%kcoral close used")


def test_on_sends_plain_cells_and_local_exempts_one(kernel: Kernel) -> None:
    kernel.run("%kcoral on")
    try:
        kernel.run("plain_there = 1")
        kernel.run("%%local\nplain_here = 2")
        assert kernel.run("'plain_there' in globals(), 'plain_here' in globals()").shown()[-1] == "(True, False)"
        assert kernel.run("1 / 0").ename == "ZeroDivisionError"
        assert kernel.run("%config KCoral.quiet_s").shown() == ["2.0"]  # speaks to the notebook: stays here
    finally:
        kernel.run("%kcoral off")
    assert kernel.run("'plain_there' in globals(), 'plain_here' in globals()").shown() == ["(False, True)"]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Kernel]:
    """A kernel that runs marked cells itself; its gateway does not exist."""
    dropped = ("PYTHONUNBUFFERED", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    env |= {"HOME": str(tmp_path), "KCORAL_MAGIC_URL": "ws://127.0.0.1:9", "KCORAL_MAGIC_TOKEN": "none"}
    started = Kernel(str(tmp_path), env | {"KCORAL_MAGIC_LOCAL": "1"})
    yield started
    started.close()


def test_local_mode_by_the_environment_runs_a_notebook_without_a_gateway(alone: Kernel) -> None:
    assert alone.run("%load_ext kcoral_magic").shown() == []
    assert alone.run("%%kcoral --gpus 2 -i a -o w=x+1\nx = 1\nprint('here')").shown() == ["here\n"]
    assert alone.run("x, w").shown() == ["(1, 2)"]
    failed = alone.run("%%kcoral\ny = 1\n1 / 0")
    assert failed.ename == "ZeroDivisionError"
    assert "line 3" in failed.traceback
    assert "nothing to do" in alone.run("%kcoral gpus").text()
    assert "unrecognized arguments" in alone.run("%%kcoral --nonsense\n1").text("stderr")


# ── questions ──


def test_input_asks_after_earlier_output_and_takes_the_answer(kernel: Kernel) -> None:
    cell = kernel.send("%%kcoral\nprint('before')\nname = input('who? ')\nprint('hello', name)")
    kernel.wait(cell, until=lambda c: "before" in c.text())
    asked = question(kernel)
    assert (asked["content"]["prompt"], asked["content"]["password"]) == ("who? ", False)
    assert asked["parent_header"]["msg_id"] == cell.msg_id
    printed = next(message for message in cell.messages if message["msg_type"] == "stream")
    assert printed["header"]["date"] <= asked["header"]["date"]
    kernel.client.input("Ädä 🐍")
    assert kernel.wait(cell).text() == "before\nhello Ädä 🐍\n"


def test_many_questions_are_answered_in_order(kernel: Kernel) -> None:
    cell, prompts = answered(
        kernel, "%%kcoral\nprint([input(f'{n}? ') for n in range(5)])", "a", "", "c", "d" * 5000, "e"
    )
    assert prompts == [f"{n}? " for n in range(5)]
    assert cell.text() == f"{['a', '', 'c', 'd' * 5000, 'e']}\n"


def test_getpass_asks_for_a_password(kernel: Kernel) -> None:
    cell = kernel.send("%%kcoral\nimport getpass\nword = getpass.getpass('word: ')\nlen(word)")
    asked = question(kernel)["content"]
    assert (asked["prompt"], asked["password"]) == ("word: ", True)
    kernel.client.input("hidden")
    cell = kernel.wait(cell)
    assert cell.shown() == ["6"]
    assert "hidden" not in str(cell.messages)


def test_a_breakpoint_is_driven_from_the_notebook(kernel: Kernel) -> None:
    source = "%%kcoral\ndef f(n):\n    breakpoint()\n    m = n * 2\n    return m\nprint(f(21))"
    cell, prompts = answered(kernel, source, "p n", "n", "n", "p m + 1", "c")
    assert all("db" in prompt for prompt in prompts)  # (Pdb) or ipdb>
    assert "21\n" in cell.text()
    assert "43\n" in cell.text()
    assert cell.text().endswith("42\n")
    assert cell.reply["content"]["status"] == "ok"


def test_pdb_can_be_left(kernel: Kernel) -> None:
    kernel.run("%%kcoral\nkept = 1")
    cell, _ = answered(kernel, "%%kcoral\nimport pdb\npdb.set_trace()\nkept = 2\nkept = 3", "q")
    assert cell.reply["content"]["status"] in ("ok", "error")
    assert kernel.run("%%kcoral\nkept").shown() == ["1"]


def test_debug_looks_at_the_last_error_there(kernel: Kernel) -> None:
    failed = kernel.run("%%kcoral\ndef g(depth):\n    return depth / 0\ng(17)")
    assert failed.ename == "ZeroDivisionError"
    cell, prompts = answered(kernel, "%%kcoral\n%debug", "p depth + 1", "q")
    assert all("db" in prompt for prompt in prompts)
    assert "18" in cell.text()


def test_a_front_end_without_stdin_gets_the_kernel_s_own_error_at_once(kernel: Kernel) -> None:
    kernel.run("%%kcoral\nkept = 1")
    began = time.monotonic()
    sent = Cell(msg_id=kernel.client.execute("%%kcoral\nprint('on')\ninput('never')", allow_stdin=False))
    cell = kernel.wait(sent)
    assert time.monotonic() - began < 1.0
    assert cell.ename == "StdinNotImplementedError"
    assert cell.text() == "on\n"
    assert kernel.run("%%kcoral\nkept").shown() == ["1"]


def test_stop_ends_a_cell_that_waits_for_input_and_keeps_the_session(kernel: Kernel) -> None:
    kernel.run("%%kcoral\nkept = 1")
    cell = kernel.send("%%kcoral\ntry:\n    input('first? ')\nfinally:\n    print('cleaned')")
    assert question(kernel)["content"]["prompt"] == "first? "
    pressed = time.monotonic()
    kernel.interrupt()
    cell = kernel.wait(cell)
    assert time.monotonic() - pressed < 2.0
    assert cell.ename == "KeyboardInterrupt"
    assert cell.text() == "cleaned\n"
    again, prompts = answered(kernel, "%%kcoral\nprint(kept, input('second? '))", "yes")
    assert prompts == ["second? "]
    assert again.text() == "1 yes\n"


def test_a_question_shows_the_session_as_asking(kernel: Kernel, gateway: GatewayProcess, token: str) -> None:
    cell = kernel.send("%%kcoral\ninput('waits? ')")
    question(kernel)
    with gateway.client(token) as client:
        assert [session.state for session in client.sessions()] == ["asking"]
    kernel.client.input("go")
    assert kernel.wait(cell).shown() == ["'go'"]


def test_an_instance_of_a_class_from_before_its_redefinition_is_told(kernel: Kernel) -> None:
    kernel.run("from dataclasses import dataclass\n@dataclass\nclass Model:\n    size: int = 1\nmodel = Model()")
    kernel.run("%%kcoral\nkept = [model]")
    kernel.run("@dataclass\nclass Model:\n    size: int = 2")
    cell = kernel.run("%%kcoral -o kept\npass")
    assert "kept: of a class as it was before it was defined again here" in str(cell.shown())
    assert kernel.run("isinstance(kept[0], Model)").shown() == ["False"]


# ── tools ──


def test_a_script_runs_in_the_session_and_its_failure_is_the_cell_s(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run(f"import os; os.chdir({str(tmp_path)!r})")
    (tmp_path / "script.py").write_text(
        "import sys\nopen('made.txt', 'w').write('made')\nprint(sys.argv[1:])\nsys.exit(3)"
    )
    cell = kernel.run("%kcoral run --fetch made.txt --out got python script.py --arg 1")
    assert output(cell) == ["['--arg', '1']\n", "ExitStatusError"]
    assert "exit status 3: python script.py --arg 1" in cell.traceback
    assert (tmp_path / "got" / "made.txt").read_text() == "made"
    assert kernel.run("%%kcoral\nopen('made.txt').read()").shown() == ["'made'"]
    assert output(kernel.run("%kcoral run shell 'cat made.txt'")) == ["made"]


def test_looking_into_a_session_that_does_not_exist_starts_none(kernel: Kernel) -> None:
    for line in ("ls", "df", "get x", "rm x"):
        assert "there is no session 'nope'" in kernel.run(f"%kcoral {line} --session nope").traceback
    assert "nope" not in kernel.run("%kcoral sessions").shown()[0]
