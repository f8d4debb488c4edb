"""``python -m tests.standins DIR``: a folder of stand-ins for ``kcoral-gateway --tools DIR``, where no GPU is."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = {"ncu": "ncu", "compute-sanitizer": "sanitizer", "run-iket": "iket"}


def make(folder: Path) -> Path:
    """Write the programs and what they import."""
    package = folder / "tests" / "standins"
    shutil.copytree(HERE, package, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests" / "__init__.py").touch()
    for name, module in PROGRAMS.items():
        program = folder / name
        program.write_text(
            "#!/usr/bin/env python\n"
            f"# A stand-in for {name}: no GPU is here. Made by python -m tests.standins.\n"
            "import os, sys\n"
            "sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))\n"
            f"from tests.standins.{module} import main\n"
            "sys.exit(main(sys.argv[1:]))\n"
        )
        program.chmod(0o755)
    return folder


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
