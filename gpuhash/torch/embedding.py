"""HashEmbedding and HashEmbeddingBag: embeddings of any ids; rows appear as ids arrive, and train in backward()."""

from __future__ import annotations

import copy
import json
import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from gpuhash import HashSet, HashTable, initializers, unique
from gpuhash.arrays.arguments import flag_of
from gpuhash.arrays.dtypes import dtype_name
from gpuhash.initializers import Constant, Initializer, Normal
from gpuhash.optimizers import Optimizer
from gpuhash.tables.named_columns import Column

from . import averages, embedding_ops
from . import dispatch as traced
from .dispatch import keep_dynamo_out
from .state import plainly

__all__ = ["HashEmbedding", "HashEmbeddingBag"]

_WEIGHT = "weight"
_DTYPES = ("float32", "bfloat16")
_OF_TABLE = ("_anchor", "_binding", "_address")  # made anew with each table
_NO_ROW = -1
_NORM_EPS = 1e-7  # as in torch.nn.functional.embedding
_MOST_STEPS = 1 << 62  # that a state may say: after them there are as many to come
_SEEDS = 1 << 64
_OPTIONAL = ("seed", "frozen", "features")  # what a state may lack


class _Rows(torch.nn.Module):  # type: ignore[misc]
    """A table of weights and what the optimizer keeps; HashEmbedding and HashEmbeddingBag derive from it."""

    #: With ``optimizer=None`` the parameter, all rows of the table; otherwise None.
    weight: Any
    #: int64 ids (with ``features`` pairs of the feature's number and an id) to a column "weight" and the optimizer's.
    table: HashTable
    #: As ``requires_grad_`` has said.
    _trainable = True
    #: What ``.half()`` and its like have asked of calls; None: the weights' own dtype.
    _given_dtype: torch.dtype | None = None

    def __init__(
        self,
        embedding_dim: int,
        *,
        optimizer: Optimizer | None = None,
        initializer: Initializer | None = None,
        device: Any = None,
        dtype: Any = None,
        features: Sequence[str] | None = None,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        default: Any = None,
        capacity: int = 0,
        max_capacity: int | None = None,
    ) -> None:
        super().__init__()
        embedding_dim = _integer_of(embedding_dim, "embedding_dim", "1 or more", 1)
        if padding_idx is not None:
            padding_idx = _integer_of(padding_idx, "padding_idx", "an id of 64 bits", -(1 << 63), (1 << 63) - 1)
        if max_norm is not None:
            max_norm = _number_of(max_norm, "max_norm", "that is 0 or more", 0.0)
        norm_type = _number_of(norm_type, "norm_type", "such as 2.0")
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"optimizer={optimizer!r} was given, expected one of gpuhash.torch, such as Adam(lr=1e-3), or None for "
                "sparse gradients, which an optimizer of torch.optim gets by parameters()"
            )
        if optimizer is None and max_capacity is None:
            raise ValueError(
                "optimizer=None was given without max_capacity: rows are one parameter then, and optimizers of "
                "torch.optim keep what they know by its shape; give max_capacity=, or an optimizer of gpuhash.torch, "
                "with which the table grows"
            )
        name = dtype_name(torch.float32 if dtype is None else dtype)
        if name not in _DTYPES:
            raise TypeError(f"dtype={dtype!r} was given, expected float32 or bfloat16")
        if padding_idx is not None and features is not None:
            raise ValueError("padding_idx was given with features: give a feature's padding no position instead")
        self.embedding_dim = embedding_dim
        self._dtype: torch.dtype = getattr(torch, name)
        self._optimizer = optimizer
        self.features = None if features is None else list(features)
        self.padding_idx, self.max_norm, self.norm_type = padding_idx, max_norm, norm_type
        self._numbers = {feature: number for number, feature in enumerate(self.features or [])}
        if isinstance(features, str) or not all(isinstance(feature, str) for feature in self._numbers):
            raise TypeError(f"features={features!r} was given, expected a list of names")
        if len(self._numbers) != len(self.features or []):
            raise ValueError(f"features={features!r} was given, in which one comes twice")
        if optimizer is not None:
            optimizer.check_dim(embedding_dim)
        first = Normal() if initializer is None else initializer
        # A seed that was given holds; one that was drawn is the state's, see _load_from_state_dict.
        self._seed_was_drawn = not isinstance(first, Constant) and getattr(first, "seed", 0) is None
        if self._seed_was_drawn:
            first = initializers.with_seed(first, _draw_seed)
        weights = Column(name, (embedding_dim,), first)
        states = {} if optimizer is None else optimizer.columns(embedding_dim)
        self._table_options: dict[str, Any] = {
            "value_dtype": {_WEIGHT: weights, **states},
            "key_shape": () if features is None else (2,),
            "max_capacity": max_capacity,
        }
        self.register_parameter(_WEIGHT, None)
        self._frozen: HashSet | None = None
        self._steps = 0
        self._take(self._new_table(_device_name(device), capacity))
        row = None
        if default is not None:
            if hasattr(default, "__dlpack__") and not isinstance(default, (Tensor, np.ndarray)):
                # PyTorch would read it by an importer that believes whatever it is told.
                raise TypeError(f"default is a {type(default).__name__}, expected numbers, a tensor or a NumPy array")
            row = torch.as_tensor(default, dtype=self.dtype, device=self.device)
            row = row.expand(embedding_dim).clone()
        self.register_buffer("default", row, persistent=False)
        if padding_idx is not None:
            self.table[self._padding_key()] = {_WEIGHT: 0.0}

    @property
    def optimizer(self) -> Optimizer | None:
        """What trains the rows. Its numbers, such as ``lr``, may be set at any time; another one may take its place, if
        it keeps the same: a new Adam for an Adam, say. Otherwise a ValueError.
        """
        return self._optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer | None) -> None:
        said = f"optimizer={optimizer!r} was given to a {type(self).__name__} of {self._optimizer!r}"
        if self._optimizer is None or not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"{said}, expected an optimizer of gpuhash.torch, if the module has one, and None otherwise: make "
                "another module for other rows"
            )
        optimizer.check_dim(self.embedding_dim)
        kept, wanted = (each.columns(self.embedding_dim) for each in (self._optimizer, optimizer))
        if kept != wanted:
            raise ValueError(
                f"{said}: it keeps {_described(wanted)} for each row, and the table has {_described(kept)}; make "
                "another module with it, and put the weights there: keys, columns = old.table.items(); "
                'new.table[keys] = {"weight": columns["weight"]}'
            )
        self._optimizer = optimizer

    def _padding_key(self) -> Tensor:
        return self._flat(torch.tensor([self.padding_idx], dtype=torch.int64, device=self.device))

    # What a table does for the module ---------------------------------------------------------------------------------

    def _new_table(self, device: str, capacity: int = 0, seed: int | None = None) -> HashTable:
        if self.optimizer is None:
            capacity = self._table_options["max_capacity"]
        return HashTable("int64", **self._options_with(seed), device=device, capacity=capacity)

    def _options_with(self, seed: int | None) -> dict[str, Any]:
        """Of the table, whose weights are drawn with that seed; None: with the module's own."""
        if seed is None:
            return self._table_options
        columns = dict(self._table_options["value_dtype"])
        weights = columns[_WEIGHT]
        columns[_WEIGHT] = Column(weights.dtype, weights.shape, replace(weights.initial, seed=seed))
        return {**self._table_options, "value_dtype": columns}

    @property
    def _seed(self) -> int | None:
        """What new rows are drawn with; None where they are all alike."""
        seed: int | None = getattr(self._columns[_WEIGHT].initial, "seed", None)
        return seed

    def _take(self, table: HashTable, rows: Tensor | None = None) -> None:
        """The module's table from now on. With ``optimizer=None`` its rows stay where they are, and are the parameter;
        they get what is in ``rows``, if that is given.
        """
        self.table = table
        self._device = torch.device(table.device)
        self._set_anchor()
        self._binding = embedding_ops.Binding(self)
        if self.optimizer is not None:
            return
        memory = table.row_access.keep_in_place(_WEIGHT, like="torch")
        handed_out = len(table.column(_WEIGHT, like="torch"))
        self._address = memory.data_ptr()
        if rows is None:
            memory[handed_out:] = 0
        else:
            memory.copy_(rows)
        if self.weight is None:
            self.weight = torch.nn.Parameter(memory)
        else:
            self.weight.data = memory
            self._note_change()

    @property
    def _leaf(self) -> Tensor:
        """What autograd calls backward() for."""
        return self._anchor if self.optimizer is not None else self.weight

    @property
    def _learns(self) -> bool:
        """Is backward() of a call to do something?"""
        return torch.is_grad_enabled() and (self._leaf.requires_grad and (self.training or self.optimizer is None))

    @property
    def _inserts(self) -> bool:
        """Do ids that are new get rows, and does ``max_norm`` change any?"""
        return bool(self.training and self._leaf.requires_grad)

    @property
    def device(self) -> torch.device:
        """Where the table is."""
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights, and of what calls give, unless ``.half()`` and its like have asked for another one."""
        return self._dtype

    @traced.itself
    def _as_asked(self, given: Tensor) -> Tensor:
        return given if self._given_dtype is None else given.to(self._given_dtype)

    @property
    def _columns(self) -> dict[str, Column]:
        assert self.table.columns is not None
        return dict(self.table.columns)

    def __len__(self) -> int:
        """The number of ids that have a row. Waits."""
        return len(self.table)

    def __bool__(self) -> bool:
        """True, as of any module, also of one without rows."""
        return True

    def _set_anchor(self) -> None:
        """What makes autograd call backward(): a tensor that requires grad, keeps none, and is no parameter."""
        with torch.inference_mode(False):
            self._anchor = torch.zeros((), dtype=self.dtype, device=self.device, requires_grad=True)
            # Graphs give it zeros, in memory of a CUDA graph even, which would be added up.
            self._anchor.register_post_accumulate_grad_hook(_drop_gradient)
            self._anchor.requires_grad_(self._trainable)

    def _note_change(self) -> None:
        """The parameter has been written into, where autograd does not see it: a backward pass that saved it raises."""
        torch.autograd.graph.increment_version(self.weight)

    @traced.itself
    def _flat(self, ids: Any, feature: str | None = None) -> Tensor:
        """Keys of the table, checked."""
        if not isinstance(ids, Tensor):
            raise TypeError(f"ids are of type {type(ids).__name__}, expected a tensor of int64 or int32")
        if ids.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"ids are {ids.dtype}, expected int64 or int32")
        if ids.device != self.device:
            raise ValueError(
                f"ids are on {ids.device} and the rows on {self.device}: move one to the other; a module is not to be "
                "replicated to other devices, as DataParallel does, since its rows stay where they are"
            )
        flat = ids.detach().reshape(-1).to(torch.int64)
        if self.features is None:
            return flat
        if feature not in self._numbers:
            raise ValueError(f"ids of the feature {feature!r} were given, expected one of {self.features}")
        return torch.stack([torch.full_like(flat, self._numbers[feature]), flat], 1)

    def _find(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of keys, new ones while training, -1 for those without; and of those that are to be trained."""
        if self.optimizer is None and self.weight.data_ptr() != self._address:
            raise RuntimeError(
                "the tensor of the parameter is another than the rows' memory, in which ids are looked up; .data =, "
                "vector_to_parameters(), torch.func.functional_call(), and fully_shard() without ignored_params= put "
                "such a one in its place: write into the parameter instead, as weight.copy_() does under "
                "torch.no_grad(), or load a state_dict()"
            )
        if not self._inserts:
            rows = self.table.rows(keys)
            return rows, rows
        if self._learns:
            self._refuse_capture()
        rows, inserted = self.table.find_or_insert(keys)
        if self.optimizer is None and len(keys):
            has_written = self.max_norm is not None or self.device.type != "cpu"  # a GPU would have to be waited for
            if has_written or bool(inserted.any()):
                self._note_change()
        trained = rows
        if self.padding_idx is not None:
            trained = trained.masked_fill(keys == self.padding_idx, _NO_ROW)
        changed = rows
        if self._frozen is not None and self._has_frozen:
            frozen = self._frozen.contains(keys)
            trained, changed = (each.masked_fill(frozen, _NO_ROW) for each in (trained, rows))
        if self.max_norm is not None and len(rows):
            self.table[keys] = {_WEIGHT: self._within_norm(self._stored(rows), changed)}
        return rows, trained

    @property
    def _has_frozen(self) -> bool:
        return self._frozen is not None and len(self._frozen) > 0

    @property
    def _scales_answers(self) -> bool:
        """Does ``max_norm`` hold for what is given, as rows stay as they are: in eval(), and of frozen ids?"""
        return self.max_norm is not None and (not self._inserts or self._has_frozen)

    def _read(self, rows: Tensor) -> Tensor:
        """Weights ``[n, embedding_dim]`` as calls give them; the default for -1."""
        stored = self._stored(rows)
        return self._within_norm(stored, rows) if self._scales_answers else stored

    def _stored(self, rows: Tensor) -> Tensor:
        """Weights ``[n, embedding_dim]`` as they are; the default for -1."""
        weights: Tensor = self.table.row_access.read(rows.detach(), _WEIGHT, default=self.default)
        return weights

    def _within_norm(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Those of rows whose norm is larger than ``max_norm``, scaled to it; others, and the default, as they are."""
        if self.max_norm is None:
            return weights
        norms = weights.norm(self.norm_type, -1, keepdim=True)
        scaled = weights * (self.max_norm / (norms + _NORM_EPS))
        return torch.where((norms > self.max_norm) & (rows >= 0).unsqueeze(1), scaled, weights)

    def _pool(self, rows: Tensor, offsets: Tensor, factors: Tensor | None) -> Tensor:
        """Sums of weights ``[bags, embedding_dim]``."""
        if self._scales_answers:
            bags = embedding_ops.bags_of(offsets, len(rows))
            weights = self._read(rows).float() * (1 if factors is None else factors.unsqueeze(1))
            out = torch.zeros(len(offsets) - 1, self.embedding_dim, dtype=torch.float32, device=self.device)
            return out.index_add_(0, bags, weights).to(self.dtype)
        factors = None if factors is None else factors.detach()
        sums: Tensor = self.table.row_access.pool(rows, offsets, factors, _WEIGHT, default=self.default, check=False)
        return sums

    def _refuse_capture(self) -> None:
        """RuntimeError where kernels go into a CUDA graph, which would make the same step at each replay."""
        if self.device.type != "cuda":
            return
        with torch.cuda.device(self.device):
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    f"a {type(self).__name__} was to train while a CUDA graph is captured, and the number of the step "
                    "and the learning rate, which the host knows, would be the same at each replay: train it outside "
                    "of the graph; lookups in eval(), or under torch.no_grad(), may be captured"
                )

    def _train(
        self,
        binding: embedding_ops.Binding,
        rows: Tensor,
        gradients: Tensor,
        bags: Tensor | None,
        factors: Tensor | None,
    ) -> Tensor | None:
        """A step of the optimizer on rows of the table that the module had with this binding, -1 passed over: position
        i has the gradient of its bag, times its factor. Without an optimizer: the gradient of the parameter.
        """
        self._refuse_capture()
        if binding is not self._binding:
            raise RuntimeError(
                "the module has been moved, or has loaded a state, between a call and its backward(): the rows of that "
                "call are not there any more; call backward() before"
            )
        if self.optimizer is None:
            return _sparse_gradient(self.weight.shape, rows, gradients, bags, factors)
        self.table.row_access.train(
            rows,
            gradients.detach(),
            self.optimizer,
            self._steps + 1,
            items=bags,
            factors=None if factors is None else factors.detach(),
            columns=[_WEIGHT, *self.optimizer.columns(self.embedding_dim)],
            check=False,
        )
        self._steps += 1
        return None

    # What users do with it --------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """How many steps the optimizer has made: one in each ``backward()`` of each call. 0 with ``optimizer=None``."""
        return self._steps

    def freeze(self, ids: Tensor, feature: str | None = None) -> None:
        """From now on the rows of these ids do not train, and ``max_norm`` does not scale them, but what calls give of
        them. Ids that have none yet get one that stays as it begins.

        ``state_dict`` says which ids are frozen, and ``load_state_dict`` goes by it. Where a state says nothing, as it
        was saved before any were, those of the module stay frozen.
        """
        if self._frozen is None:
            self._frozen = HashSet("int64", key_shape=self.table.key_shape, device=self.table.device)
        self._frozen.add(self._flat(ids, feature))

    def unfreeze(self, ids: Tensor, feature: str | None = None) -> None:
        """The reverse of ``freeze``; ids that are not frozen are passed over."""
        keys = self._flat(ids, feature)
        if self._frozen is not None:
            self._frozen.erase(keys)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """With False calls insert and train nothing, also in ``train()``, as those in ``eval()``; with True again.

        That of a model around the module asks parameters alone, and so reaches it only with ``optimizer=None``.
        """
        super().requires_grad_(requires_grad)
        self._trainable = requires_grad
        self._anchor.requires_grad_(requires_grad)
        return self

    def share_memory(self) -> Self:
        """Refused."""
        raise NotImplementedError(
            f"the memory of a {type(self).__name__} was to be shared with other processes, and its rows are of one: "
            "give each process a module of its own, as by state_dict() and load_state_dict()"
        )

    def extra_repr(self) -> str:
        given = [str(self.embedding_dim), f"optimizer={self.optimizer}", f"device={self.device}", f"dtype={self.dtype}"]
        more = {name: getattr(self, name) for name in ("features", "padding_idx", "max_norm")}
        return ", ".join([*given, *(f"{name}={value!r}" for name, value in more.items() if value is not None)])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves the table where ``.to()``, ``.cuda()`` or ``.cpu()`` move parameters.

        Where they change dtypes, as ``.half()`` does, rows stay what they are, and what calls give is converted: tables
        have their dtype for good, and a model must not stop halfway.
        """
        probe = fn(torch.zeros((), dtype=self._given_dtype or self.dtype, device=self.device))
        if not (probe.is_floating_point() or probe.is_complex()):
            raise TypeError(
                f"a {type(self).__name__} was to give {probe.dtype}, expected a floating-point dtype, as by .half()"
            )
        if probe.device.type == "cpu" and probe.is_shared():  # share_memory() of a model around it
            self.share_memory()
        # The rows' parameter moves with the table, and both keep their dtype.
        weight, default = self._parameters.pop(_WEIGHT), self._buffers.pop("default")
        try:
            super()._apply(fn, recurse)
        finally:
            self._parameters[_WEIGHT], self._buffers["default"] = weight, default
        if default is not None:
            self._buffers["default"] = default.to(probe.device)
        self._given_dtype = None if probe.dtype == self.dtype else probe.dtype
        if probe.device != self.device:
            gradient = None if weight is None or weight.grad is None else weight.grad.to(probe.device)
            table = self.table.to(str(probe.device))
            if self._frozen is not None:
                self._frozen = self._frozen.to(str(probe.device))
            if gradient is not None:
                weight.grad = None
            self._take(table)
            if gradient is not None:
                weight.grad = gradient
        return self

    def __copy__(self) -> Self:
        """As ``copy.deepcopy``: a table is one module's, and so is the parameter, which is its memory."""
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if self._trainable:
            averages.refuse_copies_for_averages(type(self).__name__)
        made = memo[id(self)] = type(self).__new__(type(self))
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return made

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name not in _OF_TABLE}
        if self.optimizer is None:  # a table that is pickled numbers its rows anew, and the parameter has them in order
            del state["table"]
            state["_numbers_of_rows"] = self._row_numbers()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        numbers = state.pop("_numbers_of_rows", None)
        super().__setstate__(state)
        if numbers is None:
            self._take(self.table)
        else:
            keys, rows = numbers
            self._take(self._table_with_rows(keys, rows, str(self.weight.device)), self.weight.data)

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def _row_numbers(self) -> tuple[Tensor, Tensor]:
        """Keys and the numbers of their rows."""
        keys = self.table.keys(like="torch")
        return keys, self.table.rows(keys)

    def _table_with_rows(self, keys: Tensor, rows: Tensor, device: str, seed: int | None = None) -> HashTable:
        """A table of these keys, with rows of these numbers, which hold anything."""
        table = self._new_table(device, seed=seed)
        keys, rows = keys.to(device).contiguous(), rows.to(device).contiguous()
        table.row_access.restore(keys, rows)
        return table

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Keys and their columns, in one order, the number of steps, the seed that new rows are drawn with, frozen ids
        and the names of features. With ``optimizer=None`` the parameter, keys and the numbers of their rows. All are
        contiguous.
        """
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.optimizer is None:
            destination[f"{prefix}keys"], destination[f"{prefix}rows"] = self._row_numbers()
            if not keep_vars:  # rows may lie further apart than they are long
                destination[prefix + _WEIGHT] = destination[prefix + _WEIGHT].contiguous()
        else:
            destination[f"{prefix}keys"], columns = self.table.items(like="torch")
            for name, column in columns.items():
                destination[prefix + name] = column.contiguous()
            destination[f"{prefix}steps"] = _scalar(self._steps)
        if self._seed is not None:
            destination[f"{prefix}seed"] = _scalar(self._seed)
        if self._frozen is not None:
            destination[f"{prefix}frozen"] = self._frozen.keys(like="torch")
        if self.features is not None:  # by whose numbers keys go
            destination[f"{prefix}features"] = _text(self.features)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """A new table of these keys takes the place of the one before. Where something does not fit, or there is no
        memory, all is as it was.
        """
        is_parameter = self.optimizer is None
        names = ["keys", "rows", _WEIGHT] if is_parameter else ["keys", *self._columns, "steps"]
        ours = {f"{prefix}{name}" for name in (*names, *_OPTIONAL)}
        weight = self._parameters.pop(_WEIGHT)  # not to be looked for, nor written before all is known to fit
        try:
            super()._load_from_state_dict(
                {name: value for name, value in state_dict.items() if name not in ours},
                prefix,
                local_metadata,
                strict,
                missing_keys,
                unexpected_keys,
                error_msgs,
            )
        finally:
            self._parameters[_WEIGHT] = weight
        missing = [name for name in names if prefix + name not in state_dict]
        if missing:
            missing_keys.extend(prefix + name for name in missing)
            if len(missing) < len(names):  # not even strict=False may take half of it
                error_msgs.append(
                    f"{prefix or 'the state'} has no {', '.join(missing)}, which a {type(self).__name__} of "
                    f"{self.optimizer} needs: it is of a module with another optimizer, or has lost a part; nothing "
                    f"was loaded here. Weights alone go into a new module by table[keys] = {{{_WEIGHT!r}: weights}}"
                )
            return
        state = {name: state_dict[prefix + name] for name in (*names, *_OPTIONAL) if prefix + name in state_dict}
        if state.get("frozen") is None:  # said by hand, or by nobody
            state.pop("frozen", None)
        wrong = self._misfits(state)
        error_msgs.extend(f"{prefix}{each}" for each in wrong)
        if error_msgs:
            return
        seed = int(state["seed"]) % _SEEDS if self._seed_was_drawn and "seed" in state else None
        here = {
            name: tensor.detach().to(self.device)
            for name, tensor in state.items()
            if isinstance(tensor, Tensor) and name not in ("seed", "steps", "features")
        }
        if self.features is not None and "features" in state:
            saved = _names_of(state["features"]) or []
            for name in {"keys", "frozen"} & here.keys():
                here[name] = self._renumbered(here[name], saved, prefix + name)
        keys, rows, frozen = here["keys"], None, self._frozen
        count, device = len(keys), self.table.device
        if is_parameter:
            numbers, rows = here["rows"], here[_WEIGHT]
            if count and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(rows):
                raise ValueError(
                    f"{prefix}rows has numbers from {int(numbers.min())} to {int(numbers.max())}, expected some from 0 "
                    f"to {len(rows) - 1}, as the parameter has {len(rows)} rows"
                )
            table = self._table_with_rows(keys, numbers, device, seed)
        else:
            table = self._new_table(device, seed=seed)
            table.reserve(count)
            if count:
                table[keys] = {name: here[name] for name in self._columns}
            if len(table) != count:
                raise ValueError(f"{prefix}keys has {count} keys, {count - len(table)} of which were there before")
        if self.padding_idx is not None:  # the state may be of a module without
            number, is_new = table.find_or_insert(self._padding_key(), {_WEIGHT: 0.0})
            if rows is not None and bool(is_new):
                rows = rows.index_fill(0, number, 0)
        if "frozen" in here:
            frozen = HashSet("int64", key_shape=table.key_shape, device=device)
            frozen.add(here["frozen"])
        self._take(table, rows)
        self._frozen = frozen
        self._table_options = self._options_with(seed)
        self._steps = 0 if is_parameter else int(state["steps"])

    def _renumbered(self, keys: Tensor, saved: list[str], what: str) -> Tensor:
        """Keys by the module's numbers of features, of those by the numbers of these names."""
        numbers, ids = keys.unbind(1)
        if len(keys) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(saved):
            raise ValueError(f"{what} has numbers of features that there are not: the state has {len(saved)} features")
        ours = torch.tensor([self._numbers[name] for name in saved], dtype=torch.int64, device=keys.device)
        return torch.stack([ours[numbers], ids], 1)

    def _misfits(self, state: Mapping[str, Any]) -> list[str]:
        """What is wrong with the entries of a state, each by itself."""
        expected: dict[str, tuple[str, tuple[int, ...]]] = dict.fromkeys(("steps", "seed"), ("int64", ()))
        count = _length(state["keys"])
        expected.update(keys=("int64", (count, *self.table.key_shape)), rows=("int64", (count,)))
        if "frozen" in state:
            expected["frozen"] = ("int64", (_length(state["frozen"]), *self.table.key_shape))
        if "features" in state:
            expected["features"] = ("uint8", (_length(state["features"]),))
        if self.optimizer is None:
            expected[_WEIGHT] = (self._columns[_WEIGHT].dtype, tuple(self.weight.shape))
        else:
            expected.update((name, (column.dtype, (count, *column.shape))) for name, column in self._columns.items())
        wrong = []
        for name, given in state.items():
            dtype, shape = expected[name]
            if type(given) is int and not shape:
                continue
            if not isinstance(given, Tensor):
                found = f"a {type(given).__name__}"
            elif given.is_meta or given.layout != torch.strided:
                found = "a tensor without data" if given.is_meta else f"a tensor of layout {given.layout}"
            elif given.dtype != getattr(torch, dtype) or given.shape != shape:
                found = f"{given.dtype} of shape {tuple(given.shape)}"
            else:
                continue
            wrong.append(f"{name} is {found}, expected {dtype} of {shape}")
        if "steps" in state and not wrong and not 0 <= int(state["steps"]) <= _MOST_STEPS:
            wrong.append(f"steps is {int(state['steps'])}, expected a number from 0 to 2^62")
        if "features" in state and not wrong and self.features is not None:
            saved = _names_of(state["features"])
            if saved is None or not set(saved) <= set(self.features):
                wrong.append(f"features are {saved or 'no list of names'}, and the module has {self.features}")
        return wrong

    def _fqn_modifiers(self) -> dict[str, str]:
        """For torch.distributed.checkpoint.state_dict, which looks for what a state names among a module's attributes:
        in which of them these are.
        """
        return dict.fromkeys(vars(self._in_state), "_in_state")

    @property
    def _in_state(self) -> SimpleNamespace:
        return SimpleNamespace(**dict.fromkeys(["keys", "rows", "steps", *_OPTIONAL, *self._columns]))


