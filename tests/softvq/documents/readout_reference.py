"""What a readout is, by its definition."""

import numpy as np


def brute_force(readout, tokens, mask):
    """Proportions (B, K) and pooled (B, D) by the definition, in float64."""
    p = readout.codebook.codebook.detach().double().numpy()
    temperature = float(readout.codebook.temperature)
    shares, pooled = np.zeros((len(tokens), len(p))), np.zeros((len(tokens), p.shape[1]))
    for b, (document, real) in enumerate(zip(tokens.double().numpy(), mask.numpy(), strict=True)):
        codes = []
        for z in document[real]:
            squared = ((z - p) ** 2).sum(axis=1)
            q = np.exp(-(squared - squared.min()) / temperature)
            q /= q.sum()
            shares[b] += q / real.sum()
            codes.append(sum(weight * prototype for weight, prototype in zip(q, p, strict=True)))
        if codes:
            pooled[b] = np.mean(codes, axis=0)
    return shares, pooled
