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

# In the order in which findings of one severity are shown.
CHECKS = (
    "non-finite", "collapsed", "near-collapse", "too-soft", "never-recovered", "starved-codes",
    "low-perplexity", "too-many-codes", "duplicates", "far-codes", "low-dimension",
    "norm-statistics", "dead-gradient", "epsilon", "worse-than-mean", "later-collapse",
    "got-worse", "unfinished",
)  # fmt: skip


class Finding(NamedTuple):
    """One thing that is wrong.

    Attributes:
        name: Short slug, one of :data:`CHECKS`.
        severity: ``"severe"``, the codebook or the model fails at its task; ``"warning"``, it
            works below what it could; ``"note"``, good to know.
        evidence: What was measured, one sentence.
        advice: What to change, one sentence with the option and a value.
        level: Number of the level from 1, coarse first; None where the model has one level, or
            for all of it.
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
    return sorted(
        findings, key=lambda f: (SEVERITIES.index(f.severity), CHECKS.index(f.name), f.level or 0)
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
    if not findings:
        checked = _wrapped(", ".join(CHECKS))
        return f"nothing is wrong. Checked, where it applies (docs/doctor.md):\n{checked}"
    lines = []
    for f in sorted_findings(findings):
        level = "" if f.level is None else f", level {f.level}"
        lines.append(f"{f.severity.upper()} {f.name}{level}")
        lines += [_wrapped(f.evidence), _wrapped(f.advice, "-> "), ""]
    severe, warnings, notes = (sum(f.severity == name for f in findings) for name in SEVERITIES)
    many = ["" if count == 1 else "s" for count in (warnings, notes)]
    lines.append(f"{severe} severe, {warnings} warning{many[0]}, {notes} note{many[1]}")
    return "\n".join(lines)


def _wrapped(text: str, mark: str = "") -> str:
    indent = " " * (4 + len(mark))
    return textwrap.fill(
        mark + text, width=96, initial_indent="    ", subsequent_indent=indent,
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
