"""``python -m kcoral_gateway.host [inventory|check LEVEL UID]``: a worker hosts, or one question about this machine."""

from __future__ import annotations

import sys

import msgspec


def main() -> None:
    """Fork a worker host for each ``HostSpec`` from the socket on standard input, or print JSON and end."""
    match sys.argv[1:]:
        case []:
            from kcoral_gateway.host.zygote import serve

            serve()
        case ["inventory"]:
            from kcoral_gateway.host.devices import inventory

            print(msgspec.json.encode(inventory()).decode())
        case ["check", level, uid]:
            from kcoral_gateway.host.check import check

            print(msgspec.json.encode(check(level, int(uid))).decode())
        case other:
            sys.exit(f"expected nothing, 'inventory' or 'check LEVEL UID', got {' '.join(other)!r}")


if __name__ == "__main__":
    main()
