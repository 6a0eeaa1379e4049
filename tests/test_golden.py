"""The hash and the probe order, pinned: tables go between devices as they lie, and equal seeds give equal orders.

All numbers were computed apart from this repository's code, by Python's integers, from what docs/design/layout.md and
the comments of cpp/shared/hash.hpp and cpp/shared/probe_sequence.hpp say.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

import numpy as np
import pytest
from support.hashing import hash_of, late_hash_of
from support.memory_resources import NumPyMemory

from gpuhash import HashTable

SEED = 0xC0FFEE1234567891

#: Bytes per key, seed, key, hash, and the 32 bits that come in late in a table which was given the seed.
HASHES: list[tuple[int, int, int | tuple[int, int], int, int]] = [
    (4, 0, 0x0, 0x97775AD9A6A6C3B9, 0x00000000),
    (4, 0, 0x1, 0xFCDFA515648006D0, 0xE539C8A4),
    (4, 0, 0xDEADBEEF, 0x68E1FC50D671DE6B, 0x6B8442D6),
    (4, 0, 0xFFFFFFFF, 0xC8336EFE38CDA81A, 0xEF42C548),
    (4, SEED, 0x0, 0x1392E538C3E6094B, 0x00000000),
    (4, SEED, 0x1, 0x06817A1461D3B943, 0x8AAD18ED),
    (4, SEED, 0xDEADBEEF, 0xAA1DD31535AC270E, 0x589B1C00),
    (4, SEED, 0xFFFFFFFF, 0x4E1BAF72BB59FBD1, 0x813713AB),
    (8, 0, 0x0, 0x97775AD9A6A6C3B9, 0x00000000),
    (8, 0, 0x1, 0xFCDFA515648006D0, 0xE539C8A4),
    (8, 0, 0x0123456789ABCDEF, 0x997F2E0D730BF988, 0xE733E28B),
    (8, 0, 0xFFFFFFFFFFFFFFFF, 0xF7A199C66F914179, 0x1AC6375B),
    (8, SEED, 0x0, 0x1392E538C3E6094B, 0x00000000),
    (8, SEED, 0x1, 0x06817A1461D3B943, 0x8AAD18ED),
    (8, SEED, 0x0123456789ABCDEF, 0x8CC633EDA3A54F3B, 0x910253AA),
    (8, SEED, 0xFFFFFFFFFFFFFFFF, 0x6E920921197D0B4B, 0x7552E712),
    (16, 0, (0x0, 0x0), 0x820239D8262B0674, 0x00000000),
    (16, 0, (0x1, 0x0), 0x86CB4BB5C357221F, 0xE539C8A4),
    (16, 0, (0x0, 0x1), 0xEEFEA1445C8E49FD, 0xD47C8DED),
    (16, 0, (0x0123456789ABCDEF, 0xFEDCBA9876543210), 0xFB1A1E330F5FCCFE, 0xF6501599),
    (16, SEED, (0x0, 0x0), 0xB67136B8FC8A013E, 0x00000000),
    (16, SEED, (0x1, 0x0), 0xB47940626D014DC6, 0x8AAD18ED),
    (16, SEED, (0x0, 0x1), 0xE9C36AAE4E98EC5A, 0x0BE42C98),
    (16, SEED, (0x0123456789ABCDEF, 0xFEDCBA9876543210), 0xE850251A38CAB9C0, 0x7E83314A),
]


def words_of(key: int | tuple[int, int]) -> tuple[int, ...]:
    return key if isinstance(key, tuple) else (key,)


def array_of(key_bytes: int, key: int | tuple[int, int]) -> np.ndarray:
    """The key alone, of the integers that the twins in support/hashing.py take: [1], or [1, 2] for 16 bytes."""
    if key_bytes == 16:
        return np.array([key], np.uint64).view(np.int64)
    return np.array([key], f"u{key_bytes}").view(f"i{key_bytes}")


def test_hashes(answers):
    """Those of cpp/shared/hash.hpp itself, in a program that is compiled here."""
    keys = [(key_bytes, seed, *(*words_of(key), 0)[:2]) for key_bytes, seed, key, _, _ in HASHES]
    given = [str(number) for key in keys for number in key]
    printed = subprocess.run(
        [answers, "hashes", *given], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert [tuple(map(int, line.split())) for line in printed] == [(plain, late) for *_, plain, late in HASHES]


def test_the_twins_in_the_tests_agree():
    for key_bytes, seed, key, plain, late in HASHES:
        keys = array_of(key_bytes, key)
        assert (int(hash_of(keys, seed)[0]), int(late_hash_of(keys, seed)[0])) == (plain, late)


@dataclass(frozen=True)
class Sequence:
    """Of one key, in tables of 3 regions."""

    key_bytes: int
    seed: int
    key: int | tuple[int, int]
    first: list[int]  # the home bucket, after 8 hops within its region, and after the first 5 of 120 hops anywhere
    last: int  # after the last of the 120
    late: int  # where all buckets are searched from then on
    filter_bit: int

    @property
    def buckets(self) -> int:
        return 1500 if self.key_bytes == 16 else 3000

    @property
    def slots(self) -> int:
        return {4: 8, 8: 4, 16: 4}[self.key_bytes]  # per bucket: 64 bytes, but 128 for keys of 16


RANDOM_16 = (0x0123456789ABCDEF, 0xFEDCBA9876543210)
FIRST = {
    (4, 0): [1229, 1614, 1101, 1588, 1075, 1562, 1049, 1536, 1022, 1529, 2989, 1450, 2910, 1371],
    (4, SEED): [1993, 1187, 1980, 1774, 1568, 1362, 1156, 1950, 1744, 1615, 997, 378, 2760, 2142],
    (8, 0): [1798, 1346, 1852, 1358, 1864, 1370, 1876, 1381, 1887, 1180, 2697, 1215, 2732, 1250],
    (8, SEED): [1649, 1830, 1273, 1717, 1161, 1604, 1048, 1491, 1935, 1136, 2466, 797, 2127, 458],
    (16, 0): [1471, 1099, 1255, 1411, 1067, 1223, 1379, 1035, 1191, 1043, 11, 479, 947, 1416],
    (16, SEED): [1361, 1133, 1096, 1060, 1023, 1486, 1449, 1412, 1375, 1015, 905, 794, 683, 572],
}
SEQUENCES = [
    Sequence(4, 0, 0xDEADBEEF, FIRST[4, 0], 1337, 1259, 0x40),
    Sequence(4, SEED, 0xDEADBEEF, FIRST[4, SEED], 46, 1038, 0x02),
    Sequence(8, 0, 0x0123456789ABCDEF, FIRST[8, 0], 1757, 2709, 0x08),
    Sequence(8, SEED, 0x0123456789ABCDEF, FIRST[8, SEED], 477, 1699, 0x20),
    Sequence(16, 0, RANDOM_16, FIRST[16, 0], 1264, 1443, 0x01),
    Sequence(16, SEED, RANDOM_16, FIRST[16, SEED], 1339, 741, 0x02),
]


def place_of_key(sequence: Sequence, full: list[int], device: str) -> int:
    """The bucket into which the key goes where these are full.

    The full buckets are written into the memory of a table on the host, so that nothing in them comes from the code
    under test. All hold one other key, which nobody looks for. It is not at home where this one is: it would be
    displaced.
    """
    key_bytes = sequence.key_bytes
    dtype, shape = ("int32", ()) if key_bytes == 4 else ("int64", (2,) if key_bytes == 16 else ())
    memory = NumPyMemory()
    table = HashTable(
        dtype,
        "int32" if key_bytes == 4 else "int64",
        key_shape=shape,
        capacity=sequence.buckets * sequence.slots,
        growth=False,
        seed=sequence.seed,
        memory=memory,
    )
    assert table.capacity == sequence.buckets * sequence.slots
    bucket_bytes = 128 if key_bytes == 16 else 64

    def slots_in(memory: NumPyMemory) -> np.ndarray:
        lines, _ = memory.slots_and_filters(sequence.buckets + 1, bucket_bytes)
        return lines.reshape(sequence.buckets + 1, sequence.slots, 2 * key_bytes)[:-1, :, :key_bytes]

    other = array_of(key_bytes, (3, 7) if key_bytes == 16 else 3)
    slots_in(memory)[full] = other.view(np.uint8).reshape(-1)
    on_device = table if device == "cpu" else table.to(device)
    key = array_of(key_bytes, sequence.key)
    assert on_device.insert(key, np.ones(1, table.value_dtype)).all()
    assert on_device.contains(key).all()

    seen = NumPyMemory()
    copy = on_device.to("cpu", memory=seen)  # slot for slot
    ((bucket, _),) = np.argwhere((slots_in(seen) == key.view(np.uint8).reshape(-1)).all(-1)).tolist()
    _, filters = seen.slots_and_filters(sequence.buckets + 1, bucket_bytes)
    passed = np.flatnonzero(filters)
    assert set(passed) <= set(full)
    assert (filters[passed] == sequence.filter_bit).all()
    assert len(copy) == 1
    return int(bucket)


@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda s: f"{s.key_bytes}-{'seed' if s.seed else '0'}")
def test_probe_order(sequence, device):
    first = sequence.first
    assert [place_of_key(sequence, first[:hop], device) for hop in range(len(first))] == first
    # All are full but a few at the end of the sequence. The one before `late` comes before it nowhere else.
    end = [sequence.last, sequence.late, sequence.late + 1]
    free = [*end, sequence.late - 1]
    full = [bucket for bucket in range(sequence.buckets) if bucket not in free]
    assert [place_of_key(sequence, full + end[:hop], device) for hop in range(3)] == end
