"""The benchmark suite: that it runs, and that its files say what was measured."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.frameworks import gpu_count, module, sees_gpu

ROOT = Path(__file__).resolve().parent.parent


def import_benchmarks():
    """Without the repository in the path, whose folder gpuhash/ lacks the extension."""
    if "benchmarks" not in sys.modules:
        folder = ROOT / "benchmarks"
        spec = importlib.util.spec_from_file_location(
            "benchmarks", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules["benchmarks"] = module
        spec.loader.exec_module(module)


import_benchmarks()

from benchmarks import files, gates, machine, markdown, page, plots, results_file  # noqa: E402
from benchmarks.host import plans, sets  # noqa: E402
from benchmarks.host.data import SetData  # noqa: E402
from benchmarks.progress import Progress  # noqa: E402
from benchmarks.report import Failure, Limit, Report, limit_family, limit_over  # noqa: E402
from benchmarks.suite import Group, NotHereError, Session, Suite, run  # noqa: E402
from benchmarks.timing import Timing  # noqa: E402

HAS_TENSORFLOW = find_spec("tensorflow") is not None
HAS_TORCH = find_spec("torch") is not None
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def run_module(*arguments):
    """``python`` with these arguments, in a fresh process that finds the benchmarks."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-P", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )


def make_report(device="NVIDIA H200", kind="cuda"):
    return Report(device, "abc", {"device": kind}, {"python": "3"}, date="2026-01-02")


def add_find(report, who, seconds, *, load=None, threads=None, limit=None, pairs=1 << 27):
    timing = Timing(seconds, seconds, seconds)
    return report.add(
        "table", "find present", who, timing, pairs=pairs, batch=pairs, load=load, threads=threads, limit=limit
    )


# Runs ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    """One quick run on the host: its process, its report and the folder of its files."""
    folder = tmp_path_factory.mktemp("quick")
    done = run_module("-m", "benchmarks", "--quick", "--output", folder)
    assert done.returncode == 0, done.stderr
    return done, files.read(next(folder.glob("*.json"))), folder


def test_a_quick_run_measures_every_suite(quick_run):
    done, report, _ = quick_run
    assert report.failures == []
    in_graphs = {"graph"} if HAS_TENSORFLOW else set()
    assert set(report.suites()) == {
        "table",
        "peers",
        "unique",
        "unique-large",
        "calls",
        "sweep-load",
        "sweep-batch",
        "sweep-size",
        *in_graphs,
    }
    assert {q.name for q in report.quantities if q.suite == "calls"} >= {"numpy: `table[keys]`", "torch: `table[keys]`"}
    assert all(q.value > 0 for q in report.quantities)
    for suite in report.suites():
        assert f"## {suite}" in done.stdout
    for suite in set(report.suites()) - {"calls"}:
        operations = {r.operation for r in report.records if r.suite == suite and r.who == "gpuhash"}
        assert operations, suite
    peers = {r.who for r in report.records}
    assert peers >= {"gpuhash", "dict", "numpy, sorted", "pandas"}
    assert "tensorflow MutableHashTable" in peers or not HAS_TENSORFLOW
    assert report.limits or any("limits.cpp" in note or "compiler" in note for note in report.notes)
    assert "boost" in peers or any("peers.cpp" in note or "compiler" in note for note in report.notes)


def test_figures_of_a_quick_run_fit_together(quick_run):
    _, report, _ = quick_run
    for record in report.records:
        assert 0 < record.seconds_fastest <= record.seconds <= record.seconds_slowest
        assert record.keys_per_second == pytest.approx(record.batch / record.seconds)
        if record.limit is not None:
            assert record.ratio == pytest.approx(record.keys_per_second / record.limit_keys_per_second)
    loads = {round(r.load, 1) for r in report.records if r.suite == "table" and r.who == "gpuhash"}
    assert loads == {0.5, 0.8}
    assert {r.threads for r in report.records if r.who == "gpuhash"} == {1, 2}


def test_a_quick_run_compares_keys_of_every_kind(quick_run):
    """Beside NumPy and pandas, with one thread and with two."""
    _, report, _ = quick_run
    kinds = ("1/16 distinct", "distinct", "1000 distinct", "Zipf 1.05", "sequential", "n-grams")
    peers = {
        "unique with counts": {"pandas", "numpy"},
        "factorize": {"pandas"},
        "isin": {"pandas", "numpy"},
        "count in batches": {"numpy"},
    }
    measured = {(r.suite, r.operation, r.batch, r.keys, r.who, r.threads) for r in report.records}
    for suite, n, dtypes in (("unique", 1 << 10, ("int64", "uint64", "int32")), ("unique-large", 1 << 12, ("int64",))):
        for operation, others in peers.items():
            for keys in (f"{dtype}, {kind}" for dtype in dtypes for kind in kinds):
                contenders = {("gpuhash", 1), ("gpuhash", 2), *((who, 1) for who in others)}
                assert {(suite, operation, n, keys, *contender) for contender in contenders} <= measured


def test_sizes_that_are_compared():
    """From what a cache holds to what only memory does."""
    session = Session(make_report(kind="cpu"), quick=False)
    labels = [group.label for group in plans.unique(session)]
    for size in ("2^14", "2^20", "2^24"):
        assert sum(label.startswith(f"{size} ") for label in labels) == 18
    assert sum(label.startswith("2^25 int64 keys") for label in labels) == 2
    largest = [group.label for group in plans.unique_of_most(session)]
    assert len(largest) == 6
    assert all(label.startswith("2^26 int64 keys") for label in largest)


@pytest.mark.skipif(not HAS_TORCH, reason="torch draws the numbers of Zipf's law")
@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32"])
@pytest.mark.parametrize("distribution", SetData.DISTRIBUTIONS)
def test_what_contenders_are_checked_with(distribution, dtype):
    data = SetData(distribution, 1 << 12, dtype)
    series = pd.Series(data.keys)
    codes, unique = pd.factorize(data.keys)
    np.testing.assert_array_equal(data.unique, unique)
    np.testing.assert_array_equal(data.codes, codes)
    np.testing.assert_array_equal(data.counts, series.value_counts(sort=False)[unique])
    np.testing.assert_array_equal(data.isin, series.isin(data.tests))
    assert 0 < data.isin.sum() < len(data.keys)


def test_numpy_looks_up_no_batch_that_takes_it_minutes(monkeypatch):
    data = SetData("sequential", 1 << 10, "int64")
    jobs = sets.numpy(data).make().jobs
    monkeypatch.setattr(sets, "_MOST_ISIN", (1 << 10) - 1)
    assert set(jobs) - set(sets.numpy(data).make().jobs) == {"isin"}


@pytest.mark.skipif(not HAS_TENSORFLOW, reason="tensorflow is not installed")
def test_a_quick_run_measures_all_tables_inside_of_graphs(quick_run):
    _, report, _ = quick_run
    tables = [("gpuhash", 1), ("gpuhash", 2), ("tensorflow MutableHashTable", 2), ("tensorflow DenseHashTable", 2)]
    operations = ("find present", "find absent", "insert", "insert_or_assign", "erase")
    measured = [(r.layout, r.operation, r.who, r.threads) for r in report.records if r.suite == "graph"]
    assert len(measured) == len(set(measured))
    assert set(measured) == {
        (layout, operation, *table)
        for layout in ("8 + 8 B", "8 B + 64 float32")
        for operation in operations
        for table in tables
    }


def test_files_of_a_quick_run_agree(quick_run):
    _, report, folder = quick_run
    (csv_path,), (md_path,) = folder.glob("*.csv"), folder.glob("*.md")
    with csv_path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["suite"], row["operation"], row["who"], float(row["seconds"])) for row in rows] == [
        (r.suite, r.operation, r.who, r.seconds) for r in report.records
    ]
    text = md_path.read_text()
    assert text == markdown.markdown(report)
    assert text.startswith(f"# {report.device}, {report.date}\n")
    assert report.commit in text
    assert report.versions["numpy"] in text
    if HAS_MATPLOTLIB:
        assert {path.stem.rpartition("-")[2] for path in folder.glob("*.png")} == {"load", "batch", "size"}


def test_a_quick_run_on_the_gpu(cuda, tmp_path):
    pytest.importorskip("torch")
    done = run_module("-m", "benchmarks", "--device", "cuda", "--quick", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    report = files.read(next(tmp_path.glob("*.json")))
    assert report.failures == []
    assert {
        "table",
        "cache",
        "apply",
        "rows",
        "build",
        "growth",
        "unique",
        "unique-small",
        "frames",
        "calls",
        "sweep-size",
    } <= set(report.suites())
    assert "graph" in report.suites() or any(note.startswith("graph: ") for note in report.notes)


@pytest.mark.skipif(not HAS_TENSORFLOW, reason="tensorflow is not installed")
def test_wrong_results_inside_of_graphs_are_found(tmp_path):
    """Of both suites, the one for GPUs with its table on the host: the device is a parameter."""
    pytest.importorskip("torch")
    script = tmp_path / "graphs.py"
    script.write_text(
        "import torch\n"
        "from benchmarks.gpu import graph as gpu\n"
        "from benchmarks.host import graph as host\n"
        "from benchmarks.host.data import Data, values_of\n"
        "from benchmarks.suite import NotHereError\n"
        "from benchmarks.timing import WrongResultError\n"
        "def told(call, *arguments):\n"
        "    try: call(*arguments)\n"
        "    except (NotHereError, WrongResultError) as error: print(error)\n"
        "    else: print('right')\n"
        "tf = gpu.import_tensorflow('CPU:0')\n"
        "told(gpu.import_tensorflow, 'CPU:7')\n"
        "import gpuhash.tensorflow\n"
        "data = Data(1 << 10)\n"
        "table = gpuhash.HashTable('int64', 'int64')\n"
        "table[data.keys] = data.values\n"
        "keys = {'find present': data.lookups, 'find absent': data.absent}\n"
        "batches = {name: torch.from_numpy(all_keys).split(64) for name, all_keys in keys.items()}\n"
        "bench = gpu.GraphBench(tf, table, batches, 'CPU:0', lambda: None)\n"
        "told(bench.check, 'find present', values_of)\n"
        "told(bench.check, 'find present', lambda keys: keys)\n"
        "told(bench.check, 'find present', None)\n"
        "told(bench.check, 'find absent', None)\n"
        "told(bench.check, 'find absent', values_of)\n"
        "timings = bench.measure('find absent', runs=2, calls=1)\n"
        "print(list(timings), all(0 < t.fastest <= t.median <= t.slowest for t in timings.values()))\n"
        "class Wrong(gpuhash.tensorflow.MutableHashTable):\n"
        "    def lookup(self, keys, **options): return super().lookup(keys, **options) + 1\n"
        "for kind in (gpuhash.tensorflow.MutableHashTable, Wrong):\n"
        "    def new(): return kind(tf.int64, tf.int64, -1, experimental_is_anonymous=True)\n"
        "    told(host._Bench(tf, new, None, data, host.INTEGERS, 64).check)\n"
    )
    done = run_module(script)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if not line.startswith("TensorFlow ")] == [
        "right",
        "wrong result: tf.function: find present",
        "wrong result: tf.function: find present",
        "right",
        "wrong result: tf.function: find absent",
        "['gpuhash', 'table.find, PyTorch'] True",
        "right",
        "wrong result: values of present keys",
    ]
    assert "sees no CPU:7" in done.stdout.splitlines()[0]


def test_suites_and_operations_can_be_chosen(tmp_path):
    arguments = ("--quick", "--suites", "sweep-size", "--ops", "erase", "--threads", "1", "--output", tmp_path)
    done = run_module("-m", "benchmarks", *arguments)
    assert done.returncode == 0, done.stderr
    report = files.read(next(tmp_path.glob("*.json")))
    assert {(r.suite, r.operation, r.threads) for r in report.records} == {("sweep-size", "erase", 1)}


def test_groups_can_be_chosen(tmp_path):
    arguments = ("--quick", "--suites", "unique", "--ops", "isin", "--threads", "1", "--output", tmp_path)
    done = run_module("-m", "benchmarks", *arguments, "--groups", "uint64 keys, n-grams", "uint64 keys, 1000")
    assert done.returncode == 0, done.stderr
    report = files.read(next(tmp_path.glob("*-unique-uint64-keys-n-grams-uint64-keys-1000-quick.json")))
    assert {(r.operation, r.batch, r.keys) for r in report.records} == {
        ("isin", 1 << 10, "uint64, n-grams"),
        ("isin", 1 << 10, "uint64, 1000 distinct"),
    }


def test_a_step_that_takes_too_long_is_named_and_the_others_are_measured():
    report = Report("nothing", "", {}, {})
    session = Session(report, True, step_limit=0.2)
    cases = {"slow": lambda made: time.sleep(60), "quick": lambda made: report.note("measured")}
    group = Group("group", nullcontext, cases)
    run(session, {"suite": Suite("", (), lambda session: [group])}, lambda name: None)
    assert report.notes == ["measured"]
    assert [(f.suite, f.step) for f in report.failures] == [("suite", "group: slow")]
    assert "longer than" in report.failures[0].error


def test_a_step_that_does_not_end_is_left(tmp_path):
    """It listens to no signal: the process ends, and says where it was, and what was measured before."""
    script = tmp_path / "stuck.py"
    script.write_text(
        "import signal, time\n"
        "from contextlib import nullcontext\n"
        "from benchmarks.report import Report\n"
        "from benchmarks.suite import Group, Session, Suite, run\n"
        "def stuck(made):\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\n"
        "    time.sleep(60)\n"
        "report = Report('nothing', '', {}, {})\n"
        "group = Group('group', nullcontext, {'first': lambda made: report.note('measured'), 'second': stuck})\n"
        "session = Session(report, True, step_limit=0.2, grace=0.2)\n"
        "run(session, {'suite': Suite('', (), lambda session: [group])}, lambda name: print(name, report.notes))\n"
    )
    start = time.monotonic()
    done = run_module(script)
    assert time.monotonic() - start < 50
    assert done.returncode == 1
    assert done.stdout.strip() == "suite ['measured']"
    assert "failed: suite, group: second" in done.stderr
    assert "in stuck" in done.stderr


def test_files_hold_what_was_measured_before_a_run_was_killed(tmp_path):
    """Its process has no chance to write anything then."""
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, pathlib, signal, sys\n"
        "from contextlib import nullcontext\n"
        "from benchmarks import files\n"
        "from benchmarks.report import Report\n"
        "from benchmarks.suite import Group, Session, Suite, run\n"
        "report = Report('nothing', '', {'device': 'cpu'}, {}, date='2026-01-02')\n"
        "def quantity(name): return lambda made: report.quantity('suite', name, 1, 'us')\n"
        "def kill(made): os.kill(os.getpid(), signal.SIGKILL)\n"
        "groups = [\n"
        "    Group('first', nullcontext, {'a': quantity('a'), 'b': quantity('b')}),\n"
        "    Group('second', nullcontext, {'c': quantity('c'), 'killed': kill}),\n"
        "]\n"
        "suites = {'suite': Suite('', (), lambda session: groups)}\n"
        "def keep(): files.write(report, pathlib.Path(sys.argv[1]), 'name')\n"
        "run(Session(report, True), suites, print, keep)\n"
    )
    done = run_module(script, tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert [q.name for q in files.read(tmp_path / "name.json").quantities] == ["a", "b"]


def test_files_are_kept_after_every_group():
    """Also one that failed, and at the end of a suite nothing is left to keep."""
    report, kept = make_report(), []

    def fail(_):
        raise RuntimeError("no luck")

    groups = [
        Group("good", nullcontext, {"one": lambda _: report.note("one"), "two": lambda _: report.note("two")}),
        Group("bad", nullcontext, {"three": fail}),
        Group("last", nullcontext, {"four": lambda _: report.note("four")}),
    ]
    suites = {"suite": Suite("", (), lambda _: groups), "empty": Suite("", (), lambda _: [])}
    run(Session(report, True), suites, lambda _: None, lambda: kept.append((list(report.notes), len(report.failures))))
    assert kept == [(["one", "two"], 0), (["one", "two"], 1), (["one", "two", "four"], 1)]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="of Linux")
def test_a_report_tells_the_cores_of_the_process():
    """Not those of the machine."""
    one = min(os.sched_getaffinity(0))
    script = f"import os; os.sched_setaffinity(0, {{{one}}}); from benchmarks.machine import cores; print(cores())"
    done = run_module("-c", script)
    assert done.stdout.strip() == str({one}), done.stderr


def test_cores_of_a_system_that_does_not_tell(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert machine.cores() == set()


@pytest.mark.parametrize(
    "arguments", [("--suites", "tables"), ("--ops", "lookup"), ("--threads", "0"), ("--groups", "2^99")]
)
def test_unknown_words_are_told(arguments):
    done = run_module("-m", "benchmarks", "--quick", *arguments)
    assert done.returncode == 2
    assert "known" in done.stderr or "positive" in done.stderr or "no group" in done.stderr


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="of Linux")
def test_what_has_one_thread_runs_on_one_core(tmp_path):
    """The same one for all contenders; what has more, in the same process, on all of them."""
    script = tmp_path / "cores.py"
    script.write_text(
        "import os\n"
        "from benchmarks.host.contest import Contest, Effort, Entry, Job, Ready\n"
        "from benchmarks.timing import nothing\n"
        "def cores(): return float(sum(core + 1 for core in os.sched_getaffinity(0)))\n"
        "jobs = {'own': Job(nothing, seconds=cores), 'both': Job(nothing, seconds=cores, threads=2)}\n"
        "def make(): return Ready(jobs)\n"
        "entries = [Entry('one', 1, make), Entry('two', 2, make), Entry('one more', 1, make)]\n"
        "with Contest(entries, print) as contest:\n"
        "    for job in ('own', 'both', 'own'):\n"
        "        timings = contest.measure([job], Effort(turns=1))\n"
        "        print({contender.entry.who: int(timing.median) for (contender, _), timing in timings.items()})\n"
    )
    done = run_module(script)
    assert done.returncode == 0, done.stderr
    cores = os.sched_getaffinity(0)
    first, every = min(cores) + 1, sum(core + 1 for core in cores)
    own = {"one": first, "two": every, "one more": first}
    assert done.stdout.splitlines() == [str(own), str(dict.fromkeys(own, every)), str(own)]


