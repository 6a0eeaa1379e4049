"""The table of calls by face, as Markdown."""

from __future__ import annotations

from contract.faces import CALLS, FACES, Face, OnGpu, TorchCompiled


def table_of_calls() -> str:
    faces = [face for face in FACES.values() if face not in (OnGpu, TorchCompiled)]
    reasons: list[str] = []

    def cell(face: type[Face], call: str) -> str:
        lack = face.lacks.get(call)
        if lack is None:
            own = face.own_name(call)
            return "yes" if own in (call, Face.own_name(call)) else f"`{own}`"
        if lack.why not in reasons:
            reasons.append(lack.why)
        return f"{'to come' if lack.hole else 'no'} ({reasons.index(lack.why) + 1})"

    lines = ["# Calls by face", ""]
    lines += ["Made by `python -m contract.table > contract/calls.md` in the folder of the tests.", ""]
    lines += ["| call | " + " | ".join(face.name for face in faces) + " |", "|---" * (len(faces) + 1) + "|"]
    lines += [f"| {call} | " + " | ".join(cell(face, call) for face in faces) + " |" for call in CALLS]
    lines += ["", *(f"{number}. {why}" for number, why in enumerate(reasons, 1))]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table_of_calls(), end="")
