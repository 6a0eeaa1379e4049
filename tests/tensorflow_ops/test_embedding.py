"""HashEmbedding as a Keras layer: beside keras.layers.Embedding, and optimizers in NumPy."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
from support.graphs import need_tensorflow

from gpuhash.initializers import Constant, Normal, TruncatedNormal, Uniform
from gpuhash.optimizers import LAMB, SGD, Adagrad, Adam, RowWiseAdagrad

SPREAD = 1_000_003  # from one id to the next: ids have no order that rows could have
IDS = 300


@pytest.fixture
def tools(device):
    tf, ours, place = need_tensorflow(device)
    import keras

    return tf, keras, lambda dim, **options: ours.HashEmbedding(dim, **{"device": place, **options})


def ids_of(codes: Any) -> Any:
    return np.asarray(codes, np.int64) * SPREAD - 7


class Reference:
    """A dense model in double precision: weights [ids, dim], and each optimizer by its formula."""

    def __init__(self, weights: Any, optimizer: Any) -> None:
        self.weights = weights.astype(np.float64)
        self.optimizer = optimizer
        self.first = np.full_like(self.weights, getattr(optimizer, "initial_accumulator_value", 0.0))
        self.second = np.zeros_like(self.weights)
        self.steps = 0

    def step(self, codes: Any, gradients: Any) -> None:
        """Gradients [n, dim] of rows [n]. Other rows stay."""
        self.steps += 1
        rows, inverse = np.unique(codes, return_inverse=True)
        g = np.zeros((len(rows), self.weights.shape[1]))
        np.add.at(g, inverse, gradients)
        o, w, m, v = self.optimizer, self.weights[rows], self.first[rows], self.second[rows]
        if not isinstance(o, LAMB):
            g = g + o.weight_decay * w
        if isinstance(o, SGD):
            w = w - o.lr * g
        elif isinstance(o, (Adagrad, RowWiseAdagrad)):
            m = m + (g**2 if isinstance(o, Adagrad) else (g**2).mean(1, keepdims=True))
            w = w - o.lr * g / (np.sqrt(m) + o.eps)
        else:
            beta1, beta2 = o.betas
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
            bias1, bias2 = 1 - beta1**self.steps, 1 - beta2**self.steps
            if isinstance(o, Adam):
                w = w - o.lr * bias2**0.5 / bias1 * m / (np.sqrt(v) + o.eps)
            else:
                d = m / bias1 / (np.sqrt(v / bias2) + o.eps) + o.weight_decay * w
                norm, other = (np.linalg.norm(each, axis=1, keepdims=True) for each in (w, d))
                w = w - o.lr * np.where((norm > 0) & (other > 0), norm / other, 1.0) * d
        self.weights[rows], self.first[rows], self.second[rows] = w, m, v


OPTIMIZERS = {
    "sgd": lambda: SGD(0.05),
    "adagrad": lambda: Adagrad(0.05, initial_accumulator_value=0.1),
    "row-wise-adagrad": lambda: RowWiseAdagrad(0.05, weight_decay=0.2),
    "adam": lambda: Adam(0.01, weight_decay=0.2),
    "lamb": lambda: LAMB(0.01, weight_decay=0.1),
}


def initial_weights(layer: Any) -> Any:
    """Those that ids get: of the ids alone, so that a fresh layer tells them."""
    return type(layer).from_config(layer.get_config())(ids_of(np.arange(IDS)), training=True).numpy()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_that_of_a_dense_model(name, tools):
    """New ids come in each step, most several times, and the table grows; some steps are eager, others in a graph."""
    tf, _, make = tools
    rng = np.random.default_rng(1)
    layer = make(5, optimizer=OPTIMIZERS[name](), initializer=Normal(std=0.5, seed=3))
    reference = Reference(initial_weights(layer), layer.optimizer)
    capacity = layer.table.capacity
    traces = []

    def step(ids, gradients):
        traces.append(1)
        with tf.GradientTape() as tape:
            out = layer(ids, training=True)
            loss = tf.reduce_sum(out * gradients)
        tape.gradient(loss, layer.trainable_weights)
        return out

    in_graph = tf.function(step)
    for number in range(100):
        codes = rng.integers(0, 20 + number * (IDS - 20) // 99, (5, 40))
        gradients = rng.standard_normal((5, 40, 5)).astype(np.float32)
        if number == 50:
            layer.optimizer.lr *= 0.5
        out = (in_graph if number % 3 else step)(tf.constant(ids_of(codes)), tf.constant(gradients))
        np.testing.assert_allclose(out, reference.weights[codes], rtol=2e-4, atol=2e-4)
        reference.step(codes.ravel(), gradients.reshape(-1, 5))
    assert layer.steps == 100
    assert len(traces) == 34 + 1, "one trace, also with another learning rate"
    assert layer.table.capacity > capacity
    known = np.isin(ids_of(np.arange(IDS)), layer.table.keys(like="numpy"))
    assert IDS * 0.9 < np.sum(known) == len(layer)
    np.testing.assert_allclose(
        layer(ids_of(np.arange(IDS))), np.where(known[:, None], reference.weights, 0), rtol=2e-4, atol=2e-4
    )


@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_losses_are_those_of_keras(name, tools):
    """fit() of the same model with keras.layers.Embedding, whose rows Keras' own optimizer trains."""
    tf, keras, make = tools
    rng = np.random.default_rng(2)
    batches = 300
    # No id twice in a batch: Keras' Adagrad squares the gradients of duplicates one by one.
    codes = np.concatenate(
        [rng.permutation(32 + n * (IDS - 32) // batches)[:32].reshape(16, 2) for n in range(batches)]
    )
    targets = rng.standard_normal(IDS).astype(np.float32)[codes].sum(1)
    ours, theirs = {
        "sgd": (SGD(0.2), lambda: keras.optimizers.SGD(0.2)),
        "adagrad": (
            Adagrad(0.2, initial_accumulator_value=0.1),
            lambda: keras.optimizers.Adagrad(0.2, initial_accumulator_value=0.1, epsilon=1e-20),
        ),
    }[name]
    layer = make(4, optimizer=ours, initializer=Uniform(-1, 1))
    weights = initial_weights(layer)
    losses: list[list[float]] = []
    for embedding, ids in ((layer, ids_of(codes)), (keras.layers.Embedding(IDS, 4, weights=[weights]), codes)):
        keras.utils.set_random_seed(5)
        inputs = keras.Input((2,), dtype="int64")
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(embedding(inputs))))
        model.compile(theirs(), "mse")
        told: list[float] = []
        keep = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs, told=told: told.append(logs["loss"]))
        model.fit(ids, targets, batch_size=16, shuffle=False, verbose=0, callbacks=[keep])
        losses.append(told)
    assert len(losses[0]) == batches == layer.steps
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-3)
    assert np.abs(embedding.get_weights()[0] - weights).max() > 0.3
    np.testing.assert_allclose(layer(ids_of(codes[-500:])), embedding(tf.constant(codes[-500:])), rtol=1e-2, atol=1e-3)


