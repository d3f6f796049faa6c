"""Images to tokens on disk and back, through the command line and a small trained run."""

import copy
import os
import time

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from small_runs import checkpoint, metrics, run_small, snapshot, without_figures

from eval.__main__ import main
from eval.codec import tiles
from eval.codec.compress import compress, decode, encode, named, picture_names
from eval.codec.format import TokenFileError, from_bytes, to_bytes
from eval.run import model_hash, open_model
from training.checkpoint import save_checkpoint
from training.data.feed import to_float
from training.data.splits import load_splits
from training.errors import UserError

KINDS = {
    "one": {},
    "residual": {"levels": 2, "quantizer": "vq-ema"},
    "pyramid": {"levels": 3, "level_pool": "4,2,1", "level_sizes": "5,16,30"},
    "odd": {"levels": 3, "level_pool": "5,3,2"},
    "vqvae2": {"architecture": "vqvae2", "level_dropout": 0.5},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        without_figures(patch)
        return {
            name: run_small(root / name, **(kind | {"epochs": 1})) for name, kind in KINDS.items()
        }


@pytest.fixture(scope="module")
def models(runs):
    return {name: open_model(run, device="cpu") for name, run in runs.items()}


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def picture(width, height, mode="RGB", seed=0):
    random = np.random.default_rng(seed)
    smooth = random.integers(0, 256, (4, 4, 4), dtype=np.uint8)
    return Image.fromarray(smooth, "RGBA").resize((width, height)).convert(mode)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 300)), min_size=1, max_size=3),
    mode=st.sampled_from(["RGB", "L", "RGBA", "LA", "P", "1", "CMYK"]),
    name=st.sampled_from(list(KINDS)),
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


@pytest.mark.parametrize("name", KINDS)
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


