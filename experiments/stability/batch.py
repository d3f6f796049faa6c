"""Many small runs as one batch.

A batch has R runs, N latents of size D, and data points of size X. Every run is a model of its own
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

from softvq import CodebookOutput

from .measures import measures
from .mixture import TERMS, Setting, build

History = list[dict[str, Any]]


def run_batch(
    settings: Sequence[Setting],
    record_at: Sequence[int],
    dtype: torch.dtype = torch.float32,
) -> list[History]:
    """Train runs by gradient descent on the whole data, those of one kind side by side.

    Args:
        settings: The runs, any number of them.
        record_at: Steps to measure at, ascending; the last is the end of the training.
        dtype: float32 or float64.

    Returns:
        For each run the :func:`measures` at each recorded step, and ``step``.
    """
    history: list[History] = [[] for _ in settings]
    kinds = [setting.kind for setting in settings]
    for kind in dict.fromkeys(kinds):
        members = [number for number, own in enumerate(kinds) if own == kind]
        done = _run_kind([settings[number] for number in members], record_at, dtype)
        for number, own in zip(members, done, strict=True):
            history[number] = own
    return history


def _run_kind(
    settings: Sequence[Setting], record_at: Sequence[int], dtype: torch.dtype
) -> list[History]:
    """Train settings that differ in numbers that are state, not in the model."""
    models, data = zip(*(build(setting, dtype) for setting in settings), strict=True)
    state = shared_state(models)
    names = [name for name, own in models[0].named_parameters() if own.requires_grad]
    trained = [state[name].requires_grad_() for name in names]
    lrs = [learning_rates(settings, name, state[name]) for name in names]
    # Fixed T and prototypes by gradient: after_step would move nothing that the run depends on.
    moving = settings[0].em or settings[0].control == "follows"
    x = torch.stack(data)  # (R, N, X)
    loss_of = weighted_loss(settings, dtype)
    forward = vmap(lambda own, points: functional_call(models[0], own, (points,)))
    history: list[History] = [[] for _ in settings]
    for step in range(record_at[-1] + 1):
        out, error = forward(state, x)
        if step in record_at:
            for own, model, part in zip(history, models, parts(out, len(models)), strict=True):
                own.append({"step": step} | measures(model.codebook, part))
        if trained:
            gradients = torch.autograd.grad(loss_of(out, error), trained)
            with torch.no_grad():
                for parameter, gradient, lr in zip(trained, gradients, lrs, strict=True):
                    parameter.addcmul_(lr, gradient, value=-1)
        if moving:
            for model, part in zip(models, parts(out, len(models)), strict=True):
                # A run that diverges ends as such; the others go on.
                with suppress(FloatingPointError, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
                    model.codebook.after_step(part)
    return history


def weighted_loss(
    settings: Sequence[Setting], dtype: torch.dtype
) -> Callable[[CodebookOutput, Tensor], Tensor]:
    """Make the function that the runs minimise, summed over them: each has its own gradient."""
    reconstruction = torch.tensor([s.reconstruction for s in settings], dtype=dtype)  # (R,)
    chosen = torch.tensor([[s.term == term for term in TERMS] for s in settings]).to(dtype)

    def loss(out: CodebookOutput, error: Tensor) -> Tensor:
        terms = [out.loss, out.losses["loss_ols"], out.losses["variance"]]
        return (chosen * torch.stack(terms, dim=1)).sum() + reconstruction @ error

    return loss


@torch.no_grad()
def shared_state(models: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Stack parameters and buffers of R models by name; the models' own become views of them.

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


def learning_rates(settings: Sequence[Setting], name: str, stacked: Tensor) -> Tensor:
    """Return a parameter's rate in each run, those of :func:`softvq.two_timescale_groups`.

    Returns:
        (R, 1, ...), to multiply with the stacked gradient.
    """
    rates = torch.tensor([setting.rates for setting in settings]).to(stacked)  # (R, 2)
    return rates[:, int(name.startswith("codebook."))].view(-1, *[1] * (stacked.dim() - 1))


def parts(out: CodebookOutput, count: int) -> list[CodebookOutput]:
    """Split the output of a batch into those of its R runs."""
    return [tree_map(lambda field, r=run: field[r].detach(), out) for run in range(count)]