def test_each_gradient_is_a_step(tools):
    tf, _, make = tools
    layer = make(3, optimizer=SGD(1.0), initializer=Constant(0))
    ids = ids_of([[0, 1, 1], [2, 2, 2]])
    expected = np.zeros((3, 3))

    def check(change, steps):
        nonlocal expected
        expected = expected - np.broadcast_to(change, (3, 3))
        np.testing.assert_allclose(layer(ids_of([0, 1, 2])), expected, rtol=1e-5)
        assert layer.steps == steps

    with tf.GradientTape(persistent=True) as tape:
        out = layer(ids, training=True)
        loss = tf.reduce_sum(out)
    check(0, 0)  # nobody has asked
    (gradient,) = tape.gradient(loss, layer.trainable_weights)
    assert gradient.shape == (0,)
    check([[1], [2], [3]], 1)
    tape.gradient(loss, layer.trainable_weights)
    check([[1], [2], [3]], 2)
    del tape

    # Gradients of what comes behind, sparse ones, and several calls.
    scale = tf.Variable([1.0, 10.0, 100.0])
    with tf.GradientTape() as tape:
        first, second = layer(ids, training=True), layer(ids[:, :1], training=True)
        loss = tf.reduce_sum(tf.gather(tf.reshape(first, (6, 3)), [0, 0, 5]) * scale) + tf.reduce_sum(second)
    before = expected
    gradient, _ = tape.gradient(loss, [scale, *layer.trainable_weights])
    np.testing.assert_allclose(gradient, 2 * before[0] + before[2], rtol=1e-5)
    check(np.add(np.outer([2, 0, 1], [1, 10, 100]), [[1], [0], [1]]), 4)

    # The tape is outside of the function, which computes all gradients at once, or in a loop in it.
    function = tf.function(lambda: tf.reduce_sum(layer(ids, training=True)) * scale[0])
    for sources, warns in ((layer.trainable_weights, True), (scale, False), ([], False)):
        with tf.GradientTape() as tape, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            loss = function()
        assert ["tape into the function" in str(each.message) for each in warned] == [True] * warns, "it says so once"
        tape.gradient(loss, sources)
    check([[3], [6], [9]], 7)

    @tf.function
    def loop():
        for _ in tf.range(4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids, training=True))
            tape.gradient(loss, layer.trainable_weights)

    loop()
    check([[4], [8], [12]], 11)

    @tf.function
    def around_control_flow(times):
        with tf.GradientTape() as tape:
            total = tf.zeros(())
            for number in tf.range(times):
                if number > 0:
                    total += tf.reduce_sum(layer(ids, training=True))
        tape.gradient(total, layer.trainable_weights)

    around_control_flow(3)
    check([[2], [4], [6]], 13)
    with tf.GradientTape() as tape:
        empty = layer(ids[:, :0], training=True)
        loss = tf.reduce_sum(empty)
    assert empty.shape == (2, 0, 3)
    tape.gradient(loss, layer.trainable_weights)
    check(0, 14)

    with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids, training=True) ** 2)
        (gradient,) = tape.gradient(loss, layer.trainable_weights)
        norm = tf.reduce_sum(gradient**2)
    with pytest.raises(NotImplementedError, match="gradient of the gradient"):
        outer.gradient(norm, layer.trainable_weights)


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_only_gradients_that_were_asked_for_train(in_function, tools):
    """The tape computes the gradients of all that the loss depends on; rows are for those who ask."""
    tf, _, make = tools
    ids, factor = tf.constant(ids_of([1, 2, 2])), tf.Variable(2.0)
    first, second = (make(3, optimizer=Adam(0.1), initializer=Constant(1.0)) for _ in range(2))

    def plain():
        return tf.reduce_sum(first(ids, training=True) * second(ids, training=True)) * factor

    def in_a_loop():
        total = tf.zeros(())
        for number in tf.range(3):
            if number == 1:
                total += plain()
        return total

    def recomputed():
        return tf.recompute_grad(lambda x: plain() + x)(tf.constant(0.0))

    def with_tape(loss_of, sources):
        with tf.GradientTape() as tape:
            loss = loss_of()
        return tape.gradient(loss, sources)

    def by_graph(loss_of, sources):
        return tf.gradients(loss_of(), sources)

    ways = [(with_tape, plain), (with_tape, recomputed)]
    if in_function:
        ways += [(with_tape, in_a_loop), (by_graph, plain), (by_graph, in_a_loop)]
    for way, loss_of in ways:
        for asked in ([], [second], [first, second]):
            before = first.steps, second.steps
            sources = [factor, *(layer.weights[0].value for layer in asked)]

            def step(way=way, loss_of=loss_of, sources=sources):
                return way(tf.autograph.to_graph(loss_of) if in_function else loss_of, sources)[0]

            rows = first(ids).numpy(), second(ids).numpy()
            expected = np.sum(rows[0] * rows[1]) if min(map(len, (first, second))) else 9.0
            gradient = (tf.function(step, autograph=False) if in_function else step)()
            np.testing.assert_allclose(gradient, expected, rtol=1e-5)
            moved = [not np.array_equal(layer(ids), was) for layer, was in zip((first, second), rows, strict=True)]
            told = f"{way.__name__} of {loss_of.__name__}"
            assert (first.steps - before[0], second.steps - before[1]) == (first in asked, second in asked), told
            if before != (0, 0):
                assert moved == [first in asked, second in asked], told


