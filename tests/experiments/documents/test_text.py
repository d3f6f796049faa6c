"""Corpora from files, and token embeddings kept on disk."""

from __future__ import annotations

import json
import lzma

import pytest
import torch
from safetensors.torch import load_file, save_file
from text_samples import TOPICS, small_encoder, write_20news, write_sst2
from transformers import T5Config, T5Model

from experiments.documents import embeddings as embeddings_module
from experiments.documents.corpora import load_text, strip_article
from experiments.documents.embeddings import embed, padded
from experiments.documents.encoder import folder_key, load_encoder
from experiments.documents.vectors import documents
from training.errors import DatasetError, UserError


@pytest.fixture(scope="module")
def encoder(encoder_folder):
    return load_encoder(encoder_folder)


TEXTS = ["wave ship", "oven", "comet orbit galaxy planet lens", "salt spoon flour"] * 3


def same(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_an_article_loses_header_quotation_and_footer_on_one_line_too():
    text = "From: a\nLines: 3\n\nJoe writes:\n> old\nnew\n\nmore\n--\nAnn"
    for article in (text, text.replace("\n", "\t") + "\n"):
        assert strip_article(article).strip() == "new\n\nmore"
    assert strip_article("From: a\n\nhas\ttabs\nand lines") == "has\ttabs\nand lines"


def test_empty_articles_are_dropped_and_counted(tmp_path):
    quotation = {"split": "test", "group": "sea", "text": "From: a\n\n> only old"}
    data = load_text("20news", write_20news(tmp_path, count=3, extra=[quotation] * 2))
    assert data.classes == ("kitchen", "sea", "stars")
    assert data.splits["train"].dropped == 0
    assert data.splits["test"].dropped == 2
    assert len(data.splits["test"].texts) == 9
    for text, label in zip(data.splits["test"].texts, data.splits["test"].labels, strict=True):
        words = set(text.split())
        assert words & set(TOPICS[data.classes[label]])
        assert not words & {"From:", "old", "Ann", "writes:"}


def test_a_limit_takes_the_first_of_a_fixed_order(tmp_path):
    write_20news(tmp_path, count=10)
    whole, part = load_text("20news", tmp_path), load_text("20news", tmp_path, limit=12)
    for split in ("train", "test"):
        assert part.splits[split].texts == whole.splits[split].texts[:12]
        assert len(set(part.splits[split].labels.tolist())) == 3


def test_sst2_has_three_splits_and_a_label_after_the_tab(tmp_path):
    data = load_text("sst2", write_sst2(tmp_path, count=6))
    assert list(data.splits) == ["train", "dev", "test"]
    for corpus in data.splits.values():
        sea = [bool(set(text.split()) & set(TOPICS["sea"])) for text in corpus.texts]
        assert [data.classes[label] == "negative" for label in corpus.labels] == sea


def test_imdb_reviews_lose_their_line_break_tags(tmp_path):
    rows = [{"split": s, "label": n, "text": f"good<br /><br />{s}"} for s in ("train", "test")
            for n in (0, 1)]  # fmt: skip
    with lzma.open(tmp_path / "imdb_10k.jsonl.xz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    data = load_text("imdb", tmp_path)
    assert data.splits["train"].texts == ["good  train"] * 2
    assert sorted(data.splits["test"].labels.tolist()) == [0, 1]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("20news_bydate.jsonl.xz", None, "is missing; name the folder that holds it with --data-"),
        ("20news_bydate.jsonl.xz", b"\xfd7zXZ\0 cut", "cannot be read as 20news"),
        ("20news_bydate.jsonl.xz", lzma.compress(b'{"split": "train"}\n'), "cannot be read"),
        ("sst2_sent_train.tsv", b"no label\n", "cannot be read as sst2"),
        ("sst2_sent_train.tsv", b"label\t2\n", "cannot be read as sst2"),
    ],
)
def test_a_file_that_is_missing_or_damaged_is_named(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=words) as caught:
        load_text("20news" if name.startswith("20") else "sst2", tmp_path)
    assert name in str(caught.value)


def test_a_missing_folder_says_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="name one with --data-dir"):
        load_text("sst2", tmp_path / "none")
    monkeypatch.setenv("SOFTVQ_SHARED", str(tmp_path))
    write_sst2(tmp_path / "text", count=2)
    assert len(load_text("sst2").splits["test"].texts) == 2


def test_tokens_are_those_of_the_model_alone(encoder, tmp_path):
    found = embed(TEXTS, encoder, tmp_path)
    for row, text in enumerate(TEXTS):
        with torch.no_grad():
            batch = encoder.tokenizer(text, return_tensors="pt")
            expected = encoder.model(**batch).last_hidden_state[0]
        tokens, mask = padded(found, [row])
        assert mask.all()
        torch.testing.assert_close(tokens[0], expected, rtol=0, atol=4e-3)  # of float16
    ids = encoder.tokenizer(TEXTS[2])["input_ids"]
    start = found.offsets[2]
    assert found.ids[start : start + len(ids)].tolist() == ids


