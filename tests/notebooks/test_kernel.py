"""The magics in a real kernel. Public faults 1, 3, 7, 8, 10, 11 and 20."""

from __future__ import annotations

import time

import pytest

from tests.notebooks.kernels import Cell, Kernel
from tests.support import GatewayProcess

pytestmark = pytest.mark.notebook


def test_a_cell_looks_as_if_it_ran_here(kernel: Kernel) -> None:
    cell = kernel.run("%%kcoral --gpus 1\nimport os\nprint('hello')\n6 * 7")
    assert cell.shown() == ["hello\n", "42"]
    assert cell.reply["content"]["status"] == "ok"
    assert cell.of("execute_result")[0]["execution_count"] == cell.reply["content"]["execution_count"]
    assert kernel.run("%%kcoral\npass").shown() == []


def test_loading_twice_is_silent_and_unloading_restores_everything(kernel: Kernel) -> None:
    names = "sorted(get_ipython().magics_manager.magics['line']), sorted(vars(get_ipython()))"
    try:
        assert kernel.run("%reload_ext kcoral_magic\n%reload_ext kcoral_magic").shown() == []
        kernel.run("%unload_ext kcoral_magic")
        assert "not found" in kernel.run("%kcoral").text("stderr")
        assert "not found" in kernel.run("%%kcoral\n1").text("stderr")
        before = kernel.run(names).shown()
        kernel.run("%load_ext kcoral_magic\n%unload_ext kcoral_magic")
        assert kernel.run(names).shown() == before
    finally:
        kernel.run("%load_ext kcoral_magic")


def test_an_unknown_option_is_a_usage_error_and_nothing_runs_anywhere(kernel: Kernel) -> None:
    cell = kernel.run("%%kcoral --gpu-count 2\nran = True\nprint('ran')")
    assert "UsageError" in cell.text("stderr")
    assert "unrecognized arguments: --gpu-count" in cell.text("stderr")
    assert kernel.run("'ran' in globals()").shown() == ["False"]
    assert kernel.run("%%kcoral\n'ran' in globals()").shown() == ["False"]
    assert "a count or 'all', got '0,1'" in kernel.run("%%kcoral --gpus 0,1\n1").text("stderr")
    assert "%kcoral knows status, gpus" in kernel.run("%kcoral sesions").text("stderr")


def test_help_documents_every_option_and_line(kernel: Kernel) -> None:
    cell = kernel.run("%%kcoral?")
    text = cell.reply["content"]["payload"][0]["data"]["text/plain"]
    for word in ("--gpus", "--session", "--fresh", "--timeout", "--queue-timeout", "--quiet", "output", "disconnect"):
        assert word in text


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("%%kcoral --qu", ["--queue-timeout", "--quiet"]),
        ("%%kcoral --gpus a", ["all"]),
        ("%kcoral st", ["status"]),
        ("%kcoral connect --t", ["--token-file", "--trust"]),
    ],
)
def test_tab_completes_options(kernel: Kernel, code: str, found: list[str]) -> None:
    kernel.client.complete(code, len(code))
    matches = kernel.client.get_shell_msg(timeout=10)["content"]["matches"]
    assert sorted(matches) == found


def test_tab_completes_session_names(kernel: Kernel) -> None:
    kernel.run("%%kcoral --session alpha --gpus 0\n1")
    kernel.client.complete("%%kcoral --session al", 21)
    assert kernel.client.get_shell_msg(timeout=10)["content"]["matches"] == ["alpha"]
    kernel.run("%kcoral close alpha")


def test_settings_are_traitlets(kernel: Kernel) -> None:
    assert "KCoral.quiet_s" in kernel.run("%config KCoral").text()
    kernel.run("%config KCoral.quiet_s = 3.5")
    assert kernel.run("%config KCoral.quiet_s").shown() == ["3.5"]
    kernel.run("%config KCoral.quiet_s = 2.0")


def test_lines_return_objects_that_show_as_html_and_text(kernel: Kernel) -> None:
    kernel.run("%%kcoral --gpus 1\n1")
    for line, word in (("status", "isolation"), ("gpus", "Simulated GPU"), ("sessions", "(this notebook)")):
        data = kernel.run(f"%kcoral {line}").of("execute_result")[0]["data"]
        assert word in data["text/plain"]
        assert word in data["text/html"]
    assert kernel.run("found = %kcoral gpus\nlen(found)").shown() == ["2"]


def test_a_remote_error_raises_with_its_type_and_shows_user_frames_only(kernel: Kernel) -> None:
    kernel.run("%%kcoral\ndef broken(n):\n    return n / 0")
    count = kernel.run("%%kcoral\nz = 1").reply["content"]["execution_count"]
    cell = kernel.run("%%kcoral\na = 1\nb = 2\nc = 3\nd = 4\ne = 5\nbroken(1)")
    assert cell.ename == "ZeroDivisionError"
    assert cell.reply["content"]["status"] == "error"
    assert f"Cell In[{count + 1}], line 7" in cell.traceback
    assert f"Cell In[{count - 1}], line 3, in broken(n)" in cell.traceback
    assert "kcoral_magic" not in cell.traceback
    assert "interactiveshell" not in cell.traceback
    caught = "try:\n  get_ipython().run_cell_magic('kcoral', '', '1/0')\nexcept ZeroDivisionError: print('caught')"
    assert kernel.run(caught).shown() == ["caught\n"]


