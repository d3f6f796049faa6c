"""Readouts without a codebook: one interface with DDCLReadout, each by its definition."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from torch import nn

from experiments.readout.baselines import (
    CLSReadout,
    CrossAttentionReadout,
    MeanReadout,
    SlotAttentionReadout,
    distinct_slots,
)
from softvq import DDCLCodebook, DDCLReadout

DIM, SLOTS = 6, 4
BUILDERS = {
    "mean": lambda: MeanReadout(DIM),
    "cls": lambda: CLSReadout(DIM),
    "slots": lambda: SlotAttentionReadout(DIM, SLOTS),
    "queries": lambda: CrossAttentionReadout(DIM, SLOTS, heads=2),
    "ddcl": lambda: DDCLReadout(DDCLCodebook(DIM, SLOTS)),
}


def built(name, seed=0):
    torch.manual_seed(seed)
    return BUILDERS[name]()


def documents(count=5, length=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(count, length, DIM, generator=generator)
    return tokens, torch.rand(count, length, generator=generator) > 0.4


@pytest.mark.parametrize("name", BUILDERS)
def test_all_give_the_same_names_and_shapes(name):
    tokens, mask = documents()
    out = built(name)(tokens, mask)
    assert out.pooled.shape == (5, DIM)
    assert out.loss.shape == ()
    assert (out.proportions is None) == (name not in ("slots", "ddcl"))
    if out.proportions is not None:
        torch.testing.assert_close(out.proportions.sum(dim=1), torch.ones(5))
        assert out.proportions.shape == (5, SLOTS)
    shape = None if name in ("mean", "cls") else (5, SLOTS, DIM)
    assert (out.prototypes is None and shape is None) or out.prototypes.shape == shape
    assert built(name)(tokens).pooled.shape == (5, DIM)


@pytest.mark.parametrize("padding", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("name", BUILDERS)
def test_what_padding_holds_changes_nothing(name, padding):
    tokens, mask = documents()
    mask[3] = False
    results = []
    for fill in (0.0, padding):
        readout = built(name)
        filled = torch.where(mask[..., None], tokens, fill).requires_grad_()
        torch.manual_seed(1)  # Slot Attention draws its slots.
        out = readout(filled, mask)
        (out.pooled.square().sum() + out.loss).backward()
        parts = [part for part in (out.proportions, out.prototypes) if part is not None]
        grads = [p.grad for p in readout.parameters() if p.grad is not None]
        results.append([out.pooled, *parts, filled.grad, *grads])
        assert not any(part[3].count_nonzero() for part in (out.pooled, *parts))
        assert filled.grad[~mask].count_nonzero() == 0
        assert all(value.isfinite().all() for value in results[-1])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("name", ["mean", "slots", "queries", "ddcl"])
def test_the_order_of_the_tokens_and_more_padding_change_nothing(name):
    readout = built(name).eval()
    tokens, mask = documents()
    expected = readout(tokens, mask).pooled
    order = torch.randperm(tokens.shape[1])
    torch.testing.assert_close(readout(tokens[:, order], mask[:, order]).pooled, expected)
    longer = nn.functional.pad(tokens, (0, 0, 2, 3)), nn.functional.pad(mask, (2, 3))
    torch.testing.assert_close(readout(*longer).pooled, expected)


def test_mean_and_cls_by_hand():
    tokens, mask = documents()
    pooled, first = built("mean")(tokens, mask).pooled, built("cls")(tokens, mask).pooled
    for document in range(5):
        real = tokens[document][mask[document]]
        torch.testing.assert_close(pooled[document], real.mean(dim=0))
        assert torch.equal(first[document], real[0])
    assert torch.equal(built("cls")(tokens).pooled, tokens[:, 0])
    half = 100 + torch.rand(1, 4000, DIM)
    low = built("mean")(half.bfloat16()).pooled
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), half.mean(dim=1), rtol=0.01, atol=0)


def layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def mlp(x, w):
    hidden = np.maximum(layer_norm(x) @ w["mlp.1.weight"].T + w["mlp.1.bias"], 0)
    return hidden @ w["mlp.3.weight"].T + w["mlp.3.bias"]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_slot_attention_is_algorithm_1_of_the_paper():
    readout = built("slots").double().eval()
    tokens = documents(1)[0].double()
    w = {name: p.detach().numpy() for name, p in readout.state_dict().items()}
    x = layer_norm(tokens[0].numpy())
    slots = w["mean"] + np.exp(w["log_deviation"]) * w["noise"]
    for _ in range(3):
        previous = slots
        q = layer_norm(slots) @ w["query.weight"].T
        logits = x @ w["key.weight"].T @ q.T / np.sqrt(DIM)  # (T, K)
        attention = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        weights = (attention + 1e-8) / (attention + 1e-8).sum(axis=0)
        updates = weights.T @ x @ w["value.weight"].T
        gates_in = updates @ w["cell.weight_ih"].T + w["cell.bias_ih"]
        gates_of = previous @ w["cell.weight_hh"].T + w["cell.bias_hh"]
        (ri, zi, ni), (rh, zh, nh) = (np.split(g, 3, axis=1) for g in (gates_in, gates_of))
        update = sigmoid(zi + zh)
        slots = (1 - update) * np.tanh(ni + sigmoid(ri + rh) * nh) + update * previous
        slots = slots + mlp(slots, w)
    out = readout(tokens)
    np.testing.assert_allclose(out.prototypes[0].detach(), slots, atol=1e-8)
    np.testing.assert_allclose(out.proportions[0].detach(), attention.mean(axis=0), atol=1e-8)
    np.testing.assert_allclose(out.pooled[0].detach(), slots.mean(axis=0), atol=1e-8)


def test_slots_are_drawn_anew_in_training_and_fixed_in_evaluation():
    readout, tokens = built("slots"), documents()[0]
    assert not torch.equal(readout(tokens).pooled, readout(tokens).pooled)
    readout.eval()
    before = torch.get_rng_state()
    assert torch.equal(readout(tokens).pooled, readout(tokens).pooled)
    assert torch.equal(before, torch.get_rng_state())
    again = built("slots", seed=7).eval()
    again.load_state_dict(readout.state_dict())
    assert torch.equal(readout(tokens).pooled, again(tokens).pooled)


def test_queries_attend_as_written_down():
    readout = CrossAttentionReadout(DIM, SLOTS).double()
    tokens, mask = documents(1)
    tokens = tokens.double()
    w = {name: p.detach().numpy() for name, p in readout.state_dict().items()}
    x = layer_norm(tokens[0][mask[0]].numpy())
    matrices = np.split(w["attention.in_proj_weight"], 3)
    q, k, v = (a @ m.T for a, m in zip((layer_norm(w["queries"]), x, x), matrices, strict=True))
    logits = q @ k.T / np.sqrt(DIM)  # (K, T)
    attention = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    slots = w["queries"] + attention @ v @ w["attention.out_proj.weight"].T
    slots = slots + mlp(slots, w)
    np.testing.assert_allclose(readout(tokens, mask).prototypes[0].detach(), slots, atol=1e-8)


@pytest.mark.parametrize("name", ["slots", "queries"])
def test_every_parameter_learns(name):
    readout = built(name)
    tokens, mask = documents()
    (readout(tokens, mask).pooled * torch.randn(5, DIM)).sum().backward()
    for parameter_name, parameter in readout.named_parameters():
        # A softmax over slots takes no notice of what is added to all queries, one over tokens none
        # of what is added to all keys.
        values = parameter.grad
        if parameter_name == "norm_slots.bias":
            continue
        if parameter_name == "attention.in_proj_bias":
            values = torch.cat([values[:DIM], values[2 * DIM :]])
        assert values.abs().max() > 1e-8, parameter_name


def reference_count(slots, present, tolerance):
    """Groups by single linkage."""
    kept = slots[present]
    if len(kept) < 2:
        return len(kept)
    scale = np.sqrt((kept**2).sum(axis=1).mean())
    return fcluster(linkage(kept, "single"), tolerance * scale, "distance").max()


TOLERANCES = st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.2])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 4), TOLERANCES, st.integers(0, 2**16))
def test_distinct_slots_are_groups_of_single_linkage(count, size, dim, tolerance, seed):
    generator = torch.Generator().manual_seed(seed)
    slots = torch.randn(count, size, dim, generator=generator, dtype=torch.float64)
    present = torch.rand(count, size, generator=generator) > 0.3
    expected = [
        reference_count(*document, tolerance)
        for document in zip(slots.numpy(), present.numpy(), strict=True)
    ]
    assert distinct_slots(slots, present, tolerance=tolerance).tolist() == expected
    order = torch.randperm(size, generator=generator)
    again = distinct_slots(5 * slots[:, order], present[:, order], tolerance=tolerance)
    assert again.tolist() == expected


def test_distinct_slots_at_the_extremes():
    assert distinct_slots(torch.eye(5)[None]).tolist() == [5]
    assert distinct_slots(torch.ones(2, 7, 3)).tolist() == [1, 1]
    assert distinct_slots(torch.zeros(1, 7, 3)).tolist() == [1]
    assert distinct_slots(torch.ones(1, 7, 3), torch.zeros(1, 7, dtype=torch.bool)).tolist() == [0]
    chain = torch.stack([torch.ones(10), torch.arange(10) / 10], dim=1)[None]
    assert distinct_slots(chain, tolerance=0.1).tolist() == [1]


def test_wrong_calls_are_refused():
    for name in BUILDERS:
        with pytest.raises(ValueError, match=r"\(B, T, D\)"):
            built(name)(torch.randn(3, DIM))
        with pytest.raises(ValueError, match=f"dim = {DIM}"):
            built(name)(torch.randn(2, 3, DIM + 1))
        with pytest.raises(TypeError, match="bool"):
            built(name)(torch.randn(2, 3, DIM), torch.ones(2, 3))