def test_files_and_folders_through_the_command_line(tmp_path, runs):
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    picture(40, 20).save(folder / "a.png")
    picture(40, 20, "L", 1).save(folder / "deep" / "b.jpg")
    picture(9, 9, "RGBA", 2).save(tmp_path / "c.webp")
    file = tmp_path / "tokens.svq"
    result = call("compress", runs["pyramid"], folder, tmp_path / "c.webp", "-o", file)
    assert result.exit_code == 0, result.output
    assert f"3 images, {file.stat().st_size:,} bytes" in result.stdout
    assert "transparency of 1 images is not kept" in result.stderr
    result = call("decompress", runs["pyramid"], file, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    shapes = {}
    for path in (tmp_path / "out").rglob("*.png"):
        with Image.open(path) as shown:
            shapes[path.relative_to(tmp_path / "out").as_posix()] = (shown.size, shown.mode)
    assert shapes == {
        "a.png": ((40, 20), "RGB"),
        "deep/b.png": ((40, 20), "L"),
        "c.png": ((9, 9), "RGB"),
    }
    before = snapshot(tmp_path)
    result = call("decompress", runs["pyramid"], file, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "exists already" in result.stderr
    assert snapshot(tmp_path) == before
    coarse = tmp_path / "coarse.svq"
    assert call("compress", runs["pyramid"], folder, "-o", coarse, "--levels", 1).exit_code == 0
    assert coarse.stat().st_size < file.stat().st_size
    assert call("decompress", runs["pyramid"], coarse, "-o", tmp_path / "coarse").exit_code == 0
    assert len(list((tmp_path / "coarse").rglob("*.png"))) == 2


def test_wrong_calls_are_one_line_and_write_nothing(tmp_path, runs):
    (tmp_path / "empty").mkdir()
    picture(8, 8).save(tmp_path / "a.png")
    (tmp_path / "text.png").write_text("no picture")
    good = tmp_path / "good.svq"
    assert call("compress", runs["one"], tmp_path / "a.png", "-o", good).exit_code == 0
    (tmp_path / "short.svq").write_bytes(good.read_bytes()[:-1])
    out = tmp_path / "out"
    cases = [
        (("compress", runs["one"], tmp_path / "empty", "-o", out), 2, "no images below"),
        (("compress", runs["one"], tmp_path / "none.png", "-o", out), 2, "none.png: give image"),
        (("compress", runs["one"], tmp_path / "text.png", "-o", out), 2, "cannot read image"),
        (
            ("compress", runs["one"], tmp_path / "a.png", "-o", out, "--levels", 2),
            2,
            "between 1 and 1",
        ),
        (("compress", runs["one"], tmp_path / "a.png", "-o", out, "--levels", 0), 2, "got 0"),
        (("compress", tmp_path / "none", tmp_path / "a.png", "-o", out), 1, "does not exist"),
        (("decompress", runs["residual"], good, "-o", out), 1, "another model made it"),
        (("decompress", runs["one"], tmp_path / "short.svq", "-o", out), 1, "truncated or damaged"),
        (("decompress", runs["one"], tmp_path / "a.png", "-o", out), 1, "not a file of tokens"),
        (("decompress", runs["one"], good, "-o", out, "--levels", 2), 2, "between 1 and 1"),
        (("decompress", runs["one"], tmp_path / "none.svq", "-o", out), 1, "No such file"),
    ]
    before = snapshot(tmp_path)
    for words, status, message in cases:
        result = call(*words)
        assert (result.exit_code, len(result.stderr.splitlines())) == (status, 1), result.output
        assert result.stderr.startswith("Error: ")
        assert message in result.stderr
    assert snapshot(tmp_path) == before


def test_a_model_without_tokens_is_refused(tmp_path, monkeypatch):
    without_figures(monkeypatch)
    run = run_small(tmp_path / "run", quantizer="none", epochs=1)
    with pytest.raises(UserError, match="it has no tokens"):
        open_model(run)


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


def test_odd_and_equal_names_come_back(tmp_path, runs):
    for number in range(2):
        folder = tmp_path / f"in{number}"
        folder.mkdir()
        picture(8, 8, seed=number).save(folder / "frame.png")
    picture(8, 8, seed=2).save(tmp_path / "12:30.png")
    words = (tmp_path / "in0", tmp_path / "in1", tmp_path / "12:30.png")
    assert call("compress", runs["one"], *words, "-o", tmp_path / "x.svq").exit_code == 0
    out = tmp_path / "out"
    assert call("decompress", runs["one"], tmp_path / "x.svq", "-o", out).exit_code == 0
    assert sorted(p.name for p in out.iterdir()) == ["12_30.png", "frame-2.png", "frame.png"]


def test_a_picture_given_twice_is_coded_once(tmp_path):
    for name in ("a.png", "b.png"):
        picture(8, 8).save(tmp_path / name)
    assert [name for name, _ in named([tmp_path / "b.png", tmp_path])] == ["b.png", "a.png"]


def test_an_input_is_never_the_output(tmp_path, runs):
    picture(8, 8).save(tmp_path / "a.png")
    before = snapshot(tmp_path)
    result = call("compress", runs["one"], tmp_path / "a.png", "-o", tmp_path / "a.png")
    assert result.exit_code == 2
    assert "is one of the images" in result.stderr
    assert snapshot(tmp_path) == before


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


def test_tokens_for_a_prior(tmp_path, runs, models):
    out = tmp_path / "tokens.safetensors"
    result = call("tokens", runs["pyramid"], "-o", out, "--split", "test", "--limit", 5)
    assert result.exit_code == 0, result.output
    images = load_splits("patches", limit_train=5, limit_test=5).test
    network = models["pyramid"].network
    expected = network.split(network.tokens(to_float(images)))
    with safe_open(out, framework="pt") as file:
        assert set(file.keys()) == {"test.level_1", "test.level_2", "test.level_3"}
        for number, tokens in enumerate(expected, start=1):
            assert torch.equal(file.get_tensor(f"test.level_{number}").long(), tokens)
        metadata = file.metadata()
    assert metadata["model"] == model_hash(network)
    assert metadata["codebook_sizes"] == "[5, 16, 30]"
    assert call("tokens", runs["one"], "-o", out, "--split", "x").exit_code == 2
    assert call("tokens", runs["one"], "-o", out).exit_code == 0
    with safe_open(out, framework="pt") as file:
        assert set(file.keys()) == {f"{split}.level_1" for split in ("train", "val", "test")}


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
