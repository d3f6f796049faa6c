"""Documents without labels: clusters by a DDCL readout or codebook beside k-means, and heads."""