def test_a_crashed_contender_leaves_the_others_measured(tmp_path):
    script = tmp_path / "crash.py"
    script.write_text(
        "import os\n"
        "from benchmarks.host.contest import Contest, Effort, Entry, Job, Ready\n"
        "told = []\n"
        "def crash(): os._exit(3)\n"
        "def wrong(): raise ValueError('on purpose')\n"
        "entries = [\n"
        "    Entry('fine', 1, lambda: Ready({'job': Job(lambda: None)})),\n"
        "    Entry('crashing', 1, lambda: Ready({'job': Job(crash)})),\n"
        "    Entry('raising', 1, lambda: Ready({'job': Job(wrong)})),\n"
        "    Entry('never ready', 1, wrong),\n"
        "]\n"
        "with Contest(entries, told.append) as contest:\n"
        "    timings = contest.measure(['job'], Effort(turns=2))\n"
        "    print([contender.entry.who for contender, _ in timings])\n"
        "    print(len(contest.measure(['job'], Effort(turns=1))))\n"
        "for error in told: print(str(error).splitlines()[0])\n"
    )
    done = run_module(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['fine']",
        "1",
        "never ready: on purpose",
        "crashing: its process ended with exit code 3",
        "raising: on purpose",
        "raising: on purpose",
    ]


def test_what_fails_is_taken_down_and_the_rest_goes_on(capsys):
    report = make_report()
    made = []

    def failing(_):
        raise RuntimeError("no luck")

    def unmakeable():
        raise NotHereError("a library is not installed")

    def groups(_):
        return [
            Group("one", lambda: nullcontext(made), {"bad": failing, "good": lambda things: things.append(1)}),
            Group("two", unmakeable, {"never": failing}),
        ]

    def no_plan(_):
        raise ValueError("cannot be planned")

    suites = {"first": Suite("", (), groups), "second": Suite("", (), no_plan), "third": Suite("", (), lambda _: [])}
    finished = []
    run(Session(report, quick=True), suites, finished.append)
    assert finished == ["first", "second", "third"]
    assert made == [1]
    assert [(f.suite, f.step) for f in report.failures] == [("second", "planning"), ("first", "one: bad")]
    assert report.failures[1].error.startswith("RuntimeError: no luck")
    assert report.notes == ["first: a library is not installed"]
    assert "no luck" in capsys.readouterr().err


def test_progress_counts_its_steps(capsys):
    progress = Progress(4)
    progress.step("a")
    progress.step("b")
    progress.skip(1)
    progress.finish()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("]")[1].split()[0] for line in lines] == ["0/4", "1/4", "4/4"]
    assert lines[-1].endswith("done")


# Reports -------------------------------------------------------------------------------------------------------------


def test_reports_survive_their_files(tmp_path):
    report = make_report()
    report.limits["L64"] = 33e9
    add_find(report, "gpuhash", 0.005, load=0.5, limit=Limit("L64", 33e9))
    report.quantity("growth", "peak", 2.5, "times")
    report.note("something")
    report.failures.append(Failure("rows", "all", "RuntimeError: x"))
    paths = files.write(report, tmp_path, "name")
    assert [path.name for path in paths] == ["name.md", "name.json", "name.csv"]
    assert files.read(paths[1]) == report


@pytest.mark.parametrize("contents", ["{", "[]", "{}", json.dumps({"records": [{"who": "x"}]})])
def test_other_files_are_no_reports(tmp_path, contents):
    path = tmp_path / "other.json"
    path.write_text(contents)
    with pytest.raises(ValueError, match="no report"):
        files.read(path)


def test_tables_show_ratios_to_limits_peers_and_other_days():
    report = make_report()
    pairs = 1 << 27
    add_find(report, "gpuhash", pairs / 30e9, load=0.5, limit=Limit("L64", 40e9))
    add_find(report, "torch, sorted", pairs / 3e9)
    lines = markdown.section(report, "table").splitlines()
    assert lines[2] == "key + value 8 + 8 B, keys distinct, pairs 2^27, batch 2^27, load 0.50"
    header, _, row = (line.strip("| ").split(" | ") for line in lines[4:7])
    assert dict(zip(header, row, strict=True)) == {
        "operation": "find present",
        "gpuhash, G/s": "30",
        "of the limit": "0.75 L64",
        "torch, sorted (times)": "3 (10.00)",
        "best native peer, another day (times)": "cuco 24.1 (1.24)",
    }


