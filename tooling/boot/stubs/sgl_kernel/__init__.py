"""Stand-in for sgl_kernel without a GPU: every name exists, and calling one says that it is a stub.

Mounted into a container by the toolkit for a dry boot. A model that really needs one of these operations on a
CPU fails with its name; plain attention and MLP models need none.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: High enough for every minimum that an engine asks for; the real version is in the image's metadata.
__version__ = "999.0+dry.boot.stub"


class StubbedOperation:
    """A name of the package: attributes are stubs again, a call is refused."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> StubbedOperation:
        if name.startswith("__"):
            raise AttributeError(name)
        return StubbedOperation(f"{self._name}.{name}")

    def __call__(self, *_arguments: Any, **_options: Any) -> NoReturn:
        """Refuse, with the name of the operation."""
        raise NotImplementedError(f"{self._name} is stubbed in a dry boot; it needs the GPU")

    def __or__(self, other: Any) -> Self:
        # Type unions in signatures are evaluated at import.
        return self

    __ror__ = __or__


def _names_of(module: str) -> Callable[[str], StubbedOperation]:
    def lookup(name: str) -> StubbedOperation:
        if name.startswith("__"):
            raise AttributeError(name)
        return StubbedOperation(f"{module}.{name}")

    return lookup


class _Submodules(MetaPathFinder, Loader):
    """Every `sgl_kernel.x.y` can be imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Ours are the submodules of this package."""
        del path, target
        if fullname.startswith(f"{__name__}."):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A module in which every name exists."""
        module = ModuleType(spec.name)
        module.__getattr__ = _names_of(spec.name)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


__getattr__ = _names_of(__name__)
sys.meta_path.insert(0, _Submodules())