def test_stateless_calls_train(tools):
    """There a tensor of the caller stands for the layer's weight."""
    tf, _, make = tools
    layer = make(2, optimizer=SGD(1.0), initializer="zeros")
    weight = tf.zeros(0)
    with tf.GradientTape() as tape:
        tape.watch(weight)
        out, _ = layer.stateless_call([weight], [], tf.constant([1, 2]), training=True)
        loss = tf.reduce_sum(out)
    assert tape.gradient(loss, weight).shape == (0,)
    np.testing.assert_array_equal(layer(tf.constant([1, 2])), -np.ones((2, 2)))


def test_the_discriminator_stays_in_the_step_of_the_generator(tools):
    """A model of Keras whose own train_step has two tapes."""
    tf, keras, make = tools
    judge, maker = (make(2, optimizer=SGD(0.5), initializer=Constant(1.0)) for _ in range(2))
    calls = []

    class Game(keras.Model):
        def __init__(self):
            super().__init__()
            self.judge, self.maker, self.out = judge, maker, keras.layers.Dense(1)

        def call(self, ids, training=None):
            return self.out(self.judge(ids, training=training) * self.maker(ids, training=training))

        def train_step(self, data):
            calls.append(1)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(data[0], training=True))
            weights = self.maker.trainable_weights + self.out.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {"loss": loss}

    game = Game()
    game.compile("sgd")
    game.fit(ids_of(np.arange(32)), np.zeros(32), batch_size=8, epochs=2, verbose=0)
    assert len(calls) < 8, "it is a graph"
    assert (judge.steps, maker.steps) == (0, 8)
    np.testing.assert_array_equal(judge(ids_of(np.arange(32))), np.ones((32, 2)))
    assert np.all(np.abs(maker(ids_of(np.arange(32))) - 1.0) > 0)


def test_penalties_of_gradients(tools):
    """A loss of a gradient with respect to embeddings, as of Wasserstein GANs: beside a dense variable."""
    tf, _, make = tools
    rng = np.random.default_rng(6)
    layer = make(3, optimizer=SGD(1.0), initializer=Uniform(-1, 1, seed=5))
    codes = np.array([0, 1, 1, 2])
    weights = tf.Variable(initial_weights(layer)[:3])
    kernel = tf.Variable(rng.standard_normal((3, 2)).astype(np.float32))

    def gradients(embed, sources):
        with tf.GradientTape() as outer:
            embedded = embed()
            with tf.GradientTape() as inner:
                inner.watch(embedded)
                out = tf.reduce_sum(tf.sin(tf.matmul(embedded, kernel)))
            penalty = tf.reduce_sum((tf.norm(inner.gradient(out, embedded), axis=-1) - 1) ** 2)
        return outer.gradient(penalty, [kernel, *sources])

    expected, slices = gradients(lambda: tf.gather(weights, codes), [weights])
    got, _ = gradients(lambda: layer(ids_of(codes), training=True), layer.trainable_weights)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    stepped = weights - tf.convert_to_tensor(slices)
    np.testing.assert_allclose(layer(ids_of([0, 1, 2])), stepped, rtol=1e-4, atol=1e-5)
    assert layer.steps == 1


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_schedules_are_asked_in_each_step(in_function, tools):
    """Keras' schedules and functions of one's own, by the number of steps made before."""
    tf, keras, make = tools
    schedules = keras.optimizers.schedules
    halving = schedules.ExponentialDecay(0.5, decay_steps=2, decay_rate=0.5, staircase=True)
    pieces = schedules.PiecewiseConstantDecay([1, 3], [1.0, 0.25, 0.125])
    ids = tf.constant(ids_of([1]))
    for rate, expected in (
        (halving, [0.5, 0.5, 0.25, 0.25, 0.125]),
        (pieces, [1.0, 1.0, 0.25, 0.25, 0.125]),
        (lambda made: 0.5 / (made + 1), [0.5, 0.25, 0.5 / 3, 0.125, 0.1]),
        (lambda made: 0.25, [0.25] * 5),
    ):
        layer = make(2, optimizer=SGD(rate), initializer="zeros")

        def step(layer=layer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids, training=True))
            tape.gradient(loss, layer.trainable_weights)

        if in_function:
            step = tf.function(step, autograph=False)
        for number in range(5):
            step()
            np.testing.assert_allclose(layer(ids)[0], -np.sum(expected[: number + 1]) * np.ones(2), rtol=1e-6)
        # A number takes its place, and it comes back. Another one the graph does not know.
        at = layer(ids).numpy()
        layer.optimizer.lr = 2.0
        step()
        np.testing.assert_allclose(layer(ids), at - 2, rtol=1e-6)
        layer.optimizer.lr = rate
        step()
        at = layer(ids).numpy()
        layer.optimizer.lr = schedules.CosineDecay(0.5, 10)
        if in_function:
            with pytest.raises(tf.errors.InvalidArgumentError, match="after the function was traced"):
                step()
            assert (layer.steps, layer(ids).numpy().tolist()) == (7, at.tolist())
        else:
            step()
            assert layer.steps == 8
    layer.optimizer.lr = lambda made: made * 0.0 - 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="the schedule gave the learning rate -1"):
        (tf.function(lambda: step.python_function(), autograph=False) if in_function else step)()


