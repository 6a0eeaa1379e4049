"""What embeddings in PyTorch keep: seeds, frozen ids, states that are loaded, defaults and dtypes of the program."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
from support.frameworks import module

from gpuhash.initializers import Constant, Normal, TruncatedNormal, Uniform

torch = module("torch")
if torch is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from gpuhash.torch import (  # noqa: E402
    LAMB,
    SGD,
    Adagrad,
    Adam,
    AveragedModel,
    FusedOptimizer,
    HashEmbedding,
    HashEmbeddingBag,
    RowWiseAdagrad,
)


def rows_of(embedding: Any, ids: Any) -> Any:
    """The weights that are stored."""
    return embedding.table[ids]["weight"]


def gradients_of(embedding: Any, ids: Any) -> Any:
    """Of the parameter, by ids, as rows have numbers in no order on a GPU."""
    return embedding.weight.grad.to_dense()[embedding.table.rows(ids)]


def with_parameter(fused: bool, **options: Any) -> Any:
    return HashEmbedding(6, **({"optimizer": Adam(0.1)} if fused else {"max_capacity": 400}), **options)


# Seeds ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("initializer", [None, Normal(std=0.5), Uniform(-1, 1), TruncatedNormal()], ids=str)
def test_torch_manual_seed_decides_on_rows(initializer, device):
    """Modules of one program begin differently, programs with one seed alike; as nn.Embedding's weights."""
    ids = torch.arange(100, device=device)

    def towers(seed):
        torch.manual_seed(seed)
        made = [HashEmbedding(8, optimizer=SGD(0.1), initializer=initializer, device=device) for _ in range(2)]
        return [each(ids).detach() for each in made]

    first, again, other = towers(1), towers(1), towers(2)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    every = torch.cat([*first, *other]).flatten()
    assert every.unique().numel() > 0.99 * every.numel(), "no two modules have a row in common"


