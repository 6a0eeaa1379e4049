"""A table of constant size whose keys come and go without end."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuhash import HashTable
from support.families import fixed_table
from support.frameworks import nearest_framework, to_numpy
from support.samples import as_dict, items_of, same_bytes


class Churn:
    """The table, and the same in NumPy."""

    def __init__(
        self,
        device: str,
        key_type: tuple[str, tuple[int, ...]],
        pattern: str,
        slots: int,
        load: float,
        batch: int,
        asks: bool = False,
        **options: Any,
    ):
        self.place = nearest_framework(device)
        self.new_table = lambda: fixed_table(key_type, slots, device, **options)
        self.table = self.new_table()
        self.batch, self.asks, self.pattern = batch, asks, pattern
        self.size = int(load * self.table.capacity)
        self.rng = np.random.default_rng(0)
        self.rounds = 0

        # Of the keys in the pool, those that are not live wait in a ring. Only "returning" ones meet their own traces.
        count = 2 * self.size if pattern == "returning" else max(1 << 18, 8 * self.size)
        numbers = np.arange(count + 1024, dtype=np.uint64) * np.uint64(1 if pattern == "window" else 0x9E3779B97F4A7C15)
        keys = numbers.astype(f"u{np.dtype(key_type[0]).itemsize}").view(key_type[0])
        if key_type[1]:
            keys = np.stack([keys, ~keys], axis=1)
        self.pool, self.absent = keys[:count], keys[count:]
        self.ids = np.arange(self.size)  # of the live keys
        self.values = np.arange(self.size).astype(self.table.value_dtype)
        self.ring = np.arange(self.size, count)
        self.insert_all(self.table)

    def insert_all(self, table: HashTable) -> None:
        table.insert(self.place.array(self.pool[self.ids]), self.place.array(self.values))

    def turn(self) -> tuple[Any, Any, Any]:
        """The keys that go in the next round, those that come, and their values."""
        turn = self.rounds * self.batch + np.arange(self.batch)
        at = self.rng.choice(self.size, self.batch, replace=False) if self.pattern != "window" else turn % self.size
        turn %= len(self.ring)
        gone, self.ids[at] = self.ids[at], self.ring[turn]
        self.ring[turn] = gone
        self.values[at] = self.rounds % 1000
        self.rounds += 1
        arrays = self.pool[gone], self.pool[self.ids[at]], self.values[at]
        going, coming, values = map(self.place.array, arrays)
        return going, coming, values

    def change(self, table: HashTable, going: Any, coming: Any, values: Any) -> None:
        table.erase(going)
        table.insert(coming, values)
        if self.asks:
            len(table)

    def round(self) -> None:
        """Some keys go and as many come."""
        self.change(self.table, *self.turn())

    def check(self) -> None:
        same_bytes(self.table[self.place.array(self.pool[self.ids])], self.values)
        others = np.concatenate([self.absent[:256], self.pool[self.rng.choice(self.ring, 256)]])
        assert not to_numpy(self.table.contains(self.place.array(others))).any()
        assert len(self.table) == self.size

    def run(self, rounds: int) -> None:
        for i in range(rounds):
            self.round()
            if i % 1000 == 999:
                self.check()
        assert items_of(self.table) == as_dict(self.pool[self.ids], self.values)
