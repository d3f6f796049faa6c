"""attach in other people's loops: what is stepped, when, and with what."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import softvq
from softvq import (
    CodebookStack,
    DDCLCodebook,
    DDCLEMCodebook,
    VQCodebook,
    VQEMACodebook,
    attach,
)

KINDS = (DDCLCodebook, DDCLEMCodebook, VQCodebook, VQEMACodebook)


class Autoencoder(nn.Module):
    """What a stranger has: encoder, codebook, decoder."""

    def __init__(self, codebook=None, checkpointed=None):
        super().__init__()
        self.encoder = nn.Linear(8, 4)
        self.codebook = codebook if codebook is not None else DDCLEMCodebook(4, 16)
        self.decoder = nn.Linear(4, 8)
        self.checkpointed = checkpointed

    def code(self, x):
        out = self.codebook(self.encoder(x))
        return out.quantized, out.loss

    def forward(self, x):
        if self.checkpointed is None:
            quantized, loss = self.code(x)
        else:
            quantized, loss = checkpoint(self.code, x, use_reentrant=self.checkpointed)
        return nn.functional.mse_loss(self.decoder(quantized), x) + loss


@pytest.fixture
def data():
    return torch.randn(6, 256, 8, generator=torch.Generator().manual_seed(0))


def build(codebook=None, **options):
    torch.manual_seed(0)
    model = Autoencoder(codebook, **options)
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def by_hand(data, codebook=None, parts=1):
    """The loop with initialize and after_step written out."""
    model, optimizer = build(codebook)
    model.codebook.initialize(model.encoder(data[0].chunk(parts)[0]).detach())
    for batch in data:
        outs = []
        for part in batch.chunk(parts):
            outs.append(model.codebook(model.encoder(part)))
            recon = model.decoder(outs[-1].quantized)
            (nn.functional.mse_loss(recon, part) + outs[-1].loss).div(parts).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.codebook.after_step(*outs)
    return model


def attached(data, codebook=None, parts=1, **options):
    model, optimizer = build(codebook, **options)
    attach(model, optimizer)
    for batch in data:
        for part in batch.chunk(parts):
            model(part).div(parts).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def assert_same(model, other):
    for (name, value), wanted in zip(
        model.state_dict().items(), other.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(value, wanted, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_three_lines_train_as_the_calls_by_hand(kind, data):
    assert_same(attached(data, kind(4, 16)), by_hand(data, kind(4, 16)))


def test_a_stack_is_one_codebook_and_its_levels_are_not_stepped_twice(data):
    model = attached(data, CodebookStack([VQEMACodebook(4, 8), DDCLEMCodebook(4, 8)]))
    assert [int(level.steps) for level in model.codebook.codebooks] == [len(data)] * 2


def test_gradient_accumulation_counts_all_parts_in_one_step(data):
    # Enough latents for k-means lie in the first part.
    model = attached(data, DDCLEMCodebook(4, 4), parts=2)
    assert_same(model, by_hand(data, DDCLEMCodebook(4, 4), parts=2))
    assert int(model.codebook.steps) == len(data)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_counts_a_forward_once(reentrant, data):
    data.requires_grad_(reentrant)  # reentrant checkpointing needs an input with a gradient
    assert_same(attached(data, checkpointed=reentrant), attached(data))


def test_a_step_that_a_gradient_scaler_skips_moves_nothing_and_is_forgotten(data):
    model, optimizer = build()
    attach(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    poison = {"on": False}
    model.decoder.weight.register_hook(lambda g: g * float("inf") if poison["on"] else g)
    twin, twin_optimizer = build()
    attach(twin, twin_optimizer)
    for number, batch in enumerate(data):
        poison["on"] = number == 2
        before = copy.deepcopy(model.codebook.state_dict())
        scaler.scale(model(batch)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if number == 2:
            after = model.codebook.state_dict()
            assert all(torch.equal(before[name], after[name]) for name in before)
        else:
            twin(batch).backward()
            twin_optimizer.step()
            twin_optimizer.zero_grad()
    assert_same(model, twin)


def test_zero_grad_between_forward_and_backward_loses_nothing(data):
    model, optimizer = build()
    attach(model, optimizer)
    for batch in data:
        loss = model(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert_same(model, attached(data))


def test_evaluation_in_between_changes_nothing(data):
    model, optimizer = build()
    attach(model, optimizer)
    for batch in data:
        model.eval()
        model(batch + 3)
        model.train()
        model(batch).backward()
        with torch.no_grad():  # in training mode
            model(batch - 3)
        optimizer.step()
        optimizer.zero_grad()
    assert_same(model, attached(data))


def test_two_optimizers_step_a_codebook_once_a_batch(data):
    model, _ = build()
    encoder = torch.optim.Adam([*model.encoder.parameters(), *model.codebook.parameters()])
    decoder = torch.optim.Adam(model.decoder.parameters())
    attach(model, [encoder, decoder])
    for batch in data:
        model(batch).backward()
        for optimizer in (encoder, decoder):
            optimizer.step()
            optimizer.zero_grad()
    assert int(model.codebook.steps) == len(data)


def test_a_forward_for_another_optimizer_without_backward_is_not_counted(data):
    model, optimizer = build()
    attach(model, optimizer)
    for batch in data:
        model(batch + 3)  # as for a discriminator's step, which detaches it
        model(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    # Started from the first latents seen, so compare what was stepped: outputs, not values.
    assert int(model.codebook.steps) == len(data)


def test_small_batches_start_once_there_are_enough_latents():
    model, optimizer = build(VQEMACodebook(4, 16))
    attach(model, optimizer)
    steps = []
    for _ in range(20):
        model(torch.randn(4, 8)).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.append(int(model.codebook.steps))
    # 16 batches of 4 latents, then the step of the 16th itself.
    assert steps[:15] == [0] * 15
    assert steps[15:] == [1, 2, 3, 4, 5]


# torch itself, where a graph breaks: starting the codebook is no part of a graph.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_model_is_looked_after(data):
    model, optimizer = build()
    attach(model, optimizer)
    compiled = torch.compile(model, backend="aot_eager")
    for batch in data:
        compiled(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_same(model, attached(data))


def test_detach_undoes_all(data):
    model, optimizer = build()
    handle = attach(model, optimizer)
    model(data[0]).backward()
    optimizer.step()
    handle.detach()
    model(data[1]).backward()
    optimizer.step()
    optimizer.zero_grad()
    assert int(model.codebook.steps) == 1
    assert "zero_grad" not in vars(optimizer)
    attach(model, optimizer)  # and again


def test_copies_are_free_of_the_original(data):
    model, optimizer = build()
    attach(model, optimizer)
    model(data[0]).backward()
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        copied(data[1]).backward()
        optimizer.step()
        assert int(copied.codebook.steps) == 0
    assert int(model.codebook.steps) == 1
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)


def test_a_resumed_codebook_is_not_started_anew(data):
    first = attached(data[:3])
    model, optimizer = build()
    model.load_state_dict(first.state_dict())
    attach(model, optimizer)
    before = model.codebook.codebook.clone()
    model(data[3])
    assert torch.equal(before, model.codebook.codebook)


def test_a_codebook_started_by_hand_is_not_started_anew(data):
    model, optimizer = build()
    model.codebook.initialize(torch.randn(64, 4))
    before = model.codebook.codebook.clone()
    attach(model, optimizer)
    model(data[0])
    assert torch.equal(before, model.codebook.codebook)


def test_a_model_without_codebooks_is_refused():
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="Linear holds no codebook"):
        attach(model, torch.optim.SGD(model.parameters()))


def test_attaching_twice_is_refused():
    model, optimizer = build()
    attach(model, optimizer)
    with pytest.raises(ValueError, match="attached already"):
        attach(model, optimizer)


def test_what_is_no_optimizer_is_refused():
    model, _ = build()
    for wrong in ([], "adam", [model]):
        with pytest.raises(TypeError, match="needs an optimizer"):
            attach(model, wrong)


def test_outputs_of_a_step_are_not_held_after_it(data):
    model, optimizer = build()
    attach(model, optimizer)
    seen = []
    model.codebook.register_forward_hook(lambda *args: seen.append(weakref.ref(args[2])))
    model(data[0]).backward()
    optimizer.step()
    gc.collect()
    assert seen[0]() is None


def test_attach_is_public():
    assert "attach" in softvq.__all__