def test_given_seeds_hold(device):
    """Whatever PyTorch's generator says, and whatever a state says; nothing is drawn from the generator then."""
    ids = torch.arange(50, device=device)
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    made = [HashEmbedding(4, optimizer=SGD(0.1), initializer=Normal(seed=s), device=device) for s in (3, 3, 2**64 - 1)]
    HashEmbedding(4, optimizer=SGD(0.1), initializer=Constant(1), device=device)
    assert torch.equal(before, torch.random.get_rng_state())
    first = made[0](ids).detach()
    assert torch.equal(first, made[1](ids))
    assert not torch.equal(first, made[2](ids))
    made[1].load_state_dict(made[2].state_dict())
    later = ids + 1000
    assert torch.equal(made[0](later), made[1](later)), "a seed that was given is not the state's"
    drawn = HashEmbedding(4, optimizer=SGD(0.1), device=device)
    drawn.load_state_dict(made[2].state_dict())
    assert torch.equal(drawn(later), made[2](later)), "one that was drawn is"


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "parameter"])
def test_seeds_go_with_states_and_copies(fused, device):
    """Ids that come after a copy was made, or a state loaded, get the rows that they would have got in the original."""
    ids, later = torch.arange(50, device=device), torch.arange(1000, 1100, device=device)
    embedding = with_parameter(fused, device=device)
    embedding(ids)
    file = io.BytesIO()
    torch.save(embedding.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    loaded = with_parameter(fused, device=device)
    loaded.load_state_dict(state)
    second = with_parameter(fused, device=device)
    second.load_state_dict(loaded.state_dict())
    copies = [copy.deepcopy(embedding), pickle.loads(pickle.dumps(embedding)), loaded, second, copy.deepcopy(loaded)]
    expected = embedding(later).detach()
    for made in copies:
        assert torch.equal(made(later), expected)
    assert not torch.equal(with_parameter(fused, device=device)(later), expected)


def test_states_without_a_seed(device):
    """They were saved before there was one: the module keeps its own, and new ids are still drawn."""
    embedding, other = (with_parameter(True, device=device) for _ in range(2))
    ids = torch.arange(20, device=device)
    embedding(ids)
    state = embedding.state_dict()
    del state["seed"]
    twin = copy.deepcopy(other)
    other.load_state_dict(state)
    assert torch.equal(other(ids), embedding(ids))
    assert torch.equal(other(ids + 100), twin(ids + 100))
    for wrong in (torch.tensor(1.5), torch.tensor([1, 2]), torch.tensor(1, device="meta"), None, "1"):
        with pytest.raises(RuntimeError, match=r"seed is .*, expected int64 of \(\)"):
            other.load_state_dict({**state, "seed": wrong})


def test_seeds_are_drawn_in_any_mode():
    """Modules are made under default devices, in inference mode, and where fake tensors are."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    def drawn():
        return HashEmbedding(4, optimizer=SGD(0.1), device="cpu")._columns["weight"].initial.seed

    torch.manual_seed(7)
    expected = [drawn() for _ in range(3)]
    torch.manual_seed(7)
    with torch.device("meta"):
        seeds = [drawn()]
    with torch.inference_mode():
        seeds.append(drawn())
    with FakeTensorMode():
        seeds.append(drawn())
    assert seeds == expected


# States ---------------------------------------------------------------------------------------------------------------


def state_of(fused: bool, device: str) -> tuple[Any, Any]:
    embedding = with_parameter(fused, device=device)
    for _ in range(2):
        embedding(torch.arange(10, device=device)).sum().backward()
    return embedding, embedding.state_dict()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"steps": torch.tensor([1, 2])}, "steps is torch.int64 of shape"),
        ({"steps": torch.empty(0)}, "steps is torch.float32 of shape"),
        ({"steps": torch.tensor(3.7)}, "steps is torch.float32"),
        ({"steps": torch.tensor(float("nan"))}, "steps is torch.float32"),
        ({"steps": torch.tensor(True)}, "steps is torch.bool"),
        ({"steps": torch.tensor(-3)}, "steps is -3, expected a number from 0"),
        ({"steps": torch.tensor(2**63 - 1)}, "steps is 9223372036854775807, expected"),
        ({"steps": -1}, "steps is -1"),
        ({"steps": torch.empty((), device="meta")}, "steps is a tensor without data"),
        ({"steps": True}, "steps is a bool"),
        ({"weight": torch.ones(10, 6).to_sparse()}, "weight is a tensor of layout"),
        ({"weight": np.ones((10, 6), np.float32)}, "weight is a ndarray"),
        ({"exp_avg": torch.empty(10, 6, device="meta")}, "exp_avg is a tensor without data"),
        ({"keys": None}, "keys is a NoneType"),
        ({"keys": torch.zeros(10, dtype=torch.int64)}, "9 of which were there before"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_states_that_cannot_be(change, match, device):
    """Each is found out before anything has changed."""
    ids = torch.arange(10, device=device)
    _, good = state_of(True, device)
    embedding, _ = state_of(True, device)
    before, steps = rows_of(embedding, ids).clone(), embedding.steps
    with pytest.raises((RuntimeError, ValueError), match=match):
        embedding.load_state_dict({**good, **change})
    assert torch.equal(rows_of(embedding, ids), before)
    assert (len(embedding), embedding.steps) == (10, steps)
    embedding(ids).sum().backward()
    assert embedding.steps == steps + 1


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("saved", "loads"), [("adam", "adagrad"), ("adagrad", "adam"), ("adagrad", "row-wise"), ("sgd", "adam")]
)
def test_states_of_other_optimizers(saved, loads, strict, device):
    """What one optimizer has kept is not taken by another, nor are weights without what belongs to them."""
    make = {
        "adam": Adam,
        "adagrad": lambda: Adagrad(0.1),
        "row-wise": lambda: RowWiseAdagrad(0.1),
        "sgd": lambda: SGD(0.1),
    }
    ids = torch.arange(10, device=device)
    other, embedding = (HashEmbedding(4, optimizer=make[name](), device=device) for name in (saved, loads))
    for each in (other, embedding):
        each(ids).sum().backward()
    _, before = embedding.table.items(like="torch")
    with pytest.raises(RuntimeError, match=r"another optimizer|expected float32 of"):
        embedding.load_state_dict(other.state_dict(), strict=strict)
    _, after = embedding.table.items(like="torch")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_states_without_the_module(device):
    """strict=False leaves a module alone of which a state says nothing, as any module."""
    embedding, _ = state_of(True, device)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), embedding)
    before = rows_of(embedding, torch.arange(10, device=device)).clone()
    found = model.load_state_dict(torch.nn.Sequential(torch.nn.Linear(2, 2)).state_dict(), strict=False)
    assert sorted(found.missing_keys) == [f"1.{name}" for name in ("exp_avg", "exp_avg_sq", "keys", "steps", "weight")]
    assert torch.equal(rows_of(embedding, torch.arange(10, device=device)), before)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "parameter"])
def test_states_of_modules_without_padding(fused, device):
    """The padding's row is zeros, also where the state has none; where it has one, it is the state's."""
    ids = torch.tensor([5, 7, 5], device=device)
    plain = with_parameter(fused, device=device, initializer=Constant(2))
    plain(ids[1:2])
    for has_row in (False, True):
        if has_row:
            plain(ids)
        made = with_parameter(fused, device=device, initializer=Constant(3), padding_idx=5)
        made.load_state_dict(plain.state_dict())
        out = made(ids)
        assert out[:, 0].tolist() == ([2, 2, 2] if has_row else [0, 2, 0])
        assert len(made) == 2


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "parameter"])
def test_features_in_states(fused, device):
    """They are told by their names: a list in another order, or a longer one, gives each feature its own rows."""
    ids = torch.arange(8, device=device)
    make = lambda *features: with_parameter(fused, features=features, device=device)  # noqa: E731
    embedding = make("user", "item")
    expected = embedding({"user": ids, "item": ids})
    embedding.freeze(ids[:2], "item")
    state = embedding.state_dict()
    for features in (("user", "item"), ("item", "user"), ("café", "item", "user")):
        made = make(*features)
        made.load_state_dict(state)
        got = made.eval()({"user": ids, "item": ids})
        assert all(torch.equal(got[name], expected[name]) for name in expected)
        assert len(made) == 16
        made.train()({"user": ids, "item": ids})["item"].sum().backward()
        if not fused:
            torch.optim.SGD(made.parameters(), lr=0.1).step()
        after = made.eval()({"item": ids, "user": ids})
        assert (after["item"] == expected["item"]).all(1).tolist() == [True] * 2 + [False] * 6
        assert torch.equal(after["user"], expected["user"])
        again = make("user", "item", "café")
        again.load_state_dict(made.state_dict())
        assert torch.equal(again.eval()({"item": ids})["item"], after["item"])
    del state["features"]  # as of before there were names
    made.load_state_dict(state)
    assert len(made) == 16
    beyond = state["keys"].clone()
    beyond[3, 0] = 2
    names = embedding.state_dict()["features"]
    for change, match in [
        (
            {"features": make("user", "shop").state_dict()["features"]},
            r"features are \['user', 'shop'\], and the module",
        ),
        ({"features": names[1:]}, "features are no list of names"),
        ({"features": names.int()}, "features is torch.int32"),
        ({"features": names, "keys": beyond}, "numbers of features that there are not"),
    ]:
        with pytest.raises((RuntimeError, ValueError), match=match):
            embedding.load_state_dict({**state, **change})
        assert torch.equal(embedding.eval()({"user": ids})["user"], expected["user"])


def test_optimizers_that_are_exchanged(device):
    """Another one may take over what it would keep itself; others would take moments for something else."""
    ids = torch.arange(10, device=device)
    embedding, _ = state_of(True, device)
    embedding.optimizer = Adam(0.5, betas=(0.8, 0.9))
    kept = rows_of(embedding, ids).clone()
    embedding(ids).sum().backward()
    assert ((kept - rows_of(embedding, ids)) > 0.3).all()
    for optimizer, error, match in [
        (Adagrad(0.1), ValueError, r"keeps sum \(float32 \(6,\)"),
        (SGD(0.1), ValueError, "keeps nothing"),
        (None, TypeError, "expected an optimizer of gpuhash.torch"),
        (torch.optim.SGD([torch.nn.Parameter(ids.float())]), TypeError, "expected an optimizer of gpuhash.torch"),
    ]:
        with pytest.raises(error, match=match):
            embedding.optimizer = optimizer
    assert embedding.optimizer.lr == 0.5
    begins = HashEmbedding(6, optimizer=Adagrad(0.1), device=device)
    with pytest.raises(ValueError, match="keeps sum"):
        begins.optimizer = Adagrad(0.1, initial_accumulator_value=1.0)  # rows of new ids would begin with 0
    with pytest.raises(TypeError, match="None otherwise"):
        with_parameter(False, device=device).optimizer = SGD(0.1)


def test_numbers_of_optimizers_that_are_set():
    """By a name that there is not, or to what cannot be: an error at once, and all is as it was."""
    for optimizer in (SGD(0.1), Adagrad(0.1), RowWiseAdagrad(0.1), Adam(), LAMB()):
        before = copy.deepcopy(optimizer)
        for name, value, error, match in [
            ("learning_rate", 0.2, AttributeError, "which has no such number: it has .*lr"),
            ("momentum", 0.9, AttributeError, "no such number"),
            ("lr", -1.0, ValueError, "lr=-1.0"),
            ("lr", float("nan"), ValueError, "lr=nan"),
            ("lr", "0.1", TypeError, "lr='0.1'"),
            ("lr", None, TypeError, "lr=None"),
            ("lr", torch.ones(2), (TypeError, RuntimeError, ValueError), "."),
            ("weight_decay", -1, ValueError, "weight_decay=-1"),
            ("stochastic_rounding", "no", TypeError, "expected True or False"),
            ("seed", 1.5, TypeError, "integer"),
        ]:
            with pytest.raises(error, match=match):
                setattr(optimizer, name, value)
        assert optimizer == before
        for rate in (np.float32(0.25), torch.tensor(0.25), np.array(0.25), 0.25):
            optimizer.lr = rate
            assert optimizer.lr == 0.25
            assert type(optimizer.lr) is float
    with pytest.raises(ValueError, match="betas"):
        Adam().betas = (0.9, 1.0)
    with pytest.raises(AttributeError, match="tables have been made with it"):
        Adagrad(0.1).initial_accumulator_value = 1.0
    assert pickle.loads(pickle.dumps(Adam(0.5))) == Adam(0.5)


# Frozen ids -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "parameter"])
def test_frozen_ids_and_states(fused, device):
    """A state says which ids are frozen; one that was saved before any were says nothing, and those here stay."""
    ids = torch.tensor([1, 2, 3], device=device)
    make = lambda: with_parameter(fused, device=device, initializer=Constant(0.0))  # noqa: E731
    plain = make()
    plain(ids)
    says_nothing = plain.state_dict()
    plain.freeze(ids[2:])
    says_three = plain.state_dict()
    plain.unfreeze(ids)
    says_none = plain.state_dict()
    for state, frozen in ((says_nothing, [1]), (says_three, [3]), (says_none, [])):
        embedding = make()
        embedding.freeze(ids[:1])
        embedding.load_state_dict(state)
        embedding(ids).sum().backward()
        if not fused:
            torch.optim.SGD(embedding.parameters(), lr=1.0).step()
        stays = (rows_of(embedding, ids) == 0).all(1).tolist()
        assert stays == [id in frozen for id in (1, 2, 3)]


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "parameter"])
def test_norms_of_frozen_rows(fused, device):
    """max_norm leaves alone what is stored of frozen ids; what calls give is as of nn.Embedding, also in eval()."""
    ids = torch.arange(20, device=device)
    embedding = with_parameter(fused, device=device, max_norm=1.0, initializer=Uniform(-2, 2))
    with torch.no_grad():
        embedding.eval()
        embedding.train()
        embedding.freeze(ids[::2])
        embedding.table.insert(ids, {"weight": torch.randn(20, 6, device=device) * 3})
    first = rows_of(embedding, ids).clone()
    theirs = torch.nn.Embedding(20, 6, max_norm=1.0).to(device)
    theirs.weight.data.copy_(first)
    expected = theirs(ids).detach()
    for turn in range(3):
        embedding.train(turn != 2)
        with torch.set_grad_enabled(turn == 0):
            torch.testing.assert_close(embedding(ids).detach(), expected)
        stored = rows_of(embedding, ids)
        assert torch.equal(stored[::2], first[::2])
        torch.testing.assert_close(stored[1::2], expected[1::2])
    bag = HashEmbeddingBag(6, "sum", optimizer=SGD(0.1), device=device, max_norm=1.0)
    bag.freeze(ids[::2])
    bag.table.insert(ids, {"weight": first})
    torch.testing.assert_close(bag(ids.view(4, 5)).detach(), expected.view(4, 5, 6).sum(1))
    assert torch.equal(rows_of(bag, ids)[::2], first[::2])


# Learning rates and decays --------------------------------------------------------------------------------------------

DENSE = {
    "sgd": (lambda **o: SGD(0.1, **o), lambda p, **o: torch.optim.SGD(p, 0.1, **o)),
    "adagrad": (lambda **o: Adagrad(0.1, **o), lambda p, **o: torch.optim.Adagrad(p, 0.1, **o)),
    "adam": (lambda **o: Adam(0.1, **o), lambda p, **o: torch.optim.Adam(p, 0.1, **o)),
}


def beside_torch(kind: str, device: str, **options: Any) -> tuple[Any, Any, Any]:
    """An embedding, and torch's with the same rows and its own optimizer."""
    ours, theirs = DENSE[kind]
    ids = torch.arange(30, device=device)
    embedding = HashEmbedding(9, optimizer=ours(**options), device=device)
    dense = torch.nn.Embedding(30, 9).to(device)
    dense.weight.data.copy_(embedding(ids).detach())
    return embedding, dense, theirs(dense.parameters(), **options)


def step_of_both(embedding: Any, dense: Any, optimizer: Any, turn: int, device: str) -> None:
    """On all rows, as torch's optimizers for dense gradients change all."""
    ids = torch.arange(30, device=device)
    gradient = torch.from_numpy(np.random.default_rng(turn).standard_normal((30, 9)).astype(np.float32)).to(device)
    optimizer.zero_grad()
    for each in (embedding, dense):
        each(ids).backward(gradient)
    optimizer.step()


@pytest.mark.parametrize("kind", DENSE)
def test_weight_decay_is_that_of_torch(kind, device):
    embedding, dense, optimizer = beside_torch(kind, device, weight_decay=0.3)
    ids = torch.arange(30, device=device)
    embedding(ids + 100)
    others = rows_of(embedding, ids + 100).clone()
    for turn in range(20):
        step_of_both(embedding, dense, optimizer, turn, device)
        torch.testing.assert_close(rows_of(embedding, ids), dense.weight.detach(), rtol=1e-4, atol=1e-4)
    assert torch.equal(rows_of(embedding, ids + 100), others), "rows without a gradient do not decay"
    embedding.optimizer.weight_decay = 0.0
    optimizer.param_groups[0]["weight_decay"] = 0.0
    step_of_both(embedding, dense, optimizer, 20, device)
    torch.testing.assert_close(rows_of(embedding, ids), dense.weight.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [3, 64, 1024])
def test_weight_decay_by_rows(dim, dtype, device):
    """The one sum of a row is of gradients that have the decay."""
    embedding = HashEmbedding(dim, optimizer=RowWiseAdagrad(0.1, weight_decay=0.5), device=device, dtype=dtype)
    ids = torch.arange(7, device=device)
    weights, sums = embedding(ids).detach().double(), torch.zeros(7, 1, dtype=torch.float64, device=device)
    for turn in range(3):
        gradient = torch.from_numpy(np.random.default_rng(turn).standard_normal((7, dim))).to(device)
        embedding(ids).backward(gradient.to(dtype))
        whole = gradient.to(dtype).double() + 0.5 * weights
        sums += whole.square().mean(1, keepdim=True)
        weights = (weights - 0.1 * whole / (sums.sqrt() + 1e-10)).to(dtype).double()
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(rows_of(embedding, ids).double(), weights, rtol=tolerance, atol=tolerance)


def test_rates_that_are_functions(device):
    """They are asked before each step, for the number of steps that have been made."""
    asked = []
    made = [
        HashEmbedding(4, optimizer=SGD(rate), initializer=Constant(0), device=device)
        for rate in (lambda steps: asked.append(steps) or 1.0 / (1 + steps), 1.0)
    ]
    ids = torch.arange(5, device=device)
    for step in range(4):
        for embedding in made:
            embedding(ids).sum().backward()
        made[1].optimizer.lr = 1.0 / (2 + step)
    assert asked == [0, 1, 2, 3]
    assert torch.equal(rows_of(made[0], ids), rows_of(made[1], ids))
    for wrong, error in ((-1.0, ValueError), (float("nan"), ValueError), ("1", TypeError), (None, TypeError)):
        made[0].optimizer.lr = lambda steps, wrong=wrong: wrong
        before = rows_of(made[0], ids).clone()
        out = made[0](ids).sum()
        with pytest.raises(error, match="lr"):
            out.backward()
        assert torch.equal(rows_of(made[0], ids), before)
        assert made[0].steps == 4
    with pytest.raises(TypeError, match="only a number can be used"):
        made[0].optimizer.numbers()


SCHEDULERS = {
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 3, gamma=0.1),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=8),
    "one-cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.5, total_steps=12),
    "warm-up": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=3), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
        milestones=[4],
    ),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_are_those_of_torch(name, device):
    """They set an embedding's rate, and betas, as those of torch's own optimizer; and go on from a state."""
    embedding, dense, optimizer = beside_torch("adam", device)
    fused = FusedOptimizer(torch.nn.Sequential(embedding))
    schedulers = [SCHEDULERS[name](each) for each in (fused, optimizer)]
    for turn in range(10):
        step_of_both(embedding, dense, optimizer, turn, device)
        fused.step()
        for scheduler in schedulers:
            scheduler.step()
        group = optimizer.param_groups[0]
        assert (embedding.optimizer.lr, embedding.optimizer.betas) == (group["lr"], tuple(group["betas"]))
        if turn == 4:
            kept = pickle.loads(pickle.dumps((fused.state_dict(), schedulers[0].state_dict())))
            embedding.optimizer.lr = 7.0
            fused = FusedOptimizer(embedding.optimizer)
            schedulers[0] = SCHEDULERS[name](fused)
            fused.load_state_dict(kept[0])
            schedulers[0].load_state_dict(kept[1])
    torch.testing.assert_close(
        rows_of(embedding, torch.arange(30, device=device)), dense.weight.detach(), rtol=1e-3, atol=1e-3
    )


