"""Small encoders and corpora, made on the fly: no network, no shared data."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import torch

# Three topics whose words never meet.
TOPICS = {
    "sea": ["wave", "ship", "sail", "harbour", "tide", "anchor"],
    "kitchen": ["spoon", "oven", "flour", "butter", "recipe", "salt"],
    "stars": ["comet", "orbit", "galaxy", "planet", "lens", "nebula"],
}
WORDS = [word for words in TOPICS.values() for word in words]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def small_encoder(folder: Path) -> Path:
    """A random BERT of one layer with a tokenizer that knows the topics' words."""
    from transformers import BertConfig, BertModel, BertTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS, "the", "and", "##s"]) + "\n")
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS) + 3, hidden_size=32, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=32, max_position_embeddings=128,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BertModel(config)
        # Wide embeddings, so that words tell documents apart more than places do.
        torch.nn.init.normal_(model.embeddings.word_embeddings.weight)
        model.save_pretrained(folder)
    return folder


def topic_text(topic: str, rng: np.random.Generator, words: int = 12) -> str:
    return " ".join(["the", *rng.choice(TOPICS[topic], words), "and"])


def write_20news(folder: Path, count: int = 40, extra: list[dict[str, str]] | None = None) -> Path:
    """Articles of three topics with header, quotation and footer: ``count`` of each and split."""
    rng, head = np.random.default_rng(0), "From: a@b\n\nJoe writes:\n> old\n"
    rows = [
        {"split": split, "group": topic, "text": f"{head}{topic_text(topic, rng)}\n\n--\nAnn"}
        for split in ("train", "test")
        for topic in TOPICS
        for _ in range(count)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    with lzma.open(folder / "20news_bydate.jsonl.xz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in [*rows, *(extra or [])])
    return folder


def write_sst2(folder: Path, count: int = 60) -> Path:
    """Sentences about the sea (0) or the kitchen (1)."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "dev", "test"):
        lines = [
            f"{topic_text(topic, rng)}\t{label}"
            for label, topic in enumerate(("sea", "kitchen"))
            for _ in range(count // 2)
        ]
        (folder / f"sst2_sent_{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder
