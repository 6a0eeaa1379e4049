"""Which face has which call: each has it, or says why not; docs/reference/calls.md is the table of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract.faces import ABSENT, CALLS, FACES, case

LACKS = [(face, call) for face in FACES for call in CALLS if call in FACES[face].lacks]


@pytest.mark.parametrize(("face", "call"), [case(*each) for each in LACKS], indirect=["face"])
def test_what_a_face_answers_to_a_call_that_it_lacks(face, call):
    table = face()
    lack = table.lacks[call]
    if lack.error is not None:
        with pytest.raises(lack.error, match=lack.text):
            table.refuse(call)
    elif lack is ABSENT:
        assert not hasattr(table.subject, table.own_name(call)), f"now it has {call}: say so in faces.py"


def hole(face: str, call: str) -> object:
    return pytest.param(face, call, marks=pytest.mark.xfail(strict=True, reason=FACES[face].lacks[call].why))


@pytest.mark.parametrize(("face", "call"), [hole(*each) for each in LACKS if FACES[each[0]].lacks[each[1]].hole])
def test_calls_that_are_to_come(face, call):
    assert call not in FACES[face].lacks


def test_the_table_of_calls():
    """``python -m contract.table > ../docs/reference/calls.md``, in the folder of the tests, makes it anew."""
    from contract.table import table_of_calls

    assert (Path(__file__).parents[2] / "docs" / "reference" / "calls.md").read_text() == table_of_calls()
