"""Moving averages of models with embeddings."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.optim import swa_utils

from .dispatch import keep_dynamo_out

__all__ = ["AveragedModel"]


class AveragedModel(swa_utils.AveragedModel):  # type: ignore[misc]
    """``torch.optim.swa_utils.AveragedModel`` for models with embeddings of this package: averages rows, too.

    PyTorch's averages parameters, and rows of ids are none; it refuses such models by a ``TypeError``. Arguments as
    there. In ``update_parameters(model)`` each id's row is averaged with the model's, whatever its number; ids that are
    new get the model's row, and those that the model has erased go. It is done in float32, and takes time in proportion
    to all rows.
    """

    def update_parameters(self, model: torch.nn.Module) -> None:
        from .embedding import _Rows

        # Either of them may be wrapped by something that the other is not, as by DistributedDataParallel.
        ours, theirs = ([each for each in of.modules() if isinstance(each, _Rows)] for of in (self.module, model))
        if len(ours) != len(theirs):
            raise ValueError(f"the model has {len(theirs)} embeddings, and the one that was copied had {len(ours)}")
        pairs = list(zip(ours, theirs, strict=True))
        made = int(self.n_averaged)
        # By the numbers of rows, which differ between tables, PyTorch's own averages say nothing.
        kept = [None if each.optimizer is not None else each.weight.detach().clone() for each in ours]
        if any(True for _ in self.module.parameters()):
            super().update_parameters(model)
        else:  # PyTorch's averages of nothing fail
            self.n_averaged += 1
        for (mean, current), before in zip(pairs, kept, strict=True):
            if before is not None:
                mean.weight.detach().copy_(before)
            self._average_rows(mean, current, made)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _average_rows(self, ours: Any, theirs: Any, made: int) -> None:
        keys, columns = theirs.table.items(like="torch")
        keys, new = keys.to(ours.device), columns["weight"].to(ours.device)
        stale = ours.table.keys(like="torch")
        gone = ~theirs.table.contains(stale.to(theirs.device))
        ours.table.erase(stale[gone.to(ours.device)])
        if not len(keys):
            return
        known = ours.table.contains(keys)
        if made and bool(known.any()):
            new = new.clone()
            new[known] = self._averaged(ours.table[keys[known]]["weight"], new[known], made)
        ours.table[keys] = {"weight": new}

    def _averaged(self, old: Tensor, new: Tensor, made: int) -> Tensor:
        old, wide = old.float().contiguous(), new.float().contiguous()
        count = torch.tensor(made, dtype=torch.int64, device=old.device)
        if self.multi_avg_fn is not None:
            self.multi_avg_fn([old], [wide], count)
        elif self.avg_fn is not None:
            old = self.avg_fn(old, wide, count)
        else:
            old = old + (wide - old) / (made + 1)
        return old.to(new.dtype)


def refuse_copies_for_averages(what: str) -> None:
    """TypeError where PyTorch's AveragedModel copies a model: the rows of its copy would stay as they are."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code is swa_utils.AveragedModel.__init__.__code__:
            if not isinstance(frame.f_locals["self"], AveragedModel):
                raise TypeError(
                    f"torch.optim.swa_utils.AveragedModel was to average a model with a {what}, whose rows it does not "
                    "see: take gpuhash.torch.AveragedModel, with the same arguments"
                )
            return
        frame = frame.f_back


keep_dynamo_out([sys.modules[__name__]])
