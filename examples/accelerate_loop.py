"""A codebook in an Accelerate loop, with gradient accumulation.

python examples/accelerate_loop.py
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F

from softvq import DDCLEMCodebook, attach


class Autoencoder(nn.Module):
    """Rows (B, 32) to tokens (B, 4), back, and the loss."""

    def __init__(self, codes: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4 * 8))
        self.codebook = DDCLEMCodebook(dim=8, codebook_size=codes)
        self.decoder = nn.Sequential(nn.Linear(4 * 8, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Error of the reconstruction plus the codebook's loss."""
        out = self.codebook(self.encoder(rows).unflatten(1, (4, 8)))
        return F.mse_loss(self.decoder(out.quantized.flatten(1)), rows) + out.loss


def main(epochs: int = 3) -> Autoencoder:
    """Train on noise that has eight centres; two batches make a step."""
    torch.manual_seed(0)
    rows = torch.randn(8, 32)[torch.randint(8, (2048,))] + 0.3 * torch.randn(2048, 32)
    loader = torch.utils.data.DataLoader(rows, batch_size=128, shuffle=True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    attach(model, optimizer)
    for _ in range(epochs):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    trained: Autoencoder = accelerator.unwrap_model(model)
    tokens = trained.codebook.encode(trained.encoder(rows).unflatten(1, (4, 8)))
    print(f"{len(tokens.unique())} of {trained.codebook.codebook_size} codes used")
    return trained


if __name__ == "__main__":
    main()
