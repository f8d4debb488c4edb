"""``kcoral-magic connect URL``: ask for a token without showing it, try it, store it 0600."""

from __future__ import annotations

import argparse
import getpass
import os
import sys

from kcoral_magic import config
from kcoral_magic.errors import KCoralError
from kcoral_magic.protocol import __version__


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser("kcoral-magic", description="Notebook cells on GPU machines elsewhere.")
    top.add_argument("--version", action="version", version=f"kcoral-magic {__version__}")
    commands = top.add_subparsers(dest="command", required=True)
    connect = commands.add_parser("connect", help="try and store the credential of a gateway")
    connect.add_argument("url", help="wss://host:port")
    connect.add_argument("--ca", metavar="FILE", help="certificate authority, PEM")
    connect.add_argument("--trust", action="store_true", help="let its HTML and JavaScript run in your notebooks")
    return top


def main(arguments: list[str] | None = None) -> None:
    """The ``kcoral-magic`` program."""
    options = parser().parse_args(arguments)
    try:
        _connect(options)
    except KCoralError as error:
        sys.exit(f"kcoral-magic: {error}")


def _connect(options: argparse.Namespace) -> None:
    from kcoral_magic.client.sync import Client

    url = config.normalise(options.url)
    token = getpass.getpass(f"Token for {url}: ") if sys.stdin.isatty() else sys.stdin.readline().strip()
    ca = os.path.abspath(options.ca) if options.ca else None
    with Client(target=config.Target(url, token.strip(), ca)) as client:
        welcome = client.connect()
    path = config.store_credentials(url, token=token.strip(), ca=ca, trust=True if options.trust else None)
    print(f"connected to {url} as {welcome.principal} (isolation {welcome.sandbox}); stored in {path}")
    print(f"In a notebook: %kcoral connect {url}   or set KCORAL_MAGIC_URL")


if __name__ == "__main__":
    main()