def test_rates_of_others_are_kept(tools, tmp_path):
    """Tensors, variables and NumPy's numbers are numbers when they are set; schedules are saved as Keras saves them."""
    tf, keras, make = tools
    schedule = keras.optimizers.schedules.ExponentialDecay(0.125, 10, 0.5)
    ids, targets = ids_of(np.arange(12).reshape(4, 3)), np.zeros(4)
    optimizer = Adam(0.5)
    given = [tf.constant(0.125), tf.Variable(0.125), keras.Variable(0.125), np.float32(0.125), np.array(0.125)]
    for rate in [*given, schedule(0)]:
        for layer in (make(2, optimizer=optimizer), make(2, optimizer=Adam(rate))):
            layer.optimizer.lr = rate
            assert (type(layer.optimizer.lr), layer.optimizer.lr) == (float, 0.125)
    for rate in (tf.Variable(0.125), schedule):
        layer = make(2, optimizer=Adam(0.5))
        inputs = keras.Input((3,), dtype="int64")
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(layer(inputs))))
        layer.optimizer.lr = rate
        model.compile("sgd", "mse")
        model.fit(ids, targets, verbose=0)
        model.save(tmp_path / "m.keras")
        loaded = keras.models.load_model(tmp_path / "m.keras")
        for copied in (loaded, keras.models.clone_model(model)):
            lr = copied.layers[1].optimizer.lr
            assert lr.get_config() == schedule.get_config() if rate is schedule else lr == 0.125
        for each in (model, loaded):
            each.fit(ids, targets + 1, shuffle=False, verbose=0)
        np.testing.assert_array_equal(loaded.predict(ids, verbose=0), model.predict(ids, verbose=0))


def test_a_rate_that_follows_the_models(tools):
    """And so Keras' callbacks that set that one."""
    _, keras, make = tools
    layer = make(1, optimizer=SGD(9.0), initializer="zeros")
    inputs = keras.Input((), dtype="int64")
    model = keras.Model(inputs, layer(inputs))
    layer.optimizer.lr = lambda made: model.optimizer.learning_rate
    model.compile(keras.optimizers.SGD(7.0), lambda target, out: keras.ops.sum(out))
    rates = [0.5, 0.25, 1.0]
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch: rates[epoch])
    model.fit(ids_of(np.arange(4)), np.zeros(4), batch_size=4, epochs=3, verbose=0, callbacks=[scheduler])
    np.testing.assert_allclose(layer(ids_of(np.arange(4))), np.full((4, 1), -np.sum(rates)), rtol=1e-6)
    with pytest.raises(TypeError, match="a function that no file can hold"):
        layer.get_config()


def test_asynchronous_execution(tools):
    """Ops of TensorFlow return before they run: the table's own calls come behind them."""
    tf, _, make = tools
    ids = ids_of(np.arange(40))
    tf.config.experimental.set_synchronous_execution(False)
    try:
        layer = make(3, optimizer=SGD(1.0), initializer="zeros", padding_idx=-1)
        for number in range(20):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids[: 2 * number + 2], training=True))
            assert len(layer) == 2 * number + 3
            tape.gradient(loss, layer.trainable_weights)
            assert layer.steps == number + 1
            assert layer.table.find(ids[:1], columns=["weight"])[0]["weight"].tolist() == [[-1.0 - number] * 3]
    finally:
        tf.config.experimental.set_synchronous_execution(True)


def test_layers_that_share_an_optimizer(tools):
    tf, _, make = tools
    layers = [make(dim, optimizer=shared, initializer=Constant(0.0)) for shared in [SGD(9.0)] for dim in (1, 2)]
    layers[0].optimizer.lr = 0.25
    for layer in layers:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.constant([7]), training=True))
        tape.gradient(loss, layer.trainable_weights)
        np.testing.assert_array_equal(layer(tf.constant([7])), np.full((1, layer.embedding_dim), -0.25))


def test_inference_inserts_nothing(tools):
    """Ids without a row get zeros, or a default of one's own; and nothing trains."""
    tf, _, make = tools
    for default, expected in ((None, np.zeros(3)), (0.5, np.full(3, 0.5)), ([1.0, 2.0, 3.0], np.array([1, 2, 3]))):
        layer = make(3, optimizer=Adam(), default=default)
        known = layer(tf.constant(ids_of([1]), tf.int32), training=True)
        for frozen in (False, True):
            layer.trainable = not frozen
            assert len(layer.trainable_weights) == 1 - frozen
            with tf.GradientTape() as tape:
                out = layer(ids_of([[1, 2]]), training=frozen)
                loss = tf.reduce_sum(out)
            assert tape.gradient(loss, layer.weights[0]) is None
            np.testing.assert_array_equal(out[0], [known[0], expected])
        assert len(layer) == 1
        assert layer.steps == 0
        assert layer(np.zeros((2, 0), np.int64)).shape == (2, 0, 3)


