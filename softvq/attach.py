"""attach: the codebooks of any model, in any training loop, by one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ._internal.distributed import summed
from .codebooks.codebook import Codebook
from .codebooks.composite import Composite
from .codebooks.outputs import CodebookOutput, StackOutput

# Latents for each prototype that k-means starts from, and batches after which fewer are enough.
LATENTS_PER_CODE = 16
MOST_BATCHES = 16


def attach(model: nn.Module, optimizer: Optimizer | Iterable[Optimizer]) -> Attachment:
    """Make the codebooks of a model look after themselves.

    Every codebook and stack below ``model`` is started by k-means on the first latents that it
    sees in training, and its :meth:`softvq.Codebook.after_step` is called after each step of the
    optimizer with the outputs that the step's gradients came from. Gradient accumulation, skipped
    steps of a gradient scaler, activation checkpointing, evaluation in between, several optimizers
    and distributed training need nothing more.

    Args:
        model: Any module that holds codebooks, compiled or wrapped or not.
        optimizer: The optimizer that trains what comes before the codebooks, or several.

    Returns:
        A handle; :meth:`Attachment.detach` undoes all of it.

    Raises:
        ValueError: If the model holds no codebook, or one that is attached already.
        TypeError: If no optimizer is given.

    Example:
        >>> from softvq import DDCLEMCodebook
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 4), DDCLEMCodebook(dim=4, codebook_size=16))
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> handle = attach(model, optimizer)
        >>> for _ in range(3):
        ...     out = model(torch.randn(256, 8))
        ...     (out.quantized.square().mean() + out.loss).backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> int(model[1].steps)
        3
    """
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    # Accelerate wraps an optimizer in one whose step has no hooks.
    optimizers = [getattr(each, "optimizer", each) for each in optimizers]
    if not optimizers or not all(isinstance(each, Optimizer) for each in optimizers):
        raise TypeError(f"attach needs an optimizer, or several, got {optimizer!r}")
    codebooks = outermost_codebooks(model)
    if not codebooks:
        raise ValueError(
            f"{type(model).__name__} holds no codebook of softvq: build one into the model before "
            "attach(model, optimizer)"
        )
    for codebook in codebooks:
        _refuse_attached(codebook)
    return Attachment(codebooks, optimizers)


def _refuse_attached(codebook: Codebook | Composite) -> None:
    hooks = [*codebook._forward_hooks.values(), *codebook._forward_pre_hooks.values()]
    if any(isinstance(hook, _Hook) and hook.follower for hook in hooks):
        raise ValueError(
            f"this {type(codebook).__name__} is attached already: call detach() on the handle of "
            "the first attach, or leave out the second"
        )


def outermost_codebooks(model: nn.Module) -> list[Codebook | Composite]:
    """Codebooks, stacks and products below a module, without the parts of either, each once."""
    wholes = [module for module in model.modules() if isinstance(module, Composite)]
    parts = {id(part) for whole in wholes for part in whole.modules() if part is not whole}
    return [
        module
        for module in model.modules()
        if isinstance(module, Codebook | Composite) and id(module) not in parts
    ]


class Attachment:
    """The handle of :func:`attach`.

    Attributes:
        codebooks: The codebooks and stacks that it looks after.
    """

    def __init__(self, codebooks: list[Codebook | Composite], optimizers: list[Optimizer]) -> None:
        self.codebooks = codebooks
        self._followers = [_Follower(codebook) for codebook in codebooks]
        self._removals: list[Callable[[], None]] = []
        for follower in self._followers:
            self._removals += follower.register()
        for optimizer in optimizers:
            handle = optimizer.register_step_post_hook(self._stepped)
            self._removals += [handle.remove, self._watch_zero_grad(optimizer)]

    def detach(self) -> None:
        """Stop looking after the codebooks; their state stays as it is."""
        while self._removals:
            self._removals.pop()()

    def _stepped(self, *_: Any) -> None:
        for follower in self._followers:
            follower.step()

    def _watch_zero_grad(self, optimizer: Optimizer) -> Callable[[], None]:
        """Forget outputs whose gradients are thrown away, as after a step that was skipped."""
        zero_grad = optimizer.zero_grad

        def watched(*args: Any, **kwargs: Any) -> None:
            for follower in self._followers:
                follower.forget_used()
            zero_grad(*args, **kwargs)

        optimizer.zero_grad = watched  # type: ignore[method-assign]

        def restore() -> None:
            del optimizer.zero_grad  # the class's own is seen again

        return restore


class _Kept:
    """An output, and whether a gradient has come back through it."""

    def __init__(self, out: CodebookOutput | StackOutput) -> None:
        self.out = out
        # A graph cannot tell, and what has no gradient never will: such outputs count as used.
        tensors = [tensor for tensor in (out.quantized, out.loss) if tensor.requires_grad]
        self._marks = [True] if torch.compiler.is_compiling() or not tensors else []
        marks = self._marks  # the hook must not hold the output
        for tensor in () if self._marks else tensors:
            tensor.register_hook(lambda _: marks.append(True))

    @property
    def used(self) -> bool:
        return bool(self._marks)


class _Follower:
    """What one codebook saw in training since its last step."""

    def __init__(self, codebook: Codebook | Composite) -> None:
        self.codebook = codebook
        self.started = codebook.codebooks[0].initialized
        self.kept: list[_Kept] = []
        # Outputs of forwards without gradients: either nobody's, or, with reentrant activation
        # checkpointing, computed anew in the backward pass.
        self.provisional = 0
        self.latents: list[tuple[Tensor, Tensor | None]] = []

    def register(self) -> list[Callable[[], None]]:
        before = self.codebook.register_forward_pre_hook(
            _Hook(self, "before"), with_kwargs=True, prepend=True
        )
        after = self.codebook.register_forward_hook(_Hook(self, "after"))
        return [before.remove, after.remove]

    def before(self, codebook: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        compiling = torch.compiler.is_compiling()
        if codebook.training and not self.started and not _in_backward():
            # No part of a graph. Not a decorator: importing softvq would load the compiler.
            gather = torch.compiler.disable(self.gather) if compiling else self.gather
            gather(*args, **kwargs)

    @torch.no_grad()
    def gather(self, z: Tensor, mask: Tensor | None = None, hard: bool = False) -> None:
        """Keep latents until there are enough of them, then start the codebook."""
        self.latents.append((z.detach(), mask))
        tokens = torch.zeros(1, dtype=torch.int64, device=z.device)
        for part, kept in self.latents:
            tokens += part.numel() // self.codebook.dim if kept is None else kept.sum()
        # Of all processes, so that they start at the same step.
        tokens_everywhere = int(summed(tokens))
        # A stack's coarsest level sees one cell of pool x pool x ... places.
        places = max(self.codebook.pools) ** max(z.dim() - 2, 0)
        size = places * max(level.codebook_size for level in self.codebook.codebooks)
        wanted = LATENTS_PER_CODE if len(self.latents) < MOST_BATCHES else 1
        if tokens_everywhere < wanted * size:
            return
        latents, masks = zip(*self.latents, strict=True)
        self.codebook.initialize(latents, mask=masks)
        self.latents.clear()
        self.started = True

    def after(self, codebook: nn.Module, _: Any, out: CodebookOutput | StackOutput) -> None:
        if not codebook.training or not self.started:
            return
        if not torch.is_grad_enabled():
            self.provisional += 1
        elif not _in_backward():
            self.kept.append(_Kept(out))
        elif self.provisional:
            self.provisional -= 1
            self.kept.append(_Kept(out))

    def forget_used(self) -> None:
        self.kept = [kept for kept in self.kept if not kept.used]

    def step(self) -> None:
        outs: list[Any] = [kept.out for kept in self.kept if kept.used]
        self.kept.clear()
        self.provisional = 0
        if outs:
            self.codebook.after_step(*outs)


class _Hook:
    """A hook that copies of the model do not share: theirs does nothing."""

    def __init__(self, follower: _Follower | None, name: str) -> None:
        self.follower = follower
        self.name = name

    def __call__(self, *args: Any) -> None:
        if self.follower is not None:
            getattr(self.follower, self.name)(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return _Hook(None, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, (None, self.name)


def _in_backward() -> bool:
    """Whether autograd is running: a forward then recomputes what was not kept."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