def _sparse_gradient(
    shape: Sequence[int], rows: Tensor, gradients: Tensor, bags: Tensor | None, factors: Tensor | None
) -> Tensor:
    """Of a parameter of this shape: each row once, duplicates summed up in float32."""
    kept = rows >= 0
    if not bool(kept.all()):  # whatever the module does by now, the call may have been one in eval()
        rows, factors = rows[kept], None if factors is None else factors[kept]
        if bags is None:
            gradients = gradients[kept]
        else:
            bags = bags[kept]
    distinct, inverse = unique(rows, return_inverse=True)
    dtype = gradients.dtype
    gradients = (gradients if bags is None else gradients[bags]).float()
    if factors is not None:
        gradients = gradients * factors.unsqueeze(1)
    sums = gradients.new_zeros((len(distinct), shape[1])).index_add_(0, inverse, gradients)
    return torch.sparse_coo_tensor(distinct.unsqueeze(0), sums.to(dtype), tuple(shape), check_invariants=False)


def _drop_gradient(anchor: Tensor) -> None:
    anchor.grad = None


class _DerivedOnce(torch.autograd.Function):  # type: ignore[misc]
    """A tensor that depends on others in a way that has no derivatives here.

    Unlike ``once_differentiable``, which leads to no input: derivatives by one that it was made from would be None, and
    losses that add it to others would lack its part.
    """

    @staticmethod
    def forward(ctx: Any, made: Tensor, *_sources: Tensor) -> Tensor:
        return made.detach()

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> None:
        raise RuntimeError(
            "a gradient that a HashEmbedding or HashEmbeddingBag has given was to be differentiated once more, by its "
            "rows, and their optimizers take first derivatives alone: leave create_graph=True out, or take derivatives "
            "by other tensors"
        )


