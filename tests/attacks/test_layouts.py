"""The layout that is tried is the one that runs, and root does not run the other one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcoral_magic import Client
from tests.attacks.cells import Cell
from tests.attacks.layouts import BoxedGateway, Layout

pytestmark = pytest.mark.attack


def test_the_gateway_reports_the_layout_it_was_asked_for(gateway: BoxedGateway, client: Client) -> None:
    assert client.connect().sandbox == gateway.layout.level


def test_a_worker_runs_as_a_user_without_rights(gateway: BoxedGateway, attacker: Cell) -> None:
    inside = attacker.ask("answer = [os.getuid(), os.geteuid(), os.getgid(), os.getegid()]")
    outside = {uid for worker in gateway.interpreters() for uid in worker.uids()}
    assert len(set(inside)) == 1
    if gateway.layout.level == "strict":
        assert inside[0] >= 300_000
        assert outside
        assert min(outside) >= 300_000
    else:
        assert inside[0] == 1000
        assert outside == {gateway.layout.uid}


def test_every_strict_worker_has_a_user_id_of_its_own(gateway: BoxedGateway, attacker: Cell, other: Cell) -> None:
    ids = [worker.uids().real for worker in gateway.interpreters()]
    assert len(ids) >= 2
    assert len(set(ids)) == (len(ids) if gateway.layout.level == "strict" else 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="about gateways that root starts")
def test_a_root_run_gateway_refuses_the_layout_that_keeps_root_s_user_id(open_folder: Path) -> None:
    # Inside, user id 1000 is root's outside: /proc/sys asks for no more (core_pattern is code run as root), and the
    # limit of processes does not hold for it.
    (folder := open_folder / "root-user").mkdir()
    try:
        gateway = BoxedGateway(Layout("user", 0), folder, "--processes", "48")
    except AssertionError:  # it did not start
        assert "sandbox" in (folder / "state.log").read_text()
        return
    try:
        with gateway.client() as client:
            opened = Cell(client, gpus=0).refusal("open('/proc/sys/kernel/core_pattern', 'a').close()")
            assert opened in ("EACCES", "EROFS", "ENOENT")
            assert {worker.uids().real for worker in gateway.interpreters()}.isdisjoint({0})
    finally:
        gateway.stop()
