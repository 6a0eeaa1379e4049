"""Train an embedding in a jitted step that deduplicates the ids of its batch by hashing, where JAX sorts.

    python examples/jax_dedup.py [--device cpu|cuda] [--steps N]

The stream is real and skewed: the words and signs of the source of Python's own standard library. From eight of them in
a row the model tells the next one, out of the 255 most frequent. Its embedding is trained by Adagrad, whose step for a
row depends on the sum of all that a batch asks of it, so every id may come only once: a batch of 65,536 ids is reduced
to its distinct ones, a thousand or so, whose rows are gathered, differentiated and written back. In a compiled program
that is ``unique(ids, size=, return_inverse=True)``: jnp.unique, which sorts, or gpuhash.jax.unique, which hashes. Both
must train alike; the example tells how long each takes.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

import gpuhash.jax

CONTEXT = 8  # words from which the next one is told
CLASSES = 256  # the most frequent words, and one class for all others
WIDTH = 32
BATCH = 8192
LEARNING_RATE = 0.1
WORD = re.compile(rb"\w+|[^\w\s]")

Unique = Callable[..., Any]


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


def make_samples(words: list[bytes]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], int]:
    """Ids of the words before, ``[samples, CONTEXT]``, classes of the words to tell, and how many ids there are."""
    counts = Counter(words)
    classes = {word: number for number, (word, _) in enumerate(counts.most_common(CLASSES - 1))}
    # In no order of frequency, as ids that come from elsewhere.
    numbers = dict(zip(sorted(counts), range(len(counts)), strict=True))
    ids = np.array([numbers[word] for word in words], np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(ids[:-1], CONTEXT)
    return windows, np.array([classes.get(word, CLASSES - 1) for word in words[CONTEXT:]], np.int32), len(counts)


def initial_model(ids: int) -> dict[str, Any]:
    """Rows and head, and the sums of squares that Adagrad keeps of each number."""
    rng = np.random.default_rng(7)
    weights = {
        "rows": jnp.asarray(rng.normal(0, 0.1, (ids, WIDTH)), jnp.float32),
        "head": jnp.asarray(rng.normal(0, 0.1, (CONTEXT * WIDTH, CLASSES)), jnp.float32),
    }
    return {"weights": weights, "squares": jax.tree.map(lambda array: jnp.full_like(array, 1e-3), weights)}


def adagrad(weights: Any, squares: Any, gradient: Any) -> tuple[Any, Any]:
    squares = squares + gradient**2
    return weights - LEARNING_RATE * gradient / jnp.sqrt(squares), squares


def loss_of(rows: Any, head: Any, inverse: Any, classes: Any) -> Any:
    """Cross entropy of a batch; ``rows`` are those of its distinct ids, ``inverse [batch, CONTEXT]`` tells which."""
    features = rows[inverse].reshape(len(classes), -1)
    logits = jax.nn.log_softmax(features @ head)
    return -jnp.take_along_axis(logits, classes[:, None], axis=1).mean()


def train_step(unique: Unique, size: int, model: Any, ids: Any, classes: Any) -> tuple[Any, Any]:
    """One step; only the rows of the batch are touched, each once."""
    weights, squares = model["weights"], model["squares"]
    absent = len(weights["rows"])  # fills up the distinct ids: JAX drops what is written to a row that is not there
    distinct, inverse = unique(ids.reshape(-1), size=size, fill_value=absent, return_inverse=True)
    rows = weights["rows"].at[distinct].get(mode="clip")
    loss, (row_gradient, head_gradient) = jax.value_and_grad(loss_of, argnums=(0, 1))(
        rows, weights["head"], inverse.reshape(ids.shape), classes
    )
    new_rows, row_squares = adagrad(rows, squares["rows"].at[distinct].get(mode="clip"), row_gradient)
    head, head_squares = adagrad(weights["head"], squares["head"], head_gradient)
    model = {
        "weights": {"rows": weights["rows"].at[distinct].set(new_rows, mode="drop"), "head": head},
        "squares": {"rows": squares["rows"].at[distinct].set(row_squares, mode="drop"), "head": head_squares},
    }
    return model, loss


def train(name: str, unique: Unique, size: int, model: Any, batches: Any) -> tuple[Any, list[float], float]:
    """The trained model, the losses, and the seconds of one step."""
    step = jax.jit(functools.partial(train_step, unique, size), donate_argnums=0)
    model, loss = step(jax.tree.map(jnp.copy, model), *batches[0])  # compiles
    losses = [loss]
    jax.block_until_ready(model)
    start = time.perf_counter()
    for batch in batches[1:]:
        model, loss = step(model, *batch)
        losses.append(loss)
    jax.block_until_ready(model)
    seconds = (time.perf_counter() - start) / max(1, len(batches) - 1)
    print(f"{name}: {len(batches)} steps, loss {float(losses[-1]):.3f}", file=sys.stderr, flush=True)
    return model, [float(loss) for loss in losses], seconds


def time_alone(unique: Unique, size: int, batches: Any) -> float:
    """Seconds of the deduplication alone."""
    run = jax.jit(lambda ids: unique(ids.reshape(-1), size=size, fill_value=-1, return_inverse=True))
    jax.block_until_ready(run(batches[0][0]))
    start = time.perf_counter()
    for ids, _ in batches:
        jax.block_until_ready(run(ids))
    return (time.perf_counter() - start) / len(batches)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train an embedding whose ids are deduplicated by hashing.")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: JAX's own choice")
    parser.add_argument("--steps", type=int, default=100, help=f"batches of {BATCH} words (default: 100)")
    options = parser.parse_args(arguments)
    device = jax.devices(options.device)[0]

    ids, classes, count = make_samples(read_words(options.steps * BATCH + CONTEXT))
    parts = [slice(start, start + BATCH) for start in range(0, options.steps * BATCH, BATCH)]
    most = max(len(np.unique(ids[part])) for part in parts)
    size = -(-most // 1024) * 1024  # shapes in a program are static; with less room ids would be left out
    with jax.default_device(device):
        batches = [(jnp.asarray(ids[part]), jnp.asarray(classes[part])) for part in parts]
        model = initial_model(count)
        hashed, mine, my_step = train("gpuhash.jax.unique", gpuhash.jax.unique, size, model, batches)
        sorting, theirs, their_step = train("jnp.unique", jnp.unique, size, model, batches)
        my_time = time_alone(gpuhash.jax.unique, size, batches)
        their_time = time_alone(jnp.unique, size, batches)

    name = f"{'cuda' if device.platform == 'gpu' else device.platform}:{device.id}"
    print(f"{options.steps} batches of {BATCH * CONTEXT:,} ids, up to {most:,} distinct of {count:,}, on {name}")
    print(f"loss of the first batch {mine[0]:.4f}, of the last {mine[-1]:.4f}")
    for who, step, alone in (("gpuhash", my_step, my_time), ("jnp", their_step, their_time)):
        print(f"{who + '.unique':15} {alone * 1e3:8.2f} ms, in a step of {step * 1e3:8.2f} ms")
    print(f"times faster: unique {their_time / my_time:.1f}, step {their_step / my_step:.1f}")
    # Alike but for the order in which floats are summed.
    np.testing.assert_allclose(mine, theirs, rtol=0.01)
    assert mine[-1] < 0.9 * mine[0], "the loss did not fall"
    difference = float(jnp.abs(hashed["weights"]["rows"] - sorting["weights"]["rows"]).max())
    print(f"largest difference between their rows: {difference:.1e}")
    assert difference < 0.02, "the rows differ"


if __name__ == "__main__":
    main()
