"""Many small runs as one batch.

R runs of a batch, N latents of size D, X the size of a data point. Every run is a model of its own
with the codebook of the library; only the arithmetic is batched over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

from experiments.stability.measures import measures
from experiments.stability.mixture import TERMS, Setting, build
from softvq import CodebookOutput, two_timescale_groups


def run_batch(
    settings: Sequence[Setting],
    record_at: Sequence[int],
    dtype: torch.dtype = torch.float32,
    progress: Callable[[], object] = lambda: None,
) -> list[list[dict[str, Any]]]:
    """Train runs by gradient descent on the whole data, those of one kind side by side.

    Args:
        settings: Any number of them.
        record_at: Steps to measure at, ascending; the last is the end of the training.
        dtype: float32 or float64.
        progress: Called once a step of each kind.

    Returns:
        For each run the :func:`measures` at each recorded step, and ``step``.
    """
    history: list[list[dict[str, Any]]] = [[] for _ in settings]
    kinds = [setting.kind for setting in settings]
    for kind in dict.fromkeys(kinds):
        members = [number for number, own in enumerate(kinds) if own == kind]
        done = _run_kind([settings[number] for number in members], record_at, dtype, progress)
        for number, own in zip(members, done, strict=True):
            history[number] = own
    return history


def _run_kind(
    settings: Sequence[Setting],
    record_at: Sequence[int],
    dtype: torch.dtype,
    progress: Callable[[], object],
) -> list[list[dict[str, Any]]]:
    """:func:`run_batch` of settings that differ in numbers that are state, not in the model."""
    models, data = zip(*(build(setting, dtype) for setting in settings), strict=True)
    state, lrs = shared_state(models), learning_rates(models, settings)
    trained = [state[name].requires_grad_() for name in lrs]
    # Fixed T and prototypes by gradient: after_step would move nothing that the run depends on.
    moving = settings[0].em or settings[0].control == "follows"
    x = torch.stack(data)  # (R, N, X)
    loss_of = weighted_loss(settings, dtype)
    forward = vmap(lambda own, points: functional_call(models[0], own, (points,)))
    history: list[list[dict[str, Any]]] = [[] for _ in settings]
    for step in range(record_at[-1] + 1):
        out, error = forward(state, x)
        if step in record_at:
            for own, model, part in zip(history, models, parts(out, len(models)), strict=True):
                own.append({"step": step} | measures(model.codebook, part))
        if trained:
            gradients = torch.autograd.grad(loss_of(out, error), trained)
            with torch.no_grad():
                for parameter, gradient, lr in zip(trained, gradients, lrs.values(), strict=True):
                    parameter.addcmul_(lr.to(dtype), gradient, value=-1)
        if moving:
            for model, part in zip(models, parts(out, len(models)), strict=True):
                # A run that diverges ends as such; the others go on.
                with suppress(FloatingPointError, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
                    model.codebook.after_step(part)
        progress()
    return history


def weighted_loss(
    settings: Sequence[Setting], dtype: torch.dtype
) -> Callable[[CodebookOutput, Tensor], Tensor]:
    """What the runs minimise, summed over them: each has its own gradient."""
    reconstruction = torch.tensor([s.reconstruction for s in settings], dtype=dtype)  # (R,)
    chosen = torch.tensor([[s.term == term for term in TERMS] for s in settings]).to(dtype)

    def loss(out: CodebookOutput, error: Tensor) -> Tensor:
        terms = [out.loss, out.losses["loss_ols"], out.losses["variance"]]
        return (chosen * torch.stack(terms, dim=1)).sum() + reconstruction @ error

    return loss


@torch.no_grad()
def shared_state(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Parameters and buffers of R models by name, stacked; the models' own become views of them.

    What the batch trains the models see, and what a model's ``after_step`` moves the batch sees.
    """
    state = {}
    for name in models[0].state_dict():
        owner, _, leaf = name.rpartition(".")
        modules = [model.get_submodule(owner) for model in models]
        state[name] = torch.stack([getattr(module, leaf).detach() for module in modules])
        for module, own in zip(modules, state[name], strict=True):
            if leaf in module._parameters:
                getattr(module, leaf).data = own
            else:
                module._buffers[leaf] = own
    return state


def learning_rates(models: Sequence[nn.Module], settings: Sequence[Setting]) -> dict[str, Tensor]:
    """Rates of each trained parameter over R runs, as :func:`softvq.two_timescale_groups` sets.

    Returns:
        By name, (R, 1, ...), to multiply with a stacked gradient.
    """
    lrs: dict[str, list[float]] = {}
    for model, setting in zip(models, settings, strict=True):
        names = {parameter: name for name, parameter in model.named_parameters()}
        if not any(parameter.requires_grad for parameter in names):
            continue
        for group in two_timescale_groups(model, setting.rates[0], setting.epsilon):
            for parameter in group["params"]:
                lrs.setdefault(names[parameter], []).append(group["lr"])
    axes = {name: parameter.dim() for name, parameter in models[0].named_parameters()}
    return {name: torch.tensor(own).view(-1, *[1] * axes[name]) for name, own in lrs.items()}


def parts(out: CodebookOutput, count: int) -> list[CodebookOutput]:
    """The R outputs of a batch of runs."""
    return [tree_map(lambda field, r=run: field[r].detach(), out) for run in range(count)]
