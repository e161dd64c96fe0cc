"""What may be imported: scripts are kept from the agent's own packages; the worker borrows some of them.

`isthmus.compute`, which scripts may import, is made of such: it borrows them while it is loaded.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

_COMPUTE = "isthmus.compute"
"""Scripts may import it, though it stands on the agent's own packages."""


class OwnPackages(importlib.abc.MetaPathFinder):
    """Refuses the agent's own packages, wherever they are installed: no script may depend on them.

    Args:
        names: top-level packages that are refused.
        libs: the folder of the package `libs`.
        protos: the folder above the generated code of `isthmus`.
    """

    def __init__(self, names: Sequence[str], libs: str, protos: str) -> None:
        self._names = frozenset(names)
        self._libs = Path(libs)
        self._protos = protos
        self._lent = False
        self._kept: dict[str, ModuleType] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Refuse one of the names; leave the others to the finders behind this one."""
        if fullname == _COMPUTE or fullname.startswith(f"{_COMPUTE}."):
            return self._borrowing(importlib.machinery.PathFinder.find_spec(fullname, path, target))
        if fullname.partition(".")[0] not in self._names:
            return None
        if not self._lent:
            raise ModuleNotFoundError(
                f"{fullname!r} is the agent's own; scripts import the standard library, isthmus.task, "
                "isthmus.compute and what is installed beside them",
                name=fullname,
            )
        if fullname != "libs":
            return None
        return importlib.util.spec_from_file_location(
            fullname, self._libs / "__init__.py", submodule_search_locations=[str(self._libs)]
        )

    def _borrowing(
        self, spec: importlib.machinery.ModuleSpec | None
    ) -> importlib.machinery.ModuleSpec | None:
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Borrower(self, spec.loader.name, str(spec.loader.path))
        return spec

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let `libs` and the generated code be imported meanwhile; later imports don't find them again.

        What has been lent before is the same again.
        """
        if self._lent:
            yield
            return
        self._forget()  # whatever a script has put there by these names
        sys.modules.update(self._kept)
        path = list(sys.path)
        sys.path.append(self._protos)
        self._lent = True
        try:
            yield
        finally:
            self._lent = False
            sys.path[:] = path
            self._kept = self._forget()

    def _forget(self) -> dict[str, ModuleType]:
        names = [
            name
            for name in sys.modules
            if name.partition(".")[0] in self._names or name.startswith("isthmus.engine")
        ]
        return {name: sys.modules.pop(name) for name in names}


class _Borrower(importlib.machinery.SourceFileLoader):
    """Loads a module that scripts may import with what they may not."""

    def __init__(self, packages: OwnPackages, name: str, path: str) -> None:
        super().__init__(name, path)
        self._packages = packages

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        with self._packages.lent():
            super().exec_module(module)
