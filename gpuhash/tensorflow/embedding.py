"""HashEmbedding: a Keras layer for embeddings of any ids; rows appear as ids arrive, and train with the gradient."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
import os
import uuid
import warnings
from collections.abc import Mapping
from types import FunctionType
from typing import Any, Self
from weakref import WeakValueDictionary

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import control_flow_util

from gpuhash import HashTable, _core, initializers, optimizers, unique
from gpuhash.arrays.arguments import count_of
from gpuhash.initializers import Initializer
from gpuhash.optimizers import Optimizer
from gpuhash.tables.named_columns import Column

from .asked_gradients import is_asked_for
from .eager import need_eager, wait_for_ops
from .keras_initializers import seeded_initializer
from .library import ops
from .rows_weight import RowsWeight

__all__ = ["HashEmbedding"]

_WEIGHT = "weight"
_DTYPES = ("float32", "bfloat16")
_NO_ROW = -1
_SIGN = 1 << 63
_ID_DTYPES = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
_CONTAINER = "gpuhash.embedding"
_numbers = itertools.count()
_schedule_numbers = itertools.count(1)
# All rows by their token, which the ops of a graph know: a graph that was loaded from a file has tokens of others.
_by_token: WeakValueDictionary[str, _Rows] = WeakValueDictionary()


class _Rows(tf.saved_model.experimental.TrackableResource):  # type: ignore[misc]
    """The table and the number of steps as TensorFlow's resource, which checkpoints and SavedModels hold."""

    def __init__(
        self,
        name: str,
        columns: dict[str, Column],
        optimizer: Optimizer,
        default: Any,
        capacity: int,
        max_capacity: int | None,
        device: str | None,
        padding_idx: int | None,
    ) -> None:
        super().__init__(device=device or "")
        self.name = name
        self.columns, self.optimizer, self._padding_idx = columns, optimizer, padding_idx
        self.dtype = tf.as_dtype(columns[_WEIGHT].dtype)
        self._default = np.zeros(0, np.float32) if default is None else default
        self._capacity, self._max_capacity = capacity, max_capacity
        self.anchor: Any = None  # the tf.Variable whose gradient is the step
        self.warned = False
        self._schedule: Any = None  # the last one
        self._schedule_number = 0
        self._number = next(_numbers)
        self.token = uuid.uuid4().hex
        _by_token[self.token] = self
        table_name = f"{_CONTAINER}/{os.getpid()}/{self._number}"
        with self.where():
            ops.gpuhash_embedding_register(self.resource_handle, table_name)  # for as long as it takes to find it
        try:
            wait_for_ops()
            core = _core.find_table(table_name)
            assert core is not None
            self.table = HashTable._open(core, None)
        finally:
            _core.unregister_table(table_name, None)
        self.optimizer_changed()
        optimizer.watch(self)

    def _create_resource(self) -> Any:
        """In a graph, which makes it anew in each run, by a name; otherwise it lives as long as its handles."""
        initials = [column.core_initial() or ("", 0.0, 0.0, 0, b"") for column in self.columns.values()]
        distributions, firsts, seconds, seeds, constants = zip(*initials, strict=True)
        return ops.gpuhash_embedding(
            tf.cast(self._default, self.dtype),
            tf.constant(list(zip(firsts, seconds, strict=True)), tf.float64),
            optimizer=self.optimizer._name,
            columns=list(self.columns),
            shapes=[column.shape for column in self.columns.values()],
            distributions=distributions,
            seeds=[(seed ^ _SIGN) - _SIGN for seed in seeds],  # the same bits as a signed number
            constants=constants,
            capacity=self._capacity,
            max_capacity=-1 if self._max_capacity is None else self._max_capacity,
            container=_CONTAINER,
            shared_name="" if tf.executing_eagerly() else f"embedding_{self._number}",
        )

    def _destroy_resource(self) -> None:
        # Of rows that live as long as their handles this does nothing.
        tf.raw_ops.DestroyResourceOp(resource=self.resource_handle, ignore_lookup_error=True)

    def where(self) -> Any:
        """A context in which ops are placed where the rows are."""
        return framework_ops.colocate_with(self.resource_handle)

    def optimizer_changed(self) -> None:
        schedule = self.optimizer.lr if callable(self.optimizer.lr) else None
        if schedule is not None and schedule is not self._schedule:
            self._schedule, self._schedule_number = schedule, next(_schedule_numbers)
        numbered = self.optimizer if schedule is None else dataclasses.replace(self.optimizer, lr=0.0)
        with tf.init_scope(), self.where():
            ops.gpuhash_embedding_set_optimizer(
                self.resource_handle,
                np.array(numbered.numbers()),
                self.optimizer.stochastic_rounding,
                np.uint64(self.optimizer.seed),
                0 if schedule is None else self._schedule_number,
            )

    def scheduled(self) -> tuple[Any, int]:
        """The learning rate of the next step as a tensor, and which schedule gave it; where there is none, 0."""
        schedule = self.optimizer.lr
        if not callable(schedule):
            return math.nan, 0
        with self.where():
            made = ops.gpuhash_embedding_steps(self.resource_handle)
        with tf.device("CPU:0"):  # both numbers are in the host's memory, and a GPU would have to be waited for
            if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
                made = tf.cast(made, tf.float32)  # functions of Python numbers multiply it by such
            rate = tf.cast(tf.convert_to_tensor(schedule(made)), tf.float64)
            return tf.reshape(rate, []), self._schedule_number

    def steps(self) -> int:
        with tf.init_scope(), self.where():
            return int(ops.gpuhash_embedding_steps(self.resource_handle))

    # What checkpoints and SavedModels call.

    def _serialize_to_tensors(self) -> dict[str, Any]:
        """Keys and their columns, in one order, and the number of steps."""
        dtypes = [tf.as_dtype(column.dtype) for column in self.columns.values()]
        with self.where():
            keys, columns, steps = ops.gpuhash_embedding_export(self.resource_handle, dtypes=dtypes)
        return {"keys": keys, **dict(zip(self.columns, columns, strict=True)), "steps": steps}

    def _restore_from_tensors(self, restored_tensors: Mapping[str, Any]) -> Any:
        """Puts these in the place of all rows; the operation, in a graph."""
        state = restored_tensors
        keys, columns = state["keys"], [state[name] for name in self.columns]
        with self.where():
            if self._padding_idx is not None:  # the state may be of a layer without
                is_absent = tf.reduce_all(tf.not_equal(keys, self._padding_idx))
                added = tf.cast(is_absent, tf.int32)
                keys = tf.concat([keys, tf.fill([added], tf.cast(self._padding_idx, tf.int64))], 0)
                columns = [tf.concat([rows, tf.zeros([added, *rows.shape[1:]], rows.dtype)], 0) for rows in columns]
            return ops.gpuhash_embedding_import(self.resource_handle, keys, columns, state["steps"])

    # What the layer's weight calls where it is copied.

    def rows_as_arrays(self) -> dict[str, np.ndarray]:
        """Keys and their columns, in one order, and the number of steps."""
        with tf.init_scope():
            return {name: tensor.numpy() for name, tensor in self._serialize_to_tensors().items()}

    def take_rows(self, store: Any) -> None:
        """Puts these rows in place of the layer's own. Where something does not fit, all is as it was."""
        names = ["keys", *self.columns, "steps"]
        missing = [name for name in names if name not in store]
        if missing:
            raise ValueError(
                f"the layer {self.name!r} was to load a state with {sorted(store.keys())}, which lacks {missing}: it "
                "is of another layer, or of another optimizer"
            )
        state = {name: np.asarray(store[name]) for name in names}
        expected: dict[str, tuple[str, tuple[int, ...]]] = {"keys": ("int64", ())}
        expected.update((name, (column.dtype, column.shape)) for name, column in self.columns.items())
        count = state["keys"].size
        for name, (dtype, shape) in expected.items():
            given = state[name]
            if given.dtype != tf.as_dtype(dtype).as_numpy_dtype or given.shape != (count, *shape):
                raise ValueError(
                    f"{name} of the state for the layer {self.name!r} is {given.dtype} of shape {given.shape}, "
                    f"expected {dtype} of {(count, *shape)}"
                )
        steps = state["steps"]
        if not np.issubdtype(steps.dtype, np.integer) or steps.shape != () or steps < 0:
            raise ValueError(
                f"steps of the state for the layer {self.name!r} are {steps!r}, expected one integer, 0 or more"
            )
        distinct = len(unique(state["keys"]))
        if distinct != count:
            raise ValueError(
                f"keys of the state for the layer {self.name!r} are {count}, of which {distinct} differ; expected each "
                "key once"
            )
        with tf.init_scope():
            self._restore_from_tensors(state)


