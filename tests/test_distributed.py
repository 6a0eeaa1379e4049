"""Tables over several processes: Gloo on the host, and NCCL where there are two GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support import distributed_checks as checks
from support.frameworks import GPU, GPU_INDEX, Framework, gpu_count, module, need_place, to_numpy
from support.hashing import hash_of
from support.ranks import started
from support.samples import KEY_TYPES, VALUE_DTYPES, random_keys, random_values, same_bytes

torch = module("torch")
if torch is None:
    pytest.skip("torch is not installed", allow_module_level=True)
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this PyTorch has no Gloo", allow_module_level=True)

from gpuhash import _core  # noqa: E402
from gpuhash.arrays.memory import make_context, parse_device  # noqa: E402
from gpuhash.distributed.duplicates import Sample, is_short  # noqa: E402
from gpuhash.distributed.rows import Layout, RowFormat  # noqa: E402
from gpuhash.distributed.split import GAP, Split, join, spans_of, stream_of  # noqa: E402
from gpuhash.distributed.words import to_words  # noqa: E402

KINDS = {
    "scalars": ("int64", (), "float32", ()),
    "rows": ("int32", (2,), "bfloat16", (4,)),
    "set": ("uint16", (3,), None, ()),
    "wide": ("int16", (3, 4), "float32", (2,)),
    "wide-set": ("uint8", (33,), None, ()),
}
#: Of more than 16 bytes.
WIDE_KEYS: list[tuple[str, tuple[int, ...]]] = [
    ("uint8", (17,)),
    ("int16", (3, 4)),
    ("uint64", (3,)),
    ("uint8", (1000,)),
]


@pytest.fixture(params=["cpu", GPU])
def device(request):
    """Where keys are split in one process."""
    need_place(Framework("torch", request.param, request.param))
    return torch.device(*parse_device(request.param))


@pytest.fixture(scope="module", params=["gloo", "gloo-cuda", "nccl"])
def ranks(request):
    """Where the shards are, and their processes: four on the host; two on one GPU, which exchange through the host; or
    two on two GPUs ("cuda": each on its own).
    """
    if request.param == "gloo":
        device, count, backend = "cpu", 4, "gloo"
    elif request.param == "gloo-cuda":
        need_place(Framework("torch", GPU, GPU))
        device, count, backend = GPU, 2, "gloo"
    else:
        if GPU_INDEX:
            pytest.skip("the ranks take the first two GPUs, in the run whose tables are on the first")
        if gpu_count() < 2 or torch.cuda.device_count() < 2:
            pytest.skip("needs two GPUs that gpuhash and PyTorch can use")
        if not torch.distributed.is_nccl_available():
            if os.environ.get("GPUHASH_REQUIRE_CUDA") == "1":
                pytest.fail("GPUHASH_REQUIRE_CUDA=1 and two GPUs, but PyTorch has no NCCL")
            pytest.skip("this PyTorch has no NCCL")
        device, count, backend = "cuda", 2, "nccl"
    with started(count, backend, on_gpus=device != "cpu") as group:
        yield device, group


@pytest.mark.parametrize(
    ("key_type", "value_dtype", "value_shape"),
    [
        (("int64", ()), "int64", ()),
        (("int64", ()), "float32", (4,)),
        (("int32", ()), "bfloat16", ()),
        (("int32", (3,)), "int64", (3,)),
        (("uint16", ()), "complex128", ()),
        (("int32", (6,)), "int64", ()),
        (("uint8", (2, 12)), "float32", (4,)),
    ],
    ids=[
        *["int64-int64", "int64-float32x4", "int32-bfloat16", "int32x3-int64x3", "uint16-complex128"],
        *["int32x6-int64", "uint8x2x12-float32x4"],
    ],
)
def test_operations_against_one_table(ranks, key_type, value_dtype, value_shape):
    device, group = ranks
    group.run(checks.operations_against_one_table, device, key_type, value_dtype, value_shape)


def test_all_dtypes(ranks):
    device, group = ranks
    group.run(checks.all_dtypes, device, [*KEY_TYPES, *WIDE_KEYS], [("float32", ())])
    group.run(checks.all_dtypes, device, [("int64", ())], [(dtype, ()) for dtype in VALUE_DTYPES])
    group.run(checks.all_dtypes, device, [("uint8", (3,))], [("float16", (3,)), ("bool", (5,)), ("complex64", (2, 2))])


@pytest.mark.parametrize(
    "check",
    [
        checks.initialised,
        checks.sums_of_floats,
        checks.one_whole_value_stays,
        checks.one_value_for_all_keys,
        checks.python_objects,
        checks.keys_out_of_range,
        checks.made_in_inference_mode,
        checks.other_default_device,
        checks.in_compiled_functions,
        checks.sets,
        checks.named_columns,
        checks.columns_of_python,
        checks.key_columns,
        checks.bad_columns,
        checks.popitems,
        checks.bad_input,
        checks.making_meets_other_calls,
        checks.outsiders,
        checks.full_shards,
        checks.hot_keys_are_sent_once,
        checks.hot_keys_are_merged,
        checks.hot_keys_are_looked_up_once,
        checks.shards_that_fail,
        checks.room,
        checks.others_want_a_mapping,
        checks.moved,
    ],
    ids=lambda check: check.__name__,
)
def test_ranks(ranks, check):
    device, group = ranks
    group.run(check, device)


def test_save_and_load_by_other_numbers_of_ranks(ranks, tmp_path):
    device, group = ranks
    group.run(checks.save, device, str(tmp_path), KINDS)
    whole = group.count
    group.run(checks.load, device, str(tmp_path), KINDS, whole // 2)
    smaller = {f"{name}-{whole // 2}": kind for name, kind in KINDS.items() if kind[2] is not None}
    group.run(checks.load, device, str(tmp_path), smaller, whole - 1)
    group.run(checks.load, device, str(tmp_path), smaller, whole)


def test_damaged_files(ranks, tmp_path):
    device, group = ranks
    group.run(checks.damaged_files, device, str(tmp_path))


def test_folders_that_are_not_shared(ranks, tmp_path):
    device, group = ranks
    group.run(checks.folders_that_differ, device, str(tmp_path))


def test_a_rank_that_does_not_come(ranks):
    device, group = ranks
    if device == "cuda":
        pytest.skip("NCCL ends the processes when the time is over")
    group.run(checks.no_answer, device)


def test_killed_ranks(tmp_path):
    """One after the other is killed in the middle of a change; the others raise, keep their shards, and go on."""
    lost: list[int] = []
    with started(4, "gloo", seconds=10) as group:
        for step, victim in (("start_open", 1), ("exchange", 3), ("agree", 0)):
            lost.append(victim)
            left = [rank for rank in range(4) if rank not in lost]
            results = group.run(checks.die_in, step, victim, lost=lost)
            assert [rank for rank, result in enumerate(results) if result is not None] == left
            assert group.alive() == [rank in left for rank in range(4)]
            store = Path(tmp_path, step).as_uri()
            totals = {total for total in group.run(checks.go_on, store, left, 10, lost=lost) if total is not None}
            assert len(totals) == 1


def test_the_example_counts_as_one_process_does(tmp_path):
    """Two processes, of which the first has a file more than the second."""
    texts = [b"to be or not to be", b"that is the question", b"tis nobler in the mind", b"tiny", b"to be or not" * 9]
    for number, text in enumerate(texts):
        Path(tmp_path, f"{number}.txt").write_bytes(text)
    example = Path(__file__).parent.parent / "examples" / "distributed_count.py"
    launch = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", example]
    done = subprocess.run([*launch, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = Counter(text[start : start + 8] for text in texts for start in range(len(text) - 7))
    assert f"5 files, {sum(map(len, texts))} bytes, {counts.total()} n-grams, {len(counts)} distinct" in done.stdout
    assert f"{max(counts.values()):12,}  b'" in done.stdout
    assert done.stdout.endswith("the same counts as one process\n")


def words_of(keys):
    """A row of words for each key: PyTorch has no cat and no indexing of some integers."""
    return to_words(keys, len(keys), keys[0].nbytes)


LAYOUTS = [
    {"": ("bfloat16", (3,))},
    {"a": ("float64", ()), "b": ("int32", ()), "c": ("float32", (3,))},
    {"a": ("complex128", (2,)), "b": ("int64", ())},
    {"a": ("bool", ()), "b": ("uint16", (2,)), "c": ("float64", ())},
    {"a": ("float16", (5,)), "b": ("uint32", ())},
]


@pytest.mark.parametrize("fields", LAYOUTS, ids=lambda fields: "-".join(dtype for dtype, _ in fields.values()))
def test_the_columns_of_a_row_lie_side_by_side(fields, device):
    """In as many bytes as they have, whatever lies before the rows; of one column the rows are its values."""
    layout = Layout({name: RowFormat(*kind) for name, kind in fields.items()})
    assert layout.row.bytes == sum(row.bytes for row in layout.fields.values())
    for count in (0, 1, 7):
        values = {}
        for seed, (name, (dtype, shape)) in enumerate(fields.items()):
            host = random_values(dtype, (count + 1, *shape), seed)
            values[name] = Framework("torch", str(device), str(device)).array(host)[1:]
        rows = layout.pack(values)
        assert rows.shape == (count, *layout.row.shape)
        larger = torch.cat([layout.row.words(rows.new_empty(1, *layout.row.shape)), layout.row.words(rows)])
        for packed in (rows, layout.row.of_words(larger)[1:]):
            for name, column in layout.unpack(packed).items():
                same_bytes(column, to_numpy(values[name]))
        if len(fields) == 1:
            assert rows is next(iter(values.values()))
            continue
        part = layout.row.empty(count + 2, device)[1:-1]
        layout.pack_into(part, values)
        assert torch.equal(part, rows)


@pytest.mark.parametrize("key_type", [*KEY_TYPES, *WIDE_KEYS], ids=str)
def test_a_split_puts_keys_in_the_order_of_their_owners_and_back(key_type, device):
    keys = random_keys(*key_type, 5000)
    tensor = torch.from_numpy(keys).to(device)
    for parts, last in [(1, 0), (2, 1), (2, 0), (3, 1), (8, 0), (8, 5), (300, 7), (300, 299)]:
        split = Split(tensor, parts, last=last)
        owners = split.owners.cpu().numpy()
        assert owners.min() >= 0
        assert owners.max() < parts
        told, elsewhere = torch.zeros((parts, 3), dtype=torch.int64, device=device), torch.zeros((parts, 1)).long()
        split.tell([7, -(2**63)], told)
        split.tell([], elsewhere)
        assert told[:, 0].tolist() == split.counts == np.bincount(owners, minlength=parts).tolist()
        assert told[:, 1:].tolist() == [[7, -(2**63)]] * parts
        assert elsewhere[:, 0].tolist() == split.counts
        rows = torch.arange(len(keys), device=device)
        places = np.where(owners == last, parts, owners)  # in the order of the owners
        order = np.argsort(places, kind="stable")
        counts = [split.counts[part] for part in range(parts) if part != last] + [split.counts[last]]
        spans = spans_of(counts)
        assert [span % 16 for span in spans] == [0] * parts
        assert all(span >= count + GAP for span, count in zip(spans, counts, strict=True))
        begins = np.cumsum([0, *spans])[:-1]
        end = int(begins[-1]) + counts[-1]
        assert end <= split.rows

        def parts_of(rows, begins=begins, counts=counts):
            return [rows[begin : begin + count] for begin, count in zip(begins, counts, strict=True)]

        scattered = split.scatter(rows)[:end]
        without_gaps = parts_of(scattered)
        np.testing.assert_array_equal(torch.cat(without_gaps).cpu(), order)
        words = torch.cat(parts_of(words_of(split.keys)))
        np.testing.assert_array_equal(words.cpu(), words_of(tensor).cpu()[order])
        assert torch.equal(split.gather(scattered)[0], rows)
        joined = join(without_gaps, spans)[:end]
        back, found = split.gather(joined, joined % 3 == 0)
        assert torch.equal(back, rows)
        assert torch.equal(found, rows % 3 == 0)
        reverse = torch.from_numpy(keys[::-1].copy()).to(device)
        assert torch.equal(Split(reverse, parts).owners.flip(0), split.owners)
    assert Split(tensor[:0], 3).counts == [0, 0, 0]


@pytest.mark.parametrize("parts", [2, 100])
def test_a_split_has_no_use_for_the_default_device(parts, device):
    keys, told = torch.arange(5000, device=device), torch.zeros((parts, 2), dtype=torch.int64)
    expected = Split(keys, parts)
    with torch.device("meta"):  # where nothing is
        split = Split(keys, parts)
        split.tell([7], told)
        assert told.tolist() == [[count, 7] for count in expected.counts]
        assert torch.equal(split.scatter(keys)[: split.counts[0]], expected.scatter(keys)[: split.counts[0]])


@pytest.mark.parametrize("parts", [2, 3, 8, 64])
@pytest.mark.parametrize("pattern", ["sequence", "strided", "high bits", "random", "vectors", "wide"])
def test_keys_are_spread_evenly_whatever_their_pattern(pattern, parts):
    numbers = torch.arange(1 << 16)
    keys = {
        "sequence": numbers,
        "strided": numbers * 1024,
        "high bits": numbers << 47,
        "random": torch.from_numpy(random_keys("int64", (), 1 << 16)),
        "vectors": torch.stack([numbers % 256, numbers // 256], 1).to(torch.int32),
        "wide": torch.stack([numbers % 256, numbers * 0, numbers // 256], 1),
    }[pattern]
    for seed in (0, 1, 2**64 - 1):
        counts = np.array(Split(keys, parts, seed).counts)
        mean = len(keys) / parts
        assert abs(counts - mean).max() < 6 * mean**0.5, (seed, counts)


@pytest.mark.parametrize("parts", [2, 8])
@pytest.mark.parametrize("pattern", ["sequence", "strided", "random"])
def test_the_keys_of_one_owner_use_all_buckets(pattern, parts):
    """The home bucket comes from the high bits of the table's hash, and the owner from its low ones."""
    count = 1 << 17
    numbers = {
        "sequence": np.arange(count),
        "strided": np.arange(count) * 4096,
        "random": random_keys("int64", (), count),
    }
    keys = numbers[pattern]
    for seed in (0, 12345):
        owners = Split(torch.from_numpy(keys), parts, seed).owners.numpy()
        for owner in range(parts):
            region = hash_of(keys[owners == owner], seed) >> np.uint64(58)
            counts = np.bincount(region.astype(np.int64), minlength=64)
            mean = counts.sum() / 64
            assert abs(counts - mean).max() < 6 * mean**0.5


