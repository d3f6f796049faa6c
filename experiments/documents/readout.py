"""A DDCL readout fitted to documents without labels, and what it makes of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from experiments.clustering import best_start
from experiments.identity import checked_residual
from softvq import CodesPerToken, DDCLCodebook, DDCLReadout, Schedule

from .embeddings import TokenEmbeddings, padded
from .vectors import Documents, LinearEncoder

PIECE = 16384  # Tokens that are held as float32 at a time, and that k-means starts from.


@dataclass(frozen=True)
class ReadoutSettings:
    """How a readout is fitted; all of it our choice.

    Attributes:
        unit: What a token is: ``"token"``, the transformer's, or ``"document"``, a document's mean
            token, so that a document is a sequence of one.
        axes: The number of principal axes of the training documents to keep, d.
        codes: The codes per token at the start and at the end.
        usage_weight: The weight of KL(usage || uniform), nats, beside L_q over the latents'
            variance.
        starts: The number of k-means initialisations, of which the best is trained.
        steps: The least number of the optimiser's steps; whole epochs are trained.
        batch_tokens: The approximate number of tokens in a step.
        lr: The learning rate of Adam for latents of unit variance. It falls as a half cosine.
    """

    unit: Literal["token", "document"] = "document"
    axes: int = 64
    codes: tuple[float, float] = (1.5, 1.1)
    usage_weight: float = 0.0
    starts: int = 10
    steps: int = 200
    batch_tokens: int = 2048
    lr: float = 0.05


ON_DOCUMENTS = "DDCL codebook, mean"
ON_TOKENS = "DDCL readout, tokens"
BALANCED = "DDCL codebook, mean, usage term"
# Chosen by the training split of 20 Newsgroups; README.md says what was tried.
READOUTS = {
    BALANCED: ReadoutSettings(usage_weight=0.3),
    ON_DOCUMENTS: ReadoutSettings(),
    ON_TOKENS: ReadoutSettings(unit="token", starts=3),
}


class FittedReadout(NamedTuple):
    """A readout after training.

    Attributes:
        readout: The readout of the encoder's latents.
        encoder: The encoder of document vectors and tokens.
        settings: How it was fitted.
        epochs: For each epoch ``loss_q``, ``loss_ols``, ``variance`` (L_q and its parts) and
            ``codes_per_token``, means over its batches, where L_q is a mean over tokens and
            elements; ``gap``, the largest ``|L_q - L_OLS - V| / L_q`` of a batch; and
            ``temperature_ratio``, T / T_c at the end.
    """

    readout: DDCLReadout
    encoder: LinearEncoder
    settings: ReadoutSettings
    epochs: list[dict[str, float]]

    @torch.no_grad()
    def read(self, documents: Documents) -> tuple[Tensor, Tensor]:
        """Return the documents' shares of the prototypes (N, K), and pooled vectors (N, d)."""
        sequences = sequences_of(documents, self.encoder, self.settings)
        outs = [self.readout(*padded(sequences, rows)) for rows in batches(sequences, 2048)]
        return torch.cat([out.proportions for out in outs]), torch.cat([o.pooled for o in outs])

    def clusters(self, documents: Documents) -> NDArray[np.int64]:
        """Return the prototypes with the documents' largest shares, (N,)."""
        return self.read(documents)[0].argmax(dim=1).numpy()


def sequences_of(
    documents: Documents, encoder: LinearEncoder, settings: ReadoutSettings
) -> TokenEmbeddings:
    """Return documents as sequences of the latents that the readout is to see."""
    if settings.unit == "document":
        ones = torch.ones(len(documents.mean), dtype=torch.int64)
        return TokenEmbeddings(encoder(documents.mean), ones.int(), ones)
    return documents.tokens._replace(tokens=encode_tokens(documents.tokens, encoder))