def test_a_remote_syntax_error_points_into_the_cell(kernel: Kernel) -> None:
    cell = kernel.run("%%kcoral\nx = 1\nif x\n  y")
    assert cell.ename == "SyntaxError"
    assert ", line 3" in cell.traceback
    assert "kcoral_magic" not in cell.traceback
    local = kernel.run("if x")
    assert local.ename == "SyntaxError"


def test_a_usage_error_of_a_remote_magic_raises_here(kernel: Kernel) -> None:
    cell = kernel.run("%%kcoral\n%nosuch")
    assert "nosuch" in cell.text("stderr")
    assert cell.reply["content"]["status"] == "error"


def test_stop_interrupts_within_a_second_and_the_next_queued_cell_does_not_run(kernel: Kernel) -> None:
    kernel.run("%%kcoral\nimport time")
    cell = kernel.send("%%kcoral\ntry:\n  print('on')\n  while True: time.sleep(0.01)\nfinally: print('cleaned')")
    queued = kernel.send("%%kcoral\nran = True")
    kernel.wait(cell, until=lambda c: "on" in c.text())
    pressed = time.monotonic()
    kernel.interrupt()
    kernel.wait(cell)
    assert time.monotonic() - pressed < 1.5
    assert cell.ename == "KeyboardInterrupt"
    assert cell.text() == "on\ncleaned\n"
    assert "kcoral_magic" not in cell.traceback
    assert kernel.wait(queued).reply["content"]["status"] == "aborted"
    assert kernel.run("%%kcoral\n'ran' in globals()").shown() == ["False"]


def test_the_second_stop_kills_a_cell_stuck_in_native_code_and_says_what_is_lost(kernel: Kernel) -> None:
    kernel.run("%%kcoral\nimport hashlib")
    cell = kernel.send("%%kcoral\nprint('on')\nhashlib.pbkdf2_hmac('sha256', b'', b'', 2_000_000_000)")
    kernel.wait(cell, until=lambda c: "on" in c.text())
    time.sleep(0.2)  # into the native call: between print and it lie two bytecodes
    kernel.interrupt()
    kernel.wait(cell, until=lambda c: "not ended on the interrupt: it is at Cell In[" in c.text("stderr"))
    assert "line 3" in cell.text("stderr")
    kernel.interrupt()
    kernel.wait(cell)
    assert cell.ename == "ExecutionLost"
    assert "the session's state is gone" in cell.traceback
    after = kernel.run("%%kcoral\n1 + 1")
    assert "state was lost" in after.text("stderr")
    assert "2" in after.shown()


def test_a_progress_bar_is_one_live_line_also_after_an_interrupted_one(kernel: Kernel) -> None:
    kernel.run("%%kcoral\nfrom tqdm import tqdm\nimport time")
    cell = kernel.send("%%kcoral\nfor i in tqdm(range(2000)): time.sleep(0.01)")
    kernel.wait(cell, until=lambda c: len(c.of("update_display_data")) > 3)
    kernel.interrupt()
    kernel.wait(cell)
    again = kernel.run("%%kcoral\nfor i in tqdm(range(150)): time.sleep(0.01)")
    shown = again.shown()
    assert len(shown) == 1
    assert shown[0].startswith("100%")
    assert "\r" not in shown[0]
    took = again.times_s[-1] - again.times_s[0]
    assert len(again.of("update_display_data", "display_data")) <= 10 * took + 3


def test_two_nested_bars_are_one_block_with_its_final_state(kernel: Kernel) -> None:
    kernel.run("%%kcoral\nfrom tqdm import tqdm\nimport time")
    cell = kernel.run(
        "%%kcoral\nfor i in tqdm(range(3), desc='outer'):\n"
        "  for j in tqdm(range(20), desc='inner', leave=False): time.sleep(0.005)\nprint('done')"
    )
    shown = cell.shown()
    assert shown[0].startswith("outer: 100%")
    assert shown[1:] == ["done\n"]


def test_a_waiting_line_appears_after_the_quiet_time_and_leaves_nothing(
    kernel: Kernel, gateway: GatewayProcess, token: str
) -> None:
    kernel.run("%config KCoral.quiet_s = 0.2")
    kernel.run("%%kcoral --gpus 2 --session holder\n1")
    cell = kernel.send("%%kcoral --gpus 1 --queue-timeout 20\nprint('ran')")
    kernel.wait(cell, until=lambda c: any("queued" in str(d["data"]) for d in c.of("display_data")))
    with gateway.client(token) as client:  # the cell waits in the kernel: somebody else must free the GPUs
        client.close_session("holder")
    kernel.wait(cell)
    assert cell.shown() == ["ran\n"]
    kernel.run("%config KCoral.quiet_s = 2.0")


