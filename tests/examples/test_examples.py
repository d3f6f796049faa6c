"""The examples run, and learn what they claim."""

import runpy
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_an_autoencoder_written_for_vector_quantize_pytorch(capsys):
    pytest.importorskip("sklearn", reason="the example reads scikit-learn's digits")
    parts = example("vector_quantize_pytorch_autoencoder")
    errors, indices = parts["main"]()
    assert min(errors[:5]) > 4 * max(errors[-5:])
    assert indices.shape == (1797, 4, 4)
    assert indices.unique().tolist() == list(range(16))
    assert "16 of 16 codes used" in capsys.readouterr().out


def test_the_original_lines_of_that_autoencoder_work_as_well():
    pytest.importorskip("sklearn", reason="the example reads scikit-learn's digits")
    pytest.importorskip("vector_quantize_pytorch", reason="the original lines are of that package")
    lines = (EXAMPLES / "vector_quantize_pytorch_autoencoder.py").read_text().splitlines()
    original = []
    for line in lines:
        if line.lstrip().startswith(("# from vector_quantize", "# self.vq")):
            original.append(line.replace("# ", "", 1))
        elif "VQCodebook" not in line.partition("``")[0]:
            original.append(line)
    assert len(original) == len(lines) - 2
    parts = {"__name__": "original"}
    exec("\n".join(original), parts)
    torch.manual_seed(0)
    errors = parts["train"](parts["Autoencoder"](), parts["digits"](), 40)
    assert min(errors[:3]) > 1.5 * max(errors[-3:])


def test_a_diffusers_vqmodel():
    pytest.importorskip("sklearn", reason="the example reads scikit-learn's digits")
    pytest.importorskip("diffusers", reason="the example replaces a quantizer of diffusers")
    model, images, errors = example("diffusers_vqmodel")["main"]()
    assert errors[0] > 5 * max(errors[-3:])
    codebook = model.quantize.codebook
    with torch.no_grad():
        result = model(images)
        tokens = codebook.encode(model.encode(images).latents)
        again = model.decode(codebook.decode(tokens), force_not_quantize=True).sample
    assert tokens.shape == (len(images), 4, 4)
    assert len(tokens.unique()) > 16
    assert torch.equal(result.sample, again)
    assert result.commit_loss.shape == ()
    assert result.commit_loss > 0
    # The codebook travels with the model.
    assert "quantize.codebook.codebook" in model.state_dict()
    assert int(codebook.steps) == len(errors)


def test_sounds_of_unequal_length():
    main = example("audio_autoencoder")["main"]
    errors, used = main()
    assert min(errors[:3]) > 10 * max(errors[-3:])
    assert used.utilization == 1
    # 256 sounds of 8 to 32 tokens; padding is not counted.
    assert 256 * 8 < used.counts.sum() < 256 * 32
    padded, others = main(padding=100.0, steps=10)
    assert padded == errors[:10]
    assert others.counts.sum() == used.counts.sum()


def test_sequences_of_unequal_length():
    main = example("sequence_transformer")["main"]
    errors, right = main()
    assert min(errors[:3]) > 20 * max(errors[-3:])
    assert right > 0.98
    assert main(padding=7, steps=10)[0] == errors[:10]


@pytest.mark.filterwarnings("ignore")  # of Lightning and Accelerate themselves
@pytest.mark.parametrize(("name", "steps"), [("lightning_module", 48), ("accelerate_loop", 24)])
def test_a_loop_of_others_steps_the_codebook(name, steps, capsys):
    pytest.importorskip(name.split("_")[0])
    model = example(name)["main"]()
    assert int(model.codebook.steps) == steps
    assert "of 32 codes used" in capsys.readouterr().out