@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
def test_a_model_of_this_layer_alone(eagerly, tools):
    """It trains though it has no weights of elements; Keras knows that XLA cannot compile it."""
    _, keras, make = tools
    inputs = keras.Input((), dtype="int64")
    layer = make(1, optimizer=SGD(0.0), initializer=Constant(0.0))
    model = keras.Model(inputs, layer(inputs))
    assert model.output_shape == (None, 1)
    model.compile("adam", "mse", run_eagerly=eagerly, steps_per_execution=1 if eagerly else 3)
    assert not model.jit_compile
    assert model.count_params() == 0
    ids, targets = ids_of(np.arange(64)), np.arange(64, dtype=np.float32)
    rate = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: setattr(layer.optimizer, "lr", 2.0 * epoch))
    model.fit(ids, targets, batch_size=16, epochs=1, verbose=0, callbacks=[rate])
    assert not model.predict(ids, verbose=0).any(), "with a learning rate of 0"
    model.fit(ids, targets, batch_size=16, epochs=2, initial_epoch=1, shuffle=False, verbose=0, callbacks=[rate])
    # (w - y)^2 is a mean over 16 samples: w becomes 2 * 2 / 16 of y.
    np.testing.assert_allclose(model.predict(ids, verbose=0)[:, 0], targets / 4, rtol=1e-6)
    model.evaluate(ids + 1, targets, verbose=0)
    assert (len(layer), layer.steps) == (64, 8)


def test_padding_and_mask(tools):
    tf, keras, make = tools
    layer = make(2, optimizer=LAMB(0.1, weight_decay=0.5), padding_idx=-1)
    ids = tf.constant([[-1, 5], [6, -1]])
    for _ in range(2):
        with tf.GradientTape() as tape:
            out = layer(ids, training=True)
            loss = tf.reduce_sum(out * 3)
        tape.gradient(loss, layer.trainable_weights)
        assert not out.numpy()[[0, 1], [0, 1]].any()
    assert out.numpy()[[0, 1], [1, 0]].all()
    np.testing.assert_array_equal(layer.compute_mask(ids), [[False, True], [True, False]])
    pooled = keras.layers.GlobalAveragePooling1D()(layer(ids))
    np.testing.assert_allclose(pooled, layer(tf.constant([5, 6])), rtol=1e-6)