def test_rows_are_compared_with_another_day_whatever_the_load():
    report = make_report()
    n = 1 << 24
    timing = Timing(n / 9.2e9, n / 9.2e9, n / 9.2e9)
    layout = "8 B + 64 float32"
    report.add("rows", "find present", "gpuhash", timing, pairs=n, batch=n, layout=layout, load=0.87)
    assert "hkv 4.6 (2.00)" in markdown.section(report, "rows")


def test_other_gpus_are_not_compared_with_another_day():
    report = make_report(device="NVIDIA A100")
    add_find(report, "gpuhash", 1.0, load=0.5)
    assert "another day" not in markdown.section(report, "table")


def test_peers_are_those_of_the_same_contest():
    report = make_report(kind="cpu")
    for load, rate in ((0.5, 10e6), (0.8, 20e6)):
        add_find(report, "gpuhash", (1 << 14) / (2 * rate), load=load, threads=1, pairs=1 << 14)
        add_find(report, "boost", (1 << 14) / rate, threads=1, pairs=1 << 14)
    rows = [line for line in markdown.section(report, "table").splitlines() if line.startswith("| find")]
    assert rows == ["| find present | 0.50 | 20 | 10 (2.00) |", "| find present | 0.80 | 40 | 20 (2.00) |"]


def test_peers_are_shown_where_gpuhash_has_no_figure():
    report = make_report(kind="cpu")
    add_find(report, "pandas", (1 << 14) / 5e6, threads=1, pairs=1 << 14)
    assert markdown.section(report, "table").splitlines()[-2] == "| find present |  | 5 |"


def test_the_whole_report_names_what_is_missing():
    report = make_report()
    report.note("unique: CuPy is not installed")
    report.failures.append(Failure("rows", "all", "RuntimeError: out of luck\nTraceback"))
    text = markdown.markdown(report)
    assert "* unique: CuPy is not installed" in text
    assert "* rows, all: RuntimeError: out of luck\n" in text


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_embeddings_are_measured(device):
    named = device.removesuffix(":0")  # "cuda" alone is the current GPU
    done = run_module("-m", "benchmarks.embedding", "--quick", "--device", named)
    assert done.returncode == 0, done.stderr
    for name in ("SGD", "row-wise Adagrad", "Adam"):
        for what in ("forward", "backward", "both", "evaluation"):
            assert done.stdout.count(f"| {name}: {what} |") == 1
    assert done.stdout.count("a dict |") == (4 if device == "cpu" else 0)


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_a_table_of_several_shards_is_measured():
    """On the host, or on two GPUs where there are such; the results are checked before they are timed."""
    places = [["cpu", "cpu"], *([["cuda:0", "cuda:1"]] if gpu_count() > 1 and sees_gpu("torch") else [])]
    for devices in places:
        done = run_module("-m", "benchmarks.several", "--quick", "--devices", *devices)
        assert done.returncode == 0, done.stderr
        lines = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith(("| find", "| insert"))]
        kinds = ["find", "find, Zipf 1.05", "insert_or_apply, Zipf 1.05", "find, Zipf 1.5", "insert_or_apply, Zipf 1.5"]
        assert [line[0].strip("| ") for line in lines] == [*kinds, "insert"] * 2
        assert all(float(line[2]) > 0 for line in lines)
    missing = run_module("-m", "benchmarks.several", "--quick", "--devices", "cuda:0", "cuda:99")
    assert missing.returncode == 2
    assert "cuda" in missing.stderr


def test_growth_of_rows_is_measured():
    """It checks that rows stay, or move, and what they hold."""
    for device in ["cpu", *(["cuda"] if gpu_count() > 0 and sees_gpu("torch") else [])]:
        done = run_module("-m", "benchmarks.growing", "--device", device, "--rows", 20_000)
        assert done.returncode == 0, done.stderr
        lines = [line.split(" ms ")[0].rsplit(maxsplit=1) for line in done.stdout.splitlines() if " ms " in line]
        assert [name for name, _ in lines] == [
            "plain copy of the rows",
            "growth, rows stay",
            "growth, rows are copied",
        ]
        assert all(float(milliseconds) > 0 for _, milliseconds in lines)
    missing = run_module("-m", "benchmarks.growing", "--rows", 1 << 40)
    assert missing.returncode == 2
    assert "fewer --rows" in missing.stderr


