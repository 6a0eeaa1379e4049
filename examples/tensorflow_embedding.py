"""Train a Keras model whose embedding grows with the words that it meets.

    python examples/tensorflow_embedding.py [--device cpu|cuda] [--steps N]

The stream is real and skewed: the words and signs of the source of Python's own standard library. From three of them in
a row the model tells the next one, out of the 255 most frequent. Words come as 64-bit hashes. No vocabulary is made
beforehand: a row is made in a hash table when a word comes for the first time, and only the rows of a batch are
touched. Beside it a model with a static tf.keras.layers.Embedding is trained on the same batches; that one has to be
told all words before. Both begin alike, and so their losses must fall alike.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import numpy.typing as npt
import tensorflow as tf

import gpuhash.tensorflow

CONTEXT = 3  # words from which the next one is told
CLASSES = 256  # the most frequent words, and one class for all others
WIDTH = 32
BATCH = 1024
LEARNING_RATE = 0.5
WORD = re.compile(rb"\w+|[^\w\s]")


def read_words(count: int) -> list[bytes]:
    """The first words and signs of the source of Python's standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    words: list[bytes] = []
    for path in sorted(folder.rglob("*.py")):
        if not {"site-packages", "dist-packages", "test"}.intersection(path.relative_to(folder).parts):
            words += WORD.findall(path.read_bytes())
        if len(words) >= count:
            return words[:count]
    raise RuntimeError(f"{folder} has {len(words)} words, expected {count}: ask for fewer --steps")


def hash_of(word: bytes) -> int:
    """64 bits, the same in every process."""
    return int.from_bytes(hashlib.blake2b(word, digest_size=8).digest(), "little", signed=True)


def make_samples(words: list[bytes]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Keys of the words before, ``[samples, CONTEXT]``, and the classes of the words to tell, ``[samples]``."""
    counts = Counter(words)
    classes = {word: number for number, (word, _) in enumerate(counts.most_common(CLASSES - 1))}
    hashes = {word: hash_of(word) for word in counts}
    keys = np.array([hashes[word] for word in words], np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(keys[:-1], CONTEXT)
    return windows, np.array([classes.get(word, CLASSES - 1) for word in words[CONTEXT:]], np.int32)


def initial_rows(keys: Any) -> Any:
    """Where the row of a word begins: small numbers that its key alone decides, ``[*keys.shape, WIDTH]``."""
    phase = tf.cast(tf.math.floormod(keys, 999_983), tf.float32)[..., tf.newaxis]
    return 0.05 * tf.sin(phase * tf.range(1.0, WIDTH + 1))


class GrowingEmbedding(tf.keras.layers.Layer):
    """Rows by key, made when a key comes for the first time."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.supports_jit = False  # tables are nothing that XLA could compile
        self.table = gpuhash.tensorflow.MutableHashTable(
            tf.int64, tf.float32, 0.0, value_shape=(WIDTH,), device=device, total_buckets=1024
        )

    def call(self, keys: Any, training: bool = False) -> Any:
        if training:
            self.table.find_or_insert(keys, initial_rows(keys))
        return self.table.lookup(keys)


class GrowingModel(tf.keras.Model):
    """A model whose first layer is a GrowingEmbedding; its rows are trained by plain gradient descent."""

    def __init__(self, embedding: GrowingEmbedding, head: Any) -> None:
        super().__init__()
        self.embedding = embedding
        self.head = head

    def call(self, keys: Any, training: bool = False) -> Any:
        return self.head(self.embedding(keys, training=training))

    def train_step(self, data: Any) -> Any:
        keys, classes = data
        table = self.embedding.table
        with tf.GradientTape() as tape:
            tape.watch(table.resource_handle)
            loss = self.compute_loss(y=classes, y_pred=self(keys, training=True))
        rows, *gradients = tape.gradient(loss, [table.resource_handle, *self.trainable_variables])
        self.optimizer.apply(gradients, self.trainable_variables)
        # Only the rows of the batch are touched; what a word that came twice asks for is summed.
        table.insert_or_apply(rows.indices, -LEARNING_RATE * rows.values, "add")
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
        return self.get_metrics_result()


def make_head() -> Any:
    """From ``[batch, CONTEXT, WIDTH]`` to the classes; every one begins alike."""
    tf.keras.utils.set_random_seed(7)
    return tf.keras.Sequential(
        [
            tf.keras.Input((CONTEXT, WIDTH)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="tanh"),
            tf.keras.layers.Dense(CLASSES),
        ]
    )


class Losses(tf.keras.callbacks.Callback):
    """The mean loss of the batches up to each, as Keras tells it, and how many keys the table has by then."""

    def __init__(self, name: str, table: Any = None) -> None:
        super().__init__()
        self.name, self.table = name, table
        self.losses: list[float] = []
        self.sizes: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]))
        if self.table is not None:
            self.sizes.append(int(self.table.size()))
        if (batch + 1) % 50 == 0:
            size = f", {self.sizes[-1]:,} rows" if self.sizes else ""
            print(f"{self.name}: batch {batch + 1}, loss {self.losses[-1]:.3f}{size}", file=sys.stderr, flush=True)


def train(model: Any, samples: Any, classes: Any, losses: Losses) -> None:
    model.compile(
        optimizer=tf.keras.optimizers.SGD(LEARNING_RATE),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(samples, classes, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[losses])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train an embedding that grows, beside a static one.")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: the GPU if TensorFlow has one")
    parser.add_argument("--steps", type=int, default=300, help=f"batches of {BATCH} words (default: 300)")
    options = parser.parse_args(arguments)
    device = options.device or ("cuda" if tf.config.list_physical_devices("GPU") else "cpu")
    place = "GPU:0" if device == "cuda" else "CPU:0"

    samples, classes = make_samples(read_words(options.steps * BATCH + CONTEXT))
    with tf.device(place):
        growing = GrowingModel(GrowingEmbedding(place), make_head())
        mine = Losses(f"growing on {device}", growing.embedding.table)
        train(growing, samples, classes, mine)

        # The static one: all words must be known, and numbered, before.
        vocabulary, numbers = np.unique(samples, return_inverse=True)
        weights = initial_rows(tf.constant(vocabulary)).numpy()
        embedding = tf.keras.layers.Embedding(len(vocabulary), WIDTH, weights=[weights])
        static = tf.keras.Sequential([tf.keras.Input((CONTEXT,), dtype="int64"), embedding, make_head()])
        theirs = Losses(f"static on {device}")
        train(static, numbers.reshape(samples.shape), classes, theirs)

    print(f"{len(classes):,} words to tell, {len(vocabulary):,} distinct, on {device}")
    for name, recorded in (("growing", mine), ("static", theirs)):
        print(f"{name:8} loss of the first batch {recorded.losses[0]:.4f}, mean of all {recorded.losses[-1]:.4f}")
    print(f"rows in the table after the first batch {mine.sizes[0]:,}, after the last {mine.sizes[-1]:,}")
    # Alike but for the order in which floats are summed.
    np.testing.assert_allclose(mine.losses, theirs.losses, rtol=0.01)
    assert mine.losses[-1] < 0.8 * mine.losses[0], "the loss did not fall"
    assert mine.sizes[-1] == len(vocabulary) > mine.sizes[0], "the table did not grow with the words"
    trained = growing.embedding.table.lookup(vocabulary).numpy()
    difference = np.abs(trained - embedding.get_weights()[0]).max()
    print(f"largest difference between a growing and a static row: {difference:.1e}")
    assert difference < 0.02, "the rows differ"


if __name__ == "__main__":
    main()
