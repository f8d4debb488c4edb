"""What a hostile worker may answer: every tool shows it safely, or refuses it with an error of ours."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcoral_magic.errors import KCoralError, UsageError
from kcoral_magic.tools import asm, bench, cell, job, kept, torch_profile

deep: list[Any] = []
for _ in range(3000):
    deep = [deep]
JUNK: list[Any] = [None, 5, 10**400, float("nan"), float("inf"), "x\ud800", b"x", [1, None], {1: 2}, {"a": {2}}]
JUNK += [np.arange(3), (1, 2), deep, True, -1, {1}, 1j, [[1, 2]]]
MEASURED: dict[str, Any] = {
    "method": "host",
    "samples": [1.0, 2.0],
    "is_cold": False,
    "first_s": 1.0,
    "flush_bytes": 1,
    "kernels": 1,
    "bytes": 1.0,
    "at": {"n": 1},
    "readings": [{"sm_hz": 1.0, "throttled": ["x"]}],
}
ROW = {"name": "n", "count": 1, "self_cpu_us": 1.0, "cpu_us": 1.0, "self_device_us": 1.0, "memory_bytes": 1}


class Answer:
    """An execution that has ended with these values."""

    execution_id = "x"

    def __init__(self, **values: Any) -> None:
        self.values = values

    def result(self) -> Answer:
        return self


def _options(**given: Any) -> argparse.Namespace:
    usual = {"judge": None, "name": None, "baseline": None, "save": None, "arch": ["sm_90"], "block": 256, "code": True}
    return argparse.Namespace(**{**usual, **given})


def _bench(measured: dict[str, Any]) -> Any:
    said = {"points": [{"candidate": measured, "baseline": measured}], "machine": {}}
    return bench.read(said, _options(name="kept"), "s\ud800", (None, None, ()))


def _torch(**given: Any) -> Any:
    usual = {"operators": [ROW], "kernels": [ROW], "memory": {}, "elapsed_s": 1.0, "trace": b""}
    return torch_profile.ended(Answer(profiled={**usual, **given}), "", _options()).value  # type: ignore[arg-type]


def _asm(said: Any) -> Any:
    return asm.ended(Answer(built={"sm_90": said}), "s", _options())  # type: ignore[arg-type]


def _done(**given: Any) -> Any:
    said = {"status": 0, "files": [], "problems": [], **given}
    return cell.ended(Answer(done=said))  # type: ignore[arg-type]


def _judged(**given: Any) -> Any:
    return bench._verdict({"verdict": "WRONG", "samples": [1.0], "reasons": [], **given}).value


READERS: dict[str, Callable[[Any], Any]] = {
    "bench": lambda junk: bench.read(junk, _options(), "s", (None, None, ())),
    "bench.points": lambda junk: bench.read({"points": junk, "machine": {}}, _options(), "s", (None, None, ())),
    **{f"bench.{name}": lambda junk, name=name: _bench({**MEASURED, name: junk}) for name in MEASURED},
    "bench.at.n": lambda junk: _bench({**MEASURED, "at": {"n": junk}}),
    "bench.sample": lambda junk: _bench({**MEASURED, "samples": [junk]}),
    "judge": bench._verdict,
    **{f"judge.{name}": lambda junk, name=name: _judged(**{name: junk}) for name in ("verdict", "samples", "reasons")},
    "judge.reason": lambda junk: _judged(reasons=[junk]),
    **{
        f"torch.{name}": lambda junk, name=name: _torch(**{name: junk}) for name in ("operators", "memory", "elapsed_s")
    },
    **{f"torch.row.{name}": lambda junk, name=name: _torch(kernels=[{**ROW, name: junk}]) for name in ROW},
    "torch.memory.cuda": lambda junk: _torch(memory={"cuda": junk}),
    "asm": _asm,
    **{
        f"asm.{name}": lambda junk, name=name: _asm({name: junk}) for name in ("usage", "ptx", "sass", "cubin", "error")
    },
    "done": lambda junk: job.done_of(Answer(done=junk)),  # type: ignore[arg-type]
    **{f"done.{n}": lambda junk, n=n: _done(**{n: junk}) for n in ("status", "files", "problems", "cell", "error")},
    "done.file": lambda junk: _done(files=[("kcoral-outputs/ncu.log", 0o644, junk)]),
    "error.text": lambda junk: _done(error={"ename": junk, "texts": [junk, junk, junk]}),
    "copied": cell.checked,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_hostile_answer_is_shown_safely_or_refused(
    reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for junk in JUNK:
        try:
            shown = READERS[reader](junk)
        except KCoralError as error:
            str(error).encode()
            continue
        if hasattr(shown, "_repr_mimebundle_"):
            json.dumps(shown._repr_mimebundle_(), allow_nan=False, ensure_ascii=False).encode()
        elif isinstance(shown, cell.Ran):
            "".join(shown.problems).encode()
            str(shown.error).encode()


@pytest.mark.parametrize(
    "line", ["[1]", "5", "[" * 100_000, '{"source": "", "machine": 5, "points": []}', '"x"', '{"points": [{}]}']
)
def test_a_damaged_log_of_benchmarks_says_where_it_lies(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / ".kcoral" / "bench" / "mine.jsonl"
    place.parent.mkdir(parents=True)
    place.write_text(line)
    for read in (bench.log, lambda name: bench.baseline_of(_options(baseline=name))):
        with pytest.raises(UsageError, match=r"mine\.jsonl cannot be read"):
            read("mine")


def test_a_benchmark_that_cannot_be_kept_is_shown_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".kcoral").write_text("a file")
    assert "not kept" in repr(_bench(MEASURED))


@pytest.mark.parametrize("words", [["--sweep", "n=1e999"], ["--sweep", "n=,"], ["--seconds", "nan"]])
def test_values_that_no_worker_could_read_are_refused_before(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    bench.add_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(words)


def test_what_cannot_be_written_leaves_nothing_and_replaces_no_device(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "folder", Path("/dev/null"), tmp_path / "a\0b"):
        with pytest.raises(UsageError, match="cannot be written"):
            kept.write(place, b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert Path("/dev/null").is_char_device()
