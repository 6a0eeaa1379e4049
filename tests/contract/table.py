"""The table of calls by face, as Markdown."""

from __future__ import annotations

from contract.faces import CALLS, FACES, Face, OfWideKeys, OfWideKeysOverShards, OnGpu, TorchCompiled

from gpuhash.signatures import SIGNATURES

INTRODUCTION = (
    "Every call has one name and one meaning in all faces of a table, or a face says why it has not got it. A name in",
    "a cell is what the call is named there. The call's keys come first, then what the list of its parameters names;",
    "`setitem`, `getitem`, `has`, `delete` and `size` are written `table[keys] = values`, `table[keys]`,",
    "`key in table`, `del table[keys]` and `len(table)`.",
    "",
    "The page is made by `python -m contract.table > ../docs/reference/calls.md` in the folder of the tests, from the",
    "manifest (gpuhash/signatures.py) and what each face lacks (tests/contract/faces.py).",
)


def gives(call: str) -> str:
    """What it takes after the keys, and what it answers."""
    if call not in SIGNATURES or SIGNATURES[call].request == "whole":
        return ""
    signature = SIGNATURES[call]
    takes = f"({', '.join(signature.takes)}) " if signature.takes else ""
    return f"{takes}{', '.join(signature.answers) or '-'}"


def table_of_calls() -> str:
    faces = [face for face in FACES.values() if face not in (OnGpu, OfWideKeys, OfWideKeysOverShards, TorchCompiled)]
    reasons: list[str] = []

    def cell(face: type[Face], call: str) -> str:
        lack = face.lacks.get(call)
        if lack is None:
            own = face.own_name(call)
            return "yes" if own in (call, Face.own_name(call)) else f"`{own}`"
        if lack.why not in reasons:
            reasons.append(lack.why)
        return f"{'to come' if lack.hole else 'no'} ({reasons.index(lack.why) + 1})"

    lines = ["# Calls by face", "", *INTRODUCTION, ""]
    lines += ["| call | gives | " + " | ".join(face.name for face in faces) + " |", "|---" * (len(faces) + 2) + "|"]
    lines += [
        f"| `{call}` | {gives(call)} | " + " | ".join(cell(face, call) for face in faces) + " |" for call in CALLS
    ]
    lines += ["", *(f"{number}. {why}" for number, why in enumerate(reasons, 1))]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table_of_calls(), end="")
