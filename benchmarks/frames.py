"""Groups and joins of db-benchmark beside polars, duckdb, pyarrow, pandas: ``python -m benchmarks.frames``.

Every contender gets the same columns in its own form, and its answers are compared with gpuhash's before anything is
timed. The rows are Markdown: the least processor time of all threads of this process, in milliseconds, of several runs
that the contenders make in turns. ``--threads`` is how many each of them may use, and ``--questions`` chooses.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.machine import cores, cpu_name, versions
from benchmarks.timing import expect

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]
#: The columns of an answer: of groups the keys and their aggregates, of joins all columns of both sides.
Answer = Mapping[str, Any]
Ask = Callable[[], Any]


@dataclass(frozen=True)
class Grouped:
    """Aggregates by keys: name of the answer's column -> operation and the column that it is of."""

    keys: tuple[str, ...]
    aggregates: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Joined:
    """The left frame with one on the right, whose keys are unique."""

    right: str
    key: str
    how: str


IDS = tuple(f"id{number}" for number in range(1, 7))
QUESTIONS: dict[str, Grouped | Joined] = {
    "q1": Grouped(("id1",), {"v1": ("sum", "v1")}),
    "q2": Grouped(("id1", "id2"), {"v1": ("sum", "v1")}),
    "q3": Grouped(("id3",), {"v1": ("sum", "v1"), "v3": ("mean", "v3")}),
    "q4": Grouped(("id4",), {name: ("mean", name) for name in ("v1", "v2", "v3")}),
    "q5": Grouped(("id6",), {name: ("sum", name) for name in ("v1", "v2", "v3")}),
    "q7": Grouped(("id3",), {"v1": ("max", "v1"), "v2": ("min", "v2")}),
    "q10": Grouped(IDS, {"v3": ("sum", "v3"), "rows": ("count", "v1")}),
    "q3 strings": Grouped(("name3",), {"v1": ("sum", "v1"), "v3": ("mean", "v3")}),
    "join small": Joined("small", "id1", "inner"),
    "join medium": Joined("medium", "id2", "inner"),
    "join medium left": Joined("medium", "id2", "left"),
    "join big": Joined("big", "id3", "inner"),
}


