#!/usr/bin/env bash
# torch 2.13.0 on a CPU: a custom op that writes to an argument and returns a list of tensors, "(Tensor(a!) state, Tensor
# keys) -> Tensor[]", works eagerly, and torch.compile refuses it, as its *output* had alias annotations, which it has
# not. The same op with one tensor as its result compiles, and so does one that writes to the tensors of a list.
# Seen: eager [1, 2, 3]; one tensor [1, 2, 3]; a list of written ones [1, 2, 3]; a list as the result RuntimeError: Found
# a custom (non-ATen) operator whose output has alias annotations
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import torch

library = torch.library.Library("finding", "DEF")


def define(name, schema, function, fake):
    library.define(f"{name}{schema}")
    library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"finding::{name}", fake)
    return getattr(torch.ops.finding, name)


def write(state, keys):
    state.add_(keys.sum())
    return keys + 1


many = define("many", "(Tensor(a!) state, Tensor keys) -> Tensor[]",
              lambda state, keys: [write(state, keys)], lambda state, keys: [torch.empty_like(keys)])
one = define("one", "(Tensor(a!) state, Tensor keys) -> Tensor", write, lambda state, keys: torch.empty_like(keys))
listed = define("listed", "(Tensor(a!)[] written, Tensor keys) -> Tensor",
                lambda written, keys: write(written[0], keys), lambda written, keys: torch.empty_like(keys))
state, keys = torch.zeros(1, dtype=torch.int64), torch.arange(3)


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True)(state, keys).tolist()


assert many(state, keys)[0].tolist() == [1, 2, 3]
assert compiled(lambda state, keys: one(state, keys)) == [1, 2, 3]
assert compiled(lambda state, keys: listed([state], keys)) == [1, 2, 3]
assert state.item() == 9, state
try:
    compiled(lambda state, keys: many(state, keys)[0])
except Exception as error:
    text = str(error)
else:
    text = "it compiles"
print(text.splitlines()[1][:120] if "\n" in text else text)
assert "operator whose output has alias annotations" in text
PY