def test_padding_is_there_after_a_state_of_a_layer_without(tools, tmp_path):
    tf, _, make = tools
    options = {"optimizer": Adam(0.5), "initializer": Constant(1.0), "default": 5.0}
    plain = make(2, **options)
    plain(tf.constant([3]), training=True)
    paths = [tf.train.Checkpoint(layer=plain).save(tmp_path / "state")]
    kept: dict[str, np.ndarray] = {}
    plain.save_own_variables(kept)
    for restore in (
        lambda layer: tf.train.Checkpoint(layer=layer).restore(paths[-1]).assert_consumed(),
        lambda layer: layer.load_own_variables(kept),
    ):
        layer = make(2, padding_idx=0, **options)
        for _ in range(2):  # the second time it is there
            restore(layer)
            for training in (False, True):
                out = layer(tf.constant([0, 3, 4]), training=training).numpy()
                assert out[:2].tolist() == [[0.0, 0.0], [1.0, 1.0]]
            assert len(layer) == 3
            layer.save_own_variables(kept)
            paths.append(tf.train.Checkpoint(layer=layer).save(tmp_path / "with padding"))


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16"])
def test_dtype_policies(dtype, tools):
    tf, _, make = tools
    layer = make(2, optimizer=SGD(1.0), initializer=Constant(1.0), dtype=dtype)
    with tf.GradientTape() as tape:
        out = layer(tf.constant([4, 4, 5]), training=True)
        loss = tf.reduce_sum(tf.cast(out, tf.float32) * 2.0**-9)
    tape.gradient(loss, layer.trainable_weights)
    assert out.dtype == tf.bfloat16
    weights = "float32" if dtype == "mixed_bfloat16" else "bfloat16"
    assert layer.table.columns["weight"].dtype == weights
    expected = np.array([[1 - 2.0**-8] * 2, [1 - 2.0**-9] * 2]).astype(tf.as_dtype(weights).as_numpy_dtype)
    store: dict[str, Any] = {}
    layer.save_own_variables(store)
    np.testing.assert_array_equal(store["weight"][np.argsort(store["keys"])], expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_going_on_from_a_file(dtype, tools, tmp_path):
    """What was saved in any way goes on to train as the model that was saved would have."""
    tf, keras, make = tools
    rng = np.random.default_rng(4)

    def build():
        optimizer = Adam(0.05, betas=(0.8, 0.99), stochastic_rounding=dtype == "bfloat16", seed=2**63 + 1)
        initializer = Uniform(-1, 1, seed=2**64 - 1)
        options = {"initializer": initializer, "default": 0.25, "capacity": 32, "dtype": dtype, "name": "rows"}
        inputs = keras.Input((2,), dtype="int64")
        outputs = keras.layers.Dense(1)(keras.layers.Flatten()(make(3, optimizer=optimizer, **options)(inputs)))
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(0.01), "mse")
        return model

    def train(model, seed):
        codes = np.random.default_rng(seed).integers(0, 60 + seed, (64, 2))
        model.fit(ids_of(codes), codes.sum(1) / 50, batch_size=16, shuffle=False, verbose=0)

    def state(model):
        store: dict[str, Any] = {}
        model.get_layer("rows").save_own_variables(store)
        steps, order = store.pop("steps"), np.argsort(store["keys"])
        return steps, *(column[order] for column in store.values()), model.predict(probe, verbose=0)

    probe = ids_of(rng.integers(0, 80, (50, 2)))
    model = build()
    train(model, 1)
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    checkpoint = tf.train.Checkpoint(model=model).write(str(tmp_path / "checkpoint"))
    model.export(tmp_path / "exported", verbose=False)
    served, size = model.predict(probe, verbose=0), len(model.get_layer("rows"))
    loaded, clone, restored = keras.models.load_model(tmp_path / "m.keras"), keras.models.clone_model(model), build()
    assert len(clone.get_layer("rows")) == 0
    clone.compile(keras.optimizers.SGD(0.01), "mse")
    clone.load_weights(tmp_path / "m.weights.h5")
    train(restored, 3)  # which the checkpoint takes the place of
    tf.train.Checkpoint(model=restored).read(checkpoint).assert_consumed()
    moved = copy.deepcopy(model.get_layer("rows"))
    train(model, 2)
    for other in (loaded, clone, restored):
        assert other.get_layer("rows").steps == moved.steps == 4
        assert len(other.get_layer("rows")) == len(moved) == size < len(model.get_layer("rows"))
        train(other, 2)
        for mine, theirs in zip(state(other), state(model), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    # A SavedModel answers as the model did then, since it has rows of its own, as each that is loaded.
    exported = [tf.saved_model.load(str(tmp_path / "exported")) for _ in range(2)]
    for each in exported:
        np.testing.assert_allclose(each.serve(probe), served, rtol=1e-6 if dtype == "float32" else 1e-2)


def test_every_way_to_keep_a_model_keeps_its_rows(tools, tmp_path):
    """Also those that know nothing of a layer's files and copy its weights; what cannot is refused."""
    _, keras, make = tools
    ids = ids_of(np.arange(60).reshape(20, 3))

    def build():
        inputs = keras.Input((3,), dtype="int64")
        inner = keras.Sequential([keras.Input((3,), dtype="int64"), make(2, optimizer=Adam(0.1), name="inner")])
        outer = make(2, optimizer=Adam(0.1), dtype="mixed_bfloat16", name="outer")
        joined = keras.layers.Concatenate(dtype="float32")([inner(inputs), outer(inputs)])
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(joined)))
        model.compile("sgd", keras.losses.MeanSquaredError())
        return model

    model = build()
    model.fit(ids, np.ones(20), batch_size=10, verbose=0)
    expected = model.predict(ids, verbose=0)

    def loaded(load):
        other = build()
        load(other)
        return other

    def h5(name, **options):
        model.save(tmp_path / name, **options)
        return tmp_path / name

    def state_tree():
        return model.get_state_tree(value_format="numpy_array")

    for way in (
        lambda: keras.models.load_model(h5("m.h5"), compile=False),
        lambda: keras.models.load_model(h5("m.hdf5", include_optimizer=False), compile=False),
        lambda: loaded(lambda other: other.load_weights(h5("w.h5"))),
        lambda: loaded(lambda other: other.set_weights(model.get_weights())),
        lambda: loaded(
            lambda other: other.set_state_tree({"trainable_variables": renamed(state_tree(), model, other)})
        ),
        lambda: pickle.loads(pickle.dumps(model)),
    ):
        copied = way()
        np.testing.assert_array_equal(copied.predict(ids, verbose=0), expected)
        assert [copied.get_layer("outer").steps, len(copied.get_layer("outer"))] == [2, 60]
    with pytest.raises(NotImplementedError, match="value_format='numpy_array'"):
        model.get_state_tree()
    before = model.get_weights()
    rows = next(index for index, weight in enumerate(before) if weight.dtype == np.uint8)
    for wrong, match in (
        (np.zeros(0, np.float32), "holds no rows"),
        (before[rows][:-1], "cut off"),
        (before[rows][:40], "cut off"),
        (np.append(before[rows], np.uint8(0)), "expected"),
        (np.zeros(99, np.uint8), "does not begin"),
    ):
        with pytest.raises(ValueError, match=match):
            model.set_weights([wrong if index == rows else weight for index, weight in enumerate(before)])
    np.testing.assert_array_equal(model.predict(ids, verbose=0), expected)


def renamed(tree: Any, model: Any, other: Any) -> Any:
    """A state tree of one model for another one that was built alike: paths of weights have numbers in them."""
    flat = {}
    for mine, theirs in zip(model.trainable_variables, other.trainable_variables, strict=True):
        value = tree["trainable_variables"]
        for part in mine.path.split("/"):
            value = value[part]
        flat[theirs.path] = value
    return flat


def test_early_stopping_restores_rows(tools):
    _, keras, make = tools
    layer = make(1, optimizer=SGD(0.1), initializer="zeros")
    inputs = keras.Input((), dtype="int64")
    model = keras.Model(inputs, layer(inputs))
    model.compile("sgd", "mse")
    ids, targets = ids_of(np.arange(8)), np.arange(8, dtype=np.float32)
    best: list[Any] = []

    def on_epoch_begin(epoch, _):
        best.append(model.predict(ids, verbose=0))
        layer.optimizer.lr = 0.1 if epoch < 2 else 50.0  # from then on it gets worse

    stop = keras.callbacks.EarlyStopping(monitor="loss", patience=2, restore_best_weights=True)
    watch = keras.callbacks.LambdaCallback(on_epoch_begin=on_epoch_begin)
    told = model.fit(ids, targets, batch_size=8, epochs=9, verbose=0, callbacks=[watch, stop]).history["loss"]
    assert len(told) < 9
    np.testing.assert_array_equal(model.predict(ids, verbose=0), best[int(np.argmin(told)) + 1])


