"""The faces that the contract runs over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from contract.faces import FACES, Distributed, Face
from support.ranks import Ranks, started


@pytest.fixture(scope="session")
def group() -> Iterator[Ranks]:
    """Two processes for all tests of distributed tables, as starting them is slow."""
    Distributed.need()
    with started(2, "gloo") as ranks:
        yield ranks


@pytest.fixture
def face(request: pytest.FixtureRequest) -> Iterator[Any]:
    """What makes tables of one face; called as its class is."""
    kind = FACES[request.param]
    kind.need()
    if issubclass(kind, Distributed):
        kind.group = request.getfixturevalue("group")
    made: list[Face] = []

    def make(*args: Any, **options: Any) -> Face:
        made.append(kind(*args, **options))
        return made[-1]

    yield make
    for table in made:
        if isinstance(table, Distributed):
            table.close()
