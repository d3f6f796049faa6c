"""A frozen Hugging Face encoder from a folder, refused where it would embed nothing of use."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError

from training.errors import UserError

TRIAL = "a short text, to be embedded once"
# Below this share of the model's vocabulary a tokenizer is another's, or made up for want of files.
LEAST_VOCABULARY = 0.5
# What damaged or foreign folders raise, beside SafetensorError.
ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, ImportError)


class Encoder(NamedTuple):
    """A frozen encoder with its tokenizer.

    Attributes:
        model: A ``transformers`` model that returns ``last_hidden_state``.
        tokenizer: Of the same folder.
        key: Hash of the folder's files: tells whether cached embeddings are this encoder's.
    """

    model: Any
    tokenizer: Any
    key: str


def load_encoder(folder: Path) -> Encoder:
    """Open a Hugging Face folder, without a network, and try it on one short text.

    Args:
        folder: With config, weights and tokenizer, as ``save_pretrained`` writes them.

    Raises:
        UserError: If it is none, its weights are not those of its config, its tokenizer is not
            that of its model, or it embeds no text.
    """
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} is not a Hugging Face folder (it has no config.json); name one with "
            "--encoder"
        )
    try:
        tokenizer, model, info = _open(folder)
        reason = weights_misfit(info) or tokenizer_misfit(tokenizer, model.config)
        if reason is None:
            reason = trial_failure(tokenizer, model.eval().requires_grad_(False))
    except (*ERRORS, SafetensorError) as error:
        first = str(error).split("\n", 1)[0]
        reason = f"{type(error).__name__}: {first:.160}"
    if reason is not None:
        raise UserError(
            f"{folder} cannot be opened as an encoder ({reason}); name another with --encoder"
        )
    return Encoder(model, tokenizer, folder_key(folder))


def _open(folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """Tokenizer, model and how its weights fitted; transformers says nothing meanwhile."""
    from logging import CRITICAL

    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity(CRITICAL)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model, info = AutoModel.from_pretrained(
            folder,
            local_files_only=True,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # weights_misfit says which
            output_loading_info=True,
        )
    finally:
        logging.set_verbosity(verbosity)
    if tokenizer.pad_token is None:
        # Padding is masked, whatever stands there.
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer, model, info


def weights_misfit(info: dict[str, Any]) -> str | None:
    """What of a model's weights was drawn at random for want of a fitting entry, or None.

    A pooler may be missing: it comes after the last hidden states.

    Args:
        info: As ``from_pretrained`` returns it.

    Example:
        >>> weights_misfit({"missing_keys": {"pooler.dense.bias"}, "mismatched_keys": []})
        >>> weights_misfit({"missing_keys": {"layer.0.bias"}, "mismatched_keys": []})
        'its weights are not those of its config: 1 missing or of another shape, as layer.0.bias'
    """
    wrong = {key for key in info["missing_keys"] if "pooler" not in key}
    wrong |= {entry if isinstance(entry, str) else entry[0] for entry in info["mismatched_keys"]}
    if not wrong:
        return None
    return (
        f"its weights are not those of its config: {len(wrong)} missing or of another shape, as "
        f"{min(wrong)}"
    )


def tokenizer_misfit(tokenizer: Any, config: Any) -> str | None:
    """Why a tokenizer is not the model's, or None.

    Without tokenizer files transformers makes one up that knows the special tokens alone, to
    which every word is unknown.
    """
    known, expected = len(tokenizer), getattr(config, "vocab_size", None)
    if expected is None or known >= LEAST_VOCABULARY * expected:
        return None
    return (
        f"its tokenizer knows {known} entries where the model has {expected}: are tokenizer files "
        "missing?"
    )


@torch.no_grad()
def trial_failure(tokenizer: Any, model: Any) -> str | None:
    """Why a model embeds no short text, or None."""
    if getattr(model.config, "is_encoder_decoder", False):
        return f"{type(model).__name__} is an encoder with a decoder; expected an encoder alone"
    batch = tokenizer(TRIAL, return_tensors="pt")
    hidden = getattr(model(**batch), "last_hidden_state", None)
    places = batch["input_ids"].shape[1]
    if hidden is None or hidden.ndim != 3 or hidden.shape[1] != places:
        return f"{type(model).__name__} gives no hidden state for each token"
    return None if hidden.isfinite().all() else "its hidden states are not finite"


def folder_key(folder: Path) -> str:
    """Hash of a folder's own files, names and contents, as 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.is_file() and p.suffix != ".md"):
        with path.open("rb") as file:
            value = hashlib.sha256()
            while block := file.read(1 << 20):
                value.update(block)
        digest.update(f"{path.name}\0{value.hexdigest()}\n".encode())
    return digest.hexdigest()[:16]
