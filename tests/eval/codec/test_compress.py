"""Images to tokens on disk and back, by a small trained run."""

import copy
import os
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from small_pictures import picture
from small_runs import (
    checkpoint,
    metrics,
)

from eval.codec import tiles
from eval.codec.compress import compress, decode, encode, named, picture_names
from eval.codec.format import TokenFileError, from_bytes, to_bytes
from eval.run import model_hash, open_model
from training.checkpoint import save_checkpoint
from training.data.feed import to_float
from training.data.splits import load_splits
from training.errors import UserError

NAMES = ["one", "residual", "pyramid", "odd", "vqvae2"]


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 300)), min_size=1, max_size=3),
    mode=st.sampled_from(["RGB", "L", "RGBA", "LA", "P", "1", "CMYK"]),
    name=st.sampled_from(NAMES),
)
def test_round_trip_of_any_picture(models, sizes, mode, name):
    model = models[name]
    pictures = [picture(*size, mode, seed) for seed, size in enumerate(sizes)]
    names = [f"{number}.png" for number in range(len(sizes))]
    for levels in (None, 1):
        file = encode(pictures, names, model, levels=levels)
        again = from_bytes(to_bytes(file))
        for mine, theirs in zip(file.tokens, again.tokens, strict=True):
            assert np.array_equal(mine, theirs)
        decoded = list(decode(again, model))
        assert [image.size for image in decoded] == sizes
        expected = "L" if mode in ("L", "LA", "1") else "RGB"
        assert {image.mode for image in decoded} == {expected}


@pytest.mark.parametrize("name", NAMES)
def test_decoded_pictures_are_the_model_s_reconstructions(models, name, monkeypatch):
    model = models[name]
    images = load_splits("patches", limit_train=1, limit_test=6).test
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    file = encode(pictures, [str(n) for n in range(6)], model)
    tokens = model.network.split(model.network.tokens(to_float(images)))
    for mine, theirs in zip(file.tokens, tokens, strict=True):
        assert np.array_equal(mine, theirs.flatten().numpy())
    for levels in range(1, len(tokens) + 1):
        expected = model.network.decode_tokens(tokens[:levels], (32, 32)).mul(255).round().byte()
        shown = tiles_of(list(decode(file, model, levels=levels)))
        assert (shown.int() - expected.int()).abs().max() <= 1
    # In batches of two, the same.
    monkeypatch.setattr(tiles, "BATCH_PIXELS", 2 * 32 * 32)
    again = encode(pictures, [str(n) for n in range(6)], model)
    assert all(np.array_equal(a, b) for a, b in zip(file.tokens, again.tokens, strict=True))


def tiles_of(pictures):
    return torch.stack([torch.from_numpy(np.array(p)).permute(2, 0, 1) for p in pictures])


def test_large_pictures_are_coded_in_tiles(models, monkeypatch):
    model, whole = models["pyramid"], picture(70, 90)
    monkeypatch.setattr(tiles, "TILE", 32)
    [decoded] = decode(encode([whole], ["a"], model), model)
    assert decoded.size == (70, 90)
    for left, top in ((0, 0), (32, 32), (64, 64)):
        box = (left, top, min(left + 32, 70), min(top + 32, 90))
        [alone] = decode(encode([whole.crop(box)], ["a"], model), model)
        difference = np.abs(np.array(decoded.crop(box)).astype(int) - np.array(alone).astype(int))
        assert difference.max() <= 1


def test_a_model_without_tokens_is_refused(run_of):
    with pytest.raises(UserError, match="it has no tokens"):
        open_model(run_of(quantizer="none", epochs=1))


def test_the_last_training_epoch_s_counts_are_used(runs, models, tmp_path):
    state = checkpoint(runs["one"], "best.pt")
    assert torch.equal(models["one"].counts[0], state["trackers"][0]["history"][-1])
    state["trackers"][0]["history"] = state["trackers"][0]["history"][:0]
    state["trackers"][0]["counts"].zero_()
    save_checkpoint(tmp_path / "best.pt", state)
    assert torch.equal(open_model(tmp_path).counts[0], torch.ones(16, dtype=torch.int64))