def test_a_table_over_processes_is_measured(tmp_path):
    """Two processes on the host, or on two GPUs where there are such; the results are checked before they are timed."""
    devices = ["cpu", *(["cuda"] if gpu_count() > 1 and module("torch").cuda.device_count() > 1 else [])]
    for device in devices:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "--log-dir", tmp_path]
        done = run_module(*launch, "-m", "benchmarks.distributed", "--quick", "--device", device)
        assert done.returncode == 0, done.stderr
        rates, times = done.stdout.split("\n| phase of find")
        lines = [line.split(" | ") for line in rates.splitlines() if " | " in line][1:]
        assert [line[0].strip("| ") for line in lines] == ["find", "insert", "insert_or_apply"] * 3
        assert [line[1] for line in lines[::3]] == ["uniform", "Zipf 1.05", "Zipf 1.5"]
        assert all(float(number.strip("| ")) > 0 for line in lines for number in line[2:4])
        assert {"count, sort", "exchange of keys", "find, whole"} <= {
            line.split(" | ")[0].strip("| ") for line in times.split("\n")
        }
    alone = run_module("-m", "benchmarks.distributed", "--quick")
    assert alone.returncode == 2
    assert "torch.distributed.run" in alone.stderr


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_gates_are_measured():
    """With small tables, where ratios say nothing; keys of every kind that a gate is about."""
    done = run_module("-m", "benchmarks.gates", "--quick")
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    assert len({name for name, *_ in rows}) == len(rows) > 15
    assert all(float(ratio) > 0 for _, ratio, _ in rows)


def test_a_ratio_that_is_too_large_fails(monkeypatch, capsys):
    """Each gate has some attempts, and the least of them counts."""
    ratios = iter([5.0, 3.0, *[9.0] * gates.ATTEMPTS])
    ours = [gates.Gate("second try", 4, lambda: next(ratios)), gates.Gate("never", 4, lambda: next(ratios))]
    monkeypatch.setattr(gates, "gates", lambda device, quick: ours)
    assert gates.main([]) == 1
    told = capsys.readouterr()
    assert told.out.splitlines()[2:] == ["| second try | 3.00 | 4 |", "| never | 9.00 | 4, too large |"]
    assert "1 of these ratios are too large" in told.err


def test_names_of_limits():
    assert limit_over("L64, 1 thread", 2 << 30) == "L64, 1 thread over 2 GiB"
    assert limit_over("L64", 80 << 10) == "L64 over 80 KiB"
    assert limit_family("L64, 1 thread over 2 GiB") == "L64, 1 thread"
    assert limit_family("L64 in L2") == "L64 in L2"


def test_reference_figures_are_of_measured_cases():
    known = markdown.references("NVIDIA H200")
    assert len(known) > 40
    for (suite, operation, *_), reference in known.items():
        assert suite in {"table", "batches", "cache", "rows"}
        assert operation in {"find present", "find absent", "insert", "insert_or_assign", "erase"}
        assert 1e9 < reference.keys_per_second < 1e11


# The page and the results it is made of ------------------------------------------------------------------------------


def test_the_page_is_what_the_results_make():
    """If it fails, run `python -m benchmarks page`."""
    text = page.PAGE.read_text()
    assert page.updated(text, page.machines()) == text


def test_every_table_and_every_file_of_results_is_on_the_page():
    text = page.PAGE.read_text()
    assert {name for name in page.TABLES if f"<!-- table {name} -->" not in text} == set()
    assert text.count("<!-- table ") == text.count("<!-- end of table -->") == len(page.TABLES)
    known = page.machines()
    for name in known:
        fewer = {stem: results for stem, results in known.items() if stem != name}
        with pytest.raises(KeyError, match=name):
            [make(fewer) for make in page.TABLES.values()]


def test_a_table_that_nobody_makes_is_refused():
    with pytest.raises(ValueError, match="no table of-nothing"):
        page.updated("<!-- table of-nothing -->\n<!-- end of table -->", {})


def test_results_are_read_as_they_were_written(tmp_path):
    for path in results_file.RESULTS.glob("*.json"):
        results = results_file.read(path)
        results_file.write(results, tmp_path / path.name)
        assert (tmp_path / path.name).read_text() == path.read_text()


