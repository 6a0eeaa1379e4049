"""When HashEmbedding and HashEmbeddingBag train: several calls before backward(), gradients of others, CUDA graphs."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support.frameworks import module

from gpuhash.initializers import Constant, Normal

torch = module("torch")
if torch is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from gpuhash.torch import SGD, Adam, HashEmbedding, HashEmbeddingBag  # noqa: E402

BACKENDS = [None, "aot_eager"]


def compiled(function: Any, backend: str | None, **options: Any) -> Any:
    if backend is None:
        return function
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, **options)


def ids_of(*ids: int) -> Any:
    return torch.tensor(ids)


def contents(embedding: Any) -> dict[str, Any]:
    """What the rows of all ids hold, in the ids' order, as of ``state_dict``."""
    keys, columns = embedding.table.items(like="torch")
    order = keys.argsort()
    return {"keys": keys[order].cpu(), **{name: column[order].cpu() for name, column in columns.items()}}


def check_same(one: Any, other: Any) -> None:
    assert one.steps == other.steps
    for name, column in contents(one).items():
        torch.testing.assert_close(contents(other)[name], column, rtol=1e-5, atol=1e-6)


# Several calls before backward() -------------------------------------------------------------------------------------

Compile = Callable[..., Any]
FIRST, SECOND = (7, 3, 7, 5), (5, 9, 3)  # some ids in both, so that the order of steps shows


def loss_of(out: Any, scale: float) -> Any:
    return (out**2).sum() * scale


def one_backward(embedding: Any, compile: Compile, device: str) -> None:
    run = compile(embedding)
    first, second = ids_of(*FIRST).to(device), ids_of(*SECOND).to(device)
    (loss_of(run(first), 1) + loss_of(run(second), 3)).backward()


def two_backwards(embedding: Any, compile: Compile, device: str) -> None:
    run = compile(embedding)
    losses = loss_of(run(ids_of(*FIRST).to(device)), 1), loss_of(run(ids_of(*SECOND).to(device)), 3)
    for loss in losses:
        loss.backward()


def the_same_twice(embedding: Any, compile: Compile, device: str) -> None:
    loss = loss_of(compile(embedding)(ids_of(*FIRST).to(device)), 1)
    loss.backward(retain_graph=True)
    loss.backward()


def two_functions(embedding: Any, compile: Compile, device: str) -> None:
    towers = [compile(lambda ids, scale=scale: loss_of(embedding(ids), scale)) for scale in (1, 3)]
    (towers[0](ids_of(*FIRST).to(device)) + towers[1](ids_of(*SECOND).to(device))).backward()


def with_one_not_compiled(embedding: Any, compile: Compile, device: str) -> None:
    run = compile(lambda ids: embedding(ids))
    (loss_of(run(ids_of(*FIRST).to(device)), 1) + loss_of(embedding(ids_of(*SECOND).to(device)), 3)).backward()


def no_grad_between(embedding: Any, compile: Compile, device: str) -> None:
    run = compile(embedding)
    loss = loss_of(run(ids_of(*FIRST).to(device)), 1)
    with torch.no_grad():
        run(ids_of(*SECOND).to(device))
    loss.backward()


def eval_between(embedding: Any, compile: Compile, device: str) -> None:
    run = compile(embedding)
    loss = loss_of(run(ids_of(*FIRST).to(device)), 1)
    embedding.eval()
    run(ids_of(*SECOND).to(device))
    embedding.train()
    loss.backward()


def broken_graph(embedding: Any, compile: Compile, device: str) -> None:
    def both(first: Any, second: Any) -> Any:
        loss = loss_of(embedding(first), 1)
        torch._dynamo.graph_break()
        return loss + loss_of(embedding(second), 3)

    compile(both)(ids_of(*FIRST).to(device), ids_of(*SECOND).to(device)).backward()


def loop_over_a_step(embedding: Any, compile: Compile, device: str) -> None:
    torch.manual_seed(0)
    cell = torch.nn.RNNCell(4, 4).to(device)
    step = compile(lambda ids, hidden: cell(embedding(ids), hidden))
    hidden = torch.zeros(3, 4, device=device)
    for time in range(3):
        hidden = step(ids_of(1, 2, 3).to(device) + time, hidden)
    hidden.sum().backward()


