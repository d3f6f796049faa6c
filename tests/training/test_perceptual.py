"""LPIPS and weights from files, against published values and torchvision; LPIPS in the loss."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_runs import arguments, command, metrics, run_small, snapshot, without_figures
from torch.nn import functional as F
from torchvision import models

from training.config import TrainConfig
from training.data.splits import load_splits
from training.errors import UserError
from training.losses import NETS, PerceptualDistance
from training.trainer import Trainer
from training.weights import WeightsError, fetch_weights

# Without their classifiers, which are ten times as large and judge nothing.
MAKERS = {"squeeze": models.squeezenet1_1, "alex": models.alexnet, "vgg": models.vgg16}


@pytest.fixture(scope="module")
def squeeze_file(shared: Path) -> Path:
    return shared / "lpips" / "squeezenet1_1_features.pth"


@pytest.fixture(scope="module")
def squeeze(squeeze_file: Path) -> PerceptualDistance:
    return PerceptualDistance("squeeze", squeeze_file)


def random_features(net: str) -> torch.nn.Module:
    """Those of torchvision, untrained."""
    with torch.device("meta"):
        features = MAKERS[net](weights=None).features
    features = features.to_empty(device="cpu").eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in features.parameters():
        torch.nn.init.normal_(parameter, std=0.03, generator=generator)
    return features


@pytest.fixture(scope="module")
def random_weights(tmp_path_factory) -> dict[str, Path]:
    """Files as torchvision's of whole networks."""
    folder = tmp_path_factory.mktemp("weights")
    for name in NETS:
        state = {f"features.{k}": v for k, v in random_features(name).state_dict().items()}
        torch.save(state | {"classifier.1.weight": torch.zeros(3)}, folder / f"{name}.pth")
    return {name: folder / f"{name}.pth" for name in NETS}


def test_published_values_of_torchmetrics(squeeze):
    """Its documentation has 0.1024 and 0.0938 for these pairs, in [-1, 1] there."""
    generator = torch.Generator().manual_seed(42)
    first, second = (torch.rand(2, 3, 100, 100, generator=generator) for _ in range(2))
    assert squeeze(first, second).tolist() == pytest.approx([0.1024, 0.0938], abs=5e-5)


def test_equal_images_have_no_distance_and_both_have_a_gradient(squeeze):
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert squeeze(images, images).tolist() == [0, 0, 0]
    other = (images * 0.5).requires_grad_()
    squeeze(other, images).sum().backward()
    assert other.grad is not None
    assert other.grad.abs().sum() > 0
    assert not any(p.requires_grad for p in squeeze.parameters())


@pytest.mark.parametrize(
    ("net", "alone"), [("squeeze", True), ("alex", False), ("alex", True), ("vgg", True)]
)
def test_every_feature_of_a_file_is_in_the_network(net, alone, random_weights, tmp_path):
    """From a whole classifier, or from its features alone."""
    state = torch.load(random_weights[net], weights_only=True)
    features = {k.removeprefix("features."): v for k, v in state.items() if "features" in k}
    torch.save(features, tmp_path / "features.pth")
    file = tmp_path / "features.pth" if alone else random_weights[net]
    tower = PerceptualDistance(net, file).network.net
    x = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    reference = random_features(net)
    seen = []
    with torch.no_grad():
        for layer in reference:
            x = layer(x)
            seen.append(x)
        outputs = tower(torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(1)))
    # The package's layers may work in place, the last of each slice does not change later.
    assert all(any(o.shape == s.shape and torch.allclose(o, s) for s in seen) for o in outputs)


def test_grey_images_are_repeated_and_sizes_are_scaled(squeeze, squeeze_file):
    grey = torch.rand(2, 1, 40, 40, generator=torch.Generator().manual_seed(2))
    other = grey.flip(0)
    expected = squeeze(grey.repeat(1, 3, 1, 1), other.repeat(1, 3, 1, 1))
    assert torch.equal(squeeze(grey, other), expected)
    scaled = PerceptualDistance("squeeze", squeeze_file, resize=64)
    larger = [
        F.interpolate(part.repeat(1, 3, 1, 1), (64, 64), mode="bilinear", antialias=True)
        for part in (grey, other)
    ]
    assert torch.allclose(scaled(grey, other), squeeze(*larger))
    assert "resized to 64" in scaled.definition
    assert "as they are" in squeeze.definition


def test_stays_in_eval_mode(squeeze):
    squeeze.train()
    assert not any(module.training for module in squeeze.modules())


