"""Whatever dies or hangs: a clear message within seconds, and the next cell works. Public faults 3 and 18."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kcoral_magic import Client
from kcoral_magic.errors import (
    AuthenticationError,
    ExecutionLost,
    ExecutionTimeout,
    GatewayUnreachable,
    NotFoundError,
    QueueTimeout,
)
from kcoral_magic.protocol import messages as m
from tests.support import GatewayProcess, until


def _wait_for_text(execution: object, text: str) -> None:
    seen = ""
    for output in execution:  # type: ignore[attr-defined]  # an Execution
        seen += output.text
        if text in seen:
            return
    raise AssertionError(f"{text!r} never came: {seen!r}")


def test_one_press_of_stop_interrupts_runs_finally_and_keeps_the_state(client: Client) -> None:
    session = client.session()
    session.run("import time; kept = 1")
    source = "try:\n  print('on', flush=True)\n  while True: time.sleep(0.01)\nfinally: print('cleaned')"
    execution = session.execute(source)
    _wait_for_text(execution, "on\n")
    began = time.monotonic()
    execution.interrupt()
    with pytest.raises(KeyboardInterrupt):
        execution.result()
    assert time.monotonic() - began < 1.0
    assert execution.collected().stdout == "on\ncleaned\n"
    assert session.run("kept").text == "1"


def test_cells_queued_behind_an_interrupted_one_do_not_run(client: Client) -> None:
    session = client.session()
    first = session.execute("import time\nprint('on', flush=True)\ntime.sleep(60)")
    second = session.execute("ran = True")
    _wait_for_text(first, "on\n")
    first.interrupt()
    for execution in (first, second):
        with pytest.raises(KeyboardInterrupt):
            execution.result()
    assert session.run("'ran' in globals()").text == "False"


def test_a_cell_that_waits_for_gpus_can_be_stopped(client: Client) -> None:
    client.session("holder", gpus=2).run("1")
    try:
        execution = client.session("waiter", gpus=1).execute("1")
        assert isinstance(next(iter(execution)).body, m.Queued)
        execution.interrupt()
        with pytest.raises(KeyboardInterrupt, match="before it began"):
            execution.result()
    finally:
        client.close_session("holder")
        client.close_session("waiter")


def test_children_of_an_interrupted_cell_end_with_it(client: Client, gateway: GatewayProcess) -> None:
    session = client.session()
    session.run("import subprocess; early = subprocess.Popen(['sleep', '1000'])")
    source = (
        "import signal, time\n"
        "late = subprocess.Popen(['sh', '-c', 'trap \"\" INT; sleep 2000'])\nprint('on', flush=True)\ntime.sleep(60)"
    )
    execution = session.execute(source)
    _wait_for_text(execution, "on\n")
    execution.interrupt()
    with pytest.raises(KeyboardInterrupt):
        execution.result()

    def sleeping() -> list[list[str]]:
        found = []
        for process in gateway.me.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it ends while it is looked at
                if process.status() != psutil.STATUS_ZOMBIE and process.name() in ("sleep", "sh"):
                    found.append(process.cmdline())
        return found

    until(lambda: sleeping() == [["sleep", "1000"]], 5)
    assert session.run("early.poll() is None").text == "True"


def test_a_stop_that_comes_before_the_worker_has_begun_is_not_lost(client: Client, gateway: GatewayProcess) -> None:
    session = client.session()
    session.run("import time; _ = open('/proc/self/comm', 'w').write('stop-me')")
    worker = next(p for p in gateway.workers() if p.name() == "stop-me")
    worker.suspend()
    execution = session.execute("print('on', flush=True)\ntime.sleep(60)")
    until(lambda: any(one.state == "running" for one in client.sessions()), 5, "the cell has been sent to the worker")
    execution.interrupt()
    until(lambda: _is_pending(worker.pid, signal.SIGINT), 5, "the signal waits for the worker")
    worker.resume()
    with pytest.raises(KeyboardInterrupt):
        execution.result()
    assert session.run("1 + 1").text == "2"


def _is_pending(pid: int, number: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def test_a_cell_stuck_in_native_code_names_its_line_and_the_second_press_kills_it(
    client: Client, gateway: GatewayProcess
) -> None:
    session = client.session()
    session.run("import ctypes\nlock, mutex = ctypes.PyDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)")
    source = "x = 1\nprint('on', flush=True)\nlock(mutex); lock(mutex)  # waits for itself, holding the interpreter"
    execution = session.execute(source, place=m.Place(4, 2))
    _wait_for_text(execution, "on\n")
    until(lambda: all(worker.status() == psutil.STATUS_SLEEPING for worker in gateway.workers()), 5)
    execution.interrupt()
    stuck = next(output.body for output in execution if isinstance(output.body, m.Stuck))
    assert stuck.where == "Cell In[4], line 4"
    execution.interrupt(kill=True)
    with pytest.raises(ExecutionLost, match="killed as asked; the session's state is gone"):
        execution.result()
    assert session.run("1 + 1").text == "2"


def test_a_timeout_interrupts_and_keeps_output_and_state(client: Client) -> None:
    session = client.session()
    session.run("import time; kept = 2")
    execution = session.execute("print('before'); time.sleep(60)", timeout_s=0.3)
    with pytest.raises(ExecutionTimeout, match=r"longer than 0\.3 s .* state is kept"):
        execution.result()
    assert execution.collected().stdout == "before\n"
    assert session.run("kept").text == "2"


def test_a_queue_timeout_says_that_nothing_ran(client: Client) -> None:
    client.session("holder", gpus=2).run("1")
    try:
        with pytest.raises(QueueTimeout, match="nothing ran"):
            client.session("waiter", gpus=1).run("1", queue_timeout_s=0.2)
    finally:
        client.close_session("holder")
        client.close_session("waiter")


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import os; os.abort()", "SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", r"SIGSEGV \(a crash in native code\) at Cell In\[1\], line 1"),
        ("import os; os._exit(3)", "exit code 3"),
    ],
)
def test_a_worker_that_dies_tells_its_cause_once(client: Client, source: str, cause: str) -> None:
    session = client.session()
    with pytest.raises(ExecutionLost, match=cause):
        session.run(source)
    assert len(session.run("1").notices) == 1
    assert session.run("2").notices == []


def test_a_sticky_cuda_fault_shows_its_cause_and_its_worker_is_replaced(client: Client) -> None:
    session = client.session()
    session.run("x = 1")
    with pytest.raises(RuntimeError, match="device-side assert triggered"):
        session.run("raise RuntimeError('CUDA error: device-side assert triggered')")
    result = session.run("'x' in globals()")
    assert result.text == "False"
    assert "CUDA fault" in result.notices[0]


def test_exit_ends_the_worker_and_the_next_cell_says_so(client: Client) -> None:
    session = client.session()
    session.run("x = 1")
    session.run("exit()")
    result = session.run("'x' in globals()")
    assert (result.text, len(result.notices)) == ("False", 1)


def test_killing_the_host_ends_the_cell_as_lost_and_leaves_no_worker(client: Client, gateway: GatewayProcess) -> None:
    session = client.session()
    execution = session.execute("import time\nprint('on', flush=True)\ntime.sleep(60)")
    _wait_for_text(execution, "on\n")
    worker = next(p for p in gateway.workers() if p.cpu_times().user > 0 and p.cmdline()[0] != "bwrap")
    host = next(host for host in gateway.hosts() if worker in host.children(recursive=True))
    # Both hosts (the spare's too) look alike: kill every one, whichever runs the cell.
    for each in gateway.hosts():
        each.send_signal(signal.SIGKILL)
    with pytest.raises(ExecutionLost, match="worker host"):
        execution.result()
    psutil.wait_procs([worker, host], 10)
    assert not worker.is_running()
    assert session.run("1 + 1").text == "2"


def test_killing_the_gateway_ends_the_cell_as_lost_and_the_next_one_works(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path / "state")
    token = gateway.token()
    with gateway.client(token) as client:
        session = client.session()
        session.run("kept = 1")
        execution = session.execute("import time\nprint('on', flush=True)\ntime.sleep(60)")
        _wait_for_text(execution, "on\n")
        tree = gateway.me.children(recursive=True)
        gateway.kill()
        _, alive = psutil.wait_procs(tree, 10)
        assert not alive
        gateway.restart()
        with pytest.raises(ExecutionLost, match="while this cell ran"):
            execution.result()
        result = session.run("'kept' in globals()")
        assert result.text == "False"
        assert [("state was lost" in notice) for notice in result.notices] == [True]
        assert session.run("1 + 1").notices == []
    gateway.stop()


def test_a_session_that_another_client_restarted_says_so_once(gateway: GatewayProcess, token: str) -> None:
    with gateway.client(token) as first, gateway.client(token) as second:
        session = first.session("shared", gpus=0)
        session.run("kept = 1")
        assert session.run("kept").notices == []
        second.restart("shared")
        assert second.session("shared").run("1").notices == []
        assert "state was lost" in session.run("1").notices[0]
        assert session.run("1").notices == []
        first.restart("shared")
        assert session.run("1").notices == []  # it was this client's own doing
        first.close_session("shared")


def test_a_client_that_is_killed_leaves_its_named_session_to_the_next_one(gateway: GatewayProcess, token: str) -> None:
    source = (
        "import sys\nfrom kcoral_magic import Client\nfrom kcoral_magic.config import Target\n"
        f"client = Client(target=Target({gateway.url!r}, sys.stdin.readline().strip()))\n"
        "session = client.session('kept', gpus=1)\nsession.run('x = 41')\n"
        "execution = session.execute('import time; print(x, flush=True); time.sleep(1); x += 1; print(x)')\n"
        "next(iter(execution)); print(execution.execution_id, flush=True)\nexecution.result()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(token + "\n")
    process.stdin.flush()
    execution_id = process.stdout.readline().strip()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    with gateway.client(token) as client:
        assert client.attach(execution_id).result().stdout == "41\n42\n"
        assert client.session("kept").run("x").text == "42"
        client.close_session("kept")


def test_an_orderly_shutdown_tells_running_cells_and_leaves_nothing(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path / "state")
    with gateway.client(give_up_s=0.5) as client:
        execution = client.session().execute("import time\nprint('on', flush=True)\ntime.sleep(60)")
        _wait_for_text(execution, "on\n")
        gateway.stop()
        with pytest.raises(ExecutionLost, match="the gateway was shut down"):
            execution.result()
    assert not (tmp_path / "state" / "gateway.sock").exists()


def test_a_gateway_that_never_answers_is_an_error_and_no_fallback(tmp_path: Path) -> None:
    with pytest.raises(GatewayUnreachable, match="does not answer"):
        Client("ws://127.0.0.1:9").session().run("1")


def test_closing_what_is_not_there_names_what_is(client: Client) -> None:
    client.session("here", gpus=0).run("1")
    with pytest.raises(NotFoundError, match="no session 'there'; named sessions of yours: here"):
        client.close_session("there")
    client.close_session("here")
    until(lambda: not [s for s in client.sessions() if s.name == "here"])


def test_an_interrupt_in_a_flood_of_displays_keeps_the_worker_and_its_state(client: Client) -> None:
    session = client.session()
    session.run("kept = 3\nfrom IPython.display import display")
    for _ in range(5):
        execution = session.execute(
            "print('on', flush=True)\nwhile True: display({'text/plain': 'x' * 900_000}, raw=True)"
        )
        _wait_for_text(execution, "on\n")
        for _ in zip(range(20), execution, strict=False):
            pass
        execution.interrupt()
        with pytest.raises(KeyboardInterrupt):
            execution.result()
    assert session.run("kept").text == "3"


def test_closing_a_session_while_its_worker_starts_leaves_no_host(client: Client, gateway: GatewayProcess) -> None:
    client.session("warm", gpus=0).run("1")
    for number in range(3):  # on another shape than the spare's: most start cold
        execution = client.session(f"early-{number}", gpus=1).execute("1")
        next(output for output in execution if isinstance(output.body, m.Placed))
        client.close_session(f"early-{number}")
        with pytest.raises(ExecutionLost, match="session was closed"):
            execution.result()
    client.close_session("warm")
    until(lambda: len(gateway.hosts()) <= 1, 20, "no host is left but a spare")


def test_a_malformed_display_is_shown_as_one_and_the_cell_ends_well(client: Client) -> None:
    source = "from IPython.display import display\ndisplay({'application/json': b'no json'}, raw=True)\n'after'"
    result = client.session().run(source)
    assert "malformed display" in str(result.displays[0]["text/plain"])
    assert result.text == "'after'"


def test_two_principals_workers_never_share_a_user_id(gateway: GatewayProcess, token: str) -> None:
    with gateway.client(token) as one, gateway.client(gateway.token("other")) as two:
        source = "import os, time; print(os.getuid()); time.sleep(0.5)"
        both = [client.session(gpus=0).execute(source) for client in (one, two)]
        ids = [execution.result().stdout for execution in both]
        assert ids[0] != ids[1]


def test_a_revoked_client_is_told_at_every_question_and_hangs_at_none(gateway: GatewayProcess) -> None:
    token = gateway.token("leaver")
    with gateway.client(token) as client:
        client.connect()
        command = [sys.executable, "-m", "kcoral_gateway", "--state", str(gateway.state), "token"]
        listed = subprocess.run([*command, "list"], capture_output=True, text=True, check=True).stdout
        token_id = next(line.split()[0] for line in listed.splitlines() if "leaver" in line)
        subprocess.run([*command, "revoke", token_id], check=True, capture_output=True)
        until(lambda: client.aio._dead is not None, 20)
        for _ in range(2):
            with pytest.raises(AuthenticationError):
                client.sessions()


def test_a_host_that_dies_before_its_worker_is_ready_fails_its_cell_at_once(
    client: Client, gateway: GatewayProcess
) -> None:
    former = {host.pid for host in gateway.hosts()}
    execution = client.session("early", gpus=2).execute("1")
    (host,) = until(lambda: [h for h in gateway.hosts() if h.pid not in former], 10)
    host.kill()
    with pytest.raises(ExecutionLost, match="host"):
        execution.result()
    client.close_session("early")


def test_when_what_forks_hosts_dies_sessions_go_on_and_new_ones_start(client: Client, gateway: GatewayProcess) -> None:
    session = client.session("kept", gpus=0)
    session.run("x = 1")
    (zygote,) = gateway.zygotes()
    zygote.kill()
    assert session.run("x").text == "1"
    for number in range(2):
        assert client.session(f"new-{number}", gpus=1).run("2").text == "2"
        client.close_session(f"new-{number}")
    session.close()
