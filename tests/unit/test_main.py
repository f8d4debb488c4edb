"""The gateway's command line: options before and after ``serve`` mean the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoral_gateway.__main__ import config_of, main, parser
from kcoral_gateway.config import Config, GiB, Limits, default_state_dir


def parsed(*arguments: str) -> Config:
    return config_of(parser().parse_args(["--state", "/state", *arguments]))


OPTIONS: dict[str, tuple[list[str], dict[str, object]]] = {
    "host": (["--host", "0.0.0.0"], {"host": "0.0.0.0"}),
    "no host": (["--host", "none"], {"host": None}),
    "port": (["--port", "0"], {"port": 0}),
    "tls": (["--tls-cert", "c", "--tls-key", "k"], {"tls_cert": Path("c"), "tls_key": Path("k")}),
    "insecure": (["--insecure"], {"is_insecure": True}),
    "names": (["--allow-host", "a", "--allow-host", "b"], {"allowed_hosts": ("a", "b")}),
    "sandbox": (["--sandbox", "strict"], {"sandbox": "strict"}),
    "simulated": (["--simulate-gpus", "3"], {"simulate_gpus": 3}),
    "embedded": (["--embedded"], {"is_embedded": True}),
    "memory": (["--memory-gib", "1.5"], {"limits": Limits(memory_bytes=3 * GiB // 2)}),
    "workspace": (["--workspace-gib", "2"], {"limits": Limits(workspace_bytes=2 * GiB)}),
    "processes": (["--processes", "9"], {"limits": Limits(processes=9)}),
}


def test_without_options_every_setting_has_its_default() -> None:
    assert parsed() == parsed("serve") == Config(state_dir=Path("/state"))


@pytest.mark.parametrize(("arguments", "settings"), OPTIONS.values(), ids=OPTIONS)
def test_an_option_means_the_same_before_and_after_serve_and_without_it(
    arguments: list[str], settings: dict[str, object]
) -> None:
    expected = Config(state_dir=Path("/state"), **settings)  # type: ignore[arg-type]  # as the table names them
    assert parsed(*arguments) == expected
    assert parsed(*arguments, "serve") == expected
    assert parsed("serve", *arguments) == expected


def test_options_before_and_after_serve_add_up_and_the_last_word_counts() -> None:
    both = parsed("--port", "1", "--insecure", "serve", "--host", "::1", "--port", "2")
    assert (both.port, both.is_insecure, both.host) == (2, True, "::1")


def test_names_before_and_after_serve_add_up() -> None:
    assert parsed("--allow-host", "a", "serve", "--allow-host", "b").allowed_hosts == ("a", "b")


def test_the_state_folder_may_be_named_before_and_after_serve() -> None:
    assert config_of(parser().parse_args(["serve", "--state", "/other"])).state_dir == Path("/other")
    assert config_of(parser().parse_args(["--state", "/other", "serve"])).state_dir == Path("/other")


@pytest.mark.parametrize(
    "arguments", [["--sandbox", "hope"], ["--port", "http"], ["--unknown"], ["token"], ["token", "add"], ["nothing"]]
)
def test_what_the_command_line_does_not_know_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(arguments)
    assert caught.value.code == 2
    assert "usage: kcoral-gateway" in capsys.readouterr().err


def test_the_default_state_folder_is_the_systems_place_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCORAL_GATEWAY_STATE", "/given")
    assert default_state_dir() == Path("/given")
    monkeypatch.delenv("KCORAL_GATEWAY_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", "/xdg")
    assert default_state_dir() == Path("/xdg/kcoral-gateway")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/ana")
    assert default_state_dir() == Path("/home/ana/.local/state/kcoral-gateway")


def test_tokens_are_made_listed_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--state", str(tmp_path), "token"]
    main([*at, "add", "ana"])
    token = capsys.readouterr().out.strip()
    assert token.startswith("kcoral_")
    main([*at, "list"])
    token_id, name = capsys.readouterr().out.split()[:2]
    assert name == "ana"
    main([*at, "revoke", token_id])
    assert capsys.readouterr().out == "revoked ana\n"
    main([*at, "list"])
    assert capsys.readouterr().out == ""


def test_a_mistake_ends_with_one_line_and_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^kcoral-gateway: no token is '0123'"):
        main(["--state", str(tmp_path), "token", "revoke", "0123"])