def one_graph(embedding: Any, compile: Compile, device: str) -> None:
    """Inductor would put the steps of one graph in the order that saves memory."""

    def loss(batches: Any) -> Any:
        outs = [embedding(ids).tanh().mean(0) for ids in batches]
        return sum((one * other).sum() * (i + 1) for i, one in enumerate(outs) for other in outs[::-1])

    run = compile(loss, fullgraph=True)
    batches = [torch.arange(20 * (1 + i % 2), device=device) // (1 + i) for i in range(3)]
    for _ in range(2):
        (run(batches) + run(batches[::-1])).backward()


CALLS = [
    one_backward,
    two_backwards,
    the_same_twice,
    two_functions,
    with_one_not_compiled,
    no_grad_between,
    eval_between,
    broken_graph,
    loop_over_a_step,
    one_graph,
]


def check_calls(calls: Any, embedding: Any, backend: str, device: str) -> None:
    twin = copy.deepcopy(embedding)
    calls(embedding, lambda function, **_: function, device)
    torch._dynamo.reset()
    calls(twin, lambda function, **options: torch.compile(function, backend=backend, **options), device)
    check_same(embedding, twin)
    assert twin._anchor.grad is None, "its memory may be that of a CUDA graph"


@pytest.mark.parametrize("calls", CALLS, ids=lambda each: each.__name__)
def test_calls_before_backward(calls, device):
    """Each is a step, in the order that autograd has, as without the compiler."""
    check_calls(
        calls, HashEmbedding(4, optimizer=Adam(0.1), initializer=Normal(seed=3), device=device), "aot_eager", device
    )


@pytest.mark.long(20)
def test_calls_before_backward_of_inductor(device):
    """It compiles C++ or Triton."""
    embedding = HashEmbedding(4, optimizer=Adam(0.1), initializer=Normal(seed=3), device=device)
    check_calls(one_graph, embedding, "inductor", device)


def test_calls_of_bags_before_backward(device):
    """With means, and with weights that get derivatives."""
    results = []
    for backend in BACKENDS:
        bags = HashEmbeddingBag(4, "sum", optimizer=Adam(0.1), initializer=Normal(seed=3), device=device)
        run = compiled(bags, backend)
        weights = torch.arange(1.0, 5.0, device=device).view(2, 2).requires_grad_()
        first, second = ids_of(*FIRST).view(2, 2).to(device), ids_of(*FIRST[::-1]).view(2, 2).to(device)
        for _ in range(2):
            (loss_of(run(first, per_sample_weights=weights), 1) + loss_of(run(second), 3)).backward()
        results.append((bags, weights.grad))
    check_same(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])


def test_calls_of_a_parameter_before_backward(device):
    """Without an optimizer graphs break, and the gradients of two calls are summed up."""
    embedding = HashEmbedding(2, max_capacity=64, initializer=Constant(1.0), device=device)
    run = compiled(embedding, "aot_eager")
    first, second = ids_of(1, 2).to(device), ids_of(2, 3, 3).to(device)
    (run(first).sum() + run(second).sum()).backward()
    rows = embedding.table.rows(ids_of(1, 2, 3).to(device))
    assert embedding.weight.grad.to_dense()[rows][:, 0].tolist() == [1, 2, 2]


# Gradients of others -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_others_train_nothing(backend, device):
    """As a GAN's generator takes them, by autograd.grad() or by backward(inputs=), through its discriminator."""
    embedding = HashEmbedding(2, optimizer=Adam(0.1), initializer=Constant(3.0), device=device)
    ids = ids_of(1, 2, 1).to(device)
    given = torch.ones(3, 2, device=device, requires_grad=True)
    run = compiled(lambda given: (embedding(ids) * given).sum(), backend)
    run(given)
    before = contents(embedding)
    (gradient,) = torch.autograd.grad(run(given), given)
    assert (gradient == 3).all()
    run(given).backward(inputs=[given])
    assert (given.grad == 3).all()
    assert embedding.steps == 0
    torch.testing.assert_close(contents(embedding), before, rtol=0, atol=0)
    run(given).backward()
    assert embedding.steps == 1
    assert (contents(embedding)["weight"] < before["weight"]).all()


