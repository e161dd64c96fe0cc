"""Bindings that are kept for the next call of the same sizes, within a bound on their number and memory."""

import threading
from collections import OrderedDict
from collections.abc import Callable

from libs.common.errors import Exhausted
from libs.common.sizes import size_text
from libs.runtime.bind import Binding
from libs.runtime.faults import TOO_MUCH_MEMORY
from libs.runtime.layout import ALIGNMENT, Layout

Sizes = tuple[int, ...]
"""What tells bindings apart: sizes of dimensions, after the number of a part where there are several."""


class BindingPool:
    """Lends bindings to threads.

    Those in use, those kept, and what is reserved for anything else share one bound on memory.
    """

    def __init__(
        self,
        lay_out: Callable[[Sizes], Layout],
        make: Callable[[Sizes, Layout], Binding],
        *,
        max_bytes: int,
        max_kept: int,
    ) -> None:
        self._lay_out = lay_out
        self._make = make
        self._max_bytes = max_bytes
        self._max_kept = max_kept
        self._lock = threading.Lock()
        self._kept: OrderedDict[Sizes, list[Binding]] = OrderedDict()
        self._count = 0
        self._bytes = 0

    def lend(self, sizes: Sizes, spend: Callable[[Layout], None] | None = None) -> "_Loan":
        """Return a context that yields a binding, which is the caller's alone meanwhile.

        `spend` is called with the layout before a new binding is made. Entering raises what it, laying out
        and binding raise, and Exhausted (TOO_MUCH_MEMORY) where the calls in progress leave too little
        memory.
        """
        return _Loan(self, sizes, spend)

    @property
    def bytes(self) -> int:
        """Memory held now: of bindings in use or kept, and what is reserved."""
        return self._bytes

    def reserve(self, size: int) -> None:
        """Take `size` bytes for something else than a binding; bindings that nobody uses make room.

        Raises Exhausted (TOO_MUCH_MEMORY) where there aren't so many.
        """
        with self._lock:
            while self._kept and self._bytes + size > self._max_bytes:
                self._drop_oldest()
            if self._bytes + size > self._max_bytes:
                raise self._full(size)
            self._bytes += size

    def release(self, size: int) -> None:
        """Give back what was reserved."""
        with self._lock:
            self._bytes -= size

    def take(self, sizes: Sizes, spend: Callable[[Layout], None] | None) -> Binding:
        """Return a binding that is the caller's until `give`; see `lend`."""
        with self._lock:
            idle = self._kept.get(sizes)
            if idle:
                binding = idle.pop()
                self._count -= 1
                if idle:
                    self._kept.move_to_end(sizes)
                else:
                    del self._kept[sizes]
                return binding
        return self._new(sizes, spend)

    def _new(self, sizes: Sizes, spend: Callable[[Layout], None] | None) -> Binding:
        layout = self._lay_out(sizes)
        if spend is not None:
            spend(layout)
        needed = layout.arena_bytes + ALIGNMENT
        with self._lock:
            while self._kept and self._bytes + needed > self._max_bytes:
                self._drop_oldest()
            if self._bytes and self._bytes + needed > self._max_bytes:
                raise self._full(needed)
            self._bytes += needed
        try:
            return self._make(sizes, layout)
        except BaseException:
            with self._lock:
                self._bytes -= needed
            raise

    def give(self, sizes: Sizes, binding: Binding) -> None:
        """Take a binding back."""
        with self._lock:
            self._kept.setdefault(sizes, []).append(binding)
            self._kept.move_to_end(sizes)
            self._count += 1
            while self._count > self._max_kept:
                self._drop_oldest()

    def _full(self, size: int) -> Exhausted:
        taken, most = size_text(self._bytes), size_text(self._max_bytes)
        text = f"a call needs {size_text(size)} more; {taken} of {most} are in use"
        return Exhausted(text, reason=TOO_MUCH_MEMORY)

    def _drop_oldest(self) -> None:
        sizes, idle = next(iter(self._kept.items()))
        self._bytes -= idle.pop(0).bytes
        self._count -= 1
        if not idle:
            del self._kept[sizes]


class _Loan:
    """A binding for the time of a `with`. A class, since contextlib's generators take twice as long."""

    __slots__ = ("_binding", "_pool", "_sizes", "_spend")

    def __init__(self, pool: BindingPool, sizes: Sizes, spend: Callable[[Layout], None] | None) -> None:
        self._pool = pool
        self._sizes = sizes
        self._spend = spend

    def __enter__(self) -> Binding:
        self._binding = self._pool.take(self._sizes, self._spend)
        return self._binding

    def __exit__(self, *error: object) -> None:
        self._pool.give(self._sizes, self._binding)
