"""What importing costs: the client stays light."""

from __future__ import annotations

import subprocess
import sys


def _loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_client_loads_none_of_the_gateway_torch_numpy_or_ipython() -> None:
    loaded = _loaded_after("from kcoral_magic import Client, AsyncClient")
    heavy = ("kcoral_gateway", "torch", "numpy", "IPython", "uvicorn", "starlette", "pandas", "cloudpickle")
    assert [name for name in heavy if name in loaded] == []


def test_importing_the_package_loads_almost_nothing() -> None:
    loaded = _loaded_after("import kcoral_magic")
    assert [name for name in ("websockets", "msgspec", "asyncio", "ssl") if name in loaded] == []


def test_every_wire_code_belongs_to_one_class() -> None:
    from kcoral_magic import errors

    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.KCoralError)]
    leaves = [c for c in classes if not c.__subclasses__()]
    assert len({c.code for c in leaves}) == len(leaves)
    for cls in leaves:
        assert type(errors.from_code(cls.code, "why")) is cls
        assert f"{cls.__name__:<}" in (errors.__doc__ or "")