@pytest.mark.long(15)
def test_compiled_backward_passes(device):
    """Compiled autograd runs the ops in a graph of its own, where they cannot ask for what is computed.

    PyTorch compiles several graphs for it.
    """
    from torch._dynamo import compiled_autograd

    plain = HashEmbedding(4, optimizer=Adam(0.1), initializer=Normal(seed=3), device=device)
    twin = copy.deepcopy(plain)
    first, second = ids_of(*FIRST).to(device), ids_of(*SECOND).to(device)
    given = torch.ones(4, 4, device=device, requires_grad=True)
    for embedding, run in ((plain, plain), (twin, compiled(twin, "aot_eager"))):
        product = (run(first) * given).sum()
        loss = loss_of(run(first), 1) + loss_of(run(second), 3)
        if embedding is plain:
            loss.backward()
        else:
            with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="aot_eager")):
                torch.autograd.grad(product, given)
                assert twin.steps == 0
                loss.backward()
    check_same(plain, twin)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_the_weights_of_samples_train_nothing(backend, device):
    bags = HashEmbeddingBag(2, "sum", optimizer=Adam(0.1), initializer=Constant(3.0), device=device)
    ids, weights = ids_of(1, 2).view(1, 2).to(device), torch.ones(1, 2, device=device, requires_grad=True)
    run = compiled(bags, backend)
    (gradient,) = torch.autograd.grad(run(ids, per_sample_weights=weights).sum(), weights)
    assert (gradient == 6).all()
    assert bags.steps == 0
    assert (contents(bags)["weight"] == 3).all()
    run(ids, per_sample_weights=weights).sum().backward()
    assert bags.steps == 1
    assert (weights.grad == 6).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_parts_that_a_loss_does_not_use(backend, device):
    """Make no step, not even by the momentum that they have."""
    embedding = HashEmbedding(2, optimizer=Adam(0.1), device=device)
    used, other, both = ids_of(1, 2).to(device), ids_of(3, 4).to(device), ids_of(2, 3).to(device)
    run = compiled(embedding, backend)
    sum(out.sum() for out in run([used, other, both])).backward()
    before = contents(embedding)
    run([used, other, both])[0].sum().backward()
    after = contents(embedding)
    assert embedding.steps == 2
    for name in ("weight", "exp_avg", "exp_avg_sq"):
        assert (after[name][:2] != before[name][:2]).all(), "1 and 2"
        assert torch.equal(after[name][2:], before[name][2:]), "3 and 4"
    run([used, other, both])[2].sum().backward()
    assert (contents(embedding)["weight"][2] != before["weight"][2]).all()


def test_parts_that_a_loss_does_not_use_have_no_sparse_gradient(device):
    embedding = HashEmbedding(2, max_capacity=64, device=device)
    used, other = ids_of(1, 2, 1).to(device), ids_of(3, 2).to(device)
    embedding([used, other])[0].sum().backward()
    gradient = embedding.weight.grad.coalesce()
    assert gradient.indices()[0].tolist() == sorted(embedding.table.rows(ids_of(1, 2).to(device)).tolist())


def test_a_call_in_a_graph_that_a_loss_does_not_use():
    """It is no step. On a GPU, which would have to be waited for, it is one of no row."""
    embedding = HashEmbedding(2, optimizer=Adam(0.1))
    run = compiled(lambda: (embedding(ids_of(1)), embedding(ids_of(2))), "aot_eager")
    for _ in range(2):
        run()[0].sum().backward()
    assert embedding.steps == 2
    assert contents(embedding)["exp_avg"].abs().sum(1).sign().tolist() == [1, 0]


# Modules that are gone -----------------------------------------------------------------------------------------------


def make(kind: str, device: str) -> Any:
    if kind == "bags":
        return HashEmbeddingBag(2, optimizer=SGD(0.5), device=device)
    optimizer = None if kind == "parameter" else SGD(0.5)
    return HashEmbedding(2, optimizer=optimizer, max_capacity=64, device=device, initializer=Constant(1.0))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["rows", "bags", "parameter"])
def test_a_module_that_keeps_its_output_is_freed(kind, backend, device):
    embedding = make(kind, device)
    embedding.register_forward_hook(lambda module, _, out: setattr(module, "kept", out))
    compiled(embedding, backend)(ids_of(1, 2).view(1, 2).to(device))
    assert embedding.kept.requires_grad
    left = weakref.ref(embedding), weakref.ref(embedding.table)
    del embedding
    torch._dynamo.reset()
    gc.collect()
    assert [each() for each in left] == [None, None]


