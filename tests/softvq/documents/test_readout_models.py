"""DDCLReadout in classifiers and on encoders."""

import pytest
import torch
from torch import nn

from softvq import DDCLCodebook, DDCLEMCodebook, DDCLReadout, two_timescale_groups

KINDS = [DDCLCodebook, DDCLEMCodebook]


class Classifier(nn.Module):
    """Words, a transformer encoder, a readout, a linear head on pooled and proportions."""

    def __init__(self, kind):
        super().__init__()
        self.embed = nn.Embedding(12, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.readout = DDCLReadout(kind(16, 8))
        self.head = nn.Linear(16 + 8, 2)

    def tokens(self, words, mask):
        return self.encoder(self.embed(words), src_key_padding_mask=~mask)

    def forward(self, words, mask):
        out = self.readout(self.tokens(words, mask), mask)
        return self.head(torch.cat([out.pooled, out.proportions], dim=1)), out


def sentences(count, seed):
    """Label 1 where a document has word 1; words 2 to 11 mean nothing; 0 is padding."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(2, 12, (count, 10), generator=generator)
    labels = torch.randint(2, (count,), generator=generator)
    mask = torch.arange(10) < torch.randint(4, 11, (count, 1), generator=generator)
    words[labels == 1, 2] = 1
    return words * mask, mask, labels


@pytest.mark.parametrize("kind", KINDS)
def test_a_classifier_with_a_transformer_encoder_learns(kind):
    torch.manual_seed(0)
    model = Classifier(kind)
    words, mask, labels = sentences(256, seed=0)
    model.readout.initialize(model.tokens(words, mask).detach(), mask=mask)
    optimizer = torch.optim.Adam(two_timescale_groups(model, lr=5e-3, epsilon=0.3))
    for _ in range(50):
        logits, out = model(words, mask)
        optimizer.zero_grad()
        (nn.functional.cross_entropy(logits, labels) + out.loss).backward()
        optimizer.step()
        model.readout.after_step(out)
    words, mask, labels = sentences(256, seed=1)
    model.eval()
    with torch.no_grad():
        assert (model(words, mask)[0].argmax(dim=1) == labels).float().mean() > 0.9


def test_on_a_hugging_face_encoder():
    transformers = pytest.importorskip("transformers", reason="needs softvq[experiments]")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=12,
    )  # fmt: skip
    encoder = transformers.BertModel(config, add_pooling_layer=False).eval()
    readout = DDCLReadout(DDCLCodebook(16, 6))
    ids = torch.randint(30, (5, 12))
    attention_mask = (torch.arange(12) < torch.tensor([[12], [9], [5], [3], [1]])).long()

    def read(ids):
        return encoder(input_ids=ids, attention_mask=attention_mask).last_hidden_state

    mask = attention_mask.bool()
    readout.initialize(read(ids).detach(), mask=mask)
    out = readout(read(ids), mask)
    (out.pooled.square().sum() + out.loss).backward()
    assert all(p.grad.isfinite().all() for p in readout.parameters())
    assert encoder.embeddings.word_embeddings.weight.grad.abs().sum() > 0
    other = torch.where(mask, ids, 29)
    torch.testing.assert_close(readout(read(other), mask).proportions, out.proportions)
