"""Devices and frameworks that the tests run on, and the record of a run on a GPU machine."""

from __future__ import annotations

import gc
import itertools
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import pytest
from hypothesis import settings
from support import gpu_cases, pairwise
from support.frameworks import (
    GPU,
    PLACES,
    Framework,
    make_first_gpu_current,
    missing_gpu,
    module,
    nearest_framework,
    need_cuda,
    need_place,
    place_name,
    platform_of,
    sees_gpu,
)
from support.gpu_record import is_whole, missing_runs, part_of, write_record
from support.peers import need_given
from support.programs import compile_answers, made_once, shared_folder

import gpuhash

settings.register_profile("gpuhash", derandomize=True, deadline=None, database=None)
settings.load_profile("gpuhash")

#: How many cases were left out for want of a GPU, as each process says that has collected them.
GPU_CASES: list[int] = []

modules_kept = 0

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
if WORKERS > 1:  # or each of them would have a thread for each core, in each framework
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        os.environ.setdefault(name, str(max(1, (os.cpu_count() or 1) // WORKERS)))
    # Nor a pool of processes that compile: Inductor starts up to 32 in each worker.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu-record", action="store_true", help="write tests/gpu_record.json when the run ends")
    parser.addoption(
        "--part", type=part_of, metavar="K/N", help="only each N-th case, from the K-th on; a record adds up all parts"
    )
    parser.addoption(
        "--slow", action="store_true", help="every case at its full size: half an hour of a processor more"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        leave_out(config, items, pairwise.left_out(items) | {item for item in items if item.get_closest_marker("slow")})
    of_gpu = gpu_cases.left_out(config, items)
    leave_out(config, items, of_gpu)
    GPU_CASES.append(len(of_gpu))
    if is_worker(config):
        config.workeroutput["gpu_cases"] = len(of_gpu)
    if config.getoption("--part"):
        number, count = config.getoption("--part")
        leave_out(config, items, set(items) - set(items[number - 1 :: count]))
    deal_out_the_longest(items)


def leave_out(config: pytest.Config, items: list[pytest.Item], unused: set[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if item in unused])
    items[:] = [item for item in items if item not in unused]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker of pytest-xdist has ended, which has collected what this process has not."""
    GPU_CASES.append(getattr(node, "workeroutput", {}).get("gpu_cases", 0))


def is_worker(config: pytest.Config) -> bool:
    """Of pytest-xdist, whose workers run a part of the cases each."""
    return hasattr(config, "workerinput")


def pytest_collection_finish() -> None:
    keep_what_is_there()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Frameworks and their compilers are many modules, and the first test that needs them imports them."""
    need_given(item)
    if len(sys.modules) > modules_kept + 100:
        keep_what_is_there()


def keep_what_is_there() -> None:
    """What the collection and imports have made stays: the tests' own garbage is found far sooner without it."""
    global modules_kept
    gc.collect()
    gc.freeze()
    modules_kept = len(sys.modules)


def deal_out_the_longest(items: list[pytest.Item]) -> None:
    """The longest tests first, each by another worker: all of them then end at about one time.

    With ``--dist worksteal`` a worker begins with an equal share of the tests, in their order, and nobody takes over
    the one that comes next. So where there are more long tests than workers, they are dealt out there and back.
    """

    def seconds(item: pytest.Item) -> float:
        mark = item.get_closest_marker("long")
        return mark.args[0] if mark else 0

    longest = sorted((item for item in items if seconds(item)), key=seconds, reverse=True)
    others = iter([item for item in items if not seconds(item)])
    order: list[pytest.Item] = []
    for worker in range(WORKERS):
        share = (len(items) - len(order)) // (WORKERS - worker)
        own = longest[worker :: 2 * WORKERS] + longest[2 * WORKERS - 1 - worker :: 2 * WORKERS]
        order += [*own, *itertools.islice(others, max(0, share - len(own)))]
    items[:] = [*order, *others]


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    if GPU_CASES and max(GPU_CASES) > 0:
        terminalreporter.write_line(
            f"{max(GPU_CASES)} cases need a GPU and were left out: {missing_gpu()}", yellow=True
        )
    if config.getoption("--gpu-record") and not is_worker(config) and is_whole(exitstatus):
        count = {outcome: len(terminalreporter.stats.get(outcome, [])) for outcome in ("passed", "failed", "skipped")}
        count["failed"] += len(terminalreporter.stats.get("error", []))
        record = write_record(count, config.getoption("--part"))
        terminalreporter.write_line("wrote tests/gpu_record.json")
        if "parts" in record:
            terminalreporter.write_line(f"it is not complete yet: of {record['parts']} the others", yellow=True)
        for device in missing_runs(record):
            terminalreporter.write_line(
                f"it is not complete yet: run the tests once more, with GPUHASH_TEST_DEVICE={device}", yellow=True
            )


@pytest.fixture(autouse=True)
def first_gpu_is_current() -> None:
    """Wherever the tables are; a library that a test has used may have left another GPU as the current one."""
    make_first_gpu_current()


@pytest.fixture(autouse=True)
def seeds_are_drawn_alike() -> None:
    """Of modules that are given none: by PyTorch's generator, and in Keras by Python's; whatever tests came before."""
    random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.random.default_generator.manual_seed(0)


@pytest.fixture
def slow(request: pytest.FixtureRequest) -> bool:
    """Whether a test is to take its full size."""
    return bool(request.config.getoption("--slow"))


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of tests/answers/."""
    return made_once(shared_folder(tmp_path_factory) / "answers", compile_answers)


@pytest.fixture(params=["cpu", GPU], ids=platform_of)
def device(request: pytest.FixtureRequest) -> str:
    """Where the table is."""
    if request.param != "cpu":
        need_cuda()
    return str(request.param)


@pytest.fixture
def cuda() -> str:
    """For tests of what only a GPU has."""
    need_cuda()
    return GPU


@pytest.fixture
def torch_cuda(cuda: str) -> Any:
    """PyTorch, where it computes on the GPU."""
    if not sees_gpu("torch"):
        pytest.skip("torch sees no GPU")
    return module("torch")


@pytest.fixture(params=PLACES, ids=place_name)
def place(request: pytest.FixtureRequest) -> Framework:
    """A framework and where its arrays and the table are."""
    return need_place(request.param)


NATIVE = [place for place in PLACES if place_name(place) in ("numpy-cpu", "torch-cpu", "torch-cuda")]


@pytest.fixture(params=NATIVE, ids=place_name)
def native(request: pytest.FixtureRequest) -> Framework:
    """NumPy and PyTorch only, for tests with many other parameters."""
    return need_place(request.param)


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of the host, and how many it may use meanwhile."""
    before = gpuhash.get_num_threads()
    gpuhash.set_num_threads(request.param)
    yield request.param
    gpuhash.set_num_threads(before)


@pytest.fixture(params=[0, 1, 3], ids=lambda shards: f"shards-{shards}" if shards else "single")
def shards(request: pytest.FixtureRequest) -> int:
    """How many shards a table has, for `support.frameworks.spread`; 0: it is a single one."""
    return int(request.param)


@pytest.fixture
def on_device(device: str) -> Framework:
    """The nearest framework for a device: NumPy on the host, PyTorch on the GPU."""
    return need_place(nearest_framework(device))