def _derived_once(made: Tensor, *sources: Tensor) -> Tensor:
    if not torch.is_grad_enabled() or not any(source.requires_grad for source in sources):
        return made
    marked: Tensor = _DerivedOnce.apply(made, *sources)
    return marked


def _has_tangent(tensor: Tensor) -> bool:
    return torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None


@torch.no_grad()  # type: ignore[untyped-decorator]
def _train(ctx: Any, rows: Tensor, gradients: Tensor, bags: Tensor | None, factors: Tensor | None) -> Tensor | None:
    """As the module's own; the module may be gone by now."""
    module = ctx.binding.module()
    if module is not None:
        gradient: Tensor | None = module._train(ctx.binding, rows, gradients, bags, factors)
        return gradient
    if ctx.shape:  # the parameter's, which others may keep
        return _sparse_gradient(ctx.shape, rows, gradients, bags, factors)
    if ctx.binding.table() is not None:
        raise RuntimeError(
            "the module was freed between a call and its backward(), and its table was not: keep the module, which has "
            "the number of steps that the optimizer has made"
        )
    return None


class _Lookup(torch.autograd.Function):  # type: ignore[misc]
    """Weights of rows, in parts; backward trains them, or gives the parameter's gradient.

    A node of autograd knows the module by its binding alone, which does not keep it: where a module keeps its own
    output, as hooks do, Python could not free the two.
    """

    @staticmethod
    def forward(
        ctx: Any, leaf: Tensor, module: _Rows, rows: Tensor, trained: Tensor, counts: list[int]
    ) -> tuple[Tensor, ...]:
        ctx.binding, ctx.shape, ctx.counts = module._binding, leaf.shape, counts
        ctx.save_for_backward(trained)
        ctx.set_materialize_grads(False)  # rows of parts that a loss does not use make no step
        return embedding_ops.in_parts(module._read(rows), counts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None, None, None]:
        (trained,) = ctx.saved_tensors
        used = [pair for pair in zip(trained.split(ctx.counts), gradients, strict=True) if pair[1] is not None]
        of_leaf = None
        if used:
            rows, given = (each[0] if len(used) == 1 else torch.cat(each) for each in zip(*used, strict=True))
            of_leaf = _train(ctx, rows, given, None, None)
            if of_leaf is not None:
                of_leaf = _derived_once(of_leaf, given)
        return of_leaf, None, None, None, None