def test_a_model_of_ones_own_comes_back_whole(tools, tmp_path):
    """Keras builds it again from shapes, as if its inputs were floats; then it loads all layers, or says that not."""
    _, keras, make = tools

    @keras.saving.register_keras_serializable("gpuhash tests")
    class Own(keras.Model):
        def __init__(self, **options):
            super().__init__(**options)
            self.rows = make(4, optimizer=SGD(0.1), padding_idx=0)
            self.head = keras.layers.Dense(1)

        def call(self, ids, training=None):
            return self.head(keras.ops.mean(self.rows(ids, training=training), 1))

    model = Own()
    model.compile("sgd", "mse")
    ids = ids_of(np.arange(30).reshape(10, 3))
    model.fit(ids, np.ones(10), verbose=0)
    model.save(tmp_path / "own.keras")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        loaded = keras.models.load_model(tmp_path / "own.keras")
    np.testing.assert_array_equal(loaded.predict(ids, verbose=0), model.predict(ids, verbose=0))
    with pytest.raises(TypeError, match="float32"):
        loaded(ids.astype(np.float32))


def test_initializers_are_those_of_keras(tools):
    """By name, as objects and as configurations; without one what keras.layers.Embedding begins with."""
    _, keras, make = tools
    of_keras = keras.initializers
    for given, expected in (
        (None, Uniform(-0.05, 0.05)),
        ("uniform", Uniform(-0.05, 0.05)),
        ("normal", Normal(0.0, 0.05)),
        ("random_normal", Normal(0.0, 0.05)),
        ("truncated_normal", TruncatedNormal(0.0, 0.05)),
        ("zeros", Constant(0.0)),
        ("ones", Constant(1.0)),
        (of_keras.Constant(0.5), Constant(0.5)),
        (of_keras.RandomUniform(-2, 3, seed=4), Uniform(-2, 3, 4)),
        (of_keras.RandomNormal(1, 2, seed=-1), Normal(1, 2, 2**64 - 1)),
        (of_keras.TruncatedNormal(1, 2, seed=5), TruncatedNormal(1, 2, 5)),
        (of_keras.serialize(of_keras.RandomUniform(0, 1, seed=9)), Uniform(0, 1, 9)),
        (Normal(std=2.0, seed=0), Normal(std=2.0, seed=0)),
        (Normal(std=2.0), Normal(std=2.0)),
    ):
        for name in ("embeddings_initializer", "initializer"):
            layer = make(64, optimizer=SGD(0.1), **{name: given})
            got = layer.embeddings_initializer
            assert got is layer.initializer
            if getattr(expected, "seed", 0) is None:
                assert got.seed is not None
                got = type(got)(**{**vars(got), "seed": None})
            assert got == expected
            clone = type(layer).from_config(layer.get_config())
            ids = ids_of(np.arange(40))
            np.testing.assert_array_equal(clone(ids, training=True), layer(ids, training=True))
    default = make(64, optimizer=SGD(0.1))(ids_of(np.arange(500)), training=True).numpy()
    theirs = keras.layers.Embedding(500, 64)(np.arange(500)).numpy()
    for moment in (np.mean, np.std, np.min, np.max):
        np.testing.assert_allclose(moment(default), moment(theirs), atol=1e-3)


def test_seeds_are_drawn_as_keras_draws(tools, tmp_path):
    _, keras, make = tools
    ids = ids_of(np.arange(20))

    def rows():
        return [make(4, optimizer=SGD(0.1), initializer=given)(ids, training=True) for given in (None, "normal") * 2]

    keras.utils.set_random_seed(7)
    first = rows()
    assert len({row.numpy().tobytes() for row in first}) == 4, "layers that are made alike begin with other rows"
    keras.utils.set_random_seed(7)
    np.testing.assert_array_equal(rows(), first)
    keras.utils.set_random_seed(8)
    assert not any(np.array_equal(*pair) for pair in zip(rows(), first, strict=True))

    # A model that was loaded goes on to draw as the one that was saved.
    inputs = keras.Input((), dtype="int64")
    model = keras.Model(inputs, make(4, optimizer=SGD(0.0))(inputs))
    model.layers[1](ids[:10], training=True)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded.layers[1](ids, training=True), model.layers[1](ids, training=True))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_ids_of_all_integers(dtype, tools):
    _, keras, make = tools
    layer = make(np.int64(3), optimizer=SGD(0.1), padding_idx=np.int32(-1))
    info = np.iinfo(dtype)
    ids = np.array([info.min, 1, info.max], dtype)
    inputs = keras.Input((3,), dtype=dtype)
    model = keras.Model(inputs, layer(inputs))
    out = layer(ids, training=True).numpy()
    assert set(layer.table.keys(like="numpy").tolist()) == {-1, *ids.astype(np.int64).tolist()}
    np.testing.assert_array_equal(model.predict(ids[None], verbose=0)[0], out)
    np.testing.assert_array_equal(layer.compute_mask(ids), ids.astype(np.int64) != -1)
    assert out[1].any()


def test_states_that_do_not_fit(tools):
    tf, _, make = tools
    ids = ids_of([1, 2, 3])

    def saved(layer):
        layer(ids, training=True)
        store: dict[str, Any] = {}
        layer.save_own_variables(store)
        return store

    layer = make(2, optimizer=Adam())
    before = saved(layer)
    for other, match in (
        (make(3, optimizer=Adam()), "weight of the state"),
        (make(2, optimizer=SGD(0.1)), "lacks"),
        (make(2, optimizer=Adam(), dtype="bfloat16"), "bfloat16"),
    ):
        with pytest.raises(ValueError, match=match):
            layer.load_own_variables(saved(other))
    with pytest.raises(ValueError, match=r"exp_avg .*shape \(1, 2\)"):
        layer.load_own_variables({**before, "exp_avg": before["exp_avg"][:1]})
    for steps in (np.int64(-1), np.float64(1.0), np.array([1])):
        with pytest.raises(ValueError, match="expected one integer, 0 or more"):
            layer.load_own_variables({**before, "steps": steps})
    for keys, match in ((before["keys"][[0, 1, 1]], "3, of which 2 differ"), (before["keys"][0], "keys of the state")):
        with pytest.raises(ValueError, match=match):
            layer.load_own_variables({**before, "keys": keys})
    small = make(2, optimizer=Adam(), capacity=64, max_capacity=64)
    kept = saved(small)
    large = make(2, optimizer=Adam())
    large(ids_of(np.arange(1000)), training=True)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        small.load_own_variables(saved(large))
    with pytest.raises(tf.errors.ResourceExhaustedError):
        small(ids_of(np.arange(1000)), training=True)
    for after, expected in ((saved(layer), before), (saved(small), kept)):
        for name, column in expected.items():
            np.testing.assert_array_equal(after[name], column)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(ids, training=True))
    layer.load_own_variables(before)
    with pytest.raises(tf.errors.InvalidArgumentError, match="between a call and its gradient"):
        tape.gradient(loss, layer.trainable_weights)
    assert layer.steps == 0