def test_plateaus_and_groups():
    """One group for each optimizer, however many modules have it; ReduceLROnPlateau sets all."""
    first, second = SGD(0.4), Adam(0.2)
    embeddings = [HashEmbedding(2, optimizer=each) for each in (first, second, first)]
    fused = FusedOptimizer(torch.nn.ModuleList(embeddings), second)
    assert [group["lr"] for group in fused.param_groups] == [0.4, 0.2]
    assert "FusedOptimizer" in repr(fused)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(fused, factor=0.5, patience=0)
    for loss in (1.0, 1.0):
        fused.step()
        scheduler.step(loss)
    assert (first.lr, second.lr) == (0.2, 0.1)
    assert fused.step(lambda: 5) == 5
    with pytest.raises(ValueError, match="2 groups, and there are 1"):
        FusedOptimizer(first).load_state_dict(fused.state_dict())
    with pytest.raises(ValueError, match="lr=-1"):
        fused.param_groups[0]["lr"] = -1
    for wrong, error, match in [
        ((torch.nn.Linear(1, 1),), ValueError, "no optimizer of embeddings"),
        ((with_parameter(False),), ValueError, "no optimizer of embeddings"),
        ((), ValueError, "no optimizer of embeddings"),
        ((SGD(lambda steps: 0.1),), ValueError, "is a schedule"),
        ((torch.optim.SGD([torch.ones(1)]),), TypeError, "expected a model"),
    ]:
        with pytest.raises(error, match=match):
            FusedOptimizer(*wrong)