def grouped_data(rows: int, rng: np.random.Generator) -> Columns:
    """The columns of the questions on groups; their strings are numbers here, but for ``name3``."""
    few, many = 100, max(rows // 100, 1)
    columns: Columns = {
        name: rng.integers(1, (many if name in ("id3", "id6") else few) + 1, rows, dtype=np.int64) for name in IDS
    }
    columns["v1"] = rng.integers(1, 6, rows, dtype=np.int64)
    columns["v2"] = rng.integers(1, 16, rows, dtype=np.int64)
    columns["v3"] = np.round(rng.uniform(0, 100, rows), 6)
    return columns


def joined_data(rows: int, rng: np.random.Generator) -> dict[str, Columns]:
    """The left frame and the three right ones: nine tenths of the keys are common."""
    sizes = {"small": max(rows // 1_000_000, 10), "medium": max(rows // 1_000, 10), "big": rows}
    left: Columns = {}
    frames: dict[str, Columns] = {"left": left}
    for key, (name, size) in zip(("id1", "id2", "id3"), sizes.items(), strict=True):
        pool = rng.permutation(np.arange(1, size + size // 10 + 1, dtype=np.int64))
        left[key] = rng.choice(pool[:size], rows) if name != "big" else rng.permutation(pool[:size])
        frames[name] = {key: rng.permutation(pool[-size:]), "v2": np.round(rng.uniform(0, 100, size), 6)}
    left["v1"] = np.round(rng.uniform(0, 100, rows), 6)
    return frames


class Contender:
    """What answers questions on columns that it has in its own form."""

    module = ""

    def __init__(self, frames: dict[str, Columns], threads: int) -> None:
        self.library = importlib.import_module(self.module)
        self.limit(threads)
        self.frames = {name: self.frame(columns) for name, columns in frames.items()}

    def limit(self, threads: int) -> None:
        """Has it use so many threads."""

    def frame(self, columns: Columns) -> Any:
        raise NotImplementedError

    def add_strings(self, name: str, numbers: str) -> None:
        """Adds a column of strings of 12 bytes to the frame of groups."""
        raise NotImplementedError

    def ask(self, question: Grouped | Joined) -> Ask:
        raise NotImplementedError

    def answer(self, result: Any) -> Answer:
        """A result's columns as NumPy arrays."""
        raise NotImplementedError


class GpuHash(Contender):
    module = "gpuhash"

    def limit(self, threads: int) -> None:
        self.library.set_num_threads(threads)

    def frame(self, columns: Columns) -> Any:
        return dict(columns)

    def add_strings(self, name: str, numbers: str) -> None:
        arrow = importlib.import_module("pyarrow")
        compute = importlib.import_module("pyarrow.compute")
        digits = compute.utf8_lpad(arrow.array(self.frames["groups"][numbers]).cast("string"), 10, "0")
        self.frames["groups"][name] = compute.binary_join_element_wise("id", digits, "")

    def ask(self, question: Grouped | Joined) -> Ask:
        if isinstance(question, Grouped):
            return partial(self.group, self.frames["groups"], question)
        return partial(self.join, self.frames["left"], self.frames[question.right], question)

    def group(self, frame: Columns, question: Grouped) -> Answer:
        keys = [frame[key] for key in question.keys]
        groups = self.library.group_by(keys[0] if len(keys) == 1 else keys)
        asked: dict[str, dict[str, Array]] = {}
        for name, (operation, column) in question.aggregates.items():
            asked.setdefault(operation, {})[name] = frame[column]
        answers = groups.agg(**asked)
        distinct = [groups.keys] if len(keys) == 1 else groups.keys
        columns = dict(zip(question.keys, distinct, strict=True))
        return columns | {name: answers[op][name] for name, (op, _) in question.aggregates.items()}

    def join(self, left: Columns, right: Columns, question: Joined) -> Answer:
        if question.how == "left":  # the left columns stay as they are, as pandas leaves them
            partners = self.library.get_indexer(right[question.key], left[question.key])
            (v2,) = self.library.take([right["v2"]], partners, fill=np.nan)
            return {**left, "v2": v2}
        pairs = self.library.join(left[question.key], right[question.key], question.how)
        columns = dict(zip(left, self.library.take(list(left.values()), pairs.left), strict=True))
        (v2,) = self.library.take([right["v2"]], pairs.right)
        return {**columns, "v2": v2}

    def answer(self, result: Answer) -> Answer:
        return {name: np.asarray(column) for name, column in result.items()}


class Polars(Contender):
    module = "polars"  # whose threads the environment limits

    def frame(self, columns: Columns) -> Any:
        return self.library.DataFrame(columns)

    def add_strings(self, name: str, numbers: str) -> None:
        text = self.library.lit("id") + self.library.col(numbers).cast(self.library.String).str.zfill(10)
        self.frames["groups"] = self.frames["groups"].with_columns(text.alias(name))

    def ask(self, question: Grouped | Joined) -> Ask:
        pl = self.library
        if isinstance(question, Joined):
            left, right = self.frames["left"], self.frames[question.right]
            return partial(left.join, right, on=question.key, how=question.how)
        asked = [
            (pl.len() if operation == "count" else getattr(pl.col(column), operation)()).alias(name)
            for name, (operation, column) in question.aggregates.items()
        ]
        return lambda: self.frames["groups"].group_by(question.keys).agg(asked)

    def answer(self, result: Any) -> Answer:
        return {name: result[name].to_numpy() for name in result.columns}


class DuckDB(Contender):
    module = "duckdb"

    def limit(self, threads: int) -> None:
        self.connection = self.library.connect()
        self.connection.execute(f"SET threads = {threads}")

    def frame(self, columns: Columns) -> Any:
        arrow = importlib.import_module("pyarrow")
        name = f"frame{len(self.connection.execute('SHOW TABLES').fetchall())}"
        self.connection.register("given", arrow.table(columns))
        self.connection.execute(f"CREATE TABLE {name} AS SELECT * FROM given")  # in its own form, as the others' are
        self.connection.unregister("given")
        return name

    def add_strings(self, name: str, numbers: str) -> None:
        frame = self.frames["groups"]
        self.connection.execute(f"ALTER TABLE {frame} ADD COLUMN {name} VARCHAR")
        self.connection.execute(f"UPDATE {frame} SET {name} = 'id' || lpad({numbers}::VARCHAR, 10, '0')")

    def ask(self, question: Grouped | Joined) -> Ask:
        names = {"mean": "avg"}
        if isinstance(question, Grouped):
            keys = ", ".join(question.keys)
            asked = [f"{names.get(op, op)}({column}) AS {name}" for name, (op, column) in question.aggregates.items()]
            query = f"SELECT {keys}, {', '.join(asked)} FROM {self.frames['groups']} GROUP BY {keys}"
        else:
            left, right = self.frames["left"], self.frames[question.right]
            query = f"SELECT * FROM {left} {question.how} JOIN {right} USING ({question.key})"
        return lambda: self.connection.sql(query).to_arrow_table()

    def answer(self, result: Any) -> Answer:
        arrow = importlib.import_module("pyarrow")
        sums = (arrow.types.is_decimal(column.type) for column in result.columns)  # of integers, in 128 bits
        columns = (each.cast("int64") if wide else each for each, wide in zip(result.columns, sums, strict=True))
        return dict(zip(result.column_names, (column.to_numpy() for column in columns), strict=True))


class PyArrow(Contender):
    module = "pyarrow"

    def limit(self, threads: int) -> None:
        self.library.set_cpu_count(threads)

    def frame(self, columns: Columns) -> Any:
        return self.library.table(columns)

    def add_strings(self, name: str, numbers: str) -> None:
        compute = importlib.import_module("pyarrow.compute")
        frame = self.frames["groups"]
        digits = compute.utf8_lpad(frame[numbers].cast("string"), 10, "0")
        self.frames["groups"] = frame.append_column(name, compute.binary_join_element_wise("id", digits, ""))

    def ask(self, question: Grouped | Joined) -> Ask:
        if isinstance(question, Joined):
            left, right = self.frames["left"], self.frames[question.right]
            how = "inner" if question.how == "inner" else "left outer"
            return partial(left.join, right, question.key, join_type=how)
        asked = [(column, operation) for operation, column in question.aggregates.values()]
        names = [*question.keys, *question.aggregates]
        frame = self.frames["groups"]
        return lambda: self.renamed(frame.group_by(question.keys).aggregate(asked), question, names)

    @staticmethod
    def renamed(result: Any, question: Grouped, names: list[str]) -> Any:
        given = [*question.keys, *(f"{column}_{operation}" for operation, column in question.aggregates.values())]
        return result.select(given).rename_columns(names)

    def answer(self, result: Any) -> Answer:
        return {name: result[name].to_numpy() for name in result.column_names}


class Pandas(Contender):
    module = "pandas"

    def frame(self, columns: Columns) -> Any:
        return self.library.DataFrame(columns)

    def add_strings(self, name: str, numbers: str) -> None:
        frame = self.frames["groups"]
        frame[name] = "id" + frame[numbers].astype("str").str.zfill(10)

    def ask(self, question: Grouped | Joined) -> Ask:
        if isinstance(question, Joined):
            left, right = self.frames["left"], self.frames[question.right]
            return partial(left.merge, right, on=question.key, how=question.how)
        asked = {name: (column, operation) for name, (operation, column) in question.aggregates.items()}
        frame = self.frames["groups"]
        keys = list(question.keys)
        return lambda: frame.groupby(keys, sort=False, as_index=False).agg(**asked)

    def answer(self, result: Any) -> Answer:
        return {name: result[name].to_numpy() for name in result.columns}


CONTENDERS: dict[str, type[Contender]] = {
    "gpuhash": GpuHash,
    "polars": Polars,
    "duckdb": DuckDB,
    "pyarrow": PyArrow,
    "pandas": Pandas,
}


def in_order(answer: Answer) -> list[Array]:
    """The columns, by name, in ascending order of the exact ones and then of the floats."""
    columns = {name: np.asarray(answer[name]) for name in sorted(answer)}
    columns = {name: column.astype(str) if column.dtype == object else column for name, column in columns.items()}
    floats = [column for column in columns.values() if column.dtype.kind == "f"]
    order = np.lexsort([*floats, *(column for column in columns.values() if column.dtype.kind != "f")])
    return [column[order] for column in columns.values()]


def check(contenders: Mapping[str, Contender], questions: list[str]) -> None:
    """Compares all answers with the first contender's, whatever the order of their rows."""
    for name in questions:
        answers = {who: each.answer(each.ask(QUESTIONS[name])()) for who, each in contenders.items()}
        (first, ours), *others = answers.items()
        for who, theirs in others:
            expect({*ours} == {*theirs}, f"{name}: the columns of {first} and {who}")
            for one, other in zip(in_order(ours), in_order(theirs), strict=True):
                same = np.allclose(one, other, equal_nan=True) if one.dtype.kind == "f" else np.array_equal(one, other)
                expect(one.shape == other.shape and same, f"{name}: {first} and {who}")


def made(names: list[str], rows: int, threads: int, questions: list[str]) -> dict[str, Contender]:
    """The contenders that are installed, with their frames."""
    rng = np.random.default_rng(1)
    frames = joined_data(rows, rng) if any(isinstance(QUESTIONS[name], Joined) for name in questions) else {}
    if any(isinstance(QUESTIONS[name], Grouped) for name in questions):
        frames["groups"] = grouped_data(rows, rng)
    contenders = {}
    for name in names:
        try:
            contenders[name] = CONTENDERS[name](frames, threads)
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        if "q3 strings" in questions:
            contenders[name].add_strings("name3", "id3")
    return contenders


def milliseconds(asks: Mapping[str, Ask], runs: int) -> dict[str, float]:
    """The least processor time of each; the first run of each warms up."""
    least = dict.fromkeys(asks, float("inf"))
    for run in range(runs + 1):
        for who, ask in asks.items():
            start = time.process_time()
            result = ask()
            spent = time.process_time() - start
            del result
            if run:
                least[who] = min(least[who], spent * 1e3)
    return least


def main(arguments: list[str] | None = None) -> int:
    """Prints a row for each question."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frames", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the frames (default: 10000000)")
    parser.add_argument("--threads", type=int, default=min(2, len(cores()) or 1), help="of each contender (default: 2)")
    parser.add_argument("--runs", type=int, default=5, help="of which the fastest counts (default: 5)")
    parser.add_argument("--quick", action="store_true", help="few rows and one run, to see that it works")
    parser.add_argument("--questions", nargs="+", choices=QUESTIONS, default=[*QUESTIONS], metavar="QUESTION")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=[*CONTENDERS], metavar="WHO")
    options = parser.parse_args(arguments)
    os.environ["POLARS_MAX_THREADS"] = str(options.threads)  # before its import
    check(made(options.contenders, 50_000, options.threads, options.questions), options.questions)
    if options.quick:
        options.rows, options.runs = 50_000, 1
    contenders = made(options.contenders, options.rows, options.threads, options.questions)
    packages = versions([each.module for each in contenders.values()])
    print(f"{cpu_name()}, {options.threads} threads, {options.rows:,} rows, ms of processor time\n")
    print("| question |", " | ".join(f"{who} {packages.get(each.module, '')}" for who, each in contenders.items()), "|")
    print("|---" * (len(contenders) + 1), "|", sep="")
    for name in options.questions:
        least = milliseconds({who: each.ask(QUESTIONS[name]) for who, each in contenders.items()}, options.runs)
        print(f"| {name} |", " | ".join(f"{spent:.1f}" for spent in least.values()), "|", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
