"""Fréchet distances against scipy, closed forms and known figures; their networks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor
from torchvision.datasets import CIFAR10

from eval.report.frechet import (
    CIFARResNet,
    FrechetDistance,
    inception_distance,
    load_resnet56,
    resnet56_distance,
)
from training.weights import WeightsError

RESNET56 = Path("cifar_resnet") / "resnet56-4bfd9763.th"


def flat_distance(dim: int) -> FrechetDistance:
    return FrechetDistance(lambda images: images.flatten(1), dim)


def exact_gaussian(count: int, mean: np.ndarray, root: np.ndarray, seed: int) -> Tensor:
    """Samples (count, D, 1, 1) whose own mean and covariance, root root^T, are exact."""
    x = np.random.default_rng(seed).normal(size=(count, len(mean)))
    x -= x.mean(axis=0)
    x = x @ np.linalg.inv(np.linalg.cholesky(np.cov(x.T))).T
    return torch.from_numpy(x @ root.T + mean)[:, :, None, None]


def by_scipy(m1: np.ndarray, c1: np.ndarray, m2: np.ndarray, c2: np.ndarray) -> float:
    root = scipy.linalg.sqrtm(c1 @ c2)
    return float(((m1 - m2) ** 2).sum() + np.trace(c1 + c2 - 2 * root.real))


@pytest.mark.parametrize("dim", [2, 5, 16])
def test_gaussians_have_the_distance_of_scipy(dim):
    rng = np.random.default_rng(dim)
    means = rng.normal(size=(2, dim))
    roots = rng.normal(size=(2, dim, dim)) + 2 * np.eye(dim)
    first, second = (exact_gaussian(200, means[i], roots[i], seed=i) for i in range(2))
    distance = flat_distance(dim)
    for a, b in zip(first.split(37), second.split(37), strict=True):
        distance.update(a, {"argmax": b})
    covariances = roots @ roots.transpose(0, 2, 1)
    expected = by_scipy(means[0], covariances[0], means[1], covariances[1])
    assert distance.compute()["argmax"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("batch", [1, 3, 50])
def test_half_is_of_every_second_pair_however_they_come(batch):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(50, 4, 1, 1, dtype=torch.float64, generator=generator)
    recons = 0.5 * images + torch.randn(images.shape, dtype=torch.float64, generator=generator)
    distance = flat_distance(4)
    for part, recon in zip(images.split(batch), recons.split(batch), strict=True):
        distance.update(part, {"argmax": recon})
    a, b = (part[::2, :, 0, 0].numpy() for part in (images, recons))
    expected = by_scipy(a.mean(0), np.cov(a.T), b.mean(0), np.cov(b.T))
    assert distance.compute()["argmax_half"] == pytest.approx(expected, rel=1e-7)


def test_features_of_each_image_are_computed_once():
    calls = []

    def extract(images: Tensor) -> Tensor:
        calls.append(len(images))
        return images.flatten(1)

    distance = FrechetDistance(extract, 2)
    distance.update(torch.rand(8, 2, 1, 1), {"soft": torch.rand(8, 2, 1, 1)})
    assert calls == [8, 8]


def test_too_few_images_are_said():
    distance = flat_distance(2)
    distance.update(torch.rand(3, 2, 1, 1), {"soft": torch.rand(3, 2, 1, 1)})
    with pytest.raises(WeightsError, match="at least 4 images, got 3"):
        distance.compute()


@pytest.mark.slow
def test_train_against_test_on_three_thousand_images(shared, cifar10_dir):
    """0.136 +- 0.05, measured elsewhere with another implementation."""
    distance = resnet56_distance(shared / RESNET56, torch.device("cpu"))
    parts = [CIFAR10(cifar10_dir, train=train).data[:3000] for train in (False, True)]
    test, train = (torch.from_numpy(p).movedim(-1, 1).float() / 255 for p in parts)
    for a, b in zip(test.split(250), train.split(250), strict=True):
        distance.update(a, {"train": b})
    assert distance.compute()["train"] == pytest.approx(0.136, abs=0.05)


def test_the_features_are_those_of_a_good_classifier(shared, cifar10_dir):
    """Published: 93.39 % on the whole test split."""
    network = load_resnet56(shared / RESNET56)
    data = CIFAR10(cifar10_dir, train=False)
    images = torch.from_numpy(data.data[:200]).movedim(-1, 1).float() / 255
    with torch.no_grad():
        right = network.linear(network(images)).argmax(dim=1) == torch.tensor(data.targets[:200])
    assert right.float().mean() >= 0.89  # three standard errors below


def test_the_weights_of_another_network_are_refused(shared, tmp_path):
    shallow = shared / "cifar_resnet" / "resnet20-12fca82f.th"
    with pytest.raises(WeightsError, match=r"of another network.*CIFARResNet") as caught:
        load_resnet56(shallow)
    assert "\n" not in str(caught.value)
    with pytest.raises(WeightsError, match=r"--resnet56-weights .*none.th: there is no such file"):
        load_resnet56(tmp_path / "none.th")


def test_images_of_another_size_are_refused_for_resnet56(tmp_path):
    torch.save({"state_dict": CIFARResNet(56).state_dict()}, tmp_path / "weights.th")
    distance = resnet56_distance(tmp_path / "weights.th", torch.device("cpu"))
    with pytest.raises(WeightsError, match="3 x 32 x 32, got 3 x 64 x 64"):
        distance.update(torch.rand(1, 3, 64, 64), {})


@pytest.fixture
def inception_file(tmp_path, monkeypatch) -> Path:
    """Weights of the right shapes, untrained."""
    from torch_fidelity import feature_extractor_inceptionv3 as module

    torch.manual_seed(0)
    with monkeypatch.context() as patch:
        patch.setattr(module, "load_state_dict_from_url", lambda *args, **options: {})
        own = module.FeatureExtractorInceptionV3
        patch.setattr(own, "load_state_dict", lambda self, state: None)
        network = own("inception-v3-compat", ["2048"])
    file = tmp_path / "inception.pth"
    torch.save(network.state_dict(), file)
    return file


def test_rfid_streams_through_the_network_of_a_file(inception_file):
    distance = inception_distance(inception_file, torch.device("cpu"))
    grey = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    images = (grey.mul(255).round() / 255).repeat(1, 3, 1, 1)
    features = distance.extractor(images)
    assert features.shape == (1, 2048)
    # Eight bits are what the network sees.
    assert torch.equal(features, distance.extractor(images + 0.4 / 255))
    assert torch.equal(features, distance.extractor(images[:, :1]))


def test_without_inception_weights_the_file_and_the_option_are_named(monkeypatch, tmp_path):
    from torch_fidelity import feature_extractor_inceptionv3 as module

    def refuse(*args: object, **options: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(module, "load_state_dict_from_url", refuse)
    with pytest.raises(WeightsError, match=r"inception-2015-12-05.*--inception-weights"):
        inception_distance(None, torch.device("cpu"))
    with pytest.raises(WeightsError, match=r"--inception-weights .*none.pth: there is no such"):
        inception_distance(tmp_path / "none.pth", torch.device("cpu"))
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pth")
    with pytest.raises(WeightsError, match=r"other.pth is of another network"):
        inception_distance(tmp_path / "other.pth", torch.device("cpu"))