# Dtypes and devices of the program ------------------------------------------------------------------------------------


@pytest.fixture
def program_defaults():
    """Puts PyTorch's defaults back."""
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)
    torch.set_default_device(None)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "parameter"])
@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16, torch.float16, "meta"], ids=str)
def test_defaults_of_the_program_change_nothing(default, fused, mode, device, program_defaults):
    """Bags, norms, paddings, defaults and states come out as they do without."""
    ids = torch.tensor([3, 1, 1, 1, 4, 0, 7], device=device)
    offsets = torch.tensor([0, 0, 3, 3, 6], device=device)
    factors = torch.rand(7, dtype=torch.float32, device=device)
    options = {"device": device, "initializer": Normal(seed=3), "padding_idx": 1, "max_norm": 0.9, "default": 0.5}
    options |= {"optimizer": Adagrad(0.1)} if fused else {"max_capacity": 64}

    def results():
        made = [HashEmbedding(4, **options), HashEmbeddingBag(4, mode, **options)]
        given = [(ids,), (ids, offsets)]
        if mode == "sum":
            made.append(HashEmbeddingBag(4, mode, **options))
            given.append((ids, offsets, factors.clone().requires_grad_()))
        got = []
        for each, arguments in zip(made, given, strict=True):
            out = each(*arguments)
            out.backward(torch.ones_like(out))
            got += [out.detach(), each.eval()(ids + 3, *arguments[1:]).detach(), rows_of(each, ids)]
            if not fused:
                got.append(gradients_of(each, ids))
            got += [arguments[2].grad] if len(arguments) == 3 else []
            loaded = type(each)(4, **options)
            loaded.load_state_dict(each.state_dict())
            # Keys have no order on a GPU.
            got += [rows_of(loaded, ids), *(torch.zeros_like(tensor) for tensor in each.state_dict().values())]
        return got

    expected = results()
    if default == "meta":
        torch.set_default_device("meta")
    else:
        torch.set_default_dtype(default)
    for ours, usual in zip(results(), expected, strict=True):
        assert (ours.dtype, ours.device) == (usual.dtype, usual.device)
        assert torch.equal(ours, usual)