class _Pooled(torch.autograd.Function):  # type: ignore[misc]
    """Sums of weights by bags; backward as of ``_Lookup``, and with the derivatives of the samples' weights."""

    @staticmethod
    def forward(
        ctx: Any,
        leaf: Tensor,
        module: _Rows,
        rows: Tensor,
        trained: Tensor,
        offsets: Tensor,
        factors: Tensor | None,
    ) -> Tensor:
        ctx.binding, ctx.shape, ctx.leaf = module._binding, leaf.shape, leaf
        ctx.set_materialize_grads(False)
        held = factors is not None and ctx.needs_input_grad[5]
        ctx.save_for_backward(trained, offsets, factors, module._read(rows) if held else None)
        return module._pool(rows, offsets, factors)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor | None) -> tuple[Tensor | None, None, None, None, None, Tensor | None]:
        if gradients is None:
            return (None,) * 6
        trained, offsets, factors, weights = ctx.saved_tensors
        bags = embedding_ops.bags_of(offsets, len(trained))
        of_factors = None
        if weights is not None:
            of_factors = embedding_ops.factors_gradient(gradients, bags, _derived_once(weights, ctx.leaf))
        of_leaf = None
        if ctx.needs_input_grad[0] and (ctx.shape or embedding_ops.is_asked_for(ctx.leaf)):
            of_leaf = _train(ctx, trained, gradients, bags, factors)
            if of_leaf is not None:
                of_leaf = _derived_once(of_leaf, gradients, *(() if factors is None else (factors,)))
        return of_leaf, None, None, None, None, of_factors


