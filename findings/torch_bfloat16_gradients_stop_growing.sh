#!/usr/bin/env bash
# torch 2.13.0 on a CPU: the gradient of a row of nn.Embedding in bfloat16 is summed in bfloat16, one addition after the
# other, so that an id which comes 5000 times with gradient 1 gets 256; sparse gradients, index_add_ and coalesce() are
# the same. The same numbers summed by torch.sum, or by embedding_bag's forward pass, give 4992.
# Seen: dense 256.0, sparse 256.0, index_add_ 256.0, sum 4992.0, embedding_bag 4992.0
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import torch

ids, ones = torch.zeros(5000, dtype=torch.long), torch.ones(5000, dtype=torch.bfloat16)


def gradient(sparse):
    table = torch.nn.Embedding(1, 1, sparse=sparse, dtype=torch.bfloat16)
    table(ids).sum().backward()
    return (table.weight.grad.coalesce().values() if sparse else table.weight.grad).item()


seen = {
    "dense": gradient(False),
    "sparse": gradient(True),
    "index_add_": torch.zeros(1, dtype=torch.bfloat16).index_add_(0, ids, ones).item(),
    "sum": ones.sum().item(),
    "embedding_bag": torch.nn.functional.embedding_bag(ids[None], ones[:1, None], mode="sum").item(),
}
print(", ".join(f"{name} {value}" for name, value in seen.items()))
assert list(seen.values()) == [256.0, 256.0, 256.0, 4992.0, 4992.0]
PY
