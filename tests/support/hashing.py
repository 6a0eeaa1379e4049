"""The hash function of cpp/shared/hash.hpp in NumPy, to make keys that meet."""

from __future__ import annotations

import numpy as np

WHITEN = np.uint64(0x9E3779B97F4A7C15)
FOLD = np.uint64(0xD1342543DE82EF95)
FINISH = np.uint64(0xBF58476D1CE4E5B9)
HALF = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)


def multiply_high(a: np.ndarray, b: np.uint64) -> np.ndarray:
    """The high 64 bits of the 128-bit products."""
    a_low, a_high, b_low, b_high = a & LOW, a >> HALF, b & LOW, b >> HALF
    middle = a_high * b_low + (a_low * b_low >> HALF)
    carry = (middle & LOW) + a_low * b_high
    return a_high * b_high + (middle >> HALF) + (carry >> HALF)


def fold(a: np.ndarray, b: np.uint64) -> np.ndarray:
    return multiply_high(a, b) ^ (a * b)


def hash_key(keys: np.ndarray, seed: int = 0) -> np.ndarray:
    """Hashes of 8-byte keys, uint64 [n]."""
    with np.errstate(over="ignore"):
        h = fold(keys ^ WHITEN ^ np.uint64(seed), FOLD)
        return (h ^ (h >> HALF)) * FINISH


def hash_rows(keys: np.ndarray, seed: int = 0) -> np.ndarray:
    """Hashes of 16-byte keys, given as two words each: [n, 2] to uint64 [n]."""
    low, high = np.ascontiguousarray(keys).view(np.uint64).T
    with np.errstate(over="ignore"):
        return hash_key(fold(low ^ FINISH ^ np.uint64(seed), FOLD) + high * WHITEN, seed)


def hash_of(keys: np.ndarray, seed: int = 0) -> np.ndarray:
    """Hashes of int32 or int64 keys [n], or of rows of two int64 [n, 2]."""
    if keys.ndim == 2:
        return hash_rows(keys, seed)
    return hash_key(keys.view(f"u{keys.dtype.itemsize}").astype(np.uint64), seed)


def late_hash_of(keys: np.ndarray, seed: int = 0) -> np.ndarray:
    """The 32 bits that decide where all buckets are searched from in the end, in a table that was given the seed."""
    secret = hash_key(np.array([seed], np.uint64), int(FOLD))[0]
    with np.errstate(over="ignore"):
        if keys.ndim == 2:
            low, high = np.ascontiguousarray(keys).view(np.uint64).T
            turned = secret << HALF | secret >> HALF
            return (low * (secret | np.uint64(1)) + high * (turned | np.uint64(1))) >> HALF
        return keys.view(f"u{keys.dtype.itemsize}").astype(np.uint64) * (secret | np.uint64(1)) >> HALF


def keys_of_first_part(keys: np.ndarray, count: int) -> np.ndarray:
    """The `count` of the keys that come first in any table: their home buckets are the first count / len(keys)."""
    return keys[np.sort(np.argpartition(hash_of(keys), count)[:count])]


def keys_of_first_bucket(count: int, candidates: int = 1 << 21) -> np.ndarray:
    """int64 keys whose first bucket is bucket 0 in every table of up to `candidates / count` buckets."""
    return keys_of_first_part(np.arange(candidates), count)


def keys_of_one_hash(count: int) -> np.ndarray:
    """16-byte keys, int64 [count, 2], whose 64-bit hashes are all equal: one probe sequence for all."""
    low = np.arange(1, count + 1, dtype=np.uint64)
    inverse = np.uint64(pow(int(WHITEN), -1, 1 << 64))
    with np.errstate(over="ignore"):
        high = (np.uint64(0x0123456789ABCDEF) - fold(low ^ FINISH, FOLD)) * inverse
    return np.stack([low, high], axis=1).view(np.int64)
