"""diagnose: what is wrong with a codebook, told from the codebook and some latents alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .codebooks.codebook import Codebook
from .codebooks.outputs import CodebookOutput
from .codebooks.soft import SoftCodebook
from .functional import largest_variance, latent_covariance
from .geometry import DOUBLE, neighbour_distances, relative_spread, usual_distance
from .utilization import perplexity_of

__all__ = [
    "COLLAPSED_RATIO",
    "COLLAPSED_SPREAD",
    "SOFT_VARIANCE_SHARE",
    "Diagnosis",
    "codes_of",
    "diagnose",
    "listed",
]

# T / T_c above which collapse attracts, and the spread of prototypes that are one, or nearly.
COLLAPSED_RATIO, COLLAPSED_SPREAD = 1.0, 0.15
# V / L_q at which a token is as far from its soft code as that is from the latent.
SOFT_VARIANCE_SHARE = 0.5
# Share of the codes without a token, beyond chance; bits of a token that say nothing.
STARVED, LOST_BITS = 0.01, 1.0
# Tokens for each code below which chance alone leaves many codes empty.
FEW_TOKENS = 4


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found; ``print`` shows it in sentences.

    Attributes:
        symptoms: A sentence for each thing that is wrong, by its name.
        used: Number of codes that are the nearest of a latent.
        dead: The codes that are not, ascending.
        perplexity: ``exp(entropy)`` of how often each code is the nearest, in [1, K].
        relative_error: Share of the latents' variance that their tokens lose.
        codes_per_token: ``exp(mean entropy)`` of the assignments; 1 for a hard codebook.
        temperature_ratio: T / T_c by these latents; None for a hard codebook.
    """

    symptoms: dict[str, str]
    used: int
    dead: list[int]
    perplexity: float
    relative_error: float
    codes_per_token: float
    temperature_ratio: float | None

    @property
    def healthy(self) -> bool:
        """Whether there is no symptom."""
        return not self.symptoms

    def __str__(self) -> str:
        size = self.used + len(self.dead)
        told = (
            f"{self.used} of {size} codes used, perplexity {self.perplexity:.1f}; tokens lose "
            f"{100 * self.relative_error:.1f} % of the latents' variance."
        )
        lines = [f"{name}: {text}" for name, text in self.symptoms.items()]
        return "\n".join([told, *(lines or ["Nothing is wrong with this codebook."])])


@torch.no_grad()
def diagnose(codebook: Codebook, latents: Tensor, mask: Tensor | None = None) -> Diagnosis:
    """Examine a codebook on latents, in any model and at any time; nothing is changed.

    Of a stack or a product, examine each of ``codebooks`` on what reaches it:
    ``diagnose(level, out.latents)`` for each level and each of ``stack(z).levels``. What a run of
    ``train.py`` has beside that, ``python -m eval doctor`` examines.

    Args:
        codebook: The codebook.
        latents: As its ``forward`` takes them, at least a few for each code.
        mask: As in ``forward``.

    Raises:
        ValueError: If a shape does not fit, no latent is left, or the codebook has no prototypes.
        TypeError: If a dtype does not fit, or the codebook is no single one.

    Example:
        >>> from softvq import VQCodebook
        >>> _ = torch.manual_seed(0)
        >>> codebook, latents = VQCodebook(4, 8), torch.randn(500, 4)
        >>> codebook.initialize(latents)
        >>> codebook.codebook.data[3] = 100.0
        >>> found = diagnose(codebook, latents)
        >>> list(found.symptoms), found.dead
        (['dead-codes'], [3])
        >>> found.symptoms["dead-codes"][:60]
        '1 of 8 codes (12.5 %) are nearest to none of 500 latents: 3.'
    """
    if not isinstance(codebook, Codebook):
        raise TypeError(
            "diagnose takes a single codebook: for a stack or a product call it for each of its "
            f"codebooks and each of out.levels' latents; got a {type(codebook).__name__}"
        )
    if not codebook.has_tokens:
        raise ValueError(f"a {type(codebook).__name__} has no prototypes to examine")
    training, forwards = codebook.training, codebook.forwards
    try:
        out = codebook.eval()(latents, mask)
    finally:
        codebook.train(training)
        codebook.forwards = forwards
    tokens = out.latents[out.indices.flatten() >= 0]
    if not len(tokens):
        raise ValueError("diagnose needs at least one latent that is not masked")
    prototypes = codebook.codebook.detach().to(tokens.dtype)
    if not (tokens.isfinite().all() and prototypes.isfinite().all()):
        broken = "latents" if prototypes.isfinite().all() else "prototypes"
        text = f"The {broken} hold NaN or infinity: lower the learning rate."
        return Diagnosis({"non-finite": text}, 0, [], 0.0, math.nan, math.nan, None)
    return _examined(codebook, out, tokens, prototypes)


