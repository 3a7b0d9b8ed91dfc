"""The file of users: what is wrong with a line is said in one short line."""

from __future__ import annotations

from pathlib import Path

import pytest
from mqmesh.broker.auth import passwords


@pytest.mark.parametrize("line", ["no colon", ":hash", f"{'[' * 100_000}:x", "name:no hash", f"{'n' * 255}:$argon2id$x", "a\tb:x"])
def test_a_bad_line_is_named_and_not_repeated_at_length(line: str, tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(f"# users\n{line}\n")
    with pytest.raises(passwords.PasswordError) as raised:
        passwords.load(file)
    text = str(raised.value)
    assert text.startswith(f"{file} line 2: ")
    assert len(text) < len(str(file)) + 600
    assert text.isprintable()
