"""Documents: a readout of their tokens, and a compressor."""