def test_arguments_elsewhere(device):
    """Weights of samples on another device are found out before an id gets a row; offsets may be on the CPU."""
    bag = HashEmbeddingBag(4, "sum", optimizer=SGD(0.1), device=device, initializer=Constant(1.0))
    ids, offsets = torch.tensor([1, 2, 3], device=device), torch.tensor([0, 2])
    for weights in (torch.ones(3, device="meta"), *([torch.ones(3)] if device != "cpu" else [])):
        with pytest.raises(ValueError, match="per_sample_weights are on"):
            bag(ids, offsets.to(device), weights)
    with pytest.raises(ValueError, match="per_sample_weights are torch"):
        bag(ids, offsets.to(device), torch.ones(3, device=device, dtype=torch.float64))
    with pytest.raises((NotImplementedError, RuntimeError)):
        bag(ids, offsets.to("meta"))
    assert len(bag) == 0
    assert bag(ids, offsets)[:, 0].tolist() == [2, 1]


def test_graphs_of_compiled_calls(device):
    """What calls give, frozen rows and norms, last offsets and rates are those of plain calls."""
    ids = torch.arange(6, device=device)
    offsets = torch.tensor([0, 2, 6], device=device)
    got = []
    for compiled in (False, True):
        optimizer = SGD(lambda steps: 0.1 / (1 + steps))
        options = {"optimizer": optimizer, "initializer": Normal(seed=2), "max_norm": 1.0, "device": device}
        embedding = HashEmbedding(4, **options).half()
        bag = HashEmbeddingBag(4, "sum", **options, include_last_offset=True)
        for made, given in ((embedding, (ids,)), (bag, (ids, offsets))):
            made.freeze(ids[:2])
            made.table.insert(ids[:2], {"weight": torch.full((2, 4), 3.0, device=device)})
            run = torch.compile(made, fullgraph=True, backend="aot_eager") if compiled else made
            for _ in range(2):
                out = run(*given)
                out.sum().backward()
            got.append((out.detach(), rows_of(made, ids)))
    for plain, compiled in zip(got[:2], got[2:], strict=True):
        assert (plain[0].dtype, plain[1].dtype) == (compiled[0].dtype, compiled[1].dtype)
        assert torch.equal(plain[0], compiled[0])
        assert torch.equal(plain[1], compiled[1])
    assert (got[0][0].dtype, got[1][0].dtype) == (torch.float16, torch.float32)
    assert (got[2][1][:2] == 3).all()


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("sizes", [[2, 0, 3], [0], [0, 0, 4, 0], [5], []], ids=str)
def test_last_offsets_are_those_of_torch(sizes, mode, device):
    theirs = torch.nn.EmbeddingBag(20, 3, mode=mode, include_last_offset=True).to(device)
    bag = HashEmbeddingBag(3, mode, optimizer=SGD(0.1), include_last_offset=True, device=device)
    ids = torch.arange(sum(sizes), device=device) % 5
    bag.table.insert(torch.arange(20, device=device), {"weight": theirs.weight.detach()})
    offsets = torch.tensor([0, *np.cumsum(sizes)], dtype=torch.int64, device=device)
    ours = bag(ids, offsets)
    assert ours.shape == (len(sizes), 3)
    if sizes:
        torch.testing.assert_close(ours, theirs(ids, offsets))
    assert torch.equal(bag(ids.view(1, -1)), bag(ids, torch.tensor([0, len(ids)], device=device)))
    with pytest.raises(ValueError, match="offsets are empty"):
        bag(ids, offsets[:0])
    if device == "cpu":
        for wrong in (offsets + 1, torch.cat([offsets, offsets[-1:] + 1])):
            with pytest.raises(ValueError, match="offsets do not ascend"):
                bag(ids, wrong)


