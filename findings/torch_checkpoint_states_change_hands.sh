#!/usr/bin/env bash
# torch 2.13.0 on a CPU: set_model_state_dict(full_state_dict=True) of a model under fully_shard puts DTensors into the
# dict that it is given, so that a second model cannot load the same dict. And a checkpoint that does not fit raises a
# CheckpointException, which is no Exception: `except Exception` does not catch it.
# Seen: before Tensor, after DTensor, second model RuntimeError; is an Exception: False
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
fully_shard(model)
state = {name: tensor.clone() for name, tensor in torch.nn.Linear(3, 2).state_dict().items()}
before = type(state["weight"]).__name__
set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))
after = type(state["weight"]).__name__
try:
    other.load_state_dict(state)
    second = "no error"
except RuntimeError as error:
    second = type(error).__name__
dist.destroy_process_group()
print(f"before {before}, after {after}, second model {second}; is an Exception: {issubclass(CheckpointException, Exception)}")
assert (before, after, second) == ("Tensor", "DTensor", "RuntimeError")
assert not issubclass(CheckpointException, Exception)
PY
