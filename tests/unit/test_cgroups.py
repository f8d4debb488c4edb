"""The cgroup files we write, on a stand-in folder: no delegated cgroup v2 is at hand where these tests run."""

from __future__ import annotations

import os
from pathlib import Path

from kcoral_gateway.config import Limits
from kcoral_gateway.engines.cgroups import prepare
from kcoral_gateway.host.cgroup import Cgroup


def _tree(tmp_path: Path, controllers: str) -> tuple[Path, Path]:
    own = tmp_path / "self-cgroup"
    own.write_text("5:pids:/legacy\n0::/system.slice/kcoral.service\n")
    folder = tmp_path / "cgroup" / "system.slice" / "kcoral.service"
    folder.mkdir(parents=True)
    (folder / "cgroup.controllers").write_text(controllers)
    return tmp_path / "cgroup", own


def test_a_delegated_cgroup_is_prepared_with_the_gateway_in_a_leaf_of_its_own(tmp_path: Path) -> None:
    mount, own = _tree(tmp_path, "cpu memory pids\n")
    folder = mount / "system.slice" / "kcoral.service"
    assert prepare(mount, own) == str(folder)
    assert (folder / "kcoral-gateway" / "cgroup.procs").read_text() == str(os.getpid())
    assert (folder / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_without_the_controllers_or_cgroup_v2_there_is_none(tmp_path: Path) -> None:
    assert prepare(*_tree(tmp_path, "hugetlb\n")) is None
    legacy = tmp_path / "legacy"
    legacy.write_text("4:memory:/x\n")
    assert prepare(tmp_path, legacy) is None


def test_a_workers_cgroup_holds_its_limits_and_knows_when_memory_ran_out(tmp_path: Path) -> None:
    cgroup = Cgroup(str(tmp_path), "worker", Limits(memory_bytes=123, processes=7))
    cgroup.add(42)
    written = {path.name: path.read_text() for path in (tmp_path / "worker").iterdir()}
    assert written == {"memory.max": "123", "memory.swap.max": "0", "pids.max": "7", "cgroup.procs": "42"}
    assert not cgroup.was_out_of_memory
    (tmp_path / "worker" / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert cgroup.was_out_of_memory
