"""``kcoral-gateway [serve] …`` and ``kcoral-gateway token add|list|revoke``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from kcoral_gateway.auth import TokenStore
from kcoral_gateway.config import Config, GiB, Limits, default_cpu_workers, default_state_dir
from kcoral_magic.errors import KCoralError
from kcoral_magic.protocol import __version__
from kcoral_magic.protocol.wire import is_session_name


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser("kcoral-gateway", description="Runs notebook cells of others on this machine's GPUs.")
    top.add_argument("--version", action="version", version=f"kcoral-gateway {__version__}")
    top.add_argument("--state", type=Path, default=default_state_dir(), help="state folder (default: %(default)s)")
    commands = top.add_subparsers(dest="command")
    serve = commands.add_parser("serve", help="serve clients (the default)")
    serve.add_argument("--state", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    _serve_options(top, "allow_host", "pythons", "tools")
    _serve_options(serve, "allow_host_too", "pythons_too", "tools_too")  # else the second list would replace the first
    token = commands.add_parser("token", help="who may come in").add_subparsers(dest="action", required=True)
    token.add_parser("add", help="make a token; it is shown once").add_argument("name")
    token.add_parser("list", help="names and ids of all tokens")
    token.add_parser("revoke", help="forget a token").add_argument("token_id", metavar="ID|NAME")
    commands.add_parser("check", help="which isolation holds on this machine, and which GPUs it has")
    return top


def _serve_options(to: argparse.ArgumentParser, allow_host: str, pythons: str, tools: str) -> None:
    # SUPPRESS: an option not given to `serve` must not overwrite one given before it.
    add = to.add_argument
    add("--host", default=argparse.SUPPRESS, help="address to listen on (127.0.0.1); 'none': the unix socket only")
    add("--port", type=_number(0, 65535), default=argparse.SUPPRESS, help="TCP port (7878; 0 picks a free one)")
    add("--tls-cert", type=Path, default=argparse.SUPPRESS, help="certificate chain, PEM")
    add("--tls-key", type=Path, default=argparse.SUPPRESS, help="its private key, PEM")
    add("--insecure", action="store_true", default=argparse.SUPPRESS, help="beyond loopback without TLS")
    add(
        "--allow-host",
        action="append",
        dest=allow_host,
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="a host name clients use; repeatable",
    )
    add("--sandbox", choices=["auto", "strict", "user", "none"], default=argparse.SUPPRESS, help="isolation (auto)")
    add("--simulate-gpus", type=_number(0, 1024), metavar="N", default=argparse.SUPPRESS, help="pretend to have N GPUs")
    add(
        "--python",
        action="append",
        type=_environment,
        dest=pythons,
        metavar="NAME=PATH",
        default=argparse.SUPPRESS,
        help="another interpreter for sessions to choose, with ipython, msgspec, cloudpickle, xxhash; repeatable",
    )
    add(
        "--tools",
        action="append",
        type=_folder,
        dest=tools,
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="a folder of programs, first on the workers' PATH and readable there; repeatable",
    )
    add(
        "--cpu-workers",
        type=_number(1, 10_000),
        metavar="N",
        default=argparse.SUPPRESS,
        help="programs and functions at once that have no GPU (twice the cores)",
    )
    add(
        "--gpu-workers",
        type=_number(1, 1024),
        metavar="N",
        default=argparse.SUPPRESS,
        help="programs at once for each GPU, of which one computes (8)",
    )
    add("--memory-gib", type=_positive, metavar="GIB", default=argparse.SUPPRESS, help="memory of one worker (16)")
    add("--workspace-gib", type=_positive, metavar="GIB", default=argparse.SUPPRESS, help="files of one session (8)")
    add("--cache-gib", type=_positive, metavar="GIB", default=argparse.SUPPRESS, help="files kept for each user (50)")
    add(
        "--processes",
        type=_number(8, 1 << 20),
        metavar="N",
        default=argparse.SUPPRESS,
        help="processes and threads of one worker (2048)",
    )
    add("--embedded", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{least} to {most} was expected, got {text!r}")
        return int(text)

    return parse


def _environment(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if not is_session_name(name) or not os.path.isabs(path):
        raise argparse.ArgumentTypeError(f"as in torch=/opt/torch/bin/python, got {text!r}")
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        raise argparse.ArgumentTypeError(f"{path} is no program that can be run")
    return name, path


def _folder(text: str) -> str:
    path = os.path.realpath(text)
    if not os.path.isabs(text) or not os.path.isdir(path) or path in ("/", os.path.expanduser("~")):
        raise argparse.ArgumentTypeError(f"a folder of programs, as in /opt/nvidia/nsight-compute/2025.4; got {text!r}")
    return path


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"a number above 0 was expected, got {text!r}")
    return value


def config_of(options: argparse.Namespace) -> Config:
    """Options to settings; what was not given keeps its default."""
    given = vars(options)
    limits = Limits()
    return Config(
        state_dir=options.state,
        host=None if given.get("host") == "none" else given.get("host", "127.0.0.1"),
        port=given.get("port", 7878),
        tls_cert=given.get("tls_cert"),
        tls_key=given.get("tls_key"),
        is_insecure=given.get("insecure", False),
        allowed_hosts=(*given.get("allow_host", ()), *given.get("allow_host_too", ())),
        sandbox=given.get("sandbox", "auto"),
        simulate_gpus=given.get("simulate_gpus", 0),
        pythons=(*given.get("pythons", ()), *given.get("pythons_too", ())),
        tools=(*given.get("tools", ()), *given.get("tools_too", ())),
        is_embedded=given.get("embedded", False),
        cpu_workers=given.get("cpu_workers", default_cpu_workers()),
        gpu_workers=given.get("gpu_workers", 8),
        artifact_bytes=int(given.get("cache_gib", 50.0) * GiB),
        limits=Limits(
            memory_bytes=int(given["memory_gib"] * GiB) if "memory_gib" in given else limits.memory_bytes,
            workspace_bytes=int(given["workspace_gib"] * GiB) if "workspace_gib" in given else limits.workspace_bytes,
            processes=given.get("processes", limits.processes),
        ),
    )


def _keep_descriptors() -> None:
    """What the gateway was started with, open files of its supervisor say, is no business of its children."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2:
            with contextlib.suppress(OSError):  # the listing's own
                os.set_inheritable(number, False)