def test_small_images_are_refused_with_the_option_that_helps(squeeze):
    with pytest.raises(WeightsError, match=r"at least 17 pixels, got \(8, 8\).*--lpips-resize"):
        squeeze(torch.rand(1, 3, 8, 8), torch.rand(1, 3, 8, 8))


def test_unknown_nets_are_refused():
    with pytest.raises(ValueError, match="squeeze, alex, vgg, got 'resnet'"):
        PerceptualDistance("resnet")


def test_files_that_hold_no_such_weights_are_refused_in_one_line(random_weights, tmp_path):
    (tmp_path / "text.pth").write_text("hello")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({"state_dict": {"0.weight": torch.zeros(1)}}, tmp_path / "other.pth")
    cases = {
        tmp_path / "none.pth": "there is no such file",
        tmp_path / "text.pth": "cannot be read",
        tmp_path / "list.pth": "holds no state dict",
        tmp_path / "other.pth": "is of another network",
        random_weights["vgg"]: "is of another network",
    }
    for file, message in cases.items():
        with pytest.raises(WeightsError) as caught:
            PerceptualDistance("squeeze", file)
        text = str(caught.value)
        assert message in text
        assert text.startswith(f"--lpips-weights {file}")
        assert "\n" not in text


def test_a_failed_download_names_what_to_get_and_the_option():
    def fetch() -> None:
        raise OSError("no route to host")

    with pytest.raises(WeightsError) as caught:
        fetch_weights(fetch, "--lpips-weights", "torchvision's weights of alexnet")
    assert "torchvision's weights of alexnet could not be downloaded" in str(caught.value)
    assert "no route to host" in str(caught.value)
    assert str(caught.value).endswith("--lpips-weights")


def test_without_a_file_torchvision_is_asked(monkeypatch, random_weights):
    state = torch.load(random_weights["alex"], weights_only=True)
    asked = []

    def get_state_dict(self, *args, **options):
        asked.append(self.url)
        return state

    monkeypatch.setattr(
        type(models.AlexNet_Weights.IMAGENET1K_V1), "get_state_dict", get_state_dict
    )
    distance = PerceptualDistance("alex")
    assert asked == [models.AlexNet_Weights.IMAGENET1K_V1.url]
    assert torch.equal(distance.network.net.slice1[0].weight, state["features.0.weight"])


# --- in the loss of a run -------------------------------------------------------------------------


def test_the_loss_has_the_distance_times_its_weight(tmp_path, squeeze_file):
    options = {"dataset": "patches", "hidden_channels": 8, "residual_channels": 8,
               "codebook_size": 16, "codebook_dim": 8, "batch_size": 16}  # fmt: skip
    splits = load_splits("patches", limit_train=16, limit_test=4)
    losses, sums = [], []
    for weight in (0.0, 2.0):
        file = str(squeeze_file) if weight else None
        config = TrainConfig.from_options(**options, perceptual_weight=weight, lpips_weights=file)
        trainer = Trainer(config, splits, tmp_path)
        batch = next(trainer.feed.epoch(0, 0))
        trainer.train_step(batch)
        losses.append(trainer.loss)
        sums.append(trainer.sums)
    assert losses[1] - losses[0] == pytest.approx(2 * sums[1]["lpips"], rel=1e-4)
    assert "lpips" not in sums[0]
    assert sums[1]["lpips"] > 0.05


def test_training_with_it_lowers_the_distance(tmp_path, squeeze_file, monkeypatch):
    without_figures(monkeypatch)
    options = {"lpips_weights": str(squeeze_file), "perceptual_weight": 5.0, "limit_train": 128}
    folder = run_small(tmp_path / "with", **options)
    values = [line["lpips"] for line in metrics(folder) if line["split"] == "train"]
    assert values[-1] < values[0]
    assert not any("perceptual" in name for name in torch.load(folder / "last.pt")["model"])


def test_missing_weights_are_one_line_before_anything_is_written(tmp_path):
    before = snapshot(tmp_path)
    result = command(
        *arguments(out=tmp_path / "run", perceptual_weight=1, lpips_weights=tmp_path / "none.pth")
    )
    assert result.exit_code == 2
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert f"--lpips-weights {tmp_path / 'none.pth'}: there is no such file" in errors[0]
    assert snapshot(tmp_path) == before


def test_weights_without_their_use_are_refused(tmp_path):
    result = command(*arguments(out=tmp_path / "run", lpips="vgg"))
    assert result.exit_code == 2
    assert "--lpips does nothing without --perceptual-weight" in result.stderr
    with pytest.raises(UserError, match="lpips_weights does nothing without perceptual_weight"):
        TrainConfig.from_options(lpips_weights="some.pth")
