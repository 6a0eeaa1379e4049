"""Embeddings in ``torch.distributed.checkpoint``, which loads into tensors that are there.

A new embedding's are empty, so its loader has to be told which ones take the lengths that were saved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from .embedding import _OPTIONAL, _Rows

__all__ = ["LoadPlanner"]

_WRAPPERS = ("module", "_orig_mod")  # of DistributedDataParallel and torch.compile, which checkpoints leave out


class LoadPlanner(DefaultLoadPlanner):  # type: ignore[misc]
    """The planner with which ``torch.distributed.checkpoint.load`` loads models that have embeddings.

    >>> dcp.load({"model": model}, checkpoint_id=path, planner=LoadPlanner(model))  # doctest: +SKIP

    The tensors of the model's embeddings get the lengths that were saved; all others have to fit. Also with the state
    that ``get_model_state_dict`` or ``model.state_dict()`` gives, which then goes into the model by
    ``set_model_state_dict`` or ``load_state_dict``. ``torch.distributed.checkpoint.save`` takes a tensor that several
    ranks have from one of them: where each trains rows of its own, each has to save a checkpoint of its own.

    Parameters
    ----------
    model
        Whose state is loaded.
    **options
        As of ``DefaultLoadPlanner``.

    Raises
    ------
    ValueError
        By ``load``, where the checkpoint has frozen ids, and the state that is loaded into has no entry for them and
        is no model's.
    """

    def __init__(self, model: torch.nn.Module, **options: Any) -> None:
        super().__init__(**options)
        names = (name for name, module in model.named_modules() if isinstance(module, _Rows))
        plain = (".".join(part for part in name.split(".") if part not in _WRAPPERS) for name in names)
        self._prefixes = [f"{name}." if name else "" for name in plain]

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        super().set_up_planner(state_dict, metadata, is_coordinator)
        saved = {} if metadata is None else metadata.state_dict_metadata
        for fqn in [each for each in self.state_dict if self._is_keys(each)]:
            self._fit(fqn.removesuffix("keys"), saved)

    def _is_keys(self, fqn: str) -> bool:
        return any(fqn == f"{prefix}keys" or fqn.endswith(f".{prefix}keys") for prefix in self._prefixes)

    def _fit(self, prefix: str, saved: dict[str, Any]) -> None:
        """Gives one embedding's entries the lengths that were saved."""
        device = self.state_dict[f"{prefix}keys"].device
        names = {fqn for fqn in {*self.state_dict, *saved} if fqn.startswith(prefix) and "." not in fqn[len(prefix) :]}
        for fqn in names:
            name, entry, there = fqn[len(prefix) :], self.state_dict.get(fqn), saved.get(fqn)
            if there is None and name in _OPTIONAL:
                del self.state_dict[fqn]  # the module's own stays
            if not isinstance(there, TensorStorageMetadata):
                continue
            if entry is None and name == "frozen":
                self._add(fqn, prefix, torch.empty(there.size, dtype=there.properties.dtype, device=device))
            elif isinstance(entry, torch.Tensor) and entry.dim() and entry.shape[1:] == there.size[1:]:
                self._put(fqn, torch.empty(there.size, dtype=entry.dtype, device=entry.device))

    def _add(self, fqn: str, prefix: str, tensor: torch.Tensor) -> None:
        path = self._path_of(f"{prefix}keys")
        if len(path) < 2:  # of these load() gives back no more than it was given
            raise ValueError(
                f"the checkpoint has {fqn}, and the state that is loaded into has not: give load() the model itself, "
                f"as {{'model': model}}, or put an empty tensor of int64 there"
            )
        self.mappings[fqn] = (*path[:-1], f"{str(path[-1]).removesuffix('keys')}frozen")
        self._put(fqn, tensor)

    def _path_of(self, fqn: str) -> tuple[Any, ...]:
        """Where an entry lies in the nested state that is loaded into."""
        return tuple(self.mappings[fqn]) if self.flatten_state_dict else (fqn,)

    def _put(self, fqn: str, tensor: torch.Tensor) -> None:
        self.state_dict[fqn] = tensor
        *outer, last = self._path_of(fqn)
        container: Any = self.original_state_dict
        for part in outer:
            container = container[part]
        container[last] = tensor
