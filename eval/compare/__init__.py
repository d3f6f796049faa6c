"""Several quantizers under one budget."""
