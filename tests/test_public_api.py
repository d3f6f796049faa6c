"""What is public stays as it is, unless somebody means it: names and signatures of softvq.

``python tests/test_public_api.py`` writes ``tests/public_api.txt`` anew.
"""

import inspect
import sys
from pathlib import Path

# As a script this file would else find tests/softvq first.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import softvq
import softvq.diagnosis
import softvq.functional
import softvq.geometry

MODULES = (softvq, softvq.functional, softvq.geometry, softvq.diagnosis)
RECORD = Path(__file__).with_name("public_api.txt")


def signature(of) -> str:
    """Names and defaults; annotations may change without breaking a caller."""
    parameters = inspect.signature(of).parameters.values()
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters]))


def members(name: str, kind: type) -> list[str]:
    """The constructor of a class, and its own and inherited public methods and properties."""
    lines = [f"{name}{signature(kind)}"]
    for member in sorted(dir(kind)):
        value = inspect.getattr_static(kind, member)
        of_softvq = any(
            member in vars(base) and base.__module__.startswith("softvq") for base in kind.__mro__
        )
        if member.startswith("_") or not of_softvq:
            continue
        if isinstance(value, property):
            lines.append(f"{name}.{member}")
        elif callable(getattr(kind, member)):
            lines.append(f"{name}.{member}{signature(getattr(kind, member))}")
    return lines


def public_api() -> str:
    """A line for each public name of the public modules, with its signature."""
    lines = []
    for module in MODULES:
        for name in sorted(module.__all__):
            value, full = getattr(module, name), f"{module.__name__}.{name}"
            if inspect.isclass(value):
                lines += members(full, value)
            else:
                lines.append(full + signature(value) if callable(value) else f"{full} = {value}")
    return "\n".join(lines) + "\n"


def test_the_public_api_is_the_one_recorded():
    assert public_api() == RECORD.read_text(), (
        "the public API has changed: if you mean it, write tests/public_api.txt anew with "
        "`python tests/test_public_api.py`, and say so in CHANGELOG.md"
    )


def test_what_is_exported_is_documented():
    for module in MODULES:
        for name in module.__all__:
            assert inspect.getdoc(getattr(module, name)), name


if __name__ == "__main__":
    RECORD.write_text(public_api())