async def _serve(config: Config) -> None:
    from kcoral_gateway.app import Gateway

    async with Gateway.start(config) as gateway:
        gc.collect()
        gc.freeze()  # what was imported and built stays: later collections need not walk it
        where = f"{config.host}:{gateway.port}" if config.host else "no TCP port"
        logging.getLogger(__name__).info("serving", extra={"address": where, "socket": str(config.socket_path)})
        await gateway.until_stopped()


def _token(store: TokenStore, options: argparse.Namespace) -> None:
    match options.action:
        case "add":
            token = store.add(options.name)
            print(token)
            print("This is the only time it is shown. On the client: kcoral-magic connect URL", file=sys.stderr)
        case "list":
            for stored in store.stored():
                made = datetime.fromtimestamp(stored.created_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
                print(f"{stored.token_id}  {stored.name:<24}  {made}")
        case "revoke":
            print(f"revoked {store.revoke(options.token_id).name}")


def _check(config: Config) -> None:
    from kcoral_gateway.app import find_devices, find_level

    async def ask() -> None:
        level, report = await find_level(config)
        devices, why_none = await find_devices(config)
        print(f"isolation: {level} ({report})")
        print(f"GPUs: {len(devices)}{f' ({why_none})' if why_none else ''}")
        for device in devices:
            print(f"  {device.index}: {device.name}, {device.memory_bytes / GiB:.0f} GiB, {device.uuid}")

    asyncio.run(ask())


def main(arguments: list[str] | None = None) -> None:
    """The ``kcoral-gateway`` program."""
    options = parser().parse_args(arguments)
    config = config_of(options)
    try:
        match options.command:
            case "token":
                _token(TokenStore(config.tokens_path), options)
            case "check":
                _check(config)
            case _:
                from kcoral_gateway.logs import configure

                configure()
                _keep_descriptors()
                run = asyncio.run
                try:
                    import uvloop

                    run = uvloop.run
                except ImportError:
                    pass
                run(_serve(config))
    except KCoralError as error:
        sys.exit(f"kcoral-gateway: {error}")


if __name__ == "__main__":
    main()
