"""``%kcoral run TOOL …``: a tool in the notebook's session, its output in the cell, its failure the cell's."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kcoral_magic.errors import ExitStatusError
from kcoral_magic.kernel.relay import Relay
from kcoral_magic.kernel.surface import surface_for
from kcoral_magic.tools import job

if TYPE_CHECKING:
    from kcoral_magic.kernel.magics import KCoral


def run(magics: KCoral, options: argparse.Namespace) -> None:
    """Run it, and save what comes back.

    Raises:
        ExitStatusError: It ended with another status than 0.
        KCoralError: It could not run.
    """
    ask = job.Ask.of(options, session=options.session or "", reads_input=False)
    job.command_of(ask)
    surface = surface_for(magics.shell)
    prefix = f"kcoral-{magics.proxy.id_of(ask.session or '')}-"
    relay = Relay(surface, prefix=prefix, is_trusted=False, is_quiet=magics.is_quiet, quiet_s=magics.quiet_s)
    execution = job.start(magics.proxy.client(magics.target), ask)
    magics.proxy.run(execution, relay, surface)
    ended = job.ended(execution, ask)
    for text in ended.problems:
        surface.note(text)
    if ended.saved:
        named = ", ".join(map(str, ended.saved[:5]))
        surface.note(f"saved {named}{' …' if len(ended.saved) > 5 else ''}")
    if ended.status:
        what = f"{options.tool} {' '.join(options.words)}"[:200]
        raise ExitStatusError(f"exit status {ended.status}: {what}", ended.status)
