"""A codebook as the readout of a transformer."""