def test_integers_of_numpy(device):
    """And of whatever has __index__."""
    for kind in (np.int64, np.int32, np.uint8, lambda n: torch.tensor(n), np.array):
        made = HashEmbedding(kind(4), optimizer=SGD(0.1), padding_idx=kind(7), max_norm=np.float32(9), device=device)
        assert (made.embedding_dim, made.padding_idx, made.max_norm) == (4, 7, 9.0)
        assert {type(made.embedding_dim), type(made.padding_idx)} == {int}
        out = made(torch.tensor([7, 8], device=device))
        assert (out == 0).all(1).tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "parameter"])
def test_models_of_other_dtypes(fused, dtype, device):
    """A model is converted to its end; rows stay float32, and train by gradients of what was given."""
    ids = torch.arange(10, device=device)
    model = torch.nn.Sequential(with_parameter(fused, device=device, default=0.5), torch.nn.Linear(6, 2).to(device))
    embedding = model[0]
    plain = copy.deepcopy(embedding)
    assert model.to(dtype) is model
    assert model[1].weight.dtype == dtype
    out = embedding(ids)
    assert out.dtype == dtype
    assert torch.equal(out.detach(), plain(ids).detach().to(dtype))
    assert model(ids).dtype == dtype
    gradient = torch.ones(10, 6, dtype=dtype, device=device)
    out.backward(gradient)
    plain(ids).backward(gradient.float())
    assert rows_of(embedding, ids).dtype == torch.float32
    assert torch.equal(rows_of(embedding, ids), rows_of(plain, ids))
    if not fused:
        assert embedding.weight.dtype == torch.float32
        assert torch.equal(gradients_of(embedding, ids), gradients_of(plain, ids))
    for made in (copy.deepcopy(embedding), pickle.loads(pickle.dumps(embedding))):
        assert made.eval()(ids + 5).dtype == dtype
    assert (model.eval()[0](ids + 100) == 0.5).all()
    assert model.to(device)[0](ids).dtype == dtype
    assert model.float()[0](ids).dtype == torch.float32
    bag = HashEmbeddingBag(6, "sum", optimizer=SGD(0.1), device=device).to(dtype)
    weights = torch.ones(2, 5, dtype=dtype, device=device, requires_grad=True)
    summed = bag(ids.view(2, 5), None, weights)
    assert summed.dtype == dtype
    summed.sum().backward()
    assert weights.grad.dtype == dtype


