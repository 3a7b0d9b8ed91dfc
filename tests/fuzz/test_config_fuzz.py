"""A short run of the fuzzing of configurations; `fuzz_config.py` runs longer by hand. What it has found stays tried."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .fuzz_config import READERS, check, damaged, examples, furnish, round_of, written

FIRST = b'name = "porto"\n'
TOPOLOGY = b'mesh = {name = "m", key = "a secret of 16 bytes or more"}\n'
PLACES = {  # where a path may stand, by kind of file
    "data": ("broker", FIRST + b"data = %s\n"),
    "store.path": ("broker", FIRST + b"[store]\npath = %s\n"),
    "tls.ca": ("broker", FIRST + b"[tls]\nca = %s\n"),
    "access.users": ("broker", FIRST + b"[access]\nusers = %s\n"),
    "access.tokens.key": ("broker", FIRST + b"[access.tokens]\nkey = %s\n"),
    "metabroker.password_file": ("broker", FIRST + b"[metabroker]\npassword_file = %s\n"),
    "directory.secret_file": ("broker", FIRST + b'[directory]\nmesh = "m"\nurl = "http://127.0.0.1:1"\naccount = "a"\nsecret_file = %s\n'),
    "broker[1].data": ("topology", TOPOLOGY + b'[[broker]]\nname = "a"\nnumber = 1\nlisten = ["mqtt://127.0.0.1:1"]\ndata = %s\n'),
    "allow[1].ca": ("policy", b'[[allow]]\nclients = ["*"]\nremotes = ["*"]\nca = %s\n'),
}


def _refused(kind: str, data: bytes, folder: Path, *words: str) -> None:
    file = folder / "file"
    file.write_bytes(data)
    assert check(kind, data, folder).endswith("refused")
    with pytest.raises(Exception) as caught:
        READERS[kind](file)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("kind", ["broker", "topology", "policy", "services"])
@pytest.mark.parametrize(
    "data", [b"x = " + b"9" * 5000, b"x = " + b"[" * 5000, b"\nx = " + b"{a=" * 3000], ids=["figures", "lists", "tables"]
)
def test_what_toml_cannot_hold_is_refused_as_a_file(kind: str, data: bytes, tmp_path: Path) -> None:
    _refused(kind, data, tmp_path, "is not TOML")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("text", "words"), [(b'"a\\u0000b"', "no zero byte"), (b'"~nobody-is-here/x"', "without ~")], ids=["zero", "home"])
def test_a_path_that_is_none_is_refused_with_its_key(place: str, text: bytes, words: str, tmp_path: Path) -> None:
    kind, data = PLACES[place]
    _refused(kind, data % text, tmp_path, place, words)


@pytest.mark.parametrize("place", ["access.users", "access.tokens.key", "metabroker.password_file", "directory.secret_file", "allow[1].ca"])
def test_a_path_too_long_for_a_file_is_refused(place: str, tmp_path: Path) -> None:
    kind, data = PLACES[place]
    _refused(kind, data % (b'"' + b"x" * 70_000 + b'"'), tmp_path, place)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("topology", TOPOLOGY + b'[[broker]]\nname = "a"\nnumber = 1\nlisten = ["~\\u0000"]\n'),
        ("broker", FIRST + b'listen = ["a\\nb"]\n'),
        ("broker", FIRST + b"x" * 70_000 + b" = 1\n"),
        ("broker", FIRST + b"a." * 900 + b"a = 1\n"),
        ("broker", FIRST + b"number = 0x" + b"f" * 5000 + b"\n"),
        ("broker", FIRST + b"number = " + b"[" * 450 + b"]" * 450 + b"\n"),
        ("broker", FIRST + b"number = " + b"{a = " * 220 + b"1" + b"}" * 220 + b"\n"),
        ("policy", b"[limits]\nsessions = 0x" + b"f" * 5000 + b"\n"),
    ],
)
def test_an_error_is_one_short_line_whatever_stands_in_the_file(kind: str, data: bytes, tmp_path: Path) -> None:
    _refused(kind, data, tmp_path)


def test_the_examples_are_good(tmp_path: Path) -> None:
    furnish(tmp_path)
    for kind, data in examples():
        assert check(kind, data, tmp_path) in (f"{kind}: taken",), (kind, data[:200])


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files(seed: int) -> None:
    outcomes = round_of(seed)
    assert sum(count for outcome, count in outcomes.items() if outcome.endswith("taken")) > 5
    assert outcomes["broker: a key refused"] > 5


def test_the_files_of_a_seed_are_the_same() -> None:
    assert [damaged(random.Random(seed)) for seed in range(5)] == [damaged(random.Random(seed)) for seed in range(5)]


def test_what_is_written_is_toml() -> None:
    assert written({"a\n": ['é"', 1, True, {"b": 1.5}]}) == '"a\\u000a" = ["é\\u0022", 1, true, {"b" = 1.5}]\n'
