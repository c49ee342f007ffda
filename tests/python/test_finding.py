# SPDX-License-Identifier: BSD-3-Clause
"""Tensors that a step changes together are found in states of torch's optimizers, with any order of parameters."""

import copy

import pytest
from lmcstore._optimizer.relations import ADAM, AMSGRAD, L2, NESTEROV, SGD, Finder, Relation
from lmcstore._state.encode import Encoded
from optional import torch

nn = torch.nn


class Net(nn.Module):
    """Layers of equal shapes, buffers among the parameters, a tied weight."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale = nn.LayerNorm(8)
        self.head = nn.Linear(8, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.norm(self.embed(x))
        return self.head(self.scale(self.third(self.second(self.first(x)))))


def stepped(optimizer, module, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.randint(8, (4,))).square().sum().backward()
        optimizer.step()


def find(state, finder=None, scale=0.0) -> list[Relation]:
    return Encoded(state).relations(finder or Finder(), scale)


def expected(module, optimizer, where, model="model"):
    """The members to find, by identity of parameters, which states lack."""
    called = {}
    for name, parameter in module.named_parameters():
        called[parameter] = f"{model}.{name}" if model else name
    number = 0
    members = set()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if "exp_avg" in optimizer.state.get(parameter, {}):
                keys = [f"{where}.state.{number}.{key}" for key in ("exp_avg", "exp_avg_sq")]
                keys.append(called[parameter])
                if group["amsgrad"]:
                    keys.append(f"{where}.state.{number}.max_exp_avg_sq")
                members.add(tuple(keys))
            elif optimizer.state.get(parameter, {}).get("momentum_buffer") is not None:
                members.add((f"{where}.state.{number}.momentum_buffer", called[parameter]))
            number += 1
    assert members
    return members


def found_members(relations):
    members = [names for relation in relations for names in relation.members]
    assert len(members) == len(set(members))
    return set(members)


def by_dimensions(module):
    return [
        {"params": [p for p in module.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in module.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    ("make", "optimizer", "flags"),
    [
        (lambda p: torch.optim.AdamW(p, lr=1e-3), ADAM, 0),
        (lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True, fused=True), ADAM, AMSGRAD),
        (lambda p: torch.optim.Adam(p, lr=1e-3), ADAM, 0),
        (lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, nesterov=True), SGD, NESTEROV),
        (lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, dampening=0.1, maximize=True), SGD, 0),
    ],
)
def test_a_model_and_its_optimizer(make, optimizer, flags, grouped):
    net = Net()
    steps = make(by_dimensions(net) if grouped else net.parameters())
    stepped(steps, net)
    relations = find({"model": net.state_dict(), "optimizer": steps.state_dict()})
    assert found_members(relations) == expected(net, steps, "optimizer")
    assert {(r.optimizer, r.flags & ~L2) for r in relations} == {(optimizer, flags)}
    assert len(relations) == (2 if grouped else 1)


def test_constants_are_those_of_the_group_and_the_step():
    net = Net()
    groups = by_dimensions(net)
    groups[1]["lr"] = torch.tensor(0.25)
    adam = torch.optim.Adam(groups, lr=0.5, betas=(0.75, 0.5), eps=0.125, foreach=False)
    stepped(adam, net, 3)
    decayed, plain = find({"model": net.state_dict(), "adam": adam.state_dict()}, scale=0.5)
    assert decayed.flags == L2
    assert decayed.constants == (3.0, 0.5, 0.1, 0.75, 0.5, 0.125, 0.0, 0.0, 0.5)
    assert plain.flags == 0
    assert plain.constants == (3.0, 0.25, 0.0, 0.75, 0.5, 0.125, 0.0, 0.0, 0.5)
    sgd = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.25, dampening=0.125, weight_decay=0.75)
    stepped(sgd, net)
    (relation,) = find({"model": net.state_dict(), "sgd": sgd.state_dict()})
    assert relation.constants == (0.0, 0.5, 0.75, 0.0, 0.0, 0.0, 0.25, 0.125, 0.0)


def test_parameters_that_were_never_stepped_are_left_out():
    net = Net()
    steps = torch.optim.AdamW(net.parameters())
    assert find({"model": net.state_dict(), "optimizer": steps.state_dict()}) == []
    for parameter in net.second.parameters():
        parameter.requires_grad_(False)
    stepped(steps, net)
    stepped(torch.optim.SGD(net.parameters(), lr=0.1), net)
    members = found_members(find({"model": net.state_dict(), "optimizer": steps.state_dict()}))
    # of equal shapes, any assignment in order may be found; a certain one is found right
    assert ("optimizer.state.0.exp_avg", "optimizer.state.0.exp_avg_sq", "model.embed.weight") in members
    assert len(members) == len(expected(net, steps, "optimizer"))


def test_names_settle_what_the_order_does_not():
    net = Net()
    steps = torch.optim.AdamW(list(net.named_parameters())[::-1])
    stepped(steps, net)
    if "param_names" not in steps.state_dict()["param_groups"][0]:
        pytest.skip("this torch's optimizers keep no names")
    relations = find({"model": net.state_dict(), "optimizer": steps.state_dict()})
    assert found_members(relations) == expected(net, steps, "optimizer")


def test_two_models_with_an_optimizer_each_and_an_average():
    one, two = Net(), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    first, second = torch.optim.AdamW(one.parameters()), torch.optim.AdamW(two.parameters())
    stepped(first, one)
    two(torch.randn(3, 8)).sum().backward()
    second.step()
    state = {
        "generator": one.state_dict(),
        "critic": two.state_dict(),
        "average": {"of critic": copy.deepcopy(two).state_dict()},
        "optimizers": [first.state_dict(), second.state_dict()],
    }
    found = found_members(find(state))
    assert found == expected(one, first, "optimizers.0", "generator") | expected(two, second, "optimizers.1", "critic")


@pytest.mark.parametrize("together", [False, True])
def test_models_of_one_shape_have_an_optimizer_each(together):
    nets = [Net() for _ in range(3)]
    steps = [torch.optim.AdamW(net.parameters()) for net in nets]
    wanted = set()
    for i, (net, step) in enumerate(zip(nets, steps, strict=True)):
        stepped(step, net)
        where = (f"runs.{i}.steps", f"runs.{i}.net") if together else (f"steps.{i}", f"nets.{i}")
        wanted |= expected(net, step, *where)
    if together:
        state = {"runs": [{"net": n.state_dict(), "steps": s.state_dict()} for n, s in zip(nets, steps, strict=True)]}
    else:
        state = {"nets": [n.state_dict() for n in nets], "steps": [s.state_dict() for s in steps]}
    assert found_members(find(state)) == wanted


def test_a_state_dict_at_the_top():
    net = Net()
    steps = torch.optim.AdamW(net.parameters())
    stepped(steps, net)
    state = {**net.state_dict(), "optimizer": steps.state_dict()}
    assert found_members(find(state)) == expected(net, steps, "optimizer", model="")


@pytest.mark.parametrize("name", ["NAdam", "RAdam", "Adagrad", "RMSprop", "Adamax", "ASGD", "Adadelta"])
def test_other_optimizers_are_left_alone(name):
    net = Net()
    steps = getattr(torch.optim, name)(net.parameters())
    stepped(steps, net)
    assert find({"model": net.state_dict(), "optimizer": steps.state_dict()}) == []


def test_sgd_without_momentum_has_no_state():
    net = Net()
    steps = torch.optim.SGD(net.parameters(), lr=0.1)
    stepped(steps, net)
    assert find({"model": net.state_dict(), "optimizer": steps.state_dict()}) == []


def test_arrays_that_are_no_f32_are_left_out():
    net = Net().double()
    steps = torch.optim.AdamW(net.parameters())
    stepped(steps, net)
    assert find({"model": net.state_dict(), "optimizer": steps.state_dict()}) == []


def test_what_is_remembered_has_the_constants_of_each_state():
    net = Net()
    steps = torch.optim.AdamW(net.parameters(), lr=0.5)
    finder = Finder()
    for step in range(1, 4):
        stepped(steps, net, 1)
        steps.param_groups[0]["lr"] = 0.5 / step
        state = {"model": net.state_dict(), "optimizer": steps.state_dict()}
        (relation,) = find(state, finder)
        assert relation.constants[:2] == (step, 0.5 / step)
        assert found_members([relation]) == expected(net, steps, "optimizer")
    other = nn.Linear(8, 8)
    steps = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    other(torch.randn(2, 8)).sum().backward()
    steps.step()
    assert found_members(find({"model": other.state_dict(), "optimizer": steps.state_dict()}, finder)) == expected(
        other, steps, "optimizer"
    )


@pytest.mark.parametrize(
    "optimizer",
    [
        {"state": {}, "param_groups": []},
        {"state": {}, "param_groups": [{}]},
        {"state": {}, "param_groups": [{"params": 7, "lr": 1}]},
        {"state": {0: 5}, "param_groups": [{"params": [0]}]},
        {
            "state": {0: {"exp_avg": torch.zeros(8)}},
            "param_groups": [
                {"params": [0], "lr": "x", "betas": 3, "eps": 0, "weight_decay": 0, "amsgrad": 0, "maximize": 0}
            ],
        },
        {
            "state": {0: {"exp_avg": torch.zeros(8), "step": torch.zeros(3)}},
            "param_groups": [
                {"params": [0], "lr": 1, "betas": (0, 0), "eps": 0, "weight_decay": 0, "amsgrad": 0, "maximize": 0}
            ],
        },
        *(
            {
                "state": {0: {"exp_avg": torch.zeros(8), "exp_avg_sq": torch.zeros(8), "step": 1}},
                "param_groups": [
                    {"params": [0], "lr": lr, "betas": (0, 0), "eps": 0, "weight_decay": 0, "amsgrad": 0, "maximize": 0}
                ],
            }
            for lr in (float("nan"), float("inf"), 10**400)
        ),
    ],
)
def test_what_only_looks_like_an_optimizer_gives_nothing(optimizer):
    assert find({"model": Net().state_dict(), "optimizer": optimizer}) == []