def test_the_mean_and_the_first_token(encoder, tmp_path):
    found = embed(TEXTS, encoder, tmp_path)
    tokens, mask = padded(found, range(len(TEXTS)))
    sums = (tokens * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
    torch.testing.assert_close(documents(found).mean, sums, rtol=1e-5, atol=1e-6)
    assert torch.equal(documents(found).cls, tokens[:, 0])
    assert not tokens[~mask].any()


def test_a_longer_document_is_cut(encoder, tmp_path):
    found = embed(["wave " * 50, "oven"], encoder, tmp_path, max_length=8)
    assert found.lengths.tolist() == [8, 3]


def never(*args: object) -> None:
    raise AssertionError("the encoder was asked for what the cache has")


def test_the_cache_is_read_instead_of_the_encoder(encoder, tmp_path, monkeypatch):
    first = embed(TEXTS, encoder, tmp_path)
    assert first.tokens.dtype == torch.float16
    monkeypatch.setattr(embeddings_module, "_encode", never)
    assert same(embed(TEXTS, encoder, tmp_path), first)
    another = encoder._replace(key="another")
    for texts, by, length in [
        (TEXTS, encoder, 16), ([*TEXTS[:-1], "lens"], encoder, 128), (TEXTS, another, 128)
    ]:  # fmt: skip
        with pytest.raises(AssertionError):
            embed(texts, by, tmp_path, max_length=length)


def test_a_run_that_was_cut_goes_on_where_it_stopped(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(embeddings_module, "CHUNK", 4)
    whole = embed(TEXTS, encoder, tmp_path / "whole")
    encode, calls = embeddings_module._encode, []

    def cut(*args):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(args)
        return encode(*args)

    monkeypatch.setattr(embeddings_module, "_encode", cut)
    # The third part differs, so that three parts are three files.
    texts = [*TEXTS[:4], *TEXTS[1:5], *TEXTS[:3], "nebula"]
    with pytest.raises(KeyboardInterrupt):
        embed(texts, encoder, tmp_path / "cut")
    assert len(list((tmp_path / "cut").iterdir())) == 2
    calls.clear()
    found = embed(texts, encoder, tmp_path / "cut")
    assert len(calls) == 1
    assert torch.equal(found.lengths[:4], whole.lengths[:4])
    assert len(list((tmp_path / "cut").iterdir())) == 3


def test_a_damaged_file_of_the_cache_is_made_anew(encoder, tmp_path):
    first = embed(TEXTS, encoder, tmp_path)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    assert same(embed(TEXTS, encoder, tmp_path), first)
    assert file.read_bytes() == content


def test_padding_on_the_left_changes_nothing(encoder, tmp_path):
    right = embed(TEXTS, encoder, tmp_path / "right")
    encoder.tokenizer.padding_side = "left"
    try:
        left = embed(TEXTS, encoder, tmp_path / "left")
    finally:
        encoder.tokenizer.padding_side = "right"
    assert torch.equal(left.ids, right.ids)
    assert left.tokens.shape == right.tokens.shape
    assert left.tokens.isfinite().all()


def test_the_key_is_of_the_files(tmp_path):
    folder = small_encoder(tmp_path / "a")
    key = folder_key(folder)
    assert key == folder_key(folder)
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    assert folder_key(folder) != key


def test_wrong_calls_of_the_encoder_say_what_to_do(encoder, tmp_path):
    for length in (2, 129):
        with pytest.raises(UserError, match="takes from 3 to 128 tokens"):
            embed(TEXTS, encoder, tmp_path, max_length=length)
    with pytest.raises(UserError, match="no documents"):
        embed([], encoder, tmp_path)
    with pytest.raises(UserError, match="has no config"):
        load_encoder(tmp_path)


def of_config(**changes):
    def spoil(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def of_file(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def without_tokenizer(folder):
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def with_a_decoder(folder):
    config = T5Config(vocab_size=26, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5Model(config).save_pretrained(folder)


def change_weights(folder, change):
    weights = change(load_file(folder / "model.safetensors"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def of_weights_that_are_nan(folder):
    change_weights(folder, lambda weights: {key: v * float("nan") for key, v in weights.items()})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_tokenizer, "its tokenizer knows 5 entries where the model has 26"),
        (of_config(hidden_size=64), "weights are not those of its config: 22 missing or of anoth"),
        (of_config(num_hidden_layers=2), r"16 missing or of another shape, as encoder\.layer\.1"),
        (of_file("config.json", b"[]"), "cannot be opened as an encoder"),
        (of_file("config.json", b"{}"), "cannot be opened as an encoder"),
        (of_file("model.safetensors", b"cut"), "cannot be opened as an encoder"),
        (with_a_decoder, "T5Model is an encoder with a decoder"),
        (of_weights_that_are_nan, "not finite"),
    ],
)
def test_a_folder_that_embeds_nothing_of_use_is_refused_in_one_line(
    tmp_path, capfd, spoil, message
):
    folder = small_encoder(tmp_path / "encoder")
    spoil(folder)
    capfd.readouterr()
    with pytest.raises(UserError, match=message) as caught:
        load_encoder(folder)
    assert "\n" not in str(caught.value)
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


def test_a_pooler_may_be_missing(tmp_path):
    folder = small_encoder(tmp_path)
    change_weights(folder, lambda weights: {k: v for k, v in weights.items() if "pooler" not in k})
    assert load_encoder(folder).model.config.hidden_size == 32


@pytest.mark.slow
def test_real_corpora_have_the_sizes_that_are_published(texts):
    sizes = {
        name: {s: len(c.texts) + c.dropped for s, c in load_text(name, texts).splits.items()}
        for name in ("sst2", "20news")
    }
    assert sizes == {
        "sst2": {"train": 6920, "dev": 872, "test": 1821},
        "20news": {"train": 11314, "test": 7532},
    }
    news = load_text("20news", texts)
    assert len(news.classes) == 20
    assert [corpus.dropped for corpus in news.splits.values()] == [24, 25]
