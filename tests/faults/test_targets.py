"""Files that a command writes at its end are checked before its work."""

import pytest
from small_runs import evaluate

COMMANDS = {
    "report": ["report", "RUN", "--json"],
    "page": ["report", "RUN", "--html"],
    "doctor": ["doctor", "RUN", "--json"],
    "rate": ["rate", "RUN", "--json"],
    "tokens": ["tokens", "RUN", "-o"],
    "compress": ["compress", "RUN", "IMAGES", "-o"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("target", ["folder", "file/below", "file/deeper/below"])
def test_a_target_that_cannot_be_written_is_refused_at_once(tmp_path, command, target):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    # There is no run: who looks at it first would say that.
    result = evaluate(*COMMANDS[command], tmp_path / target)
    assert result.exit_code == 2
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert str(tmp_path / target.split("/")[0]) in errors[0]
    assert "RUN" not in errors[0]
    assert (tmp_path / "file").read_text() == "mine"
