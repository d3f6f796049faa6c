"""A frozen Hugging Face encoder from a folder, refused where it would embed nothing of use."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import torch

from training.errors import UserError

# A tokenizer that knows less than this share of the model's vocabulary is another model's, or was
# made up because its files are missing.
LEAST_VOCABULARY = 0.5


class Encoder(NamedTuple):
    """A frozen encoder with its tokenizer.

    Attributes:
        model: A ``transformers`` model that returns ``last_hidden_state``.
        tokenizer: The tokenizer of the same folder.
        key: A hash of the folder's files, which tells whether cached embeddings are this encoder's.
    """

    model: Any
    tokenizer: Any
    key: str


def load_encoder(folder: Path) -> Encoder:
    """Open a Hugging Face folder, without a network, and try it on one short text.

    Args:
        folder: A folder with config, weights and tokenizer, as ``save_pretrained`` writes them.

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
        reason = weights_misfit(info) or misfit(tokenizer, model)
    except Exception as error:  # Damaged and foreign folders raise all sorts.
        first = str(error).split("\n", 1)[0]
        reason = f"{type(error).__name__}: {first:.160}"
    if reason:
        raise UserError(
            f"{folder} cannot be opened as an encoder ({reason}); name another with --encoder"
        )
    return Encoder(model, tokenizer, folder_key(folder))


def _open(folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """Return tokenizer, model and how its weights fitted; transformers says nothing meanwhile."""
    from logging import CRITICAL

    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity(CRITICAL)
    # weights_misfit says which weights were missing or of another shape.
    how: dict[str, Any] = {
        "dtype": torch.float32,
        "ignore_mismatched_sizes": True,
        "output_loading_info": True,
    }
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model, info = AutoModel.from_pretrained(folder, local_files_only=True, **how)
    finally:
        logging.set_verbosity(verbosity)
    if tokenizer.pad_token is None:
        # Padding is masked, whatever stands there.
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer, model.eval().requires_grad_(False), info


def weights_misfit(info: dict[str, Any]) -> str:
    """Say which weights were drawn at random because no entry fitted them; "" where none was.

    A pooler may be missing: it comes after the last hidden states.

    Args:
        info: The loading info that ``from_pretrained`` returns.

    Example:
        >>> weights_misfit({"missing_keys": {"pooler.dense.bias"}, "mismatched_keys": []})
        ''
        >>> weights_misfit({"missing_keys": {"layer.0.bias"}, "mismatched_keys": []})
        'its weights are not those of its config: 1 missing or of another shape, as layer.0.bias'
    """
    wrong = {key for key in info["missing_keys"] if "pooler" not in key}
    wrong |= {entry if isinstance(entry, str) else entry[0] for entry in info["mismatched_keys"]}
    count = f"{len(wrong)} missing or of another shape, as {min(wrong)}" if wrong else ""
    return count and f"its weights are not those of its config: {count}"


@torch.no_grad()
def misfit(tokenizer: Any, model: Any) -> str:
    """Say why a model embeds no text of use; "" where it does.

    Without tokenizer files transformers makes up a tokenizer that knows the special tokens alone,
    to which every word is unknown.
    """
    known, kind = len(tokenizer), type(model).__name__
    expected = getattr(model.config, "vocab_size", None)
    if expected is not None and known < LEAST_VOCABULARY * expected:
        return (
            f"its tokenizer knows {known} entries where the model has {expected}: are tokenizer "
            "files missing?"
        )
    if getattr(model.config, "is_encoder_decoder", False):
        return f"{kind} is an encoder with a decoder; expected an encoder alone"
    batch = tokenizer("a short text, to be embedded once", return_tensors="pt")
    hidden = getattr(model(**batch), "last_hidden_state", None)
    if hidden is None or hidden.shape[:-1] != batch["input_ids"].shape:
        return f"{kind} gives no hidden state for each token"
    return "" if hidden.isfinite().all() else "its hidden states are not finite"


def folder_key(folder: Path) -> str:
    """Hash a folder's own files, names and contents, as 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.is_file() and p.suffix != ".md"):
        value = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.name}\0{value}\n".encode())
    return digest.hexdigest()[:16]
