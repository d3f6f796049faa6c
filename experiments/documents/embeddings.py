"""Token embeddings of a frozen Hugging Face encoder, computed once and kept on disk.

Shapes: N documents, T places of the longest of a batch, D the encoder's hidden size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from tqdm import tqdm

from experiments.documents.encoder import Encoder
from training.checkpoint import write_atomic
from training.errors import UserError

# Documents of a file of the cache: what a cut can cost.
CHUNK = 256
BATCH = 16
# Raised when a file of the cache means something else than before.
CACHE_FORMAT = 1


class TokenEmbeddings(NamedTuple):
    """Last hidden states of N documents, one after the other.

    Attributes:
        tokens: float16 (M, D), the documents' tokens, special ones included.
        ids: int32 (M,), their vocabulary indices.
        lengths: int64 (N,), tokens of each document, at least 1; they sum to M.
    """

    tokens: Tensor
    ids: Tensor
    lengths: Tensor

    @property
    def offsets(self) -> Tensor:
        """int64 (N + 1,): document n is ``tokens[offsets[n]:offsets[n + 1]]``."""
        return torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])


def embed(
    texts: Sequence[str],
    encoder: Encoder,
    cache: Path,
    *,
    max_length: int = 128,
    progress: str | None = None,
) -> TokenEmbeddings:
    """Token embeddings of documents, from the cache where it has them.

    The cache holds a file for each 256 documents, named after the encoder's files, the length
    and the texts themselves: a run that was cut goes on where it stopped, and more documents,
    appended, cost only themselves.

    Args:
        texts: The documents.
        encoder: What embeds them.
        cache: Folder of the files; made if missing.
        max_length: Tokens kept of each document, special ones included.
        progress: What a progress bar is to say; None shows none.

    Returns:
        In the order of the texts.

    Raises:
        UserError: If there are no texts, or the encoder cannot take that many tokens.
    """
    _check(texts, encoder, max_length)
    starts = range(0, len(texts), CHUNK)
    parts = []
    bar = tqdm(total=len(texts), desc=progress, unit="doc", disable=progress is None)
    with bar:
        for start in starts:
            chunk = texts[start : start + CHUNK]
            path = cache / f"{_key(chunk, encoder, max_length)}.safetensors"
            part = _cached(path)
            if part is None:
                part = _encode(chunk, encoder, max_length)
                _store(path, part)
            parts.append(part)
            bar.update(len(chunk))
    return TokenEmbeddings(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def padded(embeddings: TokenEmbeddings, rows: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
    """Some documents as a batch.

    Args:
        embeddings: Of all documents.
        rows: Which ones.

    Returns:
        float32 (B, T, D), zero where padded, and the mask, bool (B, T), True where there is a
        token.

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


def first_tokens(embeddings: TokenEmbeddings) -> np.ndarray:
    """The vector at each document's first place, BERT's CLS token: float32 (N, D).

    Example:
        >>> e = TokenEmbeddings(torch.eye(3).half(), torch.arange(3), torch.tensor([1, 2]))
        >>> first_tokens(e).tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    return embeddings.tokens[embeddings.offsets[:-1]].float().numpy()


def mean_tokens(embeddings: TokenEmbeddings) -> np.ndarray:
    """The mean of each document's token vectors: float32 (N, D).

    Example:
        >>> e = TokenEmbeddings(torch.eye(3).half(), torch.arange(3), torch.tensor([1, 2]))
        >>> mean_tokens(e).tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]
    """
    documents = embeddings.tokens.split(embeddings.lengths.tolist())
    return torch.stack([document.float().mean(dim=0) for document in documents]).numpy()


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


def _key(texts: Sequence[str], encoder: Encoder, max_length: int) -> str:
    content = json.dumps([CACHE_FORMAT, encoder.key, max_length, *texts])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _cached(path: Path) -> TokenEmbeddings | None:
    """What a file of the cache holds, or None where it is missing or damaged."""
    try:
        return TokenEmbeddings(**load_file(path))
    except (FileNotFoundError, SafetensorError, TypeError):
        return None


def _store(path: Path, part: TokenEmbeddings) -> None:
    content = save(part._asdict())
    write_atomic(path, lambda file: file.write(content))


@torch.no_grad()
def _encode(texts: Sequence[str], encoder: Encoder, max_length: int) -> TokenEmbeddings:
    ids = encoder.tokenizer(list(texts), truncation=True, max_length=max_length)["input_ids"]
    states: list[Tensor] = [torch.empty(0)] * len(texts)
    # Documents of about one length share a batch, so that little of it is padding.
    order = sorted(range(len(texts)), key=lambda row: len(ids[row]))
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        batch = encoder.tokenizer.pad(
            {"input_ids": [ids[row] for row in rows]}, return_tensors="pt"
        )
        hidden = encoder.model(**batch).last_hidden_state.half()  # (B, T, D)
        # By the mask: some tokenizers pad on the left.
        for row, vectors, mask in zip(rows, hidden, batch["attention_mask"].bool(), strict=True):
            states[row] = vectors[mask]
    return TokenEmbeddings(
        tokens=torch.cat(states),
        ids=torch.tensor([i for row in ids for i in row], dtype=torch.int32),
        lengths=torch.tensor([len(row) for row in ids]),
    )