def encode_tokens(tokens: TokenEmbeddings, encoder: LinearEncoder) -> Tensor:
    """Return all tokens as latents (M, d), made in pieces to save memory."""
    return torch.cat([encoder(piece) for piece in tokens.tokens.split(PIECE)])


def batches(
    sequences: TokenEmbeddings, batch_tokens: int, generator: torch.Generator | None = None
) -> tuple[Tensor, ...]:
    """Return row numbers of batches of about so many tokens, in order or shuffled."""
    count = len(sequences.lengths)
    shuffled = generator is not None
    order = torch.randperm(count, generator=generator) if shuffled else torch.arange(count)
    mean = sequences.lengths.sum().item() / count
    return order.chunk(max(1, math.ceil(count * mean / batch_tokens)))


def fit_readout(
    documents: Documents,
    encoder: LinearEncoder,
    codebook_size: int,
    seed: int,
    settings: ReadoutSettings,
) -> FittedReadout:
    """Fit a readout's prototypes to documents by L_q.

    Args:
        documents: The documents to fit to.
        encoder: The frozen encoder of their vectors.
        codebook_size: The number of prototypes, K.
        seed: The seed of the initialisations and of the order of documents.
        settings: How to fit.

    Raises:
        ValueError: If there are fewer tokens than prototypes.
        ArithmeticError: If L_q is not L_OLS + V.
    """
    sequences = sequences_of(documents, encoder, settings)
    generator = torch.Generator().manual_seed(seed)
    per_epoch = len(batches(sequences, settings.batch_tokens))
    epochs = math.ceil(settings.steps / per_epoch)
    steps = epochs * per_epoch
    readout = new_readout(encoder.axes.shape[1], codebook_size, steps, settings)
    place(readout, sequences, seed, settings.starts)
    optimizer = torch.optim.Adam(readout.parameters(), settings.lr)
    cosine = LambdaLR(optimizer, lambda step: (1 + math.cos(math.pi * step / steps)) / 2)
    history = []
    for _ in range(epochs):
        losses = []
        for rows in batches(sequences, settings.batch_tokens, generator):
            out = readout(*padded(sequences, rows))
            optimizer.zero_grad()
            out.loss.backward()
            optimizer.step()
            readout.after_step(out)
            cosine.step()
            figures = out.code.losses | {"codes_per_token": out.code.codes_per_token}
            losses.append({name: value.item() for name, value in figures.items()})
        history.append(summed_up(losses, readout))
    return FittedReadout(readout, encoder, settings, history)


def new_readout(dim: int, codebook_size: int, steps: int, settings: ReadoutSettings) -> DDCLReadout:
    """Make a readout whose codes per token fall during the first four fifths of the steps."""
    codebook = DDCLCodebook(
        dim,
        codebook_size,
        temperature=CodesPerToken(Schedule(*settings.codes, steps=4 * steps // 5)),
        commitment=1.0,
        usage_weight=settings.usage_weight,
        pull=0.0,
        restart_threshold=0.0,
    )
    return DDCLReadout(codebook)


@torch.no_grad()
def place(readout: DDCLReadout, sequences: TokenEmbeddings, seed: int, starts: int) -> None:
    """Place the prototypes by the best of several k-means on at most ``PIECE`` latents."""
    generator = torch.Generator().manual_seed(seed)
    latents = sequences.tokens.float()
    latents = latents[torch.randperm(len(latents), generator=generator)[:PIECE]]
    best = best_start(latents, readout.codebook.codebook_size, seed, starts)
    readout.initialize(latents[:, None], seed=best)


def summed_up(losses: list[dict[str, float]], readout: DDCLReadout) -> dict[str, float]:
    """Return an epoch's figures, after the check of the identity."""
    gap = max(checked_residual(one) for one in losses)
    names = ("loss_q", "loss_ols", "variance", "codes_per_token")
    means = {name: float(np.mean([one[name] for one in losses])) for name in names}
    ratio = readout.codebook.temperature_ratio.item()
    return {**means, "gap": gap, "temperature_ratio": ratio}
