"""The layout that is tried is the one that runs."""

from __future__ import annotations

from kcoral_magic import Client
from tests.attacks.layouts import BoxedGateway, Cell


def test_the_gateway_reports_the_layout_it_was_asked_for(gateway: BoxedGateway, client: Client) -> None:
    assert client.connect().sandbox == gateway.layout.level


def test_a_worker_runs_as_a_user_without_rights(gateway: BoxedGateway, attacker: Cell) -> None:
    inside = attacker.ask("answer = [os.getuid(), os.geteuid(), os.getgid(), os.getgroups()]")
    outside = {uid for worker in gateway.interpreters() for uid in worker.uids()}
    assert 0 not in outside
    if gateway.layout.level == "strict":
        assert isinstance(inside, list)
        assert inside[0] >= 300_000
        assert gateway.layout.uid not in outside
    else:
        assert inside == [1000, 1000, 1000, [65534]] or inside == [1000, 1000, 1000, []]
        assert outside == {gateway.layout.uid}
