"""Keys in the order in which items() gives them: of tables of another size, by several threads. Against NumPy."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.hidden_keys import key_of
from support.programs import compile_program
from support.samples import random_values, same_bytes

from gpuhash import HashSet, HashTable

COUNT = 400_000  # shared by several threads, in chunks


@pytest.fixture(scope="module", params=[0.75, 0.3, 0.05], ids=["full", "common", "sparse"])
def ordered(request: pytest.FixtureRequest) -> np.ndarray:
    """The numbers [0, COUNT) in the order that their keys have in a table of that load."""
    table = HashTable("int64", "int64", capacity=int(COUNT / request.param))
    table.insert(key_of(np.arange(COUNT)), np.arange(COUNT))
    keys, numbers = table.items()
    same_bytes(keys, key_of(numbers))
    return numbers


@pytest.mark.parametrize("shape", [(), (3,)], ids=["scalar", "rows"])
@pytest.mark.parametrize("load", [0.75, 0.2, None], ids=["full", "common", "grows"])
def test_keys_in_the_order_of_a_table(threads: int, ordered: np.ndarray, load: float | None, shape: tuple[int, ...]):
    values = random_values("int64", (COUNT, *shape))
    table = HashTable("int64", "int64", value_shape=shape, capacity=int(COUNT / load) if load else 0)
    for part in np.array_split(ordered, 3):
        assert table.insert(key_of(part), values[part]).all()
    assert len(table) == COUNT
    same_bytes(table[key_of(np.arange(COUNT))], values)
    assert not table.contains(key_of(np.arange(COUNT, COUNT + 1000))).any()
    assert not table.insert_or_assign(key_of(ordered), values[::-1][ordered]).any()
    same_bytes(table[key_of(np.arange(COUNT))], values[::-1])
    assert table.erase(key_of(ordered[::2])).all()
    np.testing.assert_array_equal(np.sort(table.keys()), np.sort(key_of(ordered[1::2])))


def test_update_from_tables_of_another_size(threads: int, ordered: np.ndarray) -> None:
    source = HashTable("int64", "int64", capacity=COUNT)
    source.insert(key_of(ordered[: COUNT // 2]), 1)
    for table in (HashTable("int64", "int64"), HashTable("int64", "int64", capacity=10 * COUNT)):
        table.insert(key_of(ordered[COUNT // 4 :]), 2)
        table.update(source)
        same_bytes(table[key_of(ordered)], np.where(np.arange(COUNT) < COUNT // 2, 1, 2))
    made = HashSet("int64")
    made.add(source.keys())
    assert len(made) == COUNT // 2
    assert made.contains(source.keys()).all()


def test_owners_take_turns(tmp_path: Path) -> None:
    """Owners::of() is the remainder, for every number of threads and all the regions that there can be."""
    source = tmp_path / "owners.cpp"
    source.write_text(
        """
#include <cstdint>
#include <cstdio>
#include "host/walk/owners.hpp"

int main() {
  for (std::uint32_t parts = 1; parts <= 64; ++parts) {
    const gpuhash::host::Owners owners(parts);
    for (std::uint64_t region = 0; region < std::uint64_t{1} << 32; region = region * 9 / 8 + 1)
      if (owners.of(static_cast<std::uint32_t>(region)) != region % parts) return 1;
    if (owners.of(0xffffffffu) != 0xffffffffu % parts) return 2;
  }
}
"""
    )
    program = tmp_path / "owners"
    compile_program(program, source)
    assert subprocess.run([program], timeout=20, check=False).returncode == 0