@keras.saving.register_keras_serializable(package="gpuhash")
class HashEmbedding(keras.layers.Layer):  # type: ignore[misc]
    """An embedding of any integers, as ``keras.layers.Embedding`` without a number of rows: ids get one as they arrive.

    In training (``training=True``, as ``fit`` calls it) ids that are new get rows, drawn by the initializer from the id
    alone. The gradient of a call with respect to the layer's weight sums up the gradients of each row and makes the
    optimizer's step on it at once, in one pass over the rows that have a gradient: each ``tape.gradient()`` through a
    call is a step, so two of one persistent tape are two, and as many as there are micro-batches where gradients are
    accumulated. A tape that is never asked trains nothing, nor one that is asked for other weights alone, as in the
    generator's step of a GAN. With a tape around a call of a ``tf.function`` TensorFlow computes all gradients of the
    function, and rows train whatever was asked for; a warning says so. Rows whose gradient is zero make a step as well,
    as the sparse ones of PyTorch: what an optimizer has gathered goes on to move them. The step is a side effect: a
    gradient through it, to what the rows depend on by earlier steps, there is not.

    Outside of training, and where ``trainable`` is False, nothing is inserted and nothing trains; ids without a row get
    the default. Set ``trainable`` before ``compile()``, as of any layer; and let the ``call`` of a model of your own
    take ``training``, as for dropout, since Keras tells layers only through it. Where a call was not a training one,
    Keras warns that the layer's weight has no gradient.

    Parameters
    ----------
    embedding_dim
        The number of weights of a row; Keras' ``output_dim``. The names are those of ``gpuhash.torch.HashEmbedding``.
    optimizer
        ``gpuhash.tensorflow.SGD``, ``Adagrad``, ``RowWiseAdagrad``, ``Adam`` or ``LAMB``. What it keeps lies in the
        row, beside the weights. Its numbers may be set at any time, as by a callback, and nothing is traced anew:
        ``layer.optimizer.lr = 0.01``. A tensor or a variable is read once, when it is set. ``lr`` may also be a
        schedule of Keras, or a function of tensors, which gives the rate for the number of steps that the layer has
        made, 0 before the first one. ``lambda made: model.optimizer.learning_rate`` follows that of the model, and so
        its callbacks. A graph knows the schedule that there was when it was traced: set another one before
        ``compile()``. Gradients are taken as they come: what the model's own optimizer does to others, such as clipping
        and accumulating, is not done to these; nor is what a ``LossScaleOptimizer`` or ``loss_scale_factor=``
        multiplies losses by taken out of them, so do without.
    embeddings_initializer
        Of the weights of new rows: Keras' "uniform", which is the default as of ``keras.layers.Embedding`` (between
        -0.05 and 0.05), "normal", "truncated_normal", "zeros" or "ones"; an object of ``RandomUniform``,
        ``RandomNormal``, ``TruncatedNormal``, ``Zeros``, ``Ones`` or ``Constant``; or one of ``gpuhash.initializers``.
        Where it has no seed, the layer draws one as Keras does, which ``keras.utils.set_random_seed`` fixes. The
        configuration holds it: a clone, and a model that was loaded, draw the same rows. Weights and checkpoints hold
        rows alone: a layer that loads them draws those of ids that are new by its own seed.
    initializer
        Another name for the same, as of ``gpuhash.torch.HashEmbedding``.
    padding_idx
        An id whose row is zeros at first, and does not train. Then the layer gives a mask that is False there;
        ``mask_zero=True`` of Keras is ``padding_idx=0``.
    default
        What ids without a row get where nothing is inserted: a number or ``[embedding_dim]``; None: zeros.
    capacity, max_capacity
        Slots of the table to begin with, and at most; as of ``gpuhash.HashTable``.
    device
        TensorFlow's name of where the rows are, "GPU:0" for instance; by default where TensorFlow places them, on a GPU
        if there is one. As of ``tf.device``: where there is no such device, TensorFlow takes another, unless soft
        placement is off.
    **options
        Of every layer: ``name``, ``dtype``, ``trainable``, ``activity_regularizer``. Weights are float32 or bfloat16,
        as the dtype policy says; under "mixed_bfloat16" they are float32, and the layer gives bfloat16.

    Notes
    -----
    Called with ids, integers of any dtype and shape, it gives ``[*ids.shape, embedding_dim]``. Ids of uint64 from 2^63
    on are negative keys, with the same bits. Nothing waits for a GPU but calls in which the table has to learn how many
    ids it has, or grows. XLA cannot compile it: a model with such a layer Keras runs without.

    The rows are no Keras weights, which have shapes. The layer has one weight, without elements, that stands for them:
    Keras computes gradients only of models that have trainable weights. Copied as an array, as by ``get_weights`` and
    ``EarlyStopping(restore_best_weights=True)``, it is the bytes of all rows, and ``set_weights`` puts them back.
    Averages of weights, such as ``use_ema=True``, know nothing of the rows.

    ``table`` is the rows' ``gpuhash.HashTable``, with the column "weight" and the optimizer's. ``model.save`` in all
    formats, ``save_weights``, ``tf.train.Checkpoint`` and SavedModels (``model.export``) hold keys, columns and the
    number of steps; what loads them has these in place of its own rows. What changes which rows keys have,
    ``table.erase``, ``clear`` and ``shrink_to_fit``, belongs behind the gradient: before that, a row of the call may
    become another key's, and get this one's step.

    Raises
    ------
    TypeError, ValueError
        For arguments that cannot be, and ids of other dtypes.
    RuntimeError
        Where Keras runs on another backend than TensorFlow, with several replicas of a ``tf.distribute`` strategy, and
        in graphs of TensorFlow 1.
    NotImplementedError
        In functions that XLA compiles, for gradients of the layer's gradient, and for ``model.get_state_tree()``
        without ``value_format="numpy_array"``.
    tf.errors.ResourceExhaustedError
        Where new ids find no room; no row has changed.
    tf.errors.InvalidArgumentError
        By the gradient of a call, where the layer has loaded a state since, or the schedule has been exchanged since
        the graph was traced; and for rows that are too wide for the optimizer.
    """

    def __init__(
        self,
        embedding_dim: int,
        *,
        optimizer: Optimizer,
        embeddings_initializer: Any = None,
        initializer: Any = None,
        padding_idx: int | None = None,
        default: Any = None,
        capacity: int = 0,
        max_capacity: int | None = None,
        device: str | None = None,
        **options: Any,
    ) -> None:
        backend = keras.config.backend()
        if backend != "tensorflow":
            raise RuntimeError(
                f"gpuhash.tensorflow.HashEmbedding is a layer of Keras on TensorFlow, and Keras runs on {backend}: "
                "set KERAS_BACKEND=tensorflow before Keras is imported, or use gpuhash.torch.HashEmbedding in a model "
                "of PyTorch"
            )
        need_eager("a HashEmbedding")
        _refuse_replicas()
        super().__init__(**options)
        embedding_dim = _integer("embedding_dim", embedding_dim)
        if embedding_dim < 1:
            raise ValueError(f"embedding_dim={embedding_dim!r} was given, expected 1 or more")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"optimizer={optimizer!r} was given, expected one of gpuhash.tensorflow, such as Adam(lr=1e-3): rows "
                "appear while a model trains, and Keras' optimizers keep what they know by variables"
            )
        if initializer is not None and embeddings_initializer is not None:
            raise TypeError("embeddings_initializer= and initializer= were given, which are one argument: give one")
        if initializer is None:
            initializer = "uniform" if embeddings_initializer is None else embeddings_initializer
        if padding_idx is not None:
            padding_idx = _integer("padding_idx", padding_idx)
            if not -_SIGN <= padding_idx < _SIGN:
                raise ValueError(f"padding_idx={padding_idx} was given, expected an id that int64 holds")
        self._check_dtypes()
        self.embedding_dim = embedding_dim
        self.initializer = seeded_initializer(initializer)
        self.padding_idx = padding_idx
        self.supports_masking = padding_idx is not None
        self.supports_jit = False
        self.autocast = False
        self.capacity = count_of(capacity, "capacity")
        self.max_capacity = None if max_capacity is None else count_of(max_capacity, "max_capacity")
        self.device = device
        self._default = _default_row(default, embedding_dim)
        columns = {
            _WEIGHT: Column(self.variable_dtype, (embedding_dim,), self.initializer),
            **optimizer.columns(embedding_dim),
        }
        with tf.init_scope():
            self._rows = _Rows(
                self.name, columns, optimizer, self._default, self.capacity, self.max_capacity, device, padding_idx
            )
            if padding_idx is not None:
                self.table[padding_idx] = {_WEIGHT: 0.0}
            with tf.device(self._rows.resource_handle.device), keras.name_scope(self.name, caller=self):
                self._anchor = RowsWeight(self._rows)
        self._rows.anchor = self._anchor.value
        self.built = True

    def _check_dtypes(self) -> None:
        policy = self.dtype_policy
        if self.compute_dtype == "float16":
            raise TypeError(
                f"the layer's dtype policy is {policy.name}: Keras scales losses for float16, and rows would train "
                "with scaled gradients; use 'mixed_bfloat16', or float32 for the whole model"
            )
        if self.variable_dtype not in _DTYPES or self.quantization_mode is not None:
            raise TypeError(f"the layer's dtype policy is {policy.name}, expected float32, bfloat16 or mixed_bfloat16")

    # What Keras calls -------------------------------------------------------------------------------------------------

    def call(self, ids: Any, training: bool | None = None) -> Any:
        """Weights of the ids' rows, ``[*ids.shape, embedding_dim]``."""
        if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise NotImplementedError(
                "XLA cannot compile a HashEmbedding, whose table grows: take jit_compile=True off the tf.function"
            )
        _refuse_replicas()
        ids = _int64(ids)
        inserts = bool(training) and self.trainable
        if inserts and keras.config.dtype_policy().compute_dtype == "float16":
            raise TypeError(
                "the dtype policy of Keras is mixed_float16, for which it scales losses, and rows would train with "
                "scaled gradients; use 'mixed_bfloat16'"
            )
        anchor = self._anchor.value if inserts else tf.zeros(0)
        with self._rows.where():
            weights, _, _ = ops.gpuhash_embedding_lookup(
                self._rows.resource_handle,
                ids,
                anchor,
                dtype=self._rows.dtype,
                dim=self.embedding_dim,
                insert=inserts,
                has_padding=self.padding_idx is not None,
                padding=self.padding_idx or 0,
                # In layer.stateless_call() another tensor stands for it, and nobody knows who asks for its gradient.
                layer=self._rows.token if not inserts or anchor is self._rows.anchor else "",
            )
        return tf.cast(weights, self.compute_dtype)

    def compute_output_spec(self, ids: Any, training: bool | None = None) -> Any:
        _check_ids(ids)
        return keras.KerasTensor(self.compute_output_shape(ids.shape), dtype=self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        return (*input_shape, self.embedding_dim)

    def compute_mask(self, ids: Any, mask: Any = None) -> Any:
        if self.padding_idx is None:
            return None
        return keras.ops.not_equal(keras.ops.cast(ids, "int64"), self.padding_idx)

    # What users do with it --------------------------------------------------------------------------------------------

    @property
    def optimizer(self) -> Optimizer:
        """Its numbers, such as ``lr``, may be set at any time; the next step goes by them."""
        return self._rows.optimizer

    @property
    def table(self) -> HashTable:
        """int64 ids to a column "weight" and the optimizer's."""
        wait_for_ops()  # the table's own calls do not queue behind them
        return self._rows.table

    @property
    def embeddings_initializer(self) -> Initializer:
        """What new rows are drawn by; the same as ``initializer``."""
        return self.initializer

    @property
    def steps(self) -> int:
        """How many steps the optimizer has made: one for each gradient of each call."""
        return self._rows.steps()

    def __len__(self) -> int:
        """The number of ids that have a row. Waits."""
        return len(self.table)

    def __bool__(self) -> bool:
        """True, as of any layer, also of one without rows."""
        return True

    # Files ------------------------------------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """What ``from_config`` makes a layer like this of, without rows."""
        kind = type(self.optimizer)
        if kind.__name__ not in optimizers.__all__:
            raise TypeError(f"a {kind.__name__} cannot be saved, but the optimizers of gpuhash.tensorflow can")
        return {
            **super().get_config(),
            "embedding_dim": self.embedding_dim,
            "optimizer": {"name": kind.__name__, **_numbers_of(self.optimizer)},
            "initializer": initializers.to_text(self.initializer, self.variable_dtype),
            "padding_idx": self.padding_idx,
            "default": None if self._default is None else self._default.tolist(),
            "capacity": self.capacity,
            "max_capacity": self.max_capacity,
            "device": self.device,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        numbers = dict(config["optimizer"])
        kind = getattr(optimizers, numbers.pop("name"))
        if "betas" in numbers:
            numbers["betas"] = tuple(numbers["betas"])
        if isinstance(numbers["lr"], dict):
            numbers["lr"] = keras.saving.deserialize_keras_object(numbers["lr"])
        dtype = keras.dtype_policies.get(config["dtype"]).variable_dtype
        initializer = initializers.of_text(config["initializer"], dtype, True)
        return cls(**{**config, "optimizer": kind(**numbers), "initializer": initializer})

    def save_own_variables(self, store: Any) -> None:
        """Keys and their columns, in one order, and the number of steps."""
        for name, array in self._rows.rows_as_arrays().items():
            store[name] = array

    def load_own_variables(self, store: Any) -> None:
        """Puts these rows in place of the layer's own. Where something does not fit, all is as it was."""
        self._rows.take_rows(store)


@tf.RegisterGradient("GpuhashEmbeddingLookup")  # type: ignore[untyped-decorator]
def _train(op: Any, gradients: Any, *_: Any) -> list[Any]:
    """A step on the rows of a call, where the gradient of the layer's weight is asked for. That one has no elements,
    and comes when the step is made.
    """
    of_layer = _by_token.get(tf.compat.as_str(op.get_attr("layer")))
    if not op.get_attr("insert") or gradients is None or (of_layer is not None and not _is_asked_for(of_layer)):
        return [None, None, None]
    handle, ids, _ = op.inputs
    _, rows, generation = op.outputs
    if op.get_attr("has_padding"):
        rows = tf.where(tf.equal(ids, op.get_attr("padding")), tf.constant(_NO_ROW, tf.int64), rows)
    rate, schedule = (math.nan, 0) if of_layer is None else of_layer.scheduled()
    with framework_ops.colocate_with(handle):
        done = ops.gpuhash_embedding_train(
            handle, rows, generation, tf.convert_to_tensor(gradients), rate, schedule, dim=op.get_attr("dim")
        )
    return [None, None, done]


def _is_asked_for(rows: _Rows) -> bool:
    asked = is_asked_for(rows.anchor)
    if asked is None and not rows.warned:
        rows.warned = True
        warnings.warn(
            "a tf.GradientTape is around a call of a tf.function in which a HashEmbedding trains. TensorFlow computes "
            "all gradients of such a function at once, so that rows train also where the tape is asked for those of "
            "other weights alone. If it is, put the tape into the function, or call the layer with training=False",
            stacklevel=2,
        )
    return asked is not False


@tf.RegisterGradient("GpuhashEmbeddingTrain")  # type: ignore[untyped-decorator]
def _refuse_second_gradient(op: Any, *_: Any) -> list[Any]:
    raise NotImplementedError(
        "a gradient of the gradient of a HashEmbedding was asked for, and that one is a step of the optimizer: take "
        "the layer's trainable_weights out of the sources of the inner gradient"
    )


def _int64(ids: Any) -> Any:
    """Ids as they are keys. Those of uint64 from 2^63 on are the negative ones, with the same bits."""
    if in_symbolic_scope() and getattr(ids, "dtype", None) in (tf.float32, tf.bfloat16):
        # Keras builds a model of one's own again out of shapes alone, and takes a float for each input. No ids flow.
        return tf.cast(ids, tf.int64)
    _check_ids(ids)
    return tf.bitcast(ids, tf.int64) if ids.dtype == tf.uint64 else tf.cast(ids, tf.int64)


def _check_ids(ids: Any) -> None:
    if isinstance(ids, (tf.SparseTensor, tf.RaggedTensor)) or any(
        getattr(ids, kind, False) for kind in ("sparse", "ragged")
    ):
        raise TypeError(f"ids are of type {type(ids).__name__}, expected a dense tensor of integers")
    name = ids.dtype if isinstance(ids.dtype, str) else ids.dtype.name
    if name not in _ID_DTYPES:
        raise TypeError(
            f"ids are {name}, expected int64, int32 or another integer dtype, since floats cannot tell all ids apart: "
            "cast them, and say the dtype of what a model is given, as by keras.Input(shape, dtype='int64') before the "
            "layer"
        )


def _integer(name: str, given: Any) -> int:
    """An int, for one of NumPy as well."""
    if isinstance(given, (bool, np.bool_)):
        raise TypeError(f"{name}={given!r} was given, expected an integer")
    try:
        return operator.index(given)
    except TypeError:
        raise TypeError(f"{name}={given!r} was given, expected an integer") from None


def _numbers_of(optimizer: Optimizer) -> dict[str, Any]:
    """What JSON holds of them; a schedule as Keras writes it."""
    numbers = {each.name: getattr(optimizer, each.name) for each in dataclasses.fields(optimizer)}
    rate = numbers["lr"]
    if callable(rate):
        if isinstance(rate, FunctionType) and "<" in rate.__qualname__:
            raise TypeError(
                f"lr={rate.__qualname__} is a function that no file can hold: set a number or a schedule of Keras, or "
                "a function with a name of its own; weights and checkpoints can be saved in any case"
            )
        numbers["lr"] = keras.saving.serialize_keras_object(rate)
    return numbers


def _refuse_replicas() -> None:
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:
        raise RuntimeError(
            f"a HashEmbedding was to work under a strategy with {replicas} replicas, and its rows are in one place: "
            "use one replica, as tf.distribute.OneDeviceStrategy has"
        )


def _default_row(default: Any, dim: int) -> Any:
    """``[dim]``, or None."""
    if default is None:
        return None
    row = np.asarray(default, np.float32)
    if row.shape not in ((), (dim,)):
        raise ValueError(f"default has the shape {row.shape}, expected a number or ({dim},)")
    return np.full(dim, row, np.float32)
