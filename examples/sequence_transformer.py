"""A transformer that compresses token sequences of unequal length through a codebook.

python examples/sequence_transformer.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softvq import CodebookOutput, DDCLCodebook, two_timescale_groups

VOCABULARY, WIDTH, LONGEST, CODES = 12, 16, 10, 16


class SequenceAutoencoder(nn.Module):
    """Token sequences (B, L) to codes and back to logits (B, L, V)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(0.1 * torch.randn(LONGEST, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.codebook = DDCLCodebook(WIDTH, CODES, restart_threshold=0.05)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def encode(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Latents (B, L, D); ``mask`` is False for padding."""
        embedded = self.embedding(tokens) + self.position[: tokens.shape[1]]
        return self.encoder(embedded, src_key_padding_mask=~mask)

    def forward(
        self, tokens: Tensor, mask: Tensor, hard: bool = False
    ) -> tuple[Tensor, CodebookOutput]:
        """Logits, and what the codebook returned."""
        out = self.codebook(self.encode(tokens, mask), mask, hard)
        return self.head(out.quantized), out


def sequences(count: int, padding: int) -> tuple[Tensor, Tensor]:
    """Runs of consecutive tokens, padded with some token, and their mask."""
    start = torch.randint(1, VOCABULARY, (count, 1))
    tokens = 1 + (start + torch.arange(LONGEST)) % (VOCABULARY - 1)
    mask = torch.arange(LONGEST) < torch.randint(3, LONGEST + 1, (count, 1))
    return torch.where(mask, tokens, padding), mask


def main(padding: int = 0, steps: int = 100) -> tuple[list[float], float]:
    """Train; the errors, and the share of tokens that their codes give back."""
    torch.manual_seed(0)
    tokens, mask = sequences(256, padding)
    model = SequenceAutoencoder()
    model.codebook.initialize(model.encode(tokens, mask)[mask])
    optimizer = torch.optim.Adam(two_timescale_groups(model, lr=5e-3))
    errors = []
    for step in range(steps):
        batch = slice(step % 4, None, 4)
        logits, out = model(tokens[batch], mask[batch])
        error = F.cross_entropy(logits[mask[batch]], tokens[batch][mask[batch]])
        optimizer.zero_grad()
        (error + out.loss).backward()
        optimizer.step()
        model.codebook.after_step(out)
        errors.append(error.item())
    logits, out = model(tokens, mask, hard=True)
    right = (logits.argmax(dim=-1) == tokens)[mask].float().mean().item()
    print(f"cross entropy {errors[0]:.2f} to {errors[-1]:.3f}, {right:.1%} of tokens given back")
    return errors, right


if __name__ == "__main__":
    main()