def test_a_weight_that_somebody_holds_keeps_the_rows_alone(tools):
    tf, _, make = tools
    layer = make(2, optimizer=SGD(0.1))
    layer(tf.constant([1]), training=True)
    gone, rows, weight = weakref.ref(layer), weakref.ref(layer._rows), layer.weights[0]
    del layer
    gc.collect()
    assert gone() is None
    assert weight.numpy().size > 16
    del weight
    gc.collect()
    assert rows() is None


def test_what_cannot_be(tools, monkeypatch):
    tf, keras, make = tools
    good = {"dim": 4, "optimizer": SGD(0.1)}
    for options, error, match in [
        ({"dim": 0}, ValueError, "expected 1 or more"),
        ({"optimizer": keras.optimizers.Adam()}, TypeError, r"Adam\(lr=1e-3\)"),
        ({"optimizer": "adam"}, TypeError, "expected one of gpuhash.tensorflow"),
        ({"dim": 2.0}, TypeError, "expected an integer"),
        ({"dim": True}, TypeError, "expected an integer"),
        ({"initializer": "uniforn"}, TypeError, "none that Keras knows"),
        ({"embeddings_initializer": "glorot_uniform"}, TypeError, "rows appear one by one.*gpuhash.initializers"),
        ({"initializer": lambda shape, dtype: None}, TypeError, "rows appear one by one"),
        ({"initializer": "zeros", "embeddings_initializer": "zeros"}, TypeError, "give one"),
        (
            {"initializer": keras.initializers.RandomNormal(seed=keras.random.SeedGenerator(1))},
            TypeError,
            "a seed that changes",
        ),
        ({"padding_idx": 0.5}, TypeError, "expected an integer"),
        ({"padding_idx": 2**63}, ValueError, "an id that int64 holds"),
        ({"default": [1.0, 2.0]}, ValueError, "expected a number or"),
        ({"capacity": -1}, ValueError, "capacity"),
        ({"dtype": "float64"}, TypeError, "expected float32, bfloat16"),
        ({"dtype": "mixed_float16"}, TypeError, "scales losses"),
    ]:
        given = {**good, **options}
        with pytest.raises(error, match=match):
            make(given.pop("dim"), **given)
    layer = make(4, optimizer=SGD(0.1))
    ids = tf.constant([1, 2], tf.int64)
    for wrong in (tf.cast(ids, tf.float32), tf.cast(ids, tf.bool), keras.Input((3,)), tf.sparse.from_dense(ids)):
        with pytest.raises(TypeError, match=r"expected int64, int32 or|dense tensor of integers"):
            layer(wrong, training=True)
    with pytest.raises(TypeError, match=r"keras.Input\(shape, dtype='int64'\)"):
        keras.Sequential([layer, keras.layers.Dense(1)]).build((None, 3))
    with pytest.raises(NotImplementedError, match="XLA cannot compile"):
        tf.function(layer, jit_compile=True)(ids)
    with pytest.raises(ValueError, match="lr=nan"):
        layer.optimizer.lr = float("nan")
    with pytest.raises(AttributeError, match="learning_rate"):
        layer.optimizer.learning_rate = 0.5
    assert layer.optimizer == SGD(0.1)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        with pytest.raises(TypeError, match="scales losses"):
            layer(ids, training=True)
    finally:
        keras.config.set_dtype_policy("float32")
    assert len(layer) == 0
    wide = make(1025, optimizer=RowWiseAdagrad(0.1))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(wide(ids, training=True))
    with pytest.raises(tf.errors.InvalidArgumentError, match="up to 1024"):
        tape.gradient(loss, wide.trainable_weights)
    assert wide.steps == 0
    for module, name, value, match in (
        (keras.config, "backend", lambda: "jax", "gpuhash.torch.HashEmbedding"),
        (tf.distribute, "get_strategy", lambda: type("Two", (), {"num_replicas_in_sync": 2}), "2 replicas"),
    ):
        monkeypatch.setattr(module, name, value)
        with pytest.raises(RuntimeError, match=match):
            make(4, optimizer=SGD(0.1))
        monkeypatch.undo()
    with tf.Graph().as_default(), pytest.raises(RuntimeError, match="graph of TensorFlow 1"):
        make(4, optimizer=SGD(0.1))
    with tf.distribute.OneDeviceStrategy(layer.weights[0].value.device).scope():
        assert make(4, optimizer=SGD(0.1))(ids, training=True).shape == (2, 4)


def test_weights_are_assigned_to_each_other(tools):
    """As a target network gets those of another."""
    _, _, layer = tools
    first, second = (layer(4, optimizer=SGD(0.1)) for _ in range(2))
    first(np.arange(32), training=True)
    second.build((None,))
    for mine, other in zip(second.trainable_weights, first.trainable_weights, strict=True):
        mine.assign(other)
    assert len(second) == 32
    np.testing.assert_array_equal(second(np.arange(32)), first(np.arange(32)))
