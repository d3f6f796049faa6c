"""What training and evaluation rely on: purity, determinism, freezing, state, counts."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import torch
from adapters import DIM, Adapter, NotApplicableError
from registry import check, latents, loss_of, same, state, training_step
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@check("training is deterministic")
def deterministic(adapter: Adapter) -> None:
    runs = []
    for seed in (1, 2):
        module = adapter.build()
        torch.manual_seed(seed)
        runs.append(training_step(adapter, module, latents(4, 20)))
    assert same(runs[0][0], runs[1][0]), "other outputs"
    assert torch.equal(runs[0][1], runs[1][1]), "other gradients"
    assert runs[0][3] == runs[1][3], "other state"


@check("forward in train mode under `no_grad` changes no state")
@torch.no_grad()
def pure(adapter: Adapter) -> None:
    module = adapter.build()
    before = state(module)
    adapter.quantize(module, latents(4, 20))
    assert state(module) == before, "state changed"


@check("activation checkpointing: equal gradients and state")
def checkpointing(adapter: Adapter) -> None:
    runs = []
    for again in (False, True):
        torch.manual_seed(0)
        encoder, module = nn.Linear(DIM, DIM), adapter.build()

        def part(z: Tensor, encoder: nn.Module = encoder, module: nn.Module = module) -> Any:
            return adapter.quantize(module, encoder(z))

        z = latents(4, 20)
        out = checkpoint(part, z, use_reentrant=False) if again else part(z)
        total = out[0].square().sum()
        (total if out[2] is None else total + out[2]).backward()
        adapter.after_step(module, out)
        runs.append((encoder.weight.grad, state(module)))
    assert torch.equal(runs[0][0], runs[1][0]), "other gradients"
    assert runs[0][1] == runs[1][1], "other state"


@check("gradient accumulation: parts of a batch leave the gradients and state of the whole")
def accumulation(adapter: Adapter) -> None:
    z = latents(8, 20)
    runs = []
    for parts in (1, 4):
        torch.manual_seed(0)
        encoder, module = nn.Linear(DIM, DIM), adapter.build()
        outs = [adapter.quantize(module, encoder(part)) for part in z.chunk(parts)]
        for out in outs:
            total = out[0].square().mean()
            ((total if out[2] is None else total + out[2]) / parts).backward()
        adapter.after_step(module, *outs)
        runs.append((encoder.weight.grad, module.state_dict()))
    assert torch.allclose(runs[0][0], runs[1][0], rtol=1e-4, atol=1e-7), "other gradients"
    for name, value in runs[0][1].items():
        other = runs[1][1][name]
        assert torch.allclose(value.double(), other.double(), rtol=1e-5, atol=1e-6), "other state"


def frozen_training(adapter: Adapter, module: nn.Module) -> Tensor:
    """Gradients of an encoder over three steps."""
    torch.manual_seed(0)
    encoder = nn.Linear(DIM, DIM)
    trained = [p for p in (*encoder.parameters(), *module.parameters()) if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1, weight_decay=0.1)
    gradients = []
    for seed in range(3):
        optimizer.zero_grad()
        out = adapter.quantize(module, encoder(latents(4, 20, seed=seed)))
        total = out[0].square().mean()
        (total if out[2] is None else total + out[2]).backward()
        gradients.append(encoder.weight.grad.clone())
        optimizer.step()
        adapter.after_step(module, out)
    return torch.stack(gradients)


@check("frozen prototypes keep their bytes, and the encoder learns")
def frozen(adapter: Adapter) -> None:
    if not adapter.learns:
        raise NotApplicableError("has no prototypes")
    module = adapter.build()
    adapter.freeze(module)
    before = adapter.prototypes(module).clone()
    gradients = frozen_training(adapter, module)
    assert torch.equal(adapter.prototypes(module), before), "prototypes moved"
    assert gradients.abs().amax(dim=(1, 2)).min() > 0, "the encoder got no gradient"


@check("gradients reach the encoder in eval mode")
def eval_gradient(adapter: Adapter) -> None:
    z = latents(4, 20).requires_grad_()
    quantized = adapter.quantize(adapter.build().eval(), z)[0]
    assert quantized.requires_grad, "codes carry no gradient"
    (gradient,) = torch.autograd.grad(quantized.square().sum(), z)
    assert gradient.any(), "the gradient is zero"


@check("the loss in eval mode is that of train mode")
def eval_loss(adapter: Adapter) -> None:
    losses = [
        loss_of(adapter, adapter.quantize(adapter.build().train(mode), latents(4, 20)))
        for mode in (True, False)
    ]
    assert losses[0] > 0, "loss is zero in train mode"
    assert torch.equal(*losses), f"{losses[1]:.4f} instead of {losses[0]:.4f}"


def travelled(adapter: Adapter, module: nn.Module, how: str) -> nn.Module:
    if how == "deepcopy":
        return copy.deepcopy(module)
    if how == "pickle":
        return pickle.loads(pickle.dumps(module))
    stream = io.BytesIO()
    torch.save(module.state_dict(), stream)
    stream.seek(0)
    other = adapter.build()
    other.load_state_dict(torch.load(stream, weights_only=True), strict=True)
    return other


@check("training goes on to the bit after {}", "a strict state dict", "deepcopy", "pickle")
def travels(adapter: Adapter, case: str) -> None:
    module = adapter.build()
    training_step(adapter, module, latents(4, 20))
    other = travelled(adapter, module, case)
    for parameter in module.parameters():
        parameter.grad = None
    first, second = (training_step(adapter, m, latents(4, 20, seed=2)) for m in (module, other))
    assert same(first[0], second[0]), "other outputs"
    assert torch.equal(first[1], second[1]), "other gradients"
    assert first[3] == second[3], "other state"


@check("gradcheck in float64")
def gradients(adapter: Adapter) -> None:
    module = adapter.build().double()
    z = latents(2, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(adapter.smooth(module), (z,)), "not the derivative"


@check("k-means on fewer latents than codes is not silent")
def kmeans(adapter: Adapter) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            adapter.kmeans(latents(adapter.size // 2))
        except ValueError:
            return
    assert caught, "neither error nor warning"


@check("codes are counted over batches and masks")
def counted(adapter: Adapter) -> None:
    module = adapter.build().eval()
    mask = torch.rand(4, 20, generator=torch.Generator().manual_seed(0)) > 0.3
    batches = [(latents(4, 20, seed=seed), mask) for seed in range(3)]
    expected = torch.zeros(adapter.size, dtype=torch.int64)
    counts = adapter.counts(module, batches)
    for z, _ in batches:
        distances = torch.cdist(z[mask].double(), adapter.prototypes(module).double())
        expected += torch.bincount(distances.argmin(dim=1), minlength=adapter.size)
    assert torch.equal(counts, expected), "other counts"