# Averages -------------------------------------------------------------------------------------------------------------

AVERAGES = {
    "swa": {},
    "avg": {"avg_fn": lambda old, new, count: 0.9 * old + 0.1 * new},
    "ema": {"multi_avg_fn": torch.optim.swa_utils.get_ema_multi_avg_fn(0.8)},
}


@pytest.mark.parametrize("name", AVERAGES)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "parameter"])
def test_averages_are_those_of_torch(name, fused, device):
    """Of each id's row, whatever its number: as torch's AveragedModel averages nn.Embedding's weight."""
    ids = torch.arange(40, device=device)
    embedding = with_parameter(fused, device=device)
    model = torch.nn.Sequential(embedding, torch.nn.Linear(6, 2).to(device))
    model[0](ids[:20])
    ours = AveragedModel(model, **AVERAGES[name])
    dense = torch.nn.Embedding(40, 6).to(device)
    theirs = torch.optim.swa_utils.AveragedModel(dense, **AVERAGES[name])
    for turn in range(4):
        seen = ids[: 20 + 5 * turn]  # new ids in each turn
        embedding(seen)
        embedding.table[seen] = {"weight": torch.randn(len(seen), 6, device=device)}
        if turn == 2:
            embedding.table.erase(ids[3:4])
            embedding(ids[36:37])  # its row is another id's now
        held = embedding.table.contains(ids)
        with torch.no_grad():
            new = held & ~theirs.module.weight.new_tensor(ours.module[0].table.contains(ids).tolist()).bool()
            dense.weight[held] = rows_of(embedding, ids[held])
            theirs.module.weight[new] = dense.weight[new]
        ours.update_parameters(torch.nn.Sequential(model) if turn == 3 else model)  # as a wrapper is one module more
        theirs.update_parameters(dense)
        averaged = ours.module[0]
        assert len(averaged) == len(embedding)
        torch.testing.assert_close(rows_of(averaged, ids[held]), theirs.module.weight.detach()[held])
        torch.testing.assert_close(averaged.eval()(ids[held]).detach(), theirs.module.weight.detach()[held])
    assert int(ours.n_averaged) == 4
    with pytest.raises(ValueError, match="has 0 embeddings, and the one that was copied had 1"):
        ours.update_parameters(model[1])


def test_averages_of_torch_are_refused(device):
    """Their copies of rows would stay as they are, without a word. Rows that do not train may be copied."""
    embedding = with_parameter(True, device=device)
    model = torch.nn.Sequential(torch.nn.ModuleList([embedding]))
    with pytest.raises(TypeError, match=r"take gpuhash\.torch\.AveragedModel"):
        torch.optim.swa_utils.AveragedModel(model)
    embedding.requires_grad_(False)
    torch.optim.swa_utils.AveragedModel(model)


# Checkpoints of PyTorch's other kinds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [3, 5, 8])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "parameter"])
def test_states_are_contiguous(fused, dim, device):
    """As safetensors takes them, and no two share memory."""
    embedding = HashEmbedding(dim, **({"optimizer": Adam()} if fused else {"max_capacity": 64}), device=device)
    embedding(torch.arange(9, device=device)).sum().backward()
    embedding.freeze(torch.arange(2, device=device))
    state = embedding.state_dict()
    assert all(tensor.is_contiguous() for tensor in state.values())
    assert len({tensor.untyped_storage().data_ptr() for tensor in state.values()}) == len(state)


def model_of(fused: bool, device: str) -> Any:
    return torch.nn.Sequential(with_parameter(fused, device=device), torch.nn.Linear(6, 1).to(device))