def test_backward_after_the_module_is_gone(device):
    """A parameter that is kept gets its gradient; rows that nobody can see need no step, and others an error."""
    ids = ids_of(1, 2, 1).to(device)
    embedding = make("parameter", device)
    weight, rows, out = embedding.weight, embedding.table.rows(ids), embedding(ids)
    rows = embedding.table.rows(ids)
    del embedding
    gc.collect()
    out.sum().backward()
    assert weight.grad.to_dense()[rows].tolist() == [[2, 2], [1, 1], [2, 2]]
    given = torch.ones(3, 2, device=device, requires_grad=True)
    (make("rows", device)(ids) * given).sum().backward()
    assert (given.grad == 1).all()
    embedding = make("rows", device)
    table, out = embedding.table, embedding(ids)
    del embedding
    gc.collect()
    with pytest.raises(RuntimeError, match="keep the module"):
        out.sum().backward()
    assert (table[ids]["weight"] == 1).all()


# Tensors that a backward pass has saved ------------------------------------------------------------------------------


@pytest.mark.parametrize("max_norm", [None, 0.5], ids=["new-ids", "norms"])
def test_a_parameter_that_calls_write_into(max_norm, device):
    """Is no more what a backward pass has saved, which raises, as with nn.Embedding(max_norm=...)."""
    embedding = HashEmbedding(2, max_capacity=8, max_norm=max_norm, initializer=Constant(1.0), device=device)
    ids = ids_of(1, 2).to(device)
    if max_norm is not None:
        embedding(ids)
    other = torch.ones(2, 1, device=device, requires_grad=True)
    product = embedding.weight @ other
    before = embedding.weight.detach().clone()
    embedding(ids_of(1, 2, 3).to(device) if max_norm is None else ids)
    assert max_norm is not None or not torch.equal(embedding.weight.detach(), before)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_a_parameter_that_another_state_is_loaded_into(device):
    embedding = HashEmbedding(2, max_capacity=8, initializer=Constant(1.0), device=device)
    other = torch.ones(2, 1, device=device, requires_grad=True)
    product = embedding.weight @ other
    embedding.load_state_dict(embedding.state_dict())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_a_parameter_that_calls_leave_alone():
    """Two towers with logits by the same weights, as of nn.Embedding; and calls in eval()."""
    ours = HashEmbedding(2, max_capacity=8, initializer=Normal(seed=1))
    ids = ids_of(1, 2)
    ours(ids)
    theirs = torch.nn.Embedding.from_pretrained(ours.weight.detach().clone(), freeze=False)
    codes = ours.table.rows(ids)
    for weight, calls in ((ours.weight, [ours, ours]), (theirs.weight, [theirs, theirs])):
        given = ids if weight is ours.weight else codes
        losses = [(call(given) @ weight.detach().T).sum() + (weight**2).sum() for call in calls]
        if weight is ours.weight:
            ours.eval()(ids_of(1, 99))
        sum(losses).backward()
    torch.testing.assert_close(ours.weight.grad.to_dense(), theirs.weight.grad)


# Second derivatives --------------------------------------------------------------------------------------------------


def test_penalties_of_gradients_of_others(device):
    """They depend on the rows, which train."""
    embedding = HashEmbedding(2, optimizer=SGD(0.1), initializer=Constant(2.0), device=device)
    given = torch.ones(1, 2, device=device, requires_grad=True)
    (gradient,) = torch.autograd.grad((embedding(ids_of(1).to(device)) * given**3).sum(), given, create_graph=True)
    assert embedding.steps == 0
    (gradient**2).sum().backward()
    torch.testing.assert_close(given.grad, torch.full_like(given, 144))  # of (3 e x^2)^2 by x
    torch.testing.assert_close(contents(embedding)["weight"], torch.full((1, 2), 2 - 3.6))  # 18 e x^4 by e


