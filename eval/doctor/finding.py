"""Finding: one thing that is wrong, how it was seen, and what to change."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal, NamedTuple

Severity = Literal["severe", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("severe", "warning", "note")

# Of codes that carry nothing (dead, doubled, out of reach), of all. With that share gone a token
# carries log2(1 / 0.75) = 0.4 bits less than it is paid for; a few are a defect, not a failure.
SEVERE_LOSS = 0.25

# (name, what was looked at)
CHECKS = (
    ("non-finite", "NaN or infinity in the weights"),
    ("collapsed", "T / T_c and the spread of the prototypes"),
    ("near-collapse", "the same, before it happens"),
    ("too-soft", "what tokens lose against the soft code"),
    ("free-scale", "whether a temperature stands against latents of no fixed scale"),
    ("never-recovered", "a hard codebook that stays unused"),
    ("starved-codes", "codes without tokens, and since when"),
    ("low-perplexity", "how evenly the codes are used"),
    ("too-many-codes", "tokens per code in an epoch"),
    ("duplicates", "prototypes that lie on each other"),
    ("far-codes", "prototypes outside of all latents"),
    ("low-dimension", "effective dimension of the latents"),
    ("norm-statistics", "running statistics of the latents' normalisation"),
    ("stale-covariance", "running covariance of a soft codebook"),
    ("stale-usage", "running usage of the codebook"),
    ("dead-gradient", "the decoder's gradient that reaches the encoder"),
    ("epsilon", "learning rate of the prototypes"),
    ("worse-than-mean", "error against that of the mean image"),
    ("later-collapse", "temperature and usage in the log after the checkpoint's epoch"),
    ("got-worse", "validation error since the best epoch"),
    ("unfinished", "whether the training reached its end"),
)


class Finding(NamedTuple):
    """One thing that is wrong.

    Attributes:
        name: Short slug, one of :data:`CHECKS`.
        severity: ``"severe"``, the codebook or the model fails at its task; ``"warning"``, it
            works below what it could; ``"note"``, good to know.
        evidence: What was measured, one sentence.
        advice: What to change, one sentence with the option and a value.
        level: From 1, coarse first; None where the model has one level, or for all of it.
    """

    name: str
    severity: Severity
    evidence: str
    advice: str
    level: int | None = None


def lost_share_severity(lost: int, codes: int) -> Severity:
    """How bad it is that so many of K codes carry nothing.

    Example:
        >>> lost_share_severity(3, 512), lost_share_severity(128, 512)
        ('warning', 'severe')
    """
    return "severe" if lost >= SEVERE_LOSS * codes else "warning"


def sorted_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Severe ones first; within a severity in the order of the checks, then by level."""
    names = [name for name, _ in CHECKS]
    return sorted(
        findings,
        key=lambda f: (SEVERITIES.index(f.severity), names.index(f.name), f.level or 0),
    )


def is_severe(findings: Sequence[Finding]) -> bool:
    """Whether one is severe.

    Example:
        >>> is_severe([Finding("unfinished", "note", "Step 3 of 9.", "Go on with --resume.")])
        False
    """
    return any(finding.severity == "severe" for finding in findings)


def format_findings(findings: Sequence[Finding]) -> str:
    """Findings as text for a terminal, severe ones first.

    Args:
        findings: Those of :func:`eval.doctor.diagnose`; none where nothing is wrong.

    Example:
        >>> print(format_findings([Finding("unfinished", "note", "Step 3 of 9.", "Go on.")]))
        NOTE unfinished
            Step 3 of 9.
            -> Go on.
        <BLANKLINE>
        0 severe, 0 warnings, 1 note
    """
    blocks = [_block(finding) for finding in sorted_findings(findings)]
    if not blocks:
        names = ", ".join(name for name, _ in CHECKS)
        return (
            f"nothing is wrong. Checked, where it applies (docs/doctor.md):\n{_wrapped(names, '')}"
        )
    count = {name: sum(f.severity == name for f in findings) for name in SEVERITIES}
    plural = {name: "" if count[name] == 1 else "s" for name in SEVERITIES}
    total = (
        f"{count['severe']} severe, {count['warning']} warning{plural['warning']}, "
        f"{count['note']} note{plural['note']}"
    )
    return "\n".join([*blocks, total])


def _block(finding: Finding) -> str:
    level = "" if finding.level is None else f", level {finding.level}"
    lines = [
        f"{finding.severity.upper()} {finding.name}{level}",
        _wrapped(finding.evidence, ""),
        _wrapped(finding.advice, "-> "),
    ]
    return "\n".join(lines) + "\n"


def _wrapped(text: str, mark: str) -> str:
    return textwrap.fill(
        mark + text,
        width=96,
        initial_indent="    ",
        subsequent_indent=" " * (4 + len(mark)),
        break_on_hyphens=False,
        break_long_words=False,
    )
