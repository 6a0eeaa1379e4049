"""The jobs of docs/cookbook/ beside what people use today: ``python -m benchmarks.cookbook``.

One function for each page. It runs the page's own code first, which asserts that the results are right, and takes the
functions that the page shows from there. All ways of doing a job run in turns, and their results are compared before.
The rows are Markdown: medians of the processor time of all threads, and in brackets those of the wall clock, which
other programs on the machine lengthen.
``--pages`` chooses pages, and ``--quick`` takes small sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import multiprocessing
import os
import pickle
import re
import statistics
import sys
import tempfile
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import gpuhash
from benchmarks.machine import ROOT, cores, cpu_name, versions
from benchmarks.timing import Action, expect, nothing

PAGES = ROOT / "docs" / "cookbook"
REPETITIONS = 7  # with --quick 1
PEERS = ("numpy", "pandas", "polars", "scipy", "datasketch", "torch")


@dataclass(frozen=True)
class Times:
    """Seconds of one call: medians."""

    wall: float
    processor: float  # of all threads of this process

    def __str__(self) -> str:
        return f"{milliseconds(self.processor)} ({milliseconds(self.wall)})"


@dataclass(frozen=True)
class Way:
    """One way of doing a job."""

    name: str  # as Markdown
    call: Action  # may give the Times that it took, where another process does the job
    tidy: Action = nothing  # runs after each call, untimed


@dataclass(frozen=True)
class Job:
    """What gpuhash does in one way and others in several."""

    name: str
    ours: Way
    peers: list[Way] = field(default_factory=list)


def code_of_page(name: str) -> dict[str, Any]:
    """What a page's blocks define, after all of them have run in order, with their asserts."""
    blocks = re.findall(r"^```python\n(.*?)^```", (PAGES / f"{name}.md").read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": name}
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # processes of the page find the gpuhash that is measured here
    with contextlib.redirect_stdout(sys.stderr):  # the rows alone go to standard output
        exec(compile("\n".join(blocks), f"{name}.md", "exec"), names)
    return names


def peer(module: str, name: str, make: Callable[[Any], Action]) -> list[Way]:
    """A way that needs a module, or none where that is not installed."""
    try:
        return [Way(name, make(importlib.import_module(module)))]
    except ImportError:
        print(f"{name} is left out: {module} is not installed", file=sys.stderr)
        return []


def equal(one: Any, other: Any) -> bool:
    return np.array_equal(np.asarray(one), np.asarray(other))


def relabel(quick: bool) -> Iterator[Job]:
    code_of_page("relabel")
    rng = np.random.default_rng(1)
    count = 20_000 if quick else 1_000_000
    ids = rng.integers(-(2**63), 2**63, count // 4)
    edges = ids[(rng.random((count, 2)) ** 3 * len(ids)).astype(np.int64)]
    flat = edges.ravel()

    codes, nodes = gpuhash.factorize(edges)
    expect(equal(nodes[codes], edges), "the numbers of all nodes")
    yield Job(
        f"number the nodes of {count:,} edges",
        Way("`gpuhash.factorize`", lambda: gpuhash.factorize(edges)),
        [
            Way("`np.unique(return_inverse=True)`", lambda: np.unique(edges, return_inverse=True)),
            *peer("pandas", "`pandas.factorize`", lambda pd: lambda: pd.factorize(flat)),
        ],
    )

    numbers = gpuhash.HashTable.from_items(nodes, np.arange(len(nodes)))
    order = np.argsort(nodes)
    in_order = nodes[order]
    as_dict = dict(zip(nodes.tolist(), range(len(nodes)), strict=True))
    listed = flat.tolist()
    expect(equal(numbers.get(edges, -1), codes), "the numbers of known nodes")
    expect(equal(order[np.searchsorted(in_order, edges)], codes), "numbers by searchsorted")

    def get_indexer(pd: Any) -> Action:
        index = pd.Index(nodes)
        expect(equal(index.get_indexer(flat), codes.ravel()), "numbers by an index")
        return lambda: index.get_indexer(flat)

    yield Job(
        f"look up the numbers of {2 * count:,} ids",
        Way("`table.get`", lambda: numbers.get(edges, -1)),
        [
            Way("`np.searchsorted` in sorted ids", lambda: order[np.searchsorted(in_order, edges)]),
            *peer("pandas", "`pandas.Index.get_indexer`", get_indexer),
            Way("a dict, in a list comprehension", lambda: [as_dict[node] for node in listed]),
        ],
    )

    pairs = np.sort(codes, axis=1)
    distinct = len(gpuhash.unique(pairs, axis=0))
    expect(distinct == len(np.unique(pairs, axis=0)), "the number of distinct edges")

    def drop(pd: Any) -> Action:
        frame = pd.DataFrame(pairs)
        expect(len(frame.drop_duplicates()) == distinct, "distinct rows of a frame")
        return lambda: frame.drop_duplicates()

    def polars_unique(pl: Any) -> Action:
        frame = pl.DataFrame(pairs, schema=["a", "b"])
        expect(len(frame.unique()) == distinct, "distinct rows of a frame")
        return lambda: frame.unique()

    yield Job(
        f"remove double edges of {count:,}",
        Way("`gpuhash.unique(axis=0)`", lambda: gpuhash.unique(pairs, axis=0)),
        [
            Way("`np.unique(axis=0)`", lambda: np.unique(pairs, axis=0)),
            *peer("pandas", "`DataFrame.drop_duplicates` of pandas", drop),
            *peer("polars", "`DataFrame.unique` of polars", polars_unique),
        ],
    )


def groups_and_joins(quick: bool) -> Iterator[Job]:
    names = code_of_page("groups-and-joins")
    pd, pl = names["pd"], names["pl"]
    rng = np.random.default_rng(2)
    count = 20_000 if quick else 1_000_000
    known = np.unique(rng.integers(0, 2**40, count // 10))
    rng.shuffle(known)
    ids = rng.choice(np.concatenate([known, rng.integers(2**40, 2**41, count // 200)]), count)
    orders = pd.DataFrame({"customer": ids, "cents": rng.integers(1, 10_000, count)})
    customers = pd.DataFrame({"customer": known, "region": rng.integers(0, 8, len(known))})
    orders_pl, customers_pl = pl.from_pandas(orders), pl.from_pandas(customers)
    cents = orders["cents"].to_numpy()

    def sums() -> Any:
        groups = gpuhash.group_by(ids)
        return groups.keys, groups.agg(sum=cents)["sum"]

    def numpy_sums() -> Any:
        groups, codes = np.unique(ids, return_inverse=True)
        return groups, np.bincount(codes, weights=cents)

    def pandas_sums() -> Any:
        return orders.groupby("customer", sort=False)["cents"].sum()

    def polars_sums() -> Any:
        return orders_pl.group_by("customer").agg(pl.col("cents").sum())

    expect(equal(sums()[0], pandas_sums().index) and equal(sums()[1], pandas_sums()), "sums as those of pandas")
    expect(equal(numpy_sums()[1], polars_sums().sort("customer")["cents"]), "sums as those of polars")
    yield Job(
        f"sum {count:,} orders by customer",
        Way("`gpuhash.group_by`", sums),
        [
            Way("`np.unique` and `np.bincount`", numpy_sums),
            Way("`groupby` of pandas", pandas_sums),
            Way("`group_by` of polars", polars_sums),
        ],
    )

    batches = np.array_split(np.arange(count), 40)

    def keep_sums() -> Any:
        table = gpuhash.HashTable("int64", "int64")
        for batch in batches:
            table.insert_or_apply(ids[batch[0] : batch[-1] + 1], cents[batch[0] : batch[-1] + 1], "add")
        return table

    def pandas_keeps_sums() -> Any:
        total = pd.Series(dtype="int64")
        for batch in batches:
            part = orders.iloc[batch[0] : batch[-1] + 1].groupby("customer")["cents"].sum()
            total = total.add(part, fill_value=0)
        return total

    def counter_keeps_sums() -> Any:
        total: Counter[int] = Counter()
        for batch in batches:
            part = slice(batch[0], batch[-1] + 1)
            for customer, amount in zip(ids[part].tolist(), cents[part].tolist(), strict=True):
                total[customer] += amount
        return total

    totals = keep_sums()
    expect(dict(totals) == counter_keeps_sums(), "kept sums as those of a Counter")
    expect(equal(totals[pandas_keeps_sums().index], pandas_keeps_sums()), "kept sums as those of pandas")
    yield Job(
        f"keep sums while {count:,} orders come in 40 batches",
        Way("`table.insert_or_apply`", keep_sums),
        [
            Way("`groupby` and `Series.add` of pandas", pandas_keeps_sums),
            Way("a Counter, one by one", counter_keeps_sums),
        ],
    )

    regions = customers["region"].to_numpy()

    def left_join() -> Any:
        pairs = gpuhash.join(ids, known, "left")
        return gpuhash.take(regions, pairs.right, fill=-1)

    def numpy_join() -> Any:
        order = np.argsort(known)
        at = np.searchsorted(known, ids, sorter=order)
        rows = order[np.minimum(at, len(known) - 1)]
        return np.where(known[rows] == ids, regions[rows], -1)

    def pandas_join() -> Any:
        return orders.merge(customers, on="customer", how="left")

    def polars_join() -> Any:
        return orders_pl.join(customers_pl, on="customer", how="left", maintain_order="left")

    expect(equal(left_join(), pandas_join()["region"].fillna(-1)), "the join as that of pandas")
    expect(equal(left_join(), polars_join()["region"].fill_null(-1)), "the join as that of polars")
    expect(equal(left_join(), numpy_join()), "the join as by searchsorted")
    yield Job(
        f"left join of {count:,} orders and {len(known):,} customers",
        Way("`gpuhash.join` and `take`", left_join),
        [
            Way("`np.argsort` and `np.searchsorted`", numpy_join),
            Way("`merge` of pandas", pandas_join),
            Way("`join` of polars", polars_join),
        ],
    )

    expect(equal(gpuhash.isin(ids, known), np.isin(ids, known)), "isin as that of NumPy")
    yield Job(
        f"which of {count:,} orders have a customer",
        Way("`gpuhash.isin`", lambda: gpuhash.isin(ids, known)),
        [
            Way("`np.isin`", lambda: np.isin(ids, known)),
            Way("`Series.isin` of pandas", lambda: orders["customer"].isin(known)),
            Way("`Series.is_in` of polars", lambda: orders_pl["customer"].is_in(customers_pl["customer"].implode())),
        ],
    )

    visits = pd.DataFrame({"customer": rng.choice(known, count // 10), "minute": rng.integers(0, 1440, count // 10)})
    visits_pl, visitors, minutes = pl.from_pandas(visits), visits["customer"].to_numpy(), visits["minute"].to_numpy()

    def many_join() -> Any:
        pairs = gpuhash.join(ids, visitors)
        return *gpuhash.take([ids, cents], pairs.left), gpuhash.take(minutes, pairs.right)

    expect(equal(many_join()[2], orders.merge(visits, on="customer")["minute"]), "the join as that of pandas")
    yield Job(
        f"join of {count:,} orders and {count // 10:,} visits, several for each customer",
        Way("`gpuhash.join` and `take`", many_join),
        [
            Way("`merge` of pandas", lambda: orders.merge(visits, on="customer")),
            Way("`join` of polars", lambda: orders_pl.join(visits_pl, on="customer")),
        ],
    )


def voxels(quick: bool) -> Iterator[Job]:
    code_of_page("voxels")
    rng = np.random.default_rng(3)
    count = 20_000 if quick else 1_000_000
    points = rng.normal(size=(count, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    points = (points + rng.normal(scale=0.01, size=points.shape)).astype(np.float32)
    colours = rng.random((count, 3), dtype=np.float32)
    cells = np.floor(points / (0.05 if quick else 0.01)).astype(np.int32)

    def means_of(codes: Any) -> Any:
        counts = np.bincount(codes)
        return np.stack([np.bincount(codes, weights=channel) / counts for channel in colours.T], axis=1)

    def ours() -> Any:
        codes, found = gpuhash.factorize(cells, axis=0)
        return found, means_of(codes)

    def by_rows() -> Any:
        found, codes = np.unique(cells, axis=0, return_inverse=True)
        return found, means_of(codes.ravel())

    def by_packed() -> Any:
        words = cells.astype(np.int64) + 2**20
        packed, codes = np.unique(words[:, 0] << 42 | words[:, 1] << 21 | words[:, 2], return_inverse=True)
        return np.stack([packed >> 42, packed >> 21 & 0x1FFFFF, packed & 0x1FFFFF], axis=1) - 2**20, means_of(codes)

    def by_pandas(pd: Any) -> Action:
        frame = pd.DataFrame(np.concatenate([cells.astype(np.float64), colours], axis=1), columns=list("xyzrgb"))
        frame = frame.astype({**dict.fromkeys("xyz", np.int32), **dict.fromkeys("rgb", np.float32)})
        expect(len(frame.groupby(list("xyz"), sort=False).mean()) == len(voxel), "voxels as those of pandas")
        return lambda: frame.groupby(list("xyz"), sort=False).mean()

    def by_polars(pl: Any) -> Action:
        named = {**dict(zip("xyz", cells.T, strict=True)), **dict(zip("rgb", colours.T, strict=True))}
        frame = pl.DataFrame({name: np.ascontiguousarray(column) for name, column in named.items()})
        expect(len(frame.group_by(list("xyz")).mean()) == len(voxel), "voxels as those of polars")
        return lambda: frame.group_by(list("xyz")).mean()

    voxel, means = ours()
    order = np.lexsort(voxel.T[::-1])
    for other in (by_rows, by_packed):
        found, expected = other()
        expect(equal(voxel[order], found) and np.allclose(means[order], expected), f"voxels as {other.__name__}")
    yield Job(
        f"mean colour of {count:,} points in {len(voxel):,} voxels",
        Way("`gpuhash.factorize(axis=0)` and `np.bincount`", ours),
        [
            Way("`np.unique(axis=0)` and `np.bincount`", by_rows),
            Way("coordinates packed into int64, `np.unique`, `np.bincount`", by_packed),
            *peer("pandas", "`groupby` of pandas", by_pandas),
            *peer("polars", "`group_by` of polars", by_polars),
        ],
    )

    steps = np.array([step for step in np.ndindex(3, 3, 3) if step != (1, 1, 1)], np.int32) - 1
    some = voxel[: len(voxel) // 4]

    def neighbours() -> Any:
        return gpuhash.HashTable.from_items(voxel, np.arange(len(voxel))).get(some[:, None, :] + steps, -1)

    def by_dict() -> Any:
        model = dict(zip(map(tuple, voxel.tolist()), range(len(voxel)), strict=True))
        return [[model.get(cell, -1) for cell in map(tuple, around)] for around in (some[:, None, :] + steps).tolist()]

    def by_tree(spatial: Any) -> Action:
        def call() -> Any:
            tree = spatial.cKDTree(voxel)
            return tree.query_ball_point(some, 1.5, p=np.inf, workers=len(cores()) or -1)

        found = call()
        expect(equal([len(each) - 1 for each in found], (neighbours() >= 0).sum(axis=1)), "as many as in the tree")
        return call

    expect(equal(neighbours(), by_dict()), "neighbours as those of a dict")
    yield Job(
        f"26 neighbours of {len(some):,} of {len(voxel):,} voxels",
        Way("`HashTable.from_items` and `get`", neighbours),
        [Way("a dict of tuples", by_dict), *peer("scipy.spatial", "`cKDTree` of SciPy", by_tree)],
    )


def kmers(quick: bool) -> Iterator[Job]:
    names = code_of_page("kmers")
    pack, canonical, k = names["pack"], names["canonical"], names["k"]
    rng = np.random.default_rng(4)
    read_count = 500 if quick else 20_000
    genome = rng.choice(np.frombuffer(b"ACGT", np.uint8), read_count * 5)
    reads = genome[rng.integers(0, len(genome) - 100, read_count)[:, None] + np.arange(100)]
    wrong = rng.random(reads.shape) < 0.001
    reads[wrong] = rng.choice(np.frombuffer(b"ACGTN", np.uint8), wrong.sum())
    text = b"\n".join(read.tobytes() for read in reads)
    packed = pack(text, k)

    def ours() -> Any:
        table = gpuhash.HashTable("uint64", "int32")
        table.insert_or_apply(packed, 1, "add")
        return table.items()

    found, counts = ours()
    order = np.argsort(found)
    expect(equal([found[order], counts[order]], np.unique(packed, return_counts=True)), "counts as those of NumPy")
    yield Job(
        f"count {len(packed):,} packed k-mers, {len(found):,} distinct",
        Way("`table.insert_or_apply`", ours),
        [
            Way("`np.unique(return_counts=True)`", lambda: np.unique(packed, return_counts=True)),
            *peer(
                "pandas", "`pandas.Series.value_counts`", lambda pd: lambda: pd.Series(packed).value_counts(sort=False)
            ),
            *peer("polars", "`Series.value_counts` of polars", lambda pl: lambda: pl.Series(packed).value_counts()),
        ],
    )

    lines = text.split(b"\n")

    def from_text() -> Any:
        table = gpuhash.HashTable("uint64", "int32")
        table.insert_or_apply(pack(text, k), 1, "add")
        return table

    def counter() -> Any:
        words = (line[i : i + k] for line in lines for i in range(len(line) - k + 1))
        return Counter(canonical(word) for word in words if b"N" not in word)

    expect(sorted(from_text().values().tolist()) == sorted(counter().values()), "counts as those of a Counter")
    yield Job(
        f"the same from {len(text):,} bytes of text",
        Way("`pack` of the page and `insert_or_apply`", from_text),
        [Way("a Counter of canonical substrings", counter)],
    )


def deduplicate(quick: bool) -> Iterator[Job]:
    names = code_of_page("deduplicate")
    signatures_of, rows = names["signatures_of"], names["rows"]
    rng = np.random.default_rng(5)
    count = 1_000 if quick else 20_000
    originals = [" ".join(names["vocabulary"][rng.integers(5_000, size=100)]) for _ in range(count * 4 // 5)]
    documents = originals + [originals[n] for n in rng.integers(len(originals), size=count // 10)]
    near = [originals[n].split() for n in rng.integers(len(originals), size=count // 10)]
    for words in near:
        words[rng.integers(len(words))] = "changed"
    documents += [" ".join(words) for words in near]
    rng.shuffle(documents)

    def digests_of() -> Any:
        digests = b"".join(hashlib.blake2b(text.encode(), digest_size=16).digest() for text in documents)
        return np.frombuffer(digests, np.uint64).reshape(-1, 2)

    def ours() -> Any:
        first = gpuhash.unique(digests_of(), axis=0, return_index=True).indices
        return [documents[n] for n in first]

    expect(ours() == list(dict.fromkeys(documents)), "documents as those of a dict")

    def by_pandas(pd: Any) -> Action:
        series = pd.Series(documents)
        return lambda: series.drop_duplicates()

    def by_polars(pl: Any) -> Action:
        series = pl.Series(documents)
        return lambda: series.unique(maintain_order=True)

    def renew() -> None:  # strings keep their hash: each call is to have new ones
        documents[:] = [text.encode().decode() for text in documents]

    renew()
    yield Job(
        f"equal texts of {count:,}",
        Way("blake2b and `gpuhash.unique(axis=0)`", ours),
        [
            Way("`dict.fromkeys` of the texts", lambda: list(dict.fromkeys(documents)), renew),
            *peer("pandas", "`Series.drop_duplicates` of pandas", by_pandas),
            *peer("polars", "`Series.unique` of polars", by_polars),
        ],
    )

    many = np.repeat(digests_of(), 25, axis=0) ^ np.tile(np.arange(25, dtype=np.uint64), len(documents))[:, None]
    rng.shuffle(many)
    as_bytes = [digest.tobytes() for digest in many]
    batches = np.array_split(np.arange(len(many)), 100)

    def stream() -> Any:
        seen = gpuhash.HashSet("uint64", key_shape=(2,))
        return [seen.add(many[batch[0] : batch[-1] + 1]) for batch in batches]

    def stream_to_set() -> Any:
        seen: set[bytes] = set()
        new = []
        for digest in as_bytes:
            new.append(digest not in seen)
            seen.add(digest)
        return new

    expect(sum(map(np.sum, stream())) == sum(stream_to_set()), "as many new digests as in a set")
    yield Job(
        f"which of {len(many):,} digests are new, in 100 batches",
        Way("`HashSet.add`", stream),
        [Way("a set of bytes", stream_to_set)],
    )

    kept = ours()
    signatures = np.concatenate([signatures_of(kept[begin : begin + 500]) for begin in range(0, len(kept), 500)])
    bands = np.ascontiguousarray(signatures.reshape(len(kept), -1, rows).transpose(1, 0, 2))

    def firsts() -> Any:
        found = (gpuhash.unique(band, axis=0, return_index=True, return_inverse=True) for band in bands)
        return [each.indices[each.inverse] for each in found]

    def firsts_of_dicts() -> Any:
        found = []
        for band in bands:
            data, size = band.tobytes(), rows * 4
            buckets: dict[bytes, int] = {}
            found.append([buckets.setdefault(data[n * size : (n + 1) * size], n) for n in range(len(band))])
        return found

    def datasketch_ways(datasketch: Any) -> Action:
        hashes = [
            datasketch.MinHash(num_perm=signatures.shape[1], hashvalues=row, scheme="legacy") for row in signatures
        ]

        def call() -> Any:
            index = datasketch.MinHashLSH(num_perm=signatures.shape[1], params=(len(bands), rows))
            found = []
            for number, minhash in enumerate(hashes):
                found.append(index.query(minhash))
                index.insert(number, minhash, check_duplication=False)
            return found

        expected = [set(each) - {n} for n, each in enumerate(zip(*(each.tolist() for each in firsts()), strict=True))]
        expect(all(e <= set(f) for e, f in zip(expected, call(), strict=True)), "the candidates are datasketch's, too")
        return call

    expect(equal(firsts(), firsts_of_dicts()), "first documents as those of dicts")
    yield Job(
        f"search {len(kept):,} signatures of {signatures.shape[1]} for similar ones",
        Way(f"`gpuhash.unique(axis=0)` of {len(bands)} bands", firsts),
        [
            Way(f"{len(bands)} dicts of bytes", firsts_of_dicts),
            *peer("datasketch", "`MinHashLSH` of datasketch (all candidates, not the first)", datasketch_ways),
        ],
    )


def sliding_window(quick: bool) -> Iterator[Job]:
    code_of_page("sliding-window")
    rng = np.random.default_rng(6)
    events, size, steps = (20_000, 1_000, 3) if quick else (1_000_000, 10_000, 10)
    turns = (REPETITIONS + 2) * steps
    fresh = (
        rng.integers(0, 2 * events, (events // size + turns, size)) + np.arange(events // size + turns)[:, None] * size
    )
    batches = list(np.where(rng.random(fresh.shape) < 0.5, rng.zipf(1.3, fresh.shape) % 2**40, fresh))

    class Window:
        """Each way has one, filled before it is timed."""

        def __init__(self, push: Callable[[Any, Any], object]) -> None:
            self.push, self.next = push, 0
            self.held: deque[Any] = deque()
            self.go(events // size)

        def go(self, count: int) -> None:
            for batch in batches[self.next : self.next + count]:
                self.held.append(batch)
                self.push(batch, self.held.popleft() if len(self.held) * size > events else None)
            self.next += count

    counts = gpuhash.HashTable("int64", "int32")
    counter: Counter[int] = Counter()

    def push(batch: Any, old: Any) -> None:
        counts.insert_or_apply(batch, 1, "add")
        if old is not None:
            counts.insert_or_apply(old, -1, "add")
            counts.erase(old[counts[old] == 0])

    def push_to_counter(batch: Any, old: Any) -> None:
        counter.update(batch.tolist())
        if old is not None:
            for key in old.tolist():
                counter[key] -= 1
                if not counter[key]:
                    del counter[key]

    ours, theirs = Window(push), Window(push_to_counter)
    for window in (ours, theirs):
        window.go(steps)
    expect(dict(counts) == counter, "counts as those of a Counter")
    again = Window(lambda batch, old: None)
    again.push = lambda batch, old: np.unique(np.concatenate(again.held), return_counts=True)

    def by_pandas(pd: Any) -> Action:
        window = Window(lambda batch, old: None)
        window.push = lambda batch, old: pd.Series(np.concatenate(window.held)).value_counts(sort=False)
        return lambda: window.go(steps)

    yield Job(
        f"{steps} steps of {size:,} events, in a window of {events:,}",
        Way("`insert_or_apply` twice, a lookup, `erase`", lambda: ours.go(steps)),
        [
            Way("a Counter and a deque, one by one", lambda: theirs.go(steps)),
            Way("`np.unique` of the window at each step", lambda: again.go(steps)),
            *peer("pandas", "`value_counts` of the window at each step", by_pandas),
        ],
    )
    expect(dict(counts) == counter, "counts as those of a Counter, after the measurement")


class Owner:
    """A process that has something to save and nothing else, as its pages are what a fork takes time for."""

    def __init__(self, names: dict[str, Any], make: Callable[[], Any], path: Path) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=self._work, args=(names, make, path, other), daemon=True)
        self.process.start()
        self.wait()

    @staticmethod
    def _work(names: dict[str, Any], make: Callable[[], Any], path: Path, connection: Any) -> None:
        owned = make()
        connection.send(None)
        while connection.recv():
            wall, processor = time.perf_counter(), time.process_time()
            child = names["snapshot"](owned, path)
            connection.send(Times(time.perf_counter() - wall, time.process_time() - processor))
            names["wait_for"](child)
            connection.send(None)

    def stand_still(self) -> Times:
        """Begins a snapshot; how long the process stood still."""
        self.connection.send(True)
        times: Times = self.connection.recv()
        return times

    def wait(self) -> None:
        """Until it is saved."""
        self.connection.recv()

    def end(self) -> None:
        self.connection.send(False)
        self.process.join()


class PickledDict(dict[int, int]):
    """A dict that is saved as a table is."""

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            pickle.dump(dict(self), file, pickle.HIGHEST_PROTOCOL)


def snapshots(quick: bool) -> Iterator[Job]:
    names = code_of_page("snapshots")
    count = 50_000 if quick else 2_000_000

    def keys_of() -> Any:
        return np.unique(np.random.default_rng(7).integers(0, 2**62, count))

    def make_table() -> Any:
        keys = keys_of()
        return gpuhash.HashTable.from_items(keys, np.arange(len(keys)))

    def make_dict() -> Any:
        keys = keys_of().tolist()
        return PickledDict(zip(keys, range(len(keys)), strict=True))

    with tempfile.TemporaryDirectory() as name:
        path, pickled = Path(name) / "table.safetensors", Path(name) / "dict.pickle"
        ours, theirs = Owner(names, make_table, path), Owner(names, make_dict, pickled)
        yield Job(
            f"how long the owner of {count:,} counts stands still for a snapshot",
            Way("`fork`, the child saves the table", ours.stand_still, ours.wait),
            [Way("`fork`, the child pickles a dict", theirs.stand_still, theirs.wait)],
        )
        ours.end()
        theirs.end()

        def load_dict() -> Any:
            with pickled.open("rb") as file:
                return pickle.load(file)

        table, as_dict, copies = make_table(), make_dict(), list[Any]()
        expect(load_dict() == as_dict, "the dict of the snapshot")
        expect(gpuhash.HashTable.load(path) == table, "the table of the snapshot")
        yield Job(
            "the same by a copy, which a thread saves",
            Way("`table.copy`", lambda: copies.append(table.copy()), copies.clear),
            [Way("`dict.copy`", lambda: copies.append(as_dict.copy()), copies.clear)],
        )
        yield Job(
            "the same where the owner itself saves",
            Way("`table.save`", lambda: table.save(path)),
            [Way("`pickle.dump` of the dict", lambda: as_dict.save(pickled))],
        )
        yield Job(
            f"load {count:,} counts",
            Way("`HashTable.load`", lambda: gpuhash.HashTable.load(path)),
            [Way("`pickle.load` of the dict", load_dict)],
        )


def bounded_embedding(quick: bool) -> Iterator[Job]:
    try:
        import torch

        import gpuhash.torch
    except ImportError:
        print("bounded-embedding is left out: torch is not installed", file=sys.stderr)
        return
    bounded_embedding_class = code_of_page("bounded-embedding")["BoundedEmbedding"]
    torch.set_num_threads(1)  # its threads wait in loops, which counts as processor time
    rng = np.random.default_rng(8)
    most, size, steps, dim = (1_000, 500, 5, 16) if quick else (50_000, 8_192, 10, 64)
    turns = (REPETITIONS + 1) * steps + 40
    popular = (rng.random((turns, size)) ** 3 * most / 2).astype(np.int64)
    moving = rng.integers(0, most, (turns, size)) + 2**40 + np.arange(turns)[:, None] * (size // 4)
    batches = list(torch.from_numpy(np.where(rng.random((turns, size)) < 0.5, popular, moving)))

    class Ours:
        """Every id has a row at once (min_count=1), as in the other way."""

        def __init__(self) -> None:
            self.model = bounded_embedding_class(dim, most, 1, optimizer=gpuhash.torch.Adam(lr=1e-3))
            self.next = 0

        def go(self, count: int) -> None:
            for ids in batches[self.next : self.next + count]:
                (self.model(ids) - 1).square().mean().backward()
                self.model.evict()
            self.next += count

    class ByHand:
        """nn.Embedding, whose rows an OrderedDict hands out; the ids that came last the longest ago give theirs up."""

        def __init__(self) -> None:
            self.rows = torch.nn.Embedding(most, dim, sparse=True)
            self.optimizer = torch.optim.SparseAdam(self.rows.parameters(), lr=1e-3)
            self.row_of: OrderedDict[int, int] = OrderedDict()
            self.next = 0

        def go(self, count: int) -> None:
            for ids in batches[self.next : self.next + count]:
                numbers, fresh = [], []
                for key in ids.tolist():
                    row = self.row_of.pop(key, None)
                    if row is None:
                        row = self.row_of.popitem(last=False)[1] if len(self.row_of) == most else len(self.row_of)
                        fresh.append(row)
                    self.row_of[key] = row
                    numbers.append(row)
                new = torch.tensor(fresh, dtype=torch.int64)
                with torch.no_grad():
                    self.rows.weight[new] = torch.randn(len(new), dim)
                    for kept in self.optimizer.state.get(self.rows.weight, {}).values():
                        if isinstance(kept, torch.Tensor):
                            kept[new] = 0
                self.optimizer.zero_grad()
                (self.rows(torch.tensor(numbers)) - 1).square().mean().backward()
                self.optimizer.step()
            self.next += count

    ours, by_hand = Ours(), ByHand()
    for each in (ours, by_hand):
        each.go(40)
    expect(len(ours.model.embedding) <= most and len(by_hand.row_of) <= most, "the bound holds")
    newest = set(batches[39].tolist())
    expect(newest <= set(ours.model.embedding.table.keys().tolist()) and newest <= by_hand.row_of.keys(), "new rows")
    yield Job(
        f"{steps} steps of {size:,} ids, {most:,} rows of {dim}, Adam",
        Way("`BoundedEmbedding` of the page", lambda: ours.go(steps)),
        [Way("`nn.Embedding`, `SparseAdam`, an OrderedDict", lambda: by_hand.go(steps))],
    )


def serving(quick: bool) -> Iterator[Job]:
    code_of_page("serving")
    rng = np.random.default_rng(9)
    count, width = (10_000, 32) if quick else (1_000_000, 32)
    keys = np.unique(rng.integers(0, 2**62, count))
    rng.shuffle(keys)
    rows = rng.random((len(keys), width)).astype(np.float16)
    with tempfile.TemporaryDirectory() as name:
        path, arrays, pickled = (Path(name) / each for each in ("t.safetensors", "arrays.npz", "dict.pickle"))
        table = gpuhash.HashTable.from_items(keys, rows)
        table.save(path)
        np.savez(arrays, keys=keys, rows=rows)
        pickled.write_bytes(pickle.dumps(dict(zip(keys.tolist(), rows, strict=True)), pickle.HIGHEST_PROTOCOL))

        def load_arrays() -> Any:
            with np.load(arrays) as file:
                return file["keys"], file["rows"]

        def load_dict() -> Any:
            found, values = load_arrays()
            return dict(zip(found.tolist(), values, strict=True))

        def load_sorted() -> Any:
            found, values = load_arrays()
            order = np.argsort(found)
            return found[order], values[order]

        yield Job(
            f"load {len(keys):,} rows of {width} float16",
            Way("`HashTable.load`", lambda: gpuhash.HashTable.load(path)),
            [
                Way("`np.load`, then a dict of rows", load_dict),
                Way("`np.load`, then sorted", load_sorted),
                Way("`pickle.load` of a dict of rows", lambda: pickle.loads(pickled.read_bytes())),
            ],
        )
    as_dict, unknown = dict(zip(keys.tolist(), rows, strict=True)), np.zeros(width, np.float16)
    order = np.argsort(keys)
    in_order, rows_in_order = keys[order], rows[order]

    for size in (100, 10_000):
        ids = np.concatenate([rng.choice(keys, size - size // 10), rng.integers(2**62, 2**63, size // 10)])

        def ours(ids: Any = ids) -> Any:
            return table.get(ids, unknown)

        def by_dict(ids: Any = ids) -> Any:
            return np.stack([as_dict.get(key, unknown) for key in ids.tolist()])

        def by_search(ids: Any = ids) -> Any:
            at = np.minimum(np.searchsorted(in_order, ids), len(in_order) - 1)
            return np.where((in_order[at] == ids)[:, None], rows_in_order[at], unknown)

        def by_pandas(pd: Any, ids: Any = ids) -> Action:
            frame = pd.DataFrame(rows, index=keys)
            expect(equal(frame.reindex(ids, fill_value=0), ours(ids)), "rows as those of pandas")
            return lambda: frame.reindex(ids, fill_value=0)

        expect(equal(ours(), by_dict()) and equal(ours(), by_search()), "rows as those of a dict")
        yield Job(
            f"rows of {size:,} ids",
            Way("`table.get`", ours),
            [
                Way("a dict of rows and `np.stack`", by_dict),
                Way("`np.searchsorted` in sorted ids", by_search),
                *peer("pandas", "`DataFrame.reindex` of pandas", by_pandas),
            ],
        )
    singles = keys[:1000].tolist()
    yield Job(
        "rows of 1,000 ids, one call each",
        Way("`table.get`", lambda: [table.get(key, unknown) for key in singles]),
        [Way("a dict of rows", lambda: [as_dict.get(key, unknown) for key in singles])],
    )


FUNCTIONS: dict[str, Callable[[bool], Iterator[Job]]] = {
    "relabel": relabel,
    "groups-and-joins": groups_and_joins,
    "voxels": voxels,
    "kmers": kmers,
    "deduplicate": deduplicate,
    "sliding-window": sliding_window,
    "snapshots": snapshots,
    "bounded-embedding": bounded_embedding,
    "serving": serving,
}


def ratio(theirs: float, ours: float) -> str:
    """Two digits; below 1 gpuhash is slower."""
    value = theirs / ours
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def milliseconds(seconds: float) -> str:
    """Three digits."""
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def measure(job: Job, repetitions: int) -> list[Times]:
    """Ours, then the peers', all in turns; the first turn warms up."""
    ways = [job.ours, *job.peers]
    seconds: list[list[Times]] = [[] for _ in ways]
    for repetition in range(repetitions + 1):
        for way, taken in zip(ways, seconds, strict=True):
            wall, processor = time.perf_counter(), time.process_time()
            result = way.call()
            times = Times(time.perf_counter() - wall, time.process_time() - processor)
            if isinstance(result, Times):
                times = result
            del result
            way.tidy()
            if repetition:
                taken.append(times)
    return [
        Times(statistics.median(each.wall for each in taken), statistics.median(each.processor for each in taken))
        for taken in seconds
    ]


def table_of(jobs: Iterator[Job], repetitions: int) -> list[str]:
    """The page's table."""
    lines = ["| job | what people use today | ms (wall) | gpuhash | ms (wall) | times faster |"]
    lines.append("|---|---|---|---|---|---|")
    for job in jobs:
        ours, *theirs = measure(job, repetitions)
        for number, (way, times) in enumerate(zip(job.peers, theirs, strict=True)):
            first = number == 0
            mine = f"{job.ours.name} | {ours}" if first else " | "
            cells = f"| {job.name if first else ''} | {way.name} | {times} | {mine}"
            ratios = f"{ratio(times.processor, ours.processor)} ({ratio(times.wall, ours.wall)})"
            lines.append(f"{cells} | {ratios} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the jobs of docs/cookbook/ beside what people use today.")
    parser.add_argument("--quick", action="store_true", help="small sizes, whose times say little")
    parser.add_argument("--pages", nargs="+", choices=FUNCTIONS, default=list(FUNCTIONS), metavar="NAME")
    options = parser.parse_args()
    threads = gpuhash.get_num_threads()
    listed = ", ".join(f"{name} {version}" for name, version in versions(PEERS).items())
    print(f"{cpu_name()}, {len(cores()) or os.cpu_count()} cores, gpuhash with {threads} threads; {listed}")
    for name in options.pages:
        print(f"\n## {name}\n", flush=True)
        print("\n".join(table_of(FUNCTIONS[name](options.quick), 1 if options.quick else REPETITIONS)), flush=True)


if __name__ == "__main__":
    main()
