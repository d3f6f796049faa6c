"""What the page says of quantizers, severities and pictures, to people who do not know them."""

from __future__ import annotations

# What train.py --quantizer calls them.
QUANTIZERS = {
    "ddcl": "a soft codebook (DDCL)",
    "vq": "a hard codebook that learns by gradients (VQ)",
    "vq-ema": "a hard codebook that learns by moving averages (VQ-EMA)",
    "vqp-ema": "vector-quantize-pytorch's codebook of moving averages",
    "vqp-rotation": "vector-quantize-pytorch's codebook with the rotation trick",
    "simvq": "SimVQ",
    "fsq": "finite scalar quantisation (FSQ)",
    "lfq": "lookup-free quantisation (LFQ)",
    "none": "no codebook",
}

# Worst first.
SEVERITIES = (("severe", "Severe"), ("warning", "Warning"), ("note", "Note"))

# Title and caption, by the name that training.figures gives.
PICTURES = {
    "gap": (
        "From soft codes to tokens",
        "Error of the pictures by how many codes are mixed for each place; the first point is the "
        "token alone. A steep end means that the soft figure flatters.",
    ),
    "reconstructions": (
        "Worst and median images",
        "Test images, and what the model draws of them: from its soft output, and from the tokens "
        "alone. Below each is its error; half of the images are better than the median ones.",
    ),
    "token_map": (
        "Tokens in their places",
        "Each token stands for one square of the image. Its colour stands for its code; similar "
        "colours are codes that lie near each other.",
    ),
    "gallery": (
        "What codes stand for",
        "Each row is one code, with patches of different images that chose it. A good code has a "
        "row of patches that look alike. A patch is the token's own square with half of its side "
        "as margin: about what the encoder sees, not exactly.",
    ),
    "projection": (
        "Latents and prototypes",
        "The encoder's vectors, and the codebook's, in the plane in which the encoder's vary most. "
        "Prototypes should lie where the latents are; a flat picture hides the other directions.",
    ),
    "distances": (
        "Distances",
        "How far each prototype is from the nearest other one, and each latent from its prototype. "
        "Prototypes at distance 0 are duplicates: the codebook has fewer codes than it pays for.",
    ),
    "usage_by_class": (
        "Use by class",
        "Codes that some classes use more (red) and others less (blue) than images on the whole.",
    ),
    "usage_curve": (
        "Use of the codes",
        "Share of all tokens that each code has, the most used first. A flat curve wastes nothing; "
        "codes without any token are dead.",
    ),
    "lorenz": (
        "How evenly codes are used",
        "Share of all tokens that the least used codes have together. The further below the "
        "diagonal, the more a few codes do the work.",
    ),
    "usage_history": (
        "Use over the training",
        "Each row is an epoch, each column a code: yellow is used more than its share, dark blue "
        "less, red not at all. A column that turns red has died.",
    ),
    "trajectories": (
        "Over the training",
        "T / T_c is the temperature against the one above which all codes fall into one. V / L_q "
        "is the share of the error that is due to softness. Perplexity is how many codes, equally "
        "used, would be as hard to guess.",
    ),
}
