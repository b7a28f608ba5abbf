"""docs/algorithms.md: its formulas are those of the code, and its options exist."""

import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from azr.algorithms.advantages import estimate_advantages
from azr.algorithms.batch import Batch
from azr.algorithms.objectives import importance_weights, kl_loss, sampled_objective, sequence_means, trace_objective
from azr.config import ESTIMATOR_TYPES, Importance, KLConfig, Objective, OffPolicyConfig
from azr.config_tree import config_options

TEXT = (Path(__file__).parent.parent / "docs" / "algorithms.md").read_text()
OWNERS = torch.tensor([0, 0, 0, 1, 2, 2])
FUNCTIONS = {"mean": np.mean, "var": lambda x: np.var(x, ddof=1), "sqrt": np.sqrt, "exp": np.exp}


def rows(heading: str) -> dict[str, dict[str, str]]:
    """Return the first table of a section: cells by column, by the row's name."""
    section = re.split(r"^## ", TEXT.split(f"\n## {heading}")[1], flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    head, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {cells[0].strip("`"): dict(zip(head, cells, strict=True)) for cells in body}


def members(union: object) -> dict[str, type]:
    return {each.name: each for each in get_args(get_args(union)[0])}


def value(formula: str, **names: object) -> np.ndarray:
    return np.asarray(eval(formula.strip("`"), FUNCTIONS | {"clip": np.clip, "min": np.minimum} | names))


def by_token(formula: str, **names: object) -> np.ndarray:
    """Value of a formula whose conditions are of single tokens."""
    columns = {name: each for name, each in names.items() if isinstance(each, np.ndarray)}
    rest = {name: each for name, each in names.items() if name not in columns}
    tokens = [dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)]
    return np.array([value(formula, **rest, **token) for token in tokens], float)


def close(got: torch.Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(got.detach().numpy(), np.broadcast_to(expected, got.shape), rtol=1e-6, atol=1e-9)


def drawn(seed: int) -> np.ndarray:
    return 0.5 * np.random.default_rng(seed).standard_normal(6)


@pytest.mark.parametrize("name", list(ESTIMATOR_TYPES))
def test_every_estimator_has_its_formula(name: str) -> None:
    """On six samples of one token, one group and one (kind, role), in a first step."""
    row, rewards, values = rows("Advantages")[name], drawn(1), drawn(2).astype(np.float32)
    alike = {"response_lengths": [1] * 6, "kind_roles": [("a", "solver")] * 6, "groups": ["g"] * 6}
    batch = Batch(rewards=rewards.tolist(), values_R=torch.tensor(values), **alike)
    advantages, _ = estimate_advantages(batch, ESTIMATOR_TYPES[name]())
    close(
        advantages, value(row["advantage"], R=rewards, V=values.astype(float), n=6, b=rewards.mean()).astype(np.float32)
    )


@pytest.mark.parametrize("name", list(members(Objective)))
def test_every_objective_has_its_formula(name: str) -> None:
    config, row = members(Objective)[name](), rows("Objectives")[name]
    logprobs, old, advantages = torch.tensor(drawn(1) - 2), torch.tensor(drawn(2) - 2), torch.tensor(drawn(3))
    got, _, _ = sampled_objective(logprobs, old, advantages, config, OWNERS)
    s = sequence_means(logprobs - old, OWNERS).exp().numpy()
    names = {"r": (logprobs - old).exp().numpy(), "s": s, "A": advantages.numpy(), "logp": logprobs.numpy()}
    close(got, value(row["objective"], **names, **vars(config)))


@pytest.mark.parametrize("name", list(members(Importance)))
def test_every_importance_weight_has_its_formula(name: str) -> None:
    config, row, apart = members(Importance)[name](), rows("Engine and trainer apart")[name], torch.tensor(3 * drawn(4))
    got, _ = importance_weights(apart, torch.zeros(6, dtype=torch.float64), config, OWNERS)
    s = sequence_means(apart, OWNERS).exp().numpy()
    close(got, by_token(row["c"], q=apart.exp().numpy(), s=s, **vars(config)))


@pytest.mark.parametrize("name", ["k1", "k2", "k3", "k3_unbiased"])
def test_every_kl_has_its_formula_and_gradient(name: str) -> None:
    row, d, apart = rows("KL to the reference")[name], drawn(5), drawn(6)
    logprobs = torch.tensor(d - 2, requires_grad=True)
    ratio = (logprobs - torch.tensor(d - 2 - apart)).exp()
    got = kl_loss(logprobs, torch.full((6,), -2.0, dtype=torch.float64), ratio, KLConfig(estimator=name))
    close(got, value(row["value"], d=d, r=np.exp(apart)))
    got.sum().backward()
    close(logprobs.grad, value(row["weight of ∇log p in the loss"], d=d, r=np.exp(apart)))


@pytest.mark.parametrize("name", ["shaped", "plain", "sft"])
def test_every_loss_of_traces_has_its_formula_and_gradient(name: str) -> None:
    row, config = rows("Tokens of traces")[name], OffPolicyConfig(loss=name)
    logprobs, advantages = torch.tensor(drawn(7) - 1, requires_grad=True), drawn(8)
    got = trace_objective(logprobs, torch.tensor(advantages), config)
    logp = logprobs.detach().numpy()
    names = {"A": advantages, "p": np.exp(logp), "logp": logp, **vars(config)}
    close(got, value(row["objective"], **names))
    got.sum().backward()
    close(-logprobs.grad, value(row["weight of -∇log p"], **names))


def test_every_choice_has_a_row_and_options_exist() -> None:
    choices = {
        "Advantages": ESTIMATOR_TYPES,
        "Objectives": members(Objective),
        "Engine and trainer apart": members(Importance),
        "KL to the reference": config_options()["algorithm.kl.estimator"].schema["enum"],
        "Tokens of traces": config_options()["algorithm.off_policy.loss"].schema["enum"],
        "What weighs the same": {*config_options()["algorithm.loss_weighting"].schema["enum"]} - {"auto"},
    }
    assert {heading: sorted(rows(heading)) for heading in choices} == {h: sorted(c) for h, c in choices.items()}
    options = set(re.findall(r"`((?:algorithm|rollout|selfplay|data)\.[a-z_.]+)", TEXT))
    assert len(options) > 10 and sorted(options - set(config_options())) == ["algorithm.kl"]