def test_a_newer_run_replaces_its_cases_with_their_peers(tmp_path):
    older, newer = make_report(), make_report()
    newer.date, newer.commit = "2026-02-03", "def"
    for load in (0.5, 0.8):
        add_find(older, "gpuhash", 2.0, load=load)
    add_find(older, "torch", 4.0)
    add_find(older, "gpuhash", 2.0, load=0.5, pairs=1 << 20)
    older.quantity("calls", "find", 5.0, "us")
    add_find(newer, "gpuhash", 1.0, load=0.5, limit=Limit("L64", 2e8))
    newer.quantity("calls", "erase", 6.0, "us")
    for name, report in (("older", older), ("newer", newer)):
        files.write(report, tmp_path, name)

    into = tmp_path / "kind.json"
    runs = tmp_path / "older.json", tmp_path / "newer.json"
    done = run_module("-m", "benchmarks", "merge", *runs, "--into", into, "--machine", "H200s")
    assert done.returncode == 0, done.stderr
    merged = results_file.read(into)
    assert merged.machine == "H200s"
    assert merged.device == "cuda"
    figures = [(run.commit, r.who, r.pairs, r.load, r.seconds, r.ratio) for run, r in merged.records]
    assert figures == [
        ("abc", "gpuhash", 1 << 20, 0.5, 2.0, None),
        ("def", "gpuhash", 1 << 27, 0.5, 1.0, (1 << 27) / 2e8),
    ]
    assert [(run.date, q.name, q.value) for run, q in merged.quantities] == [
        ("2026-01-02", "find", 5.0),
        ("2026-02-03", "erase", 6.0),
    ]


def test_merging_what_is_no_report_fails(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    done = run_module("-m", "benchmarks", "merge", tmp_path / "other.json", "--into", tmp_path / "kind.json")
    assert done.returncode == 2
    assert "no report" in done.stderr
    assert not (tmp_path / "kind.json").exists()


# Plots ---------------------------------------------------------------------------------------------------------------


def swept_report():
    report = make_report()
    for batch in (1 << 10, 1 << 20):
        timing = Timing(batch / 1e9, batch / 1e9, batch / 1e9)
        limit = Limit("L64", 33e9)
        report.add("sweep-batch", "find present", "gpuhash", timing, pairs=1 << 20, batch=batch, load=0.8, limit=limit)
    return report


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="matplotlib is not installed")
def test_plots_are_drawn_from_the_file(tmp_path):
    files.write(swept_report(), tmp_path, "name")
    done = run_module("-m", "benchmarks", "plot", tmp_path / "name.json", "--output", tmp_path / "plots")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["name-batch.png"]
    assert (tmp_path / "plots" / "name-batch.png").read_bytes().startswith(b"\x89PNG")


def test_plots_without_matplotlib_say_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(plots.NoMatplotlibError, match="not installed"):
        plots.draw(swept_report(), tmp_path, "name")


def test_plotting_what_is_no_report_fails(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    done = run_module("-m", "benchmarks", "plot", tmp_path / "other.json")
    assert done.returncode == 2
    assert "no report" in done.stderr


COOKBOOK = sorted(page.stem for page in (ROOT / "docs" / "cookbook").glob("*.md") if page.stem != "index")


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed, with which two pages train")
def test_jobs_of_the_cookbook_are_measured():
    """Those of all pages, each beside a peer."""
    pytest.importorskip("pandas", reason="two pages are about its frames")
    pytest.importorskip("polars", reason="a page is about its frames")
    done = run_module("-m", "benchmarks.cookbook", "--quick")
    assert done.returncode == 0, done.stderr
    pages = dict(part.split("\n", 1) for part in done.stdout.split("\n## ")[1:])
    assert sorted(pages) == COOKBOOK
    for name, table in pages.items():
        header, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n") if line]
        assert header[-1] == "times faster"
        assert rows, name
        assert all(float(row[-1].split(" ")[0].replace(",", "")) > 0 for row in rows)


def test_questions_on_frames_are_measured():
    """Of all contenders, whose answers are compared before."""
    for name in ("duckdb", "pandas", "polars", "pyarrow"):
        pytest.importorskip(name, reason="it is a contender")
    done = run_module("-m", "benchmarks.frames", "--quick")
    assert done.returncode == 0, done.stderr
    header, _, *rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.split("\n") if line.startswith("|")
    ]
    assert [cell.split(" ")[0] for cell in header] == ["question", "gpuhash", "polars", "duckdb", "pyarrow", "pandas"]
    assert [row[0] for row in rows] == ["q1", "q2", "q3", "q4", "q5", "q7", "q10", "q3 strings"] + [
        f"join {kind}" for kind in ("small", "medium", "medium left", "big")
    ]
    assert all(float(cell) > 0 for row in rows for cell in row[1:])
