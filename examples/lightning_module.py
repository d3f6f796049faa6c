"""A codebook in a Lightning module: attach in configure_optimizers, and nothing else.

python examples/lightning_module.py
"""

from __future__ import annotations

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softvq import DDCLEMCodebook, UtilizationTracker, attach


class VQAutoencoder(lightning.LightningModule):
    """Rows (B, 32) to tokens (B, 4) and back."""

    def __init__(self, codes: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4 * 8))
        self.codebook = DDCLEMCodebook(dim=8, codebook_size=codes)
        self.decoder = nn.Sequential(nn.Linear(4 * 8, 64), nn.ReLU(), nn.Linear(64, 32))
        self.usage = UtilizationTracker(codes)

    def training_step(self, batch: list[Tensor], batch_index: int) -> Tensor:
        """Error of the reconstruction plus the codebook's loss."""
        (rows,) = batch
        quantized, indices, loss = self.codebook(self.encoder(rows).unflatten(1, (4, 8)))
        self.usage.update(indices)
        return F.mse_loss(self.decoder(quantized.flatten(1)), rows) + loss

    def on_train_epoch_end(self) -> None:
        """Log what the epoch used."""
        usage = self.usage.end_epoch()
        self.log("codebook/utilization", usage.utilization)
        self.log("codebook/perplexity", usage.perplexity)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, which the codebook follows from here on."""
        optimizer = torch.optim.Adam(self.parameters(), lr=2e-3)
        attach(self, optimizer)
        return optimizer


def main(epochs: int = 3) -> VQAutoencoder:
    """Train on noise that has eight centres; print the codes used."""
    lightning.seed_everything(0, verbose=False)
    rows = torch.randn(8, 32)[torch.randint(8, (2048,))] + 0.3 * torch.randn(2048, 32)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(rows), batch_size=128, shuffle=True
    )
    model = VQAutoencoder()
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, loader)
    used = int((model.usage.history[-1] > 0).sum())
    print(f"{used} of {model.codebook.codebook_size} codes used, {int(model.codebook.steps)} steps")
    return model


if __name__ == "__main__":
    main()