def test_the_hash_is_of_every_weight(models):
    network = models["one"].network
    before = model_hash(network)
    assert model_hash(network) == before
    with torch.no_grad():
        weight = network.decoder[0].weight.view(-1)
        kept = weight[0].clone()
        weight[0] = np.nextafter(kept.item(), 9e9, dtype=np.float32).item()
        assert model_hash(network) != before
        weight[0] = kept
        assert model_hash(network) == before
        network.normalize.running_mean[0] += 1e-3
        assert model_hash(network) != before
        network.normalize.running_mean[0] -= 1e-3
    pools = models["pyramid"].network
    before = model_hash(pools)
    pools.codebook.pools = (2, 2, 1)
    assert model_hash(pools) != before
    pools.codebook.pools = (4, 2, 1)
    assert model_hash(copy.deepcopy(network).bfloat16()) != before


def test_names_stay_in_the_folder_and_apart_on_any_file_system():
    names = ["a.jpg", "a.png", "A.PNG", "a-2.png", "b.png/c.jpg", "b.png", "12:30.png", "x\\y"]
    found = [str(path) for path in picture_names(names)]
    assert found == [
        "a.png", "a-2.png", "A-3.png", "a-2-2.png",
        "b.png/c.png", "b-2.png", "12_30.png", "x_y.png",
    ]  # fmt: skip
    assert len(set(picture_names(["frame.png"] * 500))) == 500
    for name in ("../a.png", "/a.png", "b/../../a.png", "", "."):
        with pytest.raises(TokenFileError, match="out of the folder"):
            picture_names([name])


def test_a_picture_given_twice_is_coded_once(tmp_path):
    for name in ("a.png", "b.png"):
        picture(8, 8).save(tmp_path / name)
    assert [name for name, _ in named([tmp_path / "b.png", tmp_path])] == ["b.png", "a.png"]


def test_pictures_are_opened_and_decoded_a_few_at_a_time(models, monkeypatch):
    monkeypatch.setattr(tiles, "BATCH_PIXELS", 3 * 64)
    alive, most = 0, 0

    class Counted:
        def __init__(self):
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __del__(self):
            nonlocal alive
            alive -= 1

    def opened():
        for seed in range(20):
            image = picture(8, 8, seed=seed)
            image.counted = Counted()
            yield image

    file = encode(opened(), [str(n) for n in range(20)], models["one"])
    assert most <= 7  # three at work, and the three before
    calls = []
    network = models["one"].network
    real = type(network).decode_tokens
    monkeypatch.setattr(
        type(network), "decode_tokens", lambda *a: calls.append(len(a[1][0])) or real(*a)
    )
    decoded = decode(file, models["one"])
    next(decoded)
    assert calls == [3]


def test_small_files_are_written_whole(tmp_path, models, monkeypatch):
    picture(8, 8).save(tmp_path / "a.png")
    out = tmp_path / "x.svq"
    out.write_bytes(b"older")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        compress(models["one"], [tmp_path / "a.png"], out)
    assert out.read_bytes() == b"older"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "x.svq"]


def test_a_thousand_images_cost_little_beside_the_encoder(models):
    model = models["pyramid"]
    images = load_splits("patches", limit_train=1000).train
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    names = [f"{number}.png" for number in range(len(pictures))]
    start = time.process_time()
    for part in images.split(256):
        model.network.tokens(to_float(part))
    encoder = time.process_time() - start
    start = time.process_time()
    to_bytes(encode(pictures, names, model))
    assert time.process_time() - start - encoder < 3 * len(pictures) / 1000


def test_metrics_of_several_levels_have_a_list_of_them(runs):
    line = metrics(runs["pyramid"])[-1]
    assert len(line["levels"]) == 3
    names = {"loss_q", "loss_ols", "variance", "utilization", "dead_codes", "perplexity"}
    assert all(names <= set(level) for level in line["levels"])
    assert line["utilization"] == min(level["utilization"] for level in line["levels"])
    assert line["dead_codes"] == sum(level["dead_codes"] for level in line["levels"])
    assert line["temperature_ratio"] == max(level["temperature_ratio"] for level in line["levels"])
    assert "levels" not in metrics(runs["one"])[-1]
