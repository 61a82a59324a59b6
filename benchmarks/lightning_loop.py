"""The default job written directly with Lightning: a map-style dataset, a DataLoader, and one log call per step."""

import lightning
import torch
import torch.nn.functional as F
from bare_loop import BATCH, LENGTH, STEPS, SYMBOLS, BareModel
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class CopyRows(Dataset[tuple[Tensor, Tensor]]):
    """Rows of a random string, a separator and the string again; the targets ignore everything before the answer."""

    def __init__(self, n_rows: int) -> None:
        self.n_rows = n_rows

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        symbols = torch.randint(SYMBOLS, (LENGTH,), generator=torch.Generator().manual_seed(index))
        row = torch.cat((symbols, torch.tensor([SYMBOLS]), symbols))
        targets = row[1:].clone()
        targets[:LENGTH] = -100
        return row[:-1], targets


class CopyByHand(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = BareModel()

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        ids, targets = batch
        return F.cross_entropy(self.model(ids).flatten(0, 1), targets.flatten())

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val/loss", self.loss(batch), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=5e-3)


def main() -> None:
    torch.set_num_threads(1)
    lightning.seed_everything(0)
    epochs = 3
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", log_every_n_steps=10)
    trainer.fit(
        CopyByHand(),
        DataLoader(CopyRows(STEPS // epochs * BATCH), batch_size=BATCH, shuffle=True),
        DataLoader(CopyRows(512), batch_size=256),
    )


if __name__ == "__main__":
    main()
