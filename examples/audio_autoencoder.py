"""A 1-D convolutional autoencoder of sounds of unequal length.

python examples/audio_autoencoder.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from softvq import DDCLCodebook, Utilization, UtilizationTracker, two_timescale_groups

HOP, CODES = 8, 16


class AudioAutoencoder(nn.Module):
    """Waveforms (B, 1, T) to T / 8 tokens and back."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(1, 32, HOP, stride=HOP), nn.GELU(), nn.Conv1d(32, dim, 1)
        )
        self.codebook = DDCLCodebook(
            dim, CODES, usage_weight=0.05, restart_threshold=0.05, channel_first=True
        )
        self.decoder = nn.Sequential(
            nn.Conv1d(dim, 32, 1), nn.GELU(), nn.ConvTranspose1d(32, 1, HOP, stride=HOP)
        )


def sounds(count: int) -> tuple[Tensor, Tensor]:
    """Decaying tones (B, 1, 256) and a mask of the samples that are sound, (B, 256)."""
    time = torch.arange(256.0)
    lengths = torch.randint(8, 33, (count,)) * HOP
    pitch = 0.1 + 0.4 * torch.rand(count, 1)
    waves = torch.sin(pitch * time + 6.3 * torch.rand(count, 1)) * torch.exp(-time / 200)
    return waves[:, None], time < lengths[:, None]


def main(padding: float = 0.0, steps: int = 150) -> tuple[list[float], Utilization]:
    """Train with some value after the end of every sound; the errors, and the codes used."""
    torch.manual_seed(0)
    waves, mask = sounds(256)
    waves = torch.where(mask[:, None], waves, padding)
    tokens = mask[:, ::HOP]  # (B, T / 8), the mask at the rate of the latents
    model = AudioAutoencoder()
    latents = model.encoder(waves)  # (B, D, T / 8)
    model.codebook.initialize(latents.movedim(1, -1)[tokens].T[None])
    optimizer = torch.optim.Adam(two_timescale_groups(model, lr=3e-3))
    errors = []
    for step in range(steps):
        batch = slice(step % 4, None, 4)
        out = model.codebook(model.encoder(waves[batch]), tokens[batch])
        difference = model.decoder(out.quantized) - waves[batch]
        error = difference[mask[batch][:, None]].square().mean()
        optimizer.zero_grad()
        (error + out.loss).backward()
        optimizer.step()
        model.codebook.after_step(out)
        errors.append(error.item())
    tracker = UtilizationTracker(CODES)
    tracker.update(model.codebook.encode(model.encoder(waves), tokens))
    used = tracker.compute()
    print(f"error {errors[0]:.3f} to {errors[-1]:.4f}, {used.used} of {CODES} codes used")
    return errors, used


if __name__ == "__main__":
    main()
