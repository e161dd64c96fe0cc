"""What may be imported: scripts are kept from the agent's own packages; the worker borrows some of them."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


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

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Refuse one of the names; leave the others to the finders behind this one."""
        if fullname.partition(".")[0] not in self._names:
            return None
        if not self._lent:
            raise ModuleNotFoundError(
                f"{fullname!r} is the agent's own; scripts import the standard library, isthmus.task and "
                "what is installed beside it",
                name=fullname,
            )
        if fullname != "libs":
            return None
        return importlib.util.spec_from_file_location(
            fullname, self._libs / "__init__.py", submodule_search_locations=[str(self._libs)]
        )

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let `libs` and the generated code be imported meanwhile; later imports don't find them again."""
        self._forget()  # whatever a script has put there by these names
        path = list(sys.path)
        sys.path.append(self._protos)
        self._lent = True
        try:
            yield
        finally:
            self._lent = False
            sys.path[:] = path
            self._forget()

    def _forget(self) -> None:
        for name in list(sys.modules):
            if name.partition(".")[0] in self._names or name.startswith("isthmus.engine"):
                del sys.modules[name]
