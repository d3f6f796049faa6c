"""Token embeddings of a frozen Hugging Face encoder, computed once and kept on disk.

Shapes: N documents, T places of the longest of a batch, D the encoder's hidden size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from tqdm import tqdm

from training.checkpoint import write_atomic
from training.errors import UserError

from .encoder import Encoder

CHUNK = 256  # Documents in a file of the cache: what an interruption can cost.
BATCH = 16
CACHE_FORMAT = 1  # Raised when a file of the cache means something else than before.


class TokenEmbeddings(NamedTuple):
    """Last hidden states of N documents, one after the other.

    Attributes:
        tokens: The vectors of the documents' tokens, special ones included, float16 (M, D).
        ids: The vocabulary indices of these tokens, int32 (M,).
        lengths: The number of tokens of each document, at least 1, int64 (N,). They sum to M.
    """

    tokens: Tensor
    ids: Tensor
    lengths: Tensor

    @property
    def offsets(self) -> Tensor:
        """Where documents begin, int64 (N + 1,): n is ``tokens[offsets[n]:offsets[n + 1]]``."""
        return torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])


def embed(
    texts: Sequence[str],
    encoder: Encoder,
    cache: Path,
    *,
    max_length: int = 128,
    title: str | None = None,
) -> TokenEmbeddings:
    """Embed documents, from the cache where it has them.

    The cache holds a file for each 256 documents, named after a hash of the encoder's files, the
    length and the texts. So an interrupted run goes on where it stopped, and documents that are
    appended cost only themselves.

    Args:
        texts: The documents.
        encoder: The encoder that embeds them.
        cache: The folder of the files; made if missing.
        max_length: The number of tokens to keep of each document, special ones included.
        title: The title of the progress bar, which a terminal shows.

    Returns:
        The embeddings in the order of the texts.

    Raises:
        UserError: If there are no texts, or the encoder cannot take that many tokens.
    """
    _check(texts, encoder, max_length)
    chunks = [texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]
    bar = tqdm(chunks, desc=title, unit=f"{CHUNK} documents", disable=None)
    parts = [_cached(chunk, encoder, cache, max_length) for chunk in bar]
    return TokenEmbeddings(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def padded(embeddings: TokenEmbeddings, rows: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
    """Gather some documents as a batch.

    Args:
        embeddings: The embeddings of all documents.
        rows: The numbers of the documents to take.

    Returns:
        Their vectors, float32 (B, T, D), zero where padded; and the mask, bool (B, T), True where
        there is a token.

    Example:
        >>> e = TokenEmbeddings(torch.ones(3, 2).half(), torch.arange(3), torch.tensor([1, 2]))
        >>> tokens, mask = padded(e, [0, 1])
        >>> tuple(tokens.shape), mask.tolist()
        ((2, 2, 2), [[True, False], [True, True]])
    """
    rows = torch.as_tensor(rows)
    offsets, lengths = embeddings.offsets[rows], embeddings.lengths[rows]
    places = torch.arange(int(lengths.max()))  # (T,)
    mask = places < lengths[:, None]  # (B, T)
    tokens = embeddings.tokens[torch.where(mask, offsets[:, None] + places, 0)].float()
    return torch.where(mask[..., None], tokens, 0.0), mask  # (B, T, D)


def _check(texts: Sequence[str], encoder: Encoder, max_length: int) -> None:
    if not texts:
        raise UserError("there are no documents to embed")
    places = getattr(encoder.model.config, "max_position_embeddings", max_length)
    special = encoder.tokenizer.num_special_tokens_to_add()
    if not special < max_length <= places:
        raise UserError(
            f"the encoder takes from {special + 1} to {places} tokens of a document, special ones "
            f"included; got --max-length {max_length}"
        )


def _cached(texts: Sequence[str], encoder: Encoder, cache: Path, length: int) -> TokenEmbeddings:
    """Read a file of the cache; make it where it is missing or damaged."""
    content = json.dumps([CACHE_FORMAT, encoder.key, length, *texts])
    path = cache / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.safetensors"
    try:
        return TokenEmbeddings(**load_file(path))
    except (FileNotFoundError, SafetensorError, TypeError):
        made = _encode(texts, encoder, length)
    stored = save(made._asdict())
    write_atomic(path, lambda file: file.write(stored))
    return made


@torch.no_grad()
def _encode(texts: Sequence[str], encoder: Encoder, max_length: int) -> TokenEmbeddings:
    ids = encoder.tokenizer(list(texts), truncation=True, max_length=max_length)["input_ids"]
    states: list[Tensor] = [torch.empty(0)] * len(texts)
    # Documents of about one length share a batch, so that little of it is padding.
    order = sorted(range(len(texts)), key=lambda row: len(ids[row]))
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        unpadded = {"input_ids": [ids[row] for row in rows]}
        batch = encoder.tokenizer.pad(unpadded, return_tensors="pt")
        hidden = encoder.model(**batch).last_hidden_state.half()  # (B, T, D)
        # By the mask: some tokenizers pad on the left.
        for row, vectors, mask in zip(rows, hidden, batch["attention_mask"].bool(), strict=True):
            states[row] = vectors[mask]
    flat = torch.tensor([i for row in ids for i in row], dtype=torch.int32)
    return TokenEmbeddings(torch.cat(states), flat, torch.tensor([len(row) for row in ids]))
