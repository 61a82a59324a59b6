"""One fit: the LightningModule, checkpoints, compiling and the strategies of several devices."""