def check_same(made: Any, model: Any, device: str) -> None:
    """They give the same, of ids that come later, too; frozen ids, steps and moments are the same."""
    assert (len(made[0]), made[0].steps) == (len(model[0]), model[0].steps)
    for _ in range(2):
        ids = torch.arange(20, device=device)
        outs = [each(ids) for each in (made, model)]
        assert torch.equal(*outs)
        for out in outs:
            out.sum().backward()


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "parameter"])
@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen"])
@pytest.mark.filterwarnings("ignore")
def test_distributed_checkpoints(fused, frozen, device, tmp_path):
    """torch.distributed.checkpoint loads into a fresh model, whose embedding has no rows yet."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    from gpuhash.torch.checkpoint import LoadPlanner

    model = model_of(fused, device)
    model(torch.arange(10, device=device)).sum().backward()
    if frozen:
        model[0].freeze(torch.arange(3, device=device))
    dcp.save({"model": model, "epoch": 3}, checkpoint_id=tmp_path / "whole")
    dcp.save(get_model_state_dict(model), checkpoint_id=tmp_path / "state")
    made = [model_of(fused, device) for _ in range(4)]
    target = {"model": made[0], "epoch": 0}
    dcp.load(target, checkpoint_id=tmp_path / "whole", planner=LoadPlanner(made[0]))
    assert target["epoch"] == 3
    state = get_model_state_dict(made[1])
    if frozen:
        with pytest.raises(CheckpointException, match=r"the checkpoint has 0\.frozen"):
            dcp.load(state, checkpoint_id=tmp_path / "state", planner=LoadPlanner(made[1]))
        state["0.frozen"] = torch.empty(0, dtype=torch.int64, device=device)
    dcp.load(state, checkpoint_id=tmp_path / "state", planner=LoadPlanner(made[1]))
    set_model_state_dict(made[1], state)
    made[2].load_state_dict(get_model_state_dict(model))
    nested = {"a": {"model": made[3].state_dict() | ({"0.frozen": state["0.frozen"]} if frozen else {})}}
    dcp.save({"a": {"model": model.state_dict()}}, checkpoint_id=tmp_path / "nested")
    dcp.load(nested, checkpoint_id=tmp_path / "nested", planner=LoadPlanner(made[3]))
    made[3].load_state_dict(nested["a"]["model"])
    if fused:
        for each in made:
            check_same(each, copy.deepcopy(model), device)
    else:
        assert all(torch.equal(each[0].weight, model[0].weight) for each in made)
    flat = model_of(fused, device)
    state = flat.state_dict() | ({"0.frozen": state["0.frozen"]} if frozen else {})
    dcp.load(state, checkpoint_id=tmp_path / "state", planner=LoadPlanner(flat, flatten_state_dict=False))
    flat.load_state_dict(state)
    assert torch.equal(flat(torch.arange(10, device=device)), model(torch.arange(10, device=device)))
    other = torch.nn.Sequential(with_parameter(fused, device=device), torch.nn.Linear(6, 2).to(device))
    with pytest.raises(CheckpointException, match="Size mismatch"):
        dcp.load({"model": other}, checkpoint_id=tmp_path / "whole", planner=LoadPlanner(other))
    assert len(other[0]) == 0


@pytest.fixture
def one_process():
    """A process group of this process alone."""
    import torch.distributed as dist

    if not dist.is_available() or dist.is_initialized():
        pytest.skip("there is no process group to be had")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_fully_sharded_models(one_process, tmp_path):
    """FSDP2 shards the parameters of others; rows are none, or are left out by ignored_params."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from gpuhash.torch.checkpoint import LoadPlanner

    ids = torch.arange(20)
    mesh = init_device_mesh("cpu", (1,))  # not the GPU, which it would take where there is one
    for fused in (True, False):
        models = [model_of(fused, "cpu") for _ in range(4)]
        for model in models[:3]:
            fully_shard(model, mesh=mesh, ignored_params=set(model[0].parameters()))
        models[0](ids[:10]).sum().backward()
        assert (models[0][1].weight.grad is not None, len(models[0][0])) == (True, 10)
        dcp.save({"model": get_model_state_dict(models[0])}, checkpoint_id=tmp_path / str(fused))
        state = {"model": get_model_state_dict(models[1])}
        dcp.load(state, checkpoint_id=tmp_path / str(fused), planner=LoadPlanner(models[1]))
        set_model_state_dict(models[1], state["model"])
        whole = StateDictOptions(full_state_dict=True)
        set_model_state_dict(models[2], get_model_state_dict(models[0], options=whole), options=whole)
        models[3].load_state_dict(get_model_state_dict(models[0], options=whole))
        expected = models[0](ids)
        for model in models[1:]:
            assert torch.equal(model(ids), expected)


def test_averages_of_models_without_other_parameters():
    """PyTorch's own averages of no parameters fail."""
    model = torch.nn.ModuleList([HashEmbedding(3, optimizer=SGD(1.0), initializer=Normal(seed=n)) for n in range(2)])
    ids, averaged = torch.arange(5), None
    sums = torch.zeros(2, 5, 3)
    for _ in range(3):
        (model[0](ids) * model[1](ids)).sum().backward()
        averaged = averaged or AveragedModel(model)
        averaged.update_parameters(model)
        sums += torch.stack([each(ids).detach() for each in model])
    averaged.eval()
    got = torch.stack([each(ids) for each in averaged.module])
    torch.testing.assert_close(got, sums / 3)


def test_a_fused_optimizer_takes_no_parameters():
    fused = FusedOptimizer(HashEmbedding(3, optimizer=SGD(1.0)))
    with pytest.raises(TypeError, match="trains no parameters"):
        fused.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    assert len(fused.param_groups) == 1