def test_when_duplicates_are_taken_together():
    """Where an owner would have too much to do, or a sample repeats itself much and sending takes long; never where
    keys are few.
    """
    rng = np.random.default_rng(3)
    count = 1 << 17
    uniform = rng.integers(0, 1 << 40, count)
    one_in_ten = np.where(rng.random(count) < 0.1, 7, uniform)
    thrice = np.repeat(uniform[: count // 3], 3)
    hot = rng.zipf(1.5, count).astype(np.int64)
    pairs, triples = np.stack([hot, hot], 1), np.stack([hot, hot, hot], 1)
    often = rng.integers(0, 1000, count)
    splitter = _core.Splitter(make_context("cpu"))
    for keys, ranks, expected, expected_fast in [
        (uniform, 2, False, False),
        (uniform, 64, False, False),
        (thrice, 2, False, False),
        (often, 2, True, False),
        (one_in_ten, 2, False, False),
        (one_in_ten, 4, True, True),
        (hot, 2, True, True),
        (pairs, 2, True, True),
        (triples, 2, True, True),
        (np.stack([uniform] * 3, 1), 2, False, False),
        (hot, 1, False, False),
        (hot[:100], 2, False, False),
        (hot[:0], 2, False, False),
    ]:
        given = torch.from_numpy(keys)
        assert Sample(given, ranks, 0, splitter, are_sent_fast=False).has_many() is expected
        sample = Sample(given, ranks, 0, splitter, are_sent_fast=True)
        assert sample.has_many() is expected_fast
        assert (sample.core is not None) is (ranks > 1 and len(keys) >= _core.SAMPLE_KEYS)
        if sample.core is not None and is_short(given):  # often: each comes in one sample of four keys or so
            is_hot = keys is hot or keys is pairs or keys is one_in_ten
            assert Split(given, ranks, 0, splitter, 0, sample.core).merges is is_hot


@pytest.mark.parametrize("key_type", KEY_TYPES, ids=str)
def test_a_sample_counts_repeated_keys(key_type, device):
    """Of a batch three times as large every third key is looked at."""
    size = _core.SAMPLE_KEYS
    splitter = _core.Splitter(make_context(device))
    for distinct in (1, 2, 200):
        some = random_keys(*key_type, distinct)
        some = np.unique(some, axis=0 if some.ndim > 1 else None)
        picks = np.random.default_rng(distinct).zipf(1.3, size) % len(some)
        keys = np.repeat(some[picks], 3, axis=0)
        keys[1::3], keys[2::3] = 0, 1  # which nobody looks at
        tensor = torch.from_numpy(keys).to(device)
        sample = _core.Sample(splitter, _core.borrow(tensor, stream_of(tensor)), 3, stream_of(tensor) or 0)
        counts = np.bincount(picks)
        assert sample.repeats() == (size - np.count_nonzero(counts), counts.max())
        assert sample.repeats() == (size - np.count_nonzero(counts), counts.max())
    with pytest.raises(ValueError, match=f"{size - 1} keys were given, expected {size} or more"):
        _core.Sample(splitter, _core.borrow(tensor[: size - 1], stream_of(tensor)), 0, stream_of(tensor) or 0)


def merged_split(keys, parts, seed):
    """A split of keys whose hot ones are merged, and the largest number of places that one key may have."""
    splitter = _core.Splitter(make_context(keys.device))
    sample = _core.Sample(splitter, _core.borrow(keys, stream_of(keys)), seed, stream_of(keys) or 0)
    places = len(keys) // 1024 + 1 if keys.device.type == "cuda" else 64
    return Split(keys, parts, seed, splitter, parts - 1, sample), places


def places_of(split):
    """Where the parts end, gaps and all, and all rows in the order of the owners that keys have."""
    ends = np.cumsum(spans_of(split.counts))
    begins = [0, *ends[:-1]]
    parts = [np.arange(begin, begin + count) for begin, count in zip(begins, split.counts, strict=True)]
    return ends, np.concatenate(parts)


@pytest.mark.parametrize("key_type", KEY_TYPES, ids=str)
def test_hot_keys_are_merged_while_keys_are_sorted(key_type, device):
    """Several of a hot key's duplicates share a row, and get its answer; sums are those of all values."""
    rng = np.random.default_rng(5)
    pool = random_keys(*key_type, 3000)
    pool = np.unique(pool, axis=0 if pool.ndim > 1 else None)
    for count, parts, spread in [(4096, 2, 1.5), (50_001, 2, 1.05), (50_001, 7, 1.5), (50_001, 64, 1.5), (9001, 8, 0)]:
        codes = np.minimum(rng.zipf(spread, count) - 1, len(pool) - 1) if spread else np.zeros(count, np.int64)
        keys = torch.from_numpy(pool[codes]).to(device)
        split, most_places = merged_split(keys, parts, 11)
        times = np.bincount(codes, minlength=len(pool))
        assert sum(split.counts) < count, "the hottest key is merged"
        owners = split.owners.cpu().numpy()
        numbers = torch.arange(count, device=device)
        ends, places = places_of(split)
        # Of keys that share a row one number arrives; with the largest of all, nobody's is smaller.
        some = split.combine(numbers, "max", split.room_for(numbers)).cpu().numpy()
        shared = split.gather(torch.from_numpy(some).to(device))[0].cpu().numpy()
        np.testing.assert_array_equal(codes[shared], codes)
        assert (shared >= np.arange(count)).all()
        np.testing.assert_array_equal(np.unique(shared), np.sort(some[places]))
        for part in range(parts):
            begin = ends[part] - spans_of(split.counts)[part]
            np.testing.assert_array_equal(owners[some[begin : begin + split.counts[part]]], part)
        sorted_keys = words_of(split.keys).cpu()[places]
        np.testing.assert_array_equal(sorted_keys, words_of(keys).cpu()[some[places]])
        used = np.bincount(codes[some[places]], minlength=len(pool))
        assert ((used >= 1) == (times >= 1)).all()
        assert used[times.argmax()] <= most_places
        assert (used <= times).all()
        # One of those that share a row is told what is true there.
        mask = torch.zeros(split.rows, dtype=torch.bool, device=device)
        mask[torch.from_numpy(places[::2].copy()).to(device)] = True
        told = split.gather_mask(mask).cpu().numpy()
        np.testing.assert_array_equal(np.sort(shared[told]), np.sort(some[places[::2]]))


OPERATIONS = {
    "int64": ["add", "multiply", "min", "max", "bit_and", "bit_or", "bit_xor"],
    "uint32": ["add", "min", "bit_xor"],
    "float32": ["add", "min", "max"],
    "float64": ["multiply", "max"],
    "complex64": ["add"],
}


@pytest.mark.parametrize(("dtype", "op"), [(dtype, op) for dtype, ops in OPERATIONS.items() for op in ops])
def test_values_of_hot_keys_are_combined(dtype, op, device):
    """As one after the other would be; whole numbers, so that sums of floats are exact, and of both signs."""
    rng = np.random.default_rng(8)
    count = 20_000
    keys = torch.from_numpy((rng.zipf(1.4, count) % 500).astype(np.int64)).to(device)
    low, high = (1, 3) if op == "multiply" else (-100, 100)
    values = rng.integers(low, high, count).astype(dtype)
    if dtype.startswith("float") and op in ("min", "max"):
        values[rng.integers(0, count, 3)] = np.nan
    if op == "multiply":
        values[rng.random(count) < 0.99] = 1
    split, _ = merged_split(keys, 3, 0)
    given = torch.from_numpy(values).to(device)
    rows = split.combine(given, op, split.room_for(given)).cpu().numpy()
    _, places = places_of(split)
    ufunc = {"bit_and": "bitwise_and", "bit_or": "bitwise_or", "bit_xor": "bitwise_xor", "min": "minimum"}
    ufunc = getattr(np, {**ufunc, "max": "maximum"}.get(op, op))
    sums, found = {}, {}
    for table, some_keys, some in ((sums, keys.cpu().numpy(), values), (found, split.keys.cpu()[places], rows[places])):
        for key, value in zip(np.asarray(some_keys).tolist(), some, strict=True):
            table[key] = ufunc(table[key], value) if key in table else value
    assert sums.keys() == found.keys()
    np.testing.assert_array_equal([sums[key] for key in sums], [found[key] for key in sums])
    # One value for all keys: as often as a key comes.
    one = torch.full((1,), 3, dtype=given.dtype).to(device)
    if op == "add":
        rows = split.combine(one, op, split.room_for(given)).cpu().numpy()
        assert rows[places].sum() == 3 * count


def test_what_cannot_be_merged(device):
    """A sample of other keys, or of another seed; values of other widths, or without the operation."""
    keys = torch.arange(8192, device=device) % 7
    splitter = _core.Splitter(make_context(device))
    borrowed, stream = _core.borrow(keys, stream_of(keys)), stream_of(keys) or 0
    sample = _core.Sample(splitter, borrowed, 0, stream)
    with pytest.raises(ValueError, match="of other keys, or has another seed"):
        Split(keys, 2, 1, splitter, 1, sample)
    with pytest.raises(ValueError, match="of other keys, or has another seed"):
        Split(keys[:-1], 2, 0, splitter, 1, sample)
    split = Split(keys, 2, 0, splitter, 1, sample)
    for dtype, op in ((torch.int16, "add"), (torch.float32, "bit_or"), (torch.complex128, "add")):
        values = torch.zeros(len(keys), dtype=dtype, device=device)
        with pytest.raises(ValueError, match=f"cannot be combined by {op}"):
            split.combine(values, op, split.room_for(values))
    with pytest.raises(ValueError, match="values has 3 rows"):
        split.combine(keys[:3], "add", split.room_for(keys))
    assert sum(split.counts) < 8192