def _examined(
    codebook: Codebook, out: CodebookOutput, tokens: Tensor, prototypes: Tensor
) -> Diagnosis:
    chosen = out.indices.flatten()
    chosen = chosen[chosen >= 0]
    counts = torch.bincount(chosen, minlength=codebook.codebook_size)
    error = (tokens - prototypes[chosen]).square().sum(dim=1).mean()
    covariance = latent_covariance(tokens)
    variance = float(covariance.trace())
    ratio = None
    if isinstance(codebook, SoftCodebook):
        critical = codebook.critical_factor * float(largest_variance(covariance))
        ratio = codebook.temperature.item() / max(critical, 1e-30)
    found = Diagnosis(
        symptoms={},
        used=int((counts > 0).sum()),
        dead=(counts == 0).nonzero().squeeze(1).tolist(),
        perplexity=perplexity_of(counts),
        relative_error=float(error) / max(variance, 1e-30),
        codes_per_token=float(out.codes_per_token),
        temperature_ratio=ratio,
    )
    loss_q = float(out.losses["loss_q"])
    share = float(out.losses["variance"]) / max(loss_q, 1e-30)
    symptoms = [
        *_of_the_start(codebook),
        *_of_usage(codebook, found, len(tokens)),
        *_of_geometry(found, relative_spread(prototypes, tokens), share),
        *_of_doubles(prototypes),
    ]
    found.symptoms.update(symptoms)
    return found


def _of_the_start(codebook: Codebook) -> Iterator[tuple[str, str]]:
    if not (codebook.initialized or int(codebook.steps)):
        text = (
            "Its prototypes are the random ones of the constructor: call attach(model, optimizer) "
            "or initialize(latents) before training."
        )
        yield "not-started", text


def _of_usage(codebook: Codebook, found: Diagnosis, tokens: int) -> Iterator[tuple[str, str]]:
    size = codebook.codebook_size
    if tokens < FEW_TOKENS * size:
        text = (
            f"{tokens} latents for {size} codes leave many codes empty by chance alone: give more, "
            "or take a smaller codebook_size."
        )
        yield "few-latents", text
        return
    if len(found.dead) > size * (math.exp(-tokens / size) + STARVED):
        threshold = getattr(codebook, "restart_threshold", 0.0)
        advice = (
            "Take a smaller codebook_size."
            if threshold >= 0.1
            else f"Train with restart_threshold={max(0.1, 2 * threshold):g}."
        )
        text = (
            f"{codes_of(len(found.dead), size)} are nearest to none of {tokens} latents: "
            f"{listed(found.dead)}. {advice}"
        )
        yield "dead-codes", text
    lost = math.log2(size / found.perplexity)
    if lost >= LOST_BITS:
        text = (
            f"Usage is so uneven that {lost:.1f} of a token's {math.log2(size):.1f} bits say "
            "nothing: raise balance, where the codebook has it, or take a smaller codebook_size."
        )
        yield "low-perplexity", text


def _of_geometry(found: Diagnosis, spread: float, share: float) -> Iterator[tuple[str, str]]:
    ratio = found.temperature_ratio
    hot = ratio is not None and ratio >= COLLAPSED_RATIO
    if hot or spread < COLLAPSED_SPREAD:
        told = f"Prototypes are spread by {spread:.2g} of the latents' largest standard deviation"
        if hot:
            told += f", and T is {ratio:.3g} of the critical temperature, so that collapse attracts"
        yield "collapsed", f"{told}: lower the temperature, or start the prototypes on latents."
    elif found.relative_error >= 1:
        text = (
            f"Tokens are {found.relative_error:.3g} times as far from the latents as the latents' "
            "mean is: prototypes were not started on these latents, or no longer follow them. "
            "Call after_step after each step of the optimizer."
        )
        yield "off-scale", text
    if share > SOFT_VARIANCE_SHARE:
        text = (
            f"A token is assigned to {found.codes_per_token:.2f} codes, and {100 * share:.0f} % of "
            "L_q is what the token alone loses: take a temperature of fewer codes per token."
        )
        yield "too-soft", text


def _of_doubles(prototypes: Tensor) -> Iterator[tuple[str, str]]:
    if len(prototypes) < 4:
        return
    distance, other = neighbour_distances(prototypes)
    double = (distance < DOUBLE * usual_distance(prototypes)).nonzero().squeeze(1).tolist()
    lost = sorted({max(k, int(other[k])) for k in double})
    if lost:
        text = (
            f"{codes_of(len(lost), len(prototypes))} lie on another one: {listed(lost)}. Start the "
            "prototypes on latents, and with a lower temperature."
        )
        yield "duplicates", text


def listed(numbers: Sequence[int], most: int = 8) -> str:
    """The first numbers of a list, and how many there are beyond them.

    Example:
        >>> listed([3, 5]), listed(range(10), most=2)
        ('3, 5', '0, 1 and 8 more')
    """
    shown, rest = ", ".join(map(str, numbers[:most])), len(numbers) - most
    return f"{shown} and {rest} more" if rest > 0 else shown


def codes_of(count: int, size: int) -> str:
    """How many of the codes, with their share.

    Example:
        >>> codes_of(3, 512)
        '3 of 512 codes (0.6 %)'
    """
    return f"{count} of {size} codes ({100 * count / size:.1f} %)"
