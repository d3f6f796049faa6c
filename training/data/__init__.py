"""Image data: data sets as three splits, and the batches that a run draws from them."""
