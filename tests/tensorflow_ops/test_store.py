"""Named tensors between TensorFlow's graphs and Python."""

from __future__ import annotations

import numpy as np
import pytest
from support.frameworks import GPU, module, sees_gpu
from support.graphs import need_tensorflow
from support.samples import VALUE_DTYPES, random_values, same_bytes
from test_sharing import address_of

import gpuhash


@pytest.fixture
def tools(device):
    return need_tensorflow(device)


@pytest.mark.pairwise
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", VALUE_DTYPES)
def test_a_graph_saves_and_python_reads(tools, device, dtype, shape):
    tf, ours, place = tools
    name = f"graph to Python {device} {dtype} {shape}"
    host = random_values(dtype, shape)

    @tf.function
    def save(tensor):
        ours.save_tensor(name, tensor)

    with tf.device(place):
        save(tf.identity(tf.constant(host)))
        got = ours.get_tensor(name, dtype)
    same_bytes(got, host)
    assert got.shape == shape
    assert place in got.device
    same_bytes(gpuhash.store[name], host)
    del gpuhash.store[name]


@pytest.mark.parametrize("dtype", VALUE_DTYPES)
def test_python_saves_and_a_graph_reads(tools, device, dtype):
    tf, ours, place = tools
    torch = module("torch")
    if torch is None or not hasattr(torch, dtype) or (device != "cpu" and not sees_gpu("torch")):
        pytest.skip("PyTorch has no such arrays")
    host = random_values(dtype, (6, 7))
    view = {"bfloat16": np.int16, "float16": np.int16}.get(dtype)
    tensor = torch.from_numpy(host.view(view) if view else host).to(device)
    if view:
        tensor = tensor.view(getattr(torch, dtype))
    name = f"Python to graph {device} {dtype}"
    gpuhash.store[name] = tensor

    @tf.function
    def read():
        return ours.get_tensor(name, dtype, [6, 7])

    with tf.device(place):
        got = read()
        assert got.shape == (6, 7)
        same_bytes(got, host)
        assert ours.delete_tensor(name).numpy()
        assert not ours.delete_tensor(name).numpy()
    assert name not in gpuhash.store


def test_nothing_is_copied(tools, device):
    tf, ours, place = tools
    torch = module("torch")
    if torch is None or (device != "cpu" and not sees_gpu("torch")):
        pytest.skip("needs PyTorch there")
    tensor = torch.arange(100, dtype=torch.float32, device=device)
    gpuhash.store["torch's"] = tensor
    with tf.device(place):
        lent = ours.get_tensor("torch's", tf.float32)
        assert address_of(lent) == tensor.data_ptr()
        made = tf.identity(tf.constant(np.arange(64.0)))
        ours.save_tensor("tensorflow's", made)
        assert address_of(gpuhash.store.tensor("tensorflow's", like="torch")) == address_of(made)
        # TensorFlow does not write into what it was lent: not even where an op could reuse its input.
        more = tf.function(lambda x: x + 1)(lent)
    same_bytes(more, np.arange(100, dtype=np.float32) + 1)
    same_bytes(tensor, np.arange(100, dtype=np.float32))
    del gpuhash.store["torch's"], gpuhash.store["tensorflow's"]
    del tensor
    same_bytes(lent, np.arange(100, dtype=np.float32))


def test_unaligned_memory_is_copied(tools, device):
    tf, ours, place = tools
    torch = module("torch")
    if torch is None or (device != "cpu" and not sees_gpu("torch")):
        pytest.skip("needs PyTorch there")
    gpuhash.store["a slice"] = torch.arange(100, dtype=torch.int64, device=device)[3:]
    with tf.device(place):
        got = ours.get_tensor("a slice", tf.int64)
    same_bytes(got, np.arange(3, 100))
    del gpuhash.store["a slice"]


def test_missing_names(tools):
    tf, ours, place = tools
    with tf.device(place), pytest.raises(tf.errors.NotFoundError, match="of nobody"):
        ours.get_tensor("of nobody", tf.float32)
    with pytest.raises(KeyError, match="of nobody"):
        gpuhash.store["of nobody"]


def test_another_dtype_or_shape_is_refused(tools):
    tf, ours, place = tools
    with tf.device(place):
        ours.save_tensor("floats", tf.identity(tf.constant([1.0, 2.0])))
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"float of shape \[2\]"):
            ours.get_tensor("floats", tf.int64)
        with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
            ours.get_tensor("floats", tf.float32, [3])
        same_bytes(ours.get_tensor("floats"), np.array([1, 2], np.float32))
    del gpuhash.store["floats"]


def test_strings():
    tf, ours, _ = need_tensorflow()
    with tf.device("CPU:0"):
        ours.save_tensor("words", tf.constant([["a", "b"]]))
        assert ours.get_tensor("words", tf.string).numpy().tolist() == [[b"a", b"b"]]
        assert gpuhash.store["words"].numpy().tolist() == [[b"a", b"b"]]
    gpuhash.store["other words"] = tf.constant("c")
    assert ours.get_tensor("other words").numpy() == b"c"
    del gpuhash.store["words"], gpuhash.store["other words"]


def test_the_other_device_is_named():
    _, _, place = need_tensorflow(GPU)
    tf, ours, _ = need_tensorflow()
    gpuhash.store["on the host"] = np.arange(3)
    with tf.device(place), pytest.raises(tf.errors.InvalidArgumentError, match="lies on cpu"):
        ours.get_tensor("on the host", tf.int64)
    del gpuhash.store["on the host"]