@pytest.mark.parametrize("trains", [False, True], ids=["eval", "train"])
def test_second_derivatives_of_the_weights_of_samples(trains, device):
    """By these weights they are those of a product of matrices; by rows they are refused."""
    bags = HashEmbeddingBag(2, "sum", optimizer=SGD(0.1), initializer=Normal(seed=1), device=device)
    ids = ids_of(1, 2, 3).view(1, 3).to(device)
    rows = bags(ids.view(3, 1)).detach()
    bags.train(trains)
    weights = torch.tensor([[0.5, -1, 2]], device=device, requires_grad=True)

    def second(pooled: Any) -> Any:
        (first,) = torch.autograd.grad((pooled**3).sum(), weights, create_graph=True)
        return torch.autograd.grad((first**2).sum(), weights)[0]

    torch.testing.assert_close(second(bags(ids, per_sample_weights=weights)), second(weights @ rows))
    assert bags.steps == 0
    (first,) = torch.autograd.grad(bags(ids, per_sample_weights=weights).sum(), weights, create_graph=True)
    if trains:
        with pytest.raises(RuntimeError, match="differentiated once more"):
            (first**2).sum().backward()
    else:
        assert not first.requires_grad


def test_second_derivatives_of_a_parameter_are_refused(device):
    """Also where None would do for zero."""
    embedding = HashEmbedding(2, max_capacity=64, initializer=Constant(2.0), device=device)
    loss = (embedding(ids_of(1, 2).to(device)) ** 3).sum()
    (first,) = torch.autograd.grad(loss, embedding.weight, create_graph=True)
    for work in (
        lambda: torch.autograd.grad(torch.sparse.sum(first), embedding.weight, retain_graph=True, allow_unused=True),
        lambda: first.to_dense().pow(2).sum().backward(retain_graph=True),
    ):
        with pytest.raises(RuntimeError, match="differentiated once more"):
            work()


def test_forward_derivatives_are_refused(device):
    """And not left out."""
    bags = HashEmbeddingBag(2, "sum", optimizer=SGD(0.1), device=device).eval()
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        weights = forward.make_dual(torch.ones(1, 2, device=device), torch.ones(1, 2, device=device))
        with pytest.raises((RuntimeError, NotImplementedError), match="forward mode AD"):
            bags(ids_of(1, 2).view(1, 2).to(device), per_sample_weights=weights)


# CUDA graphs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rows", "bags", "parameter"])
def test_training_in_a_cuda_graph_is_refused(kind, torch_cuda):
    """Replays would have the learning rate and the step number of the capture. Nothing changes, and lookups work."""
    from support.frameworks import GPU

    embedding = make(kind, GPU)
    embedding.table.reserve(8)
    ids, new = ids_of(1, 2).view(1, 2).to(GPU), ids_of(3, 4).view(1, 2).to(GPU)
    embedding(ids).sum().backward()
    before, steps = contents(embedding), embedding.steps
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream(GPU)
    stream.wait_stream(torch.cuda.current_stream(GPU))
    with torch.cuda.stream(stream):
        out = embedding(ids)
    for work in (lambda: embedding(new).sum().backward(), lambda: out.sum().backward()):
        with (
            torch.cuda.device(GPU),
            pytest.raises(RuntimeError, match="while a CUDA graph is captured"),
            torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream),
        ):
            work()
    assert embedding.steps == steps
    torch.testing.assert_close(contents(embedding), before, rtol=0, atol=0)
    embedding.eval()
    with torch.no_grad(), torch.cuda.device(GPU), torch.cuda.graph(graph, stream=stream):
        captured = embedding(ids)
    embedding.train()
    embedding(ids).sum().backward()
    graph.replay()
    embedding.eval()
    torch.testing.assert_close(captured, embedding(ids))


@pytest.mark.long(30)
def test_training_beside_cuda_graphs_of_the_compiler(torch_cuda):
    """mode="reduce-overhead" leaves the ops out of its graphs: steps count, and a rate that changes is taken."""
    from support.frameworks import GPU

    options = {"optimizer": Adam(0.1), "initializer": Constant(1.0), "device": GPU}
    plain = HashEmbedding(4, **options)
    twin = HashEmbedding(4, **{**options, "optimizer": Adam(0.1)})
    torch._dynamo.reset()
    run = torch.compile(twin, mode="reduce-overhead")
    ids, other = ids_of(*FIRST).to(GPU), ids_of(*SECOND).to(GPU)
    for step in range(6):
        for call, embedding in ((plain, plain), (run, twin)):
            embedding.optimizer.lr = 0.1 / (1 + step)
            (loss_of(call(ids), 1) + loss_of(call(other), 3)).backward()
    assert plain.steps == 12
    check_same(plain, twin)