class HashEmbedding(_Rows):
    """An embedding of any int64 ids, as ``torch.nn.Embedding`` without a number of rows: ids get one as they arrive.

    In ``train()`` ids that are new get rows, drawn by the initializer from the id alone; ``backward()`` sums up the
    gradients of each row and makes the optimizer's step on it at once, in one pass over the rows that have a gradient.
    So there is no ``.grad``, and no ``optimizer.step()`` for these rows: ``backward()`` through each call is a step.
    Gradients of other tensors, as by ``torch.autograd.grad()``, train nothing, and neither do parts of a call that the
    loss does not use.
    In ``eval()``, and when ``requires_grad_(False)`` of the module has been called, nothing is inserted and nothing
    trains; ids without a row get the default.

    With ``optimizer=None`` there are ``max_capacity`` rows, which are the parameter ``weight``, ``[rows,
    embedding_dim]``, by the numbers that ``table.rows(ids)`` gives. ``backward()`` gives it sparse gradients, with each
    row of a call once, for ``torch.optim.SparseAdam``, ``Adagrad`` or ``SGD``, also in ``eval()``, and waits for the
    number of these rows. Rows of no id are zeros. Calls that write into ``weight``, for ids that are new or because of
    ``max_norm``, count as changes of it in place, so that a backward pass that saved it raises; on a GPU all calls in
    ``train()`` count.

    Parameters
    ----------
    embedding_dim
        The number of weights of a row.
    optimizer
        ``gpuhash.torch.SGD``, ``Adagrad``, ``RowWiseAdagrad``, ``Adam`` or ``LAMB``. What it keeps lies in the row,
        beside the weights. Another one that keeps the same may take its place. Gradients are taken as they come:
        scaled losses (``GradScaler``) make scaled steps. None: sparse gradients, see above.
    initializer
        Of the weights of new rows, an object of ``gpuhash.initializers``; None: ``Normal()``, as ``nn.Embedding``, so
        that a model in which one takes the other's place trains as before. Where rows are multiplied by each other a
        smaller one, such as ``Normal(std=0.02)``, is better: products of standard normal rows have the standard
        deviation ``embedding_dim ** 0.5``. Without a seed one is drawn by PyTorch's generator, which
        ``torch.manual_seed`` sets; it is part of the state. One that is given holds.
    device
        Where the rows are; None: PyTorch's default device. One device.
    dtype
        Of the weights: float32, the default, or bfloat16. What the optimizer keeps is float32.
    features
        Names of features whose ids mean different things. Each has rows of its own, in one table; then the module is
        called with a mapping of features to ids. A state goes into modules that have its features, in any order.
    padding_idx
        An id whose row is zeros at first, and does not train.
    max_norm, norm_type
        Rows that are looked up while training and whose norm is larger are scaled to it, in place, as ``nn.Embedding``
        does. In ``eval()``, and of frozen ids, what is given is scaled, and nothing is changed.
    default
        In ``eval()`` what ids without a row get: a number or ``[embedding_dim]``; None: zeros.
    capacity, max_capacity
        Slots of the table to begin with, and at most; as of ``gpuhash.HashTable``. With ``optimizer=None`` the table
        has ``max_capacity`` slots and as many rows from the beginning, rounded up to whole buckets.

    Notes
    -----
    Called with ids, int64 or int32 of any shape on the module's device, it gives ``[*ids.shape, embedding_dim]``; with
    a mapping or sequence of such, the same of each, in one lookup. Nothing waits for a GPU but calls in which the
    table has to learn how many ids it has, or grows. Under ``torch.compile`` the call is a part of the graph; with
    ``optimizer=None`` the graph breaks there.

    ``.half()``, ``.double()`` and ``.to(dtype)`` convert what calls give; rows keep their dtype. Learning-rate
    schedulers take ``gpuhash.torch.FusedOptimizer(model)``. ``gpuhash.torch.AveragedModel`` averages rows, too;
    PyTorch's does not see them, and making one is a TypeError. ``gpuhash.torch.checkpoint`` is for
    ``torch.distributed.checkpoint``.

    ``table`` is the rows' ``gpuhash.HashTable``, with the column "weight" and the optimizer's. ``state_dict`` has keys,
    columns, the number of steps, the seed of new rows, frozen ids and the names of features; ``load_state_dict`` puts a
    table of them in place of the module's own. It takes all or nothing: a state that does not fit, that lacks what the
    optimizer keeps, or that has a key twice, is a RuntimeError or ValueError, and the module is as it was. With
    ``optimizer=None`` it has keys, the numbers of their rows, and the parameter, whose shape has to be the module's: so
    the state of an optimizer of ``torch.optim`` goes on fitting. What changes which rows keys have, ``table.erase``,
    ``clear`` and ``shrink_to_fit``, belongs behind ``backward()``: before that, a row of the call may become another
    key's, and get this one's step.

    Raises
    ------
    TypeError, ValueError
        For arguments that cannot be; for ids of other dtypes or on another device, and unknown features.
        TypeError while ``torch.export``, ``torch.jit.trace`` or ``torch.onnx`` makes a program, which cannot hold rows.
    TableFullError, MemoryError
        Where new ids find no room; no row has changed.
    RuntimeError
        By ``backward()``, where the module has been moved or has loaded a state since the call, or was freed while its
        table is kept; and by a second derivative by rows. By calls that are to train while a CUDA graph is captured,
        whose replays would all make the same step; lookups in ``eval()`` may be captured. With ``optimizer=None`` by
        calls, where the parameter has got another tensor, as by ``torch.func.functional_call``.
    NotImplementedError
        By ``share_memory()``, as rows are of one process.
    """

    def __init__(
        self,
        embedding_dim: int,
        *,
        optimizer: Optimizer | None = None,
        initializer: Initializer | None = None,
        device: Any = None,
        dtype: Any = None,
        features: Sequence[str] | None = None,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        default: Any = None,
        capacity: int = 0,
        max_capacity: int | None = None,
    ) -> None:
        super().__init__(
            embedding_dim,
            optimizer=optimizer,
            initializer=initializer,
            device=device,
            dtype=dtype,
            features=features,
            padding_idx=padding_idx,
            max_norm=max_norm,
            norm_type=norm_type,
            default=default,
            capacity=capacity,
            max_capacity=max_capacity,
        )

    @traced.itself
    def forward(self, ids: Any) -> Any:
        """Weights of the ids' rows."""
        _refuse_programs(self)
        names, parts = _parts_of(ids, self.features)
        keys = [self._flat(part, name if self.features is not None else None) for name, part in parts]
        counts = [len(each) for each in keys]
        found = self._look_up(keys[0] if len(keys) == 1 else torch.cat(keys), counts)
        pieces = [self._as_asked(piece) for piece in found]
        shaped = [piece.view(*part.shape, self.embedding_dim) for piece, (_, part) in zip(pieces, parts, strict=True)]
        return names(shaped)

    @traced.itself
    def _look_up(self, keys: Tensor, counts: list[int]) -> tuple[Tensor, ...]:
        """Weights ``[n, embedding_dim]``, so many in each part."""
        if torch.compiler.is_compiling() and self.optimizer is not None:
            return embedding_ops.look_up(self, keys, counts)
        rows, trained = self._find(keys)
        if not self._learns:
            return embedding_ops.in_parts(self._read(rows), counts)
        parts: tuple[Tensor, ...] = _Lookup.apply(self._leaf, self, rows, trained, counts)
        return parts