def test_a_flood_is_cut_with_a_count_and_can_be_stopped(kernel: Kernel) -> None:
    cell = kernel.send("%%kcoral\nwhile True: print('x' * 1000)")
    kernel.wait(cell, until=lambda c: any("not shown" in str(d["data"]) for d in c.of("display_data")))
    pressed = time.monotonic()
    kernel.interrupt()
    kernel.wait(cell, 20)
    assert time.monotonic() - pressed < 2.0
    assert cell.ename == "KeyboardInterrupt"
    assert 1024 * 1024 <= len(cell.text()) <= 2.5 * 1024 * 1024
    assert any("bytes in" in text and "not shown" in text for text in cell.shown())
    whole = kernel.run("whole = %kcoral output\nlen(whole.text) > 3_000_000, 'not shown' in repr(whole)")
    assert whole.shown() == ["(True, True)"]


def test_updates_and_clears_reach_their_cell(kernel: Kernel) -> None:
    source = (
        "%%kcoral\nfrom IPython.display import clear_output, display\nh = display('a', display_id=True)\n"
        "h.update('b')\nprint('gone')\nclear_output(wait=True)\nprint('stays')"
    )
    assert kernel.run(source).shown() == ["stays\n"]
    kernel.run("%%kcoral\nh = display('first', display_id=True)")
    later = kernel.run("%%kcoral\nh.update('second')")
    assert [content["data"]["text/plain"] for content in later.of("update_display_data")] == ["'second'"]


def test_capture_takes_what_a_remote_cell_writes(kernel: Kernel) -> None:
    kernel.run("%%capture got\nget_ipython().run_cell_magic('kcoral', '', 'print(5)\\n6')")
    assert kernel.run("got.stdout, [o.data['text/plain'] for o in got.outputs]").shown() == ["('5\\n', ['6'])"]


def test_what_a_thread_prints_late_goes_to_its_own_cell(kernel: Kernel) -> None:
    cell = kernel.run(
        "%%kcoral\nimport threading, time\nprint('now')\n"
        "threading.Thread(target=lambda: (time.sleep(0.5), print('late'))).start()"
    )
    assert cell.shown() == ["now\n"]
    end = time.monotonic() + 10
    while time.monotonic() < end:
        message = kernel.client.get_iopub_msg(timeout=10)
        if message["msg_type"] == "stream":
            break
    assert message["content"]["text"] == "late\n"
    assert message["parent_header"]["msg_id"] == cell.msg_id


def test_fresh_leaves_no_trace_and_timeout_keeps_output(kernel: Kernel) -> None:
    kernel.run("%%kcoral\nkept = 1")
    assert kernel.run("%%kcoral --fresh\n'kept' in globals()").shown() == ["False"]
    cell = kernel.run("%%kcoral --timeout 0.3\nimport time\nprint('before')\ntime.sleep(30)")
    assert cell.ename == "ExecutionTimeout"
    assert cell.text() == "before\n"
    assert kernel.run("%%kcoral\nkept").shown() == ["1"]


def test_an_empty_cell_says_what_was_expected(kernel: Kernel) -> None:
    assert "the cell is empty" in kernel.run("%%kcoral\n  \n\n").text("stderr")


def test_restart_gives_an_empty_session_of_another_shape(kernel: Kernel) -> None:
    kernel.run("%%kcoral --gpus 1\nx = 1")
    refused = kernel.run("%%kcoral --gpus 2\n1")
    assert refused.ename == "SessionShapeError"
    assert "%kcoral restart --gpus 2" in refused.traceback
    kernel.run("%kcoral restart --gpus 2")
    cell = kernel.run("%%kcoral\nimport os\nos.environ['CUDA_VISIBLE_DEVICES'].count(','), 'x' in globals()")
    assert cell.shown() == ["(1, False)"]


def test_html_of_an_untrusted_gateway_is_cleaned_and_its_scripts_never_arrive(kernel: Kernel) -> None:
    cell = kernel.run(
        "%%kcoral\nfrom IPython.display import HTML, Javascript, display\n"
        "display(HTML('<b onclick=\"steal()\">bold</b><script>steal()</script>'))\ndisplay(Javascript('steal()'))"
    )
    first, second = (content["data"] for content in cell.of("display_data"))
    assert first["text/html"] == "<b>bold</b>"
    assert "application/javascript" not in second


def test_a_restarted_kernel_leaves_no_session_behind(kernel: Kernel) -> None:
    kernel.run("%%kcoral --gpus 2\nx = 1")
    kernel.manager.restart_kernel(now=True)
    kernel.client.wait_for_ready(timeout=60)
    kernel.run("%load_ext kcoral_magic")
    cell: Cell = kernel.run("%%kcoral --gpus 2 --queue-timeout 10\n'x' in globals()")
    assert cell.shown() == ["False"]
