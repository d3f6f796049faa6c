"""A DDCL readout fitted to documents without labels, and what it makes of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.documents.embeddings import TokenEmbeddings, padded
from experiments.documents.vectors import Documents, LinearEncoder
from softvq import CodesPerToken, DDCLCodebook, DDCLEMCodebook, DDCLReadout, Schedule, SoftCodebook

LARGEST_GAP = 1e-4  # |L_q - L_OLS - V| / L_q in float32


@dataclass(frozen=True)
class ReadoutSettings:
    """How a readout is fitted; all of it our choice.

    Attributes:
        unit: What a token is: ``"token"``, the transformer's, or ``"document"``, a document's mean
            token, so that a document is a sequence of one.
        prototypes: ``"gradient"``, by Adam on L_q, or ``"em"``, soft EM.
        axes: d, principal axes of the training documents that are kept.
        codes: Codes per token at the start and at the end.
        usage_weight: Weight of KL(usage || uniform), nats, beside L_q over the latents' variance;
            of the gradient's prototypes only.
        starts: k-means initialisations, of which the one with the lowest error of nearest
            prototypes is trained.
        steps: Of the optimiser, at least; whole epochs are trained.
        batch_tokens: Tokens of a step, about.
        lr: Of Adam, for latents of unit variance; falls as a half cosine.
    """

    unit: Literal["token", "document"] = "document"
    prototypes: Literal["gradient", "em"] = "gradient"
    axes: int = 64
    codes: tuple[float, float] = (1.5, 1.1)
    usage_weight: float = 0.0
    starts: int = 10
    steps: int = 200
    batch_tokens: int = 2048
    lr: float = 0.05


class ReadoutEpoch(NamedTuple):
    """Means over the batches of an epoch; L_q and its parts over tokens and elements.

    Attributes:
        loss_q: L_q.
        loss_ols: L_OLS.
        variance: V.
        gap: The largest ``|L_q - L_OLS - V| / L_q`` of a batch.
        codes_per_token: ``exp(mean entropy)`` of the assignment.
        temperature_ratio: T / T_c at the end.
    """

    loss_q: float
    loss_ols: float
    variance: float
    gap: float
    codes_per_token: float
    temperature_ratio: float


class FittedReadout(NamedTuple):
    """What came of it.

    Attributes:
        readout: Fitted, of the encoder's latents.
        encoder: Of document vectors and tokens.
        settings: How it was fitted.
        epochs: One entry for each.
    """

    readout: DDCLReadout
    encoder: LinearEncoder
    settings: ReadoutSettings
    epochs: list[ReadoutEpoch]

    def proportions(self, documents: Documents) -> Tensor:
        """Shares of the prototypes: (N, K)."""
        return self._read(documents)[0]

    def pooled(self, documents: Documents) -> Tensor:
        """Pooled vectors: (N, d)."""
        return self._read(documents)[1]

    @torch.no_grad()
    def _read(self, documents: Documents) -> tuple[Tensor, Tensor]:
        sequences = sequences_of(documents, self.encoder, self.settings)
        read = [self.readout(*padded(sequences, rows)) for rows in batches(sequences, 2048)]
        return torch.cat([out.proportions for out in read]), torch.cat([o.pooled for o in read])


def sequences_of(
    documents: Documents, encoder: LinearEncoder, settings: ReadoutSettings
) -> TokenEmbeddings:
    """Documents as sequences of the latents that the readout is to see."""
    if settings.unit == "document":
        count = len(documents.mean)
        ids = torch.zeros(count, dtype=torch.int32)
        return TokenEmbeddings(encoder(documents.mean), ids, torch.ones(count, dtype=torch.int64))
    return documents.tokens._replace(tokens=encode_tokens(documents.tokens, encoder))


def encode_tokens(tokens: TokenEmbeddings, encoder: LinearEncoder) -> Tensor:
    """All tokens as latents: (M, d), in pieces, for the float32 copy of all would be large."""
    return torch.cat([encoder(piece) for piece in tokens.tokens.split(16384)])


def batches(
    sequences: TokenEmbeddings, batch_tokens: int, generator: torch.Generator | None = None
) -> Iterator[Tensor]:
    """Row numbers of batches of about so many tokens, in order or shuffled."""
    count = len(sequences.lengths)
    order = torch.arange(count)
    if generator is not None:
        order = torch.randperm(count, generator=generator)
    mean = sequences.lengths.sum().item() / count
    return iter(order.chunk(max(1, math.ceil(count * mean / batch_tokens))))


def fit_readout(
    documents: Documents,
    encoder: LinearEncoder,
    codebook_size: int,
    seed: int,
    settings: ReadoutSettings,
) -> FittedReadout:
    """Fit a readout's prototypes to documents by L_q.

    Args:
        documents: To be fitted on.
        encoder: Of their vectors; frozen.
        codebook_size: K.
        seed: Of the initialisations and of the order of documents.
        settings: How.

    Returns:
        A :class:`FittedReadout`.

    Raises:
        ValueError: If there are fewer tokens than prototypes.
        ArithmeticError: If L_q differs from L_OLS + V by more than ``LARGEST_GAP``.
    """
    sequences = sequences_of(documents, encoder, settings)
    generator = torch.Generator().manual_seed(seed)
    per_epoch = sum(1 for _ in batches(sequences, settings.batch_tokens))
    count = math.ceil(settings.steps / per_epoch)
    readout = DDCLReadout(codebook_of(encoder, codebook_size, count * per_epoch, settings))
    place(readout, sequences, seed, settings.starts)
    parameters = [p for p in readout.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, settings.lr) if parameters else None
    epochs = []
    for number in range(count):
        losses = []
        for batch, rows in enumerate(batches(sequences, settings.batch_tokens, generator)):
            progress = (number + batch / per_epoch) / count
            losses.append(step(readout, optimizer, padded(sequences, rows), progress, settings))
        epochs.append(summed_up(losses, readout))
    return FittedReadout(readout, encoder, settings, epochs)


def codebook_of(
    encoder: LinearEncoder, codebook_size: int, steps: int, settings: ReadoutSettings
) -> SoftCodebook:
    """A codebook whose codes per token fall during the first four fifths of the steps."""
    em = partial(DDCLEMCodebook, balance=0.0)
    kind = DDCLCodebook if settings.prototypes == "gradient" else em
    return kind(
        encoder.axes.shape[1],
        codebook_size,
        temperature=CodesPerToken(Schedule(*settings.codes, steps=4 * steps // 5)),
        commitment=1.0,
        usage_weight=settings.usage_weight if settings.prototypes == "gradient" else 0.0,
        restart_threshold=0.0,
    )


@torch.no_grad()
def place(readout: DDCLReadout, sequences: TokenEmbeddings, seed: int, starts: int) -> None:
    """Initialise by k-means on latents, several times; keep that with the lowest hard error."""
    generator = torch.Generator().manual_seed(seed)
    latents = sequences.tokens.float()
    latents = latents[torch.randperm(len(latents), generator=generator)[:16384]]
    best: tuple[float, dict[str, Tensor]] | None = None
    for start in range(starts):
        readout.initialize(latents[:, None], seed=seed * starts + start)
        error = float((latents - readout.codebook(latents, hard=True).quantized).square().mean())
        if best is None or error < best[0]:
            best = error, {k: v.clone() for k, v in readout.state_dict().items()}
    if best is not None:
        readout.load_state_dict(best[1])


def step(
    readout: DDCLReadout,
    optimizer: torch.optim.Optimizer | None,
    batch: tuple[Tensor, Tensor],
    progress: float,
    settings: ReadoutSettings,
) -> dict[str, float]:
    """One step; what it measured."""
    out = readout(*batch)
    if optimizer is not None:
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * (1 + math.cos(math.pi * progress)) / 2
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
    readout.after_step(out)
    losses = {k: v.item() for k, v in out.code.losses.items()}
    return losses | {"codes_per_token": out.code.codes_per_token.item()}


def summed_up(losses: list[dict[str, float]], readout: DDCLReadout) -> ReadoutEpoch:
    """An epoch's means, after the check of the identity."""
    gaps = [
        abs(one["loss_q"] - one["loss_ols"] - one["variance"]) / max(one["loss_q"], 1e-12)
        for one in losses
    ]
    for gap in gaps:
        if not gap <= LARGEST_GAP:  # NaN is not, either
            raise ArithmeticError(
                f"L_q is not L_OLS + V: relative gap {gap:.2g}, expected at most {LARGEST_GAP}"
            )
    means = {
        name: float(np.mean([one[name] for one in losses]))
        for name in ("loss_q", "loss_ols", "variance", "codes_per_token")
    }
    ratio = readout.codebook.temperature_ratio.item()
    return ReadoutEpoch(**means, gap=max(gaps), temperature_ratio=ratio)