class HashEmbeddingBag(_Rows):
    """Sums or means of the rows of bags of ids, as ``torch.nn.EmbeddingBag``, with rows as of ``HashEmbedding``.

    Parameters
    ----------
    embedding_dim
        The number of weights of a row.
    mode
        "sum" or "mean". An empty bag gives zeros; ids of ``padding_idx`` count neither in sums nor in means.
    include_last_offset
        Offsets are ``[bags + 1]``: the last one, the number of ids, is where the last bag ends.
    optimizer, initializer, device, dtype, padding_idx, max_norm, norm_type, default, capacity, max_capacity
        As of ``HashEmbedding``. There are no ``features``: make a module for each.

    Notes
    -----
    Called with ids ``[bags, length]``, or with ids ``[n]`` and ``offsets [bags]``, where each bag begins, ascending
    from 0, it gives ``[bags, embedding_dim]``. Offsets may be on the CPU. ``per_sample_weights``, float32 of the shape
    of the ids and where they are, multiply the rows in sums, and get their derivatives; after ``.half()`` and its like
    they may have that dtype. Sums are added up in float32.

    Raises
    ------
    TypeError, ValueError
        As ``HashEmbedding``; for weights of another shape, or with means; and for offsets that do not begin with 0,
        descend or pass the ids; for offsets a RuntimeError in compiled graphs. On a GPU nobody looks at offsets: such
        ones give any sums.
    """

    def __init__(
        self,
        embedding_dim: int,
        mode: str = "mean",
        *,
        include_last_offset: bool = False,
        optimizer: Optimizer | None = None,
        initializer: Initializer | None = None,
        device: Any = None,
        dtype: Any = None,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        default: Any = None,
        capacity: int = 0,
        max_capacity: int | None = None,
    ) -> None:
        if mode not in ("sum", "mean"):
            raise ValueError(f"mode={mode!r} was given, expected 'sum' or 'mean'")
        super().__init__(
            embedding_dim,
            optimizer=optimizer,
            initializer=initializer,
            device=device,
            dtype=dtype,
            padding_idx=padding_idx,
            max_norm=max_norm,
            norm_type=norm_type,
            default=default,
            capacity=capacity,
            max_capacity=max_capacity,
        )
        self.include_last_offset = flag_of(include_last_offset, "include_last_offset")
        self.mode = mode

    @traced.itself
    def forward(self, ids: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Sums or means of the rows of each bag."""
        _refuse_programs(self)
        keys = self._flat(ids)
        ends = self._ends_of(ids, offsets)
        factors = self._factors_of(ids, keys, ends, per_sample_weights)
        return self._as_asked(self._look_up(keys, ends, factors))

    @traced.itself
    def _look_up(self, keys: Tensor, ends: Tensor, factors: Tensor | None) -> Tensor:
        """Sums ``[bags, embedding_dim]``."""
        if torch.compiler.is_compiling() and self.optimizer is not None:
            return embedding_ops.pool(self, keys, ends, factors)
        rows, trained = self._find(keys)
        pooled: Tensor
        if self._learns:
            pooled = _Pooled.apply(self._leaf, self, rows, trained, ends, factors)
        elif factors is not None and ((factors.requires_grad and torch.is_grad_enabled()) or _has_tangent(factors)):
            pooled = _Pooled.apply(self._leaf.detach(), self, rows, trained, ends, factors)
        else:
            pooled = self._pool(rows, ends, factors)
        return pooled

    @traced.itself
    def _ends_of(self, ids: Tensor, offsets: Tensor | None) -> Tensor:
        """Where each bag begins, and where the last one ends: int64 ``[bags + 1]``."""
        if ids.dim() == 2:
            if offsets is not None:
                raise ValueError("offsets were given with ids of two dimensions, whose rows are the bags")
            bags, length = ids.shape
            return torch.arange(bags + 1, device=self.device) * length
        if ids.dim() != 1 or offsets is None:
            raise ValueError(
                f"ids have {ids.dim()} dimensions{'' if offsets is not None else ', and there are no offsets'}: give "
                "ids [bags, length], or ids [n] and offsets [bags]"
            )
        if offsets.dim() != 1 or offsets.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"offsets are {offsets.dtype} of shape {tuple(offsets.shape)}, expected int64 or int32 [n]")
        begins = offsets.to(self.device, torch.int64)
        if self.include_last_offset:
            if not len(begins):
                raise ValueError("offsets are empty, and with include_last_offset=True the last one is where bags end")
            given, begins = begins, begins[:-1]
        else:
            given = begins
        ends = torch.cat([begins, begins.new_full((1,), len(ids))])
        if not len(begins):
            if len(ids):
                raise ValueError(f"there are {len(ids)} ids and no bags: offsets are empty")
            if not self.include_last_offset:
                return ends
        if ends.device.type == "cpu":  # a GPU would have to be waited for
            ascend = (ends[0] == 0) & (ends.diff() >= 0).all()
            if self.include_last_offset:
                ascend &= given[-1] == len(ids)
            if torch.compiler.is_compiling():
                torch._assert_async(ascend, "offsets do not ascend from 0 to at most the number of ids")
            elif not bool(ascend):
                most = "" if self.include_last_offset else "at most "
                raise ValueError(f"offsets do not ascend from 0 to {most}{len(ids)}, the number of ids")
        return ends

    @traced.itself
    def _factors_of(self, ids: Tensor, keys: Tensor, ends: Tensor, given: Tensor | None) -> Tensor | None:
        """By which each row is multiplied, float32 ``[n]``; None: 1."""
        if given is not None:
            if self.mode != "sum":
                raise ValueError("per_sample_weights were given for means: they are for mode='sum'")
            if given.shape != ids.shape or given.dtype not in (torch.float32, self._given_dtype):
                raise ValueError(
                    f"per_sample_weights are {given.dtype} of shape {tuple(given.shape)}, expected float32 of "
                    f"{tuple(ids.shape)}"
                )
            if given.device != self.device:
                raise ValueError(f"per_sample_weights are on {given.device} and the rows on {self.device}: move them")
            factors = given.reshape(-1).to(torch.float32)
            return factors if self.padding_idx is None else factors.masked_fill(keys == self.padding_idx, 0)
        if self.mode == "sum" and self.padding_idx is None:
            return None
        counted = torch.ones(len(keys), dtype=torch.float32, device=self.device)
        if self.padding_idx is not None:
            counted.masked_fill_(keys == self.padding_idx, 0)
        if self.mode == "sum":
            return counted
        bags = embedding_ops.bags_of(ends, len(keys))
        sizes = torch.zeros(len(ends) - 1, dtype=torch.float32, device=self.device).index_add_(0, bags, counted)
        return counted / sizes.clamp(min=1)[bags]


@traced.itself
def _parts_of(ids: Any, features: list[str] | None) -> tuple[Callable[[list[Tensor]], Any], list[tuple[Any, Tensor]]]:
    """What makes of one result for each part what the caller gets, and the parts with their names."""
    if isinstance(ids, Mapping):
        if not ids:
            raise ValueError("ids are an empty mapping: give one feature's or more")
        names = list(ids)
        return lambda made: dict(zip(names, made, strict=True)), list(ids.items())
    if features is not None:
        raise TypeError(f"ids are of type {type(ids).__name__}, expected a mapping of {features} to ids")
    if isinstance(ids, (list, tuple)):
        if not ids:
            raise ValueError("ids are an empty list: give one tensor or more")
        make = type(ids)._make if hasattr(ids, "_make") else type(ids)  # as of a namedtuple
        return make, [(None, each) for each in ids]
    return lambda made: made[0], [(None, ids)]


@traced.itself
def _refuse_programs(module: _Rows) -> None:
    """TypeError where a program is made that is to run without the module."""
    # torch.compiler.is_exporting() is True in everything that Dynamo of PyTorch 2.11 traces.
    if torch.compiler._is_exporting_flag or torch._C._get_tracing_state() is not None:
        raise TypeError(
            f"a {type(module).__name__} was called while torch.export, torch.jit.trace or torch.onnx makes a program, "
            "which cannot hold its rows: export the model behind it, and give that the weights; or put the weights "
            "that table.items() gives into a gpuhash.HashTable with a name, and export gpuhash.torch.TableModule of it"
        )


def _draw_seed() -> int:
    """By PyTorch's generator, so that torch.manual_seed() decides, whatever modes the module is made in."""
    with plainly():
        return int(torch.randint(0, (1 << 63) - 1, (), dtype=torch.int64, device="cpu"))


def _scalar(number: int) -> Tensor:
    """The 64 bits of a number, wherever PyTorch makes tensors by default."""
    with plainly():
        return torch.tensor(number - _SEEDS if number >= _SEEDS // 2 else number, dtype=torch.int64, device="cpu")


def _text(names: list[str]) -> Tensor:
    """As a tensor of bytes."""
    with plainly():
        return torch.tensor(list(json.dumps(names).encode()), dtype=torch.uint8, device="cpu")


def _names_of(text: Tensor) -> list[str] | None:
    """The reverse; None where it is something else."""
    try:
        names = json.loads(bytes(text.tolist()))
    except ValueError:
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def _length(given: Any) -> int:
    return len(given) if isinstance(given, Tensor) and given.dim() else 1


def _described(columns: Mapping[str, Column]) -> str:
    return ", ".join(f"{name} ({column})" for name, column in columns.items()) or "nothing"


def _integer_of(given: Any, name: str, kind: str, least: int, most: int | None = None) -> int:
    try:
        number = None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name}={given!r} was given, expected an integer: {kind}")
    if number < least or (most is not None and number > most):
        raise ValueError(f"{name}={given!r} was given, expected {kind}")
    return number


def _number_of(given: Any, name: str, kind: str, least: float = -math.inf) -> float:
    if isinstance(given, (bool, str, bytes)) or not hasattr(given, "__float__"):
        raise TypeError(f"{name}={given!r} was given, expected a number {kind}")
    number = float(given)
    if not number >= least:  # nor is NaN
        raise ValueError(f"{name}={given!r} was given, expected a number {kind}")
    return number


def _device_name(device: Any) -> str:
    if device is None:
        device = torch.get_default_device()
    if isinstance(device, int):
        device = torch.device("cuda", device)
    return str(device)


keep_dynamo_out([sys.modules[__name__]])
