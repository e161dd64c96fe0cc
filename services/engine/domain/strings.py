"""Arrays of strings: what moves and compares are their places in a sorted table.

Parts of plans hold numbers only. So an array of strings that is moved, picked from or compared becomes an
int64 array of places in a table, and is made of both again where something needs the strings themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from libs.common.errors import Invalid
from libs.runtime.plan import DataType
from services.engine.domain.extents import Extent
from services.engine.domain.graph import LooseTensor
from services.engine.domain.host import Host
from services.engine.domain.program import ValueType
from services.engine.domain.reference import Array
from services.engine.domain.values import Value


class Strings(Host):
    """The part of `Builder` that knows strings."""

    def places(self, *arrays: Value) -> list[Value]:
        """Return arrays of strings as int64 places in one sorted table: equal and ordered as the strings."""
        return self._ranked(arrays)[1]

    def _ranked(self, arrays: Sequence[Value]) -> tuple[int, list[Value]]:
        """Return the table's number, and the places."""
        for array in arrays:
            if array.type is not DataType.STRING:
                raise Invalid(f"inputs {arrays[0]} and {array} are not of one type")
        found = [self._found(array) for array in arrays]
        tables = {pair[0] for pair in found if pair is not None}
        if len(tables) == 1 and None not in found:
            return tables.pop(), [pair[1] for pair in found if pair is not None]
        known = [array.known for array in arrays if array.known is not None]
        if len(known) == len(arrays):
            return self._ranked_now(known)
        outputs = [(DataType.INT64, array.shape) for array in arrays]
        table, *places = self.host("string_rank", arrays, [LooseTensor(DataType.STRING, 1), *outputs])
        assert isinstance(table, Value)
        number = self._number(table)
        values = [place for place in places if isinstance(place, Value)]
        for array, place in zip(arrays, values, strict=True):
            self._layers[-1].strings[array] = number, place
        return number, values

    def _ranked_now(self, arrays: Sequence[Array]) -> tuple[int, list[Value]]:
        texts = sorted({str(text) for array in arrays for text in array.reshape(-1)})
        place = {text: number for number, text in enumerate(texts)}
        table = self.constant(np.array(texts, np.object_))
        places = [
            self.constant(
                np.array([place[str(text)] for text in array.reshape(-1)], np.int64).reshape(array.shape)
            )
            for array in arrays
        ]
        return self._number(table), places

    def _found(self, array: Value) -> tuple[int, Value] | None:
        return next((layer.strings[array] for layer in self._layers if array in layer.strings), None)

    def _of_places(self, table: int, places: Value) -> Value:
        """Return the strings at places of a table."""
        value = Value(DataType.STRING, places.shape)
        self._layers[-1].strings[value] = table, places
        return value

    def _made_of_places(self, array: Value) -> Value | None:
        found = self._found(array)
        if found is None:
            return None
        table, places = found
        # The table is a value of its own: its number is what is known of it.
        held = Value(DataType.STRING, (self._table_size(table),))
        self._layers[-1].numbers[held] = table
        (made,) = self.host("string_take", (held, places), [(DataType.STRING, array.shape)])
        assert isinstance(made, Value)
        return made

    def _table_size(self, table: int) -> Extent:
        kind = self._values[table]
        assert isinstance(kind, ValueType)
        return kind.shape[0]
