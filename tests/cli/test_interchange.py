"""`mqmesh interchange explain`: why a message goes where it goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mqmesh.cli.main import app
from typer.testing import CliRunner

SERVICES = """
[services."shop/orders"]
[[services."shop/orders".rules]]
role = "out"
when = {header = "recipients", equals = "bank/credit"}
then = [{include = "map/ids", arguments = {to = "bank"}}]
[services."bank/credit"]
[[services."bank/credit".rules]]
name = "large"
when = {and = [{json = "$.amount", greaterThan = 1000}, {not = {json = "$.vip", exists = true}}]}
then = [{include = "score/credit", visible = ["body"]}]
[[services."bank/credit".rules]]
name = "none"
when = {json = "$.amount", lessThan = 1}
then = [{reject = "give more"}]
[services."map/ids"]
[services."score/credit"]
"""


def run(tmp_path: Path, message: str, *options: str, name: str = "message.json") -> tuple[int, str]:
    (tmp_path / "services.toml").write_text(SERVICES)
    (tmp_path / name).write_text(message)
    arguments = ["interchange", "explain", str(tmp_path / name), "--services", str(tmp_path / "services.toml"), *options]
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


def message(amount: int) -> str:
    return json.dumps({"kind": "request", "sender": "shop/orders", "recipients": ["bank/credit"], "body": {"amount": amount}})


def test_it_says_what_each_comparison_found_and_the_route(tmp_path: Path) -> None:
    status, text = run(tmp_path, message(5000))
    assert status == 0
    assert "yes  json $.amount greaterThan 1000: 5000" in text
    assert "no   json $.vip exists: not there" in text
    assert text.splitlines()[-1] == 'to bank/credit: map/ids (arguments {"to": "bank"}) -> score/credit (visible ["body"]) -> bank/credit'


def test_a_refusal_has_its_reason(tmp_path: Path) -> None:
    status, text = run(tmp_path, message(0))
    assert (status, text.splitlines()[-1]) == (1, "to bank/credit: refused: rejected: bank/credit: give more")


def test_as_json_and_of_toml(tmp_path: Path) -> None:
    text = 'kind = "request"\nsender = "shop/orders"\nrecipients = ["bank/credit"]\nbody = {amount = 5}\n'
    status, shown = run(tmp_path, text, "--json", name="message.toml")
    found = json.loads(shown)
    assert status == 0
    assert [rule["holds"] for rule in found["services"][-1]["rules"]] == [False, False]
    assert [one["service"] for one in found["routes"][0]["deliveries"]] == ["map/ids", "bank/credit"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON"),
        ("[1]", "no JSON object"),
        ('{"kind": "request"}', "sender"),
        (message(5).replace("shop/orders", "x/y"), "no service x/y"),
    ],
)
def test_a_message_that_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    status, shown = run(tmp_path, text)
    assert status == 2
    assert words in shown
