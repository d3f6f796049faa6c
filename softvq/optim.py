"""Two time scales: prototypes learn faster than the encoder."""

from __future__ import annotations

from typing import Any

from torch import nn

from .codebooks.codebook import Codebook


def two_timescale_groups(model: nn.Module, lr: float, epsilon: float = 0.1) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser, prototypes with the learning rate ``lr / epsilon``.

    ``epsilon`` is the paper's ratio of the encoder's to the prototypes' learning rate.
    Prototypes get no weight decay: it would pull them off the data.

    Args:
        model: Any module that holds codebooks.
        lr: Learning rate of everything but prototypes, > 0.
        epsilon: Ratio, > 0.

    Returns:
        Two groups, named ``model`` and ``codebook``; parameters that need no gradient are left
        out, and so is a group without parameters.

    Raises:
        ValueError: If a rate is not positive, or nothing is left to train.

    Example:
        >>> from softvq import DDCLCodebook
        >>> model = nn.Sequential(nn.Linear(3, 4), DDCLCodebook(4, 8))
        >>> [(group["name"], group["lr"]) for group in two_timescale_groups(model, 1e-3)]
        [('model', 0.001), ('codebook', 0.01)]
    """
    if lr <= 0 or epsilon <= 0:
        raise ValueError(f"lr and epsilon must be positive, got lr={lr}, epsilon={epsilon}")
    prototypes = {
        id(module.codebook)
        for module in model.modules()
        if isinstance(module, Codebook) and isinstance(module.codebook, nn.Parameter)
    }
    trained = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"name": "model", "params": [p for p in trained if id(p) not in prototypes], "lr": lr},
        {
            "name": "codebook",
            "params": [p for p in trained if id(p) in prototypes],
            "lr": lr / epsilon,
            "weight_decay": 0.0,
        },
    ]
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise ValueError("the model has no parameter that requires a gradient")
    return groups
