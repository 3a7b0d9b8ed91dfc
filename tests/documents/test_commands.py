"""What the documents say to paste into a shell is pasted: the blocks of a page in their order, at brokers on other ports.

A scene says what has to be there before (`setup`), and how a block differs from what people type (`edits`): programs that run until
Ctrl-C go on in the background, names of machines are this one. Each command has to end with status 0; 27 is the end of a time that
the page gives; `|| true` stands behind what says no on the page too.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mqmesh.cli.demo.ring import free_ports
from support.documents import BLOCK, BLOCKS, PAGES, ROOT, Block, of
from support.peers.postgres import server
from support.services import require
from support.terminal import Terminal

PRELUDE = """
set -E
trap 's=$?; [ $s = 27 ] || echo "wrong: $BASH_COMMAND: $s"' ERR
printing() {  # in the background, once it has printed a line such as this
  local what="$1" out; out=$(mktemp -p .); shift
  "$@" > $out 2>&1 &
  grep -m1 "$what" <(tail -n +1 -f --pid=$! $out) || cat $out
}
mqmesh() {  # those that run until Ctrl-C go on; others ask the scene's broker, where the page means the one at 127.0.0.1:1883
  case " $* " in
    " broker "*|" up "*|" directory serve "*|" metabroker "*|" attach "*) printing '^ready' command mqmesh "$@";;
    *" --watch "*) printing . command mqmesh "$@" -h "$HERE"; kill %%;;
    *" -h "*|*" -p "*|*" archive "*) command mqmesh "$@";;
    " queue "*|" recipients "*|" sessions "*|" clients "*|" retained "*|" routes "*|" links "*|" manage "*|" sub "*|" pub "*)
      command mqmesh "$@" -h "$HERE";;
    *) command mqmesh "$@";;
  esac
}
"""
PORTS = ("1883", "1884", "8090", "8883", "9883", "18301", "18302", "18303", "18304", "18305")
ELSEWHERE = {  # page and section -> the test that runs its commands
    ("README.md", "Start"): ".ci",
    ("README.md", "A first program"): "tests/walks/test_first_program.py",
    ("CONTRIBUTING.md", ""): ".ci",
    ("docs/billing.md", ""): "tests/cli/billing",
    ("docs/conformance.md", ""): "tests/conformance",
    ("docs/embedding.md", ""): "tests/broker/test_embedding.py",
    ("docs/metabroker-security.md", ""): "tests/metabroker/shell/test_access_rules.py",
    ("docs/metabroker.md", "Run it"): "tests/cli/test_docs_commands.py",
    ("docs/directory.md", "Five minutes"): "tests/cli/test_docs_commands.py",
    ("docs/directory.md", "Leases"): "tests/cli/test_docs_commands.py",
    ("docs/interchange-http.md", "Beside a broker"): "tests/cli/test_interchange_serve.py",
    ("docs/from-mosquitto.md", ""): "tests/walks/test_from_mosquitto.py",
    ("docs/three-sites.md", ""): "tests/walks/test_three_sites.py",
    ("docs/operations.md", "When something is wrong"): "tests/walks/test_fault_at_night.py",
    ("docs/attach.md", ""): "tests/walks/test_attach.py",
}


@dataclass(frozen=True, slots=True)
class Scene:
    """places: (page, section) whose blocks are pasted, "" for all sections. said: what is printed, among other things."""

    places: tuple[tuple[str, str], ...]
    setup: str = ""
    edits: dict[str, str] = field(default_factory=dict)
    said: tuple[str, ...] = ()

    @property
    def blocks(self) -> list[Block]:
        return [one for page, section in self.places for one in of("sh", page, section)]


SITE = """
name = "{name}"
data = "{name}"
number = {number}
listen = [{listen}]
[access]
users = "users"
[management]
accept = ["*"]
[[management.role]]
role = "administrator"
users = ["ops"]
sites = ["*"]
[mesh]
name = "sites"
key = "a secret of 16 bytes or more"
"""
PORTO = (
    SITE.format(name="porto", number=1, listen='"mqtt://127.0.0.1:1883"')
    + """
[http]
listen = "http://127.0.0.1:9883"
[recipients]
[[recipients.application]]
name = "orders"
"""
)
LYON = (
    SITE.format(name="lyon", number=2, listen='"mqtt://127.0.0.1:1884"')
    + """
[[mesh.peer]]
address = "mqtt://127.0.0.1:1883"
"""
)
FOLLOW = (
    "until [ -s followed ]; do mqmesh pub -t shop/2 -m y; done & "
    "printing . command mqmesh journal follow journal > followed; kill %%; cat followed "
)
POSTGRES = "a PostgreSQL server of this test"
FIVE = f"cat > five.toml <<'END'\n{(ROOT / 'topologies' / 'ring-of-five.toml').read_text()}\nEND\n"  # at other ports
SCENES = {
    "five brokers": Scene(
        places=(("docs/operations.md", "Look"), ("docs/monitoring.md", "")),
        setup=f"{FIVE}mqmesh up five.toml --data data",
        edits={
            "-p 1883 -t '$SYS": "-p 18301 -t '$SYS",
            "jq -r '.problems[]'": "python3 -m json.tool",
        },
        said=("[*porto 1]", "number 1 of mesh ring-of-five"),
    ),
    "users and rules": Scene(
        places=(("docs/security.md", "Users and rules"), ("docs/security.md", "TLS")),
        edits={
            "passwd users alice": "passwd users alice --stdin <<< secret",
            "passwd users bob": "passwd users bob --stdin <<< secret",
            "people/bob/notes --config broker.toml": "people/bob/notes --config broker.toml || true",
            "mqmesh broker --config broker.toml": "mqmesh broker --config broker.toml; kill %%; wait %%",
            "mqmesh cert --broker porto --out tls\n": "rm -r tls; mqmesh cert --broker porto --out tls\n",
            "mqtts://127.0.0.1 ": "mqtts://127.0.0.1:8883 ",
            "-t '#' -v": "-t '#' -v -c -i x -E",
        },
    ),
    "a journal": Scene(
        places=(("docs/journal.md", "Look through it"), ("docs/trace.md", "")),
        setup="""
            printf 'listen = ["mqtt://127.0.0.1:1883"]\\ndata = "data"\\n[journal]\\nfolder = "journal"\\n' > broker.toml
            mqmesh broker -c broker.toml
            mqmesh pub -i sensor-17 -t shop/1 -m x -q 1
            until ID=$(mqmesh journal cat journal | grep -o '0[.]1[0-9]*[.]2[.]1'); do :; done
        """,
        edits={
            "mqmesh journal follow journal ": FOLLOW,
            "1.1763850000000.1.42 --journal /var/lib/mqmesh/journal": "$ID --journal journal",
            "1:1763850000000:42 --journal s3://porto/journal --journal s3://lyon/journal": "$ID --journal journal --journal journal",
            "--since 10min --journal /var/lib/mqmesh/journal": "--since 10min --journal journal",
            "--tables s3://lake/mqmesh --journal s3://lake/journal --json": "--journal journal --json || true",
        },
    ),
    "two sites and their operators": Scene(
        places=(("docs/management.md", ""), ("docs/operations.md", "Abandoned sessions"), ("docs/operations.md", "Recipients")),
        setup=f"""
            mqmesh passwd users ops --stdin <<< secret
            cat > porto.toml <<END\n{PORTO}\nEND
            cat > lyon.toml <<END\n{LYON}\nEND
            mqmesh broker -c porto.toml
            printing link-up command mqmesh broker -c lyon.toml
            HERE=mqtt://ops:secret@127.0.0.1:1883
            mqmesh sub -h mqtt://ops:secret@127.0.0.1:1883 -t x -q 1 -i sensor-17 -c -E
            printing SUBACK mqmesh sub -h mqtt://ops:secret@127.0.0.1:1884 -t x -i sensor-17 -d
        """,
        edits={
            "mosquitto_rr ": "mosquitto_rr -p 1883 -u ops -P secret ",
            "-h unix:///run/mqmesh.sock": "",
            "-P ...": "-P secret",
            "-h mqtt://porto.example.com:1883": "-h mqtt://ops:secret@127.0.0.1:1883",
        },
        said=("is disconnected", "a message for it goes to orders"),
    ),
    "certificates": Scene(
        places=(("docs/topologies.md", "With TLS"), ("docs/operations.md", "Certificates"), ("docs/topologies.md", "On many machines")),
        setup=f"cat > sites.toml <<'END'\n{of('toml', 'docs/topologies.md', 'With TLS')[0].text}\nEND\n",
        edits={"mqmesh up sites.toml": "mqmesh up sites.toml --data sites", "--out sites": "--out machines"},
    ),
    "a store": Scene(
        places=(("docs/store.md", ""),),
        setup="""
            printf 'name = "porto"\\nlisten = ["mqtt://127.0.0.1:1883"]\\ndata = "data"\\n' > porto.toml
            mqmesh broker -c porto.toml
            mqmesh pub -t plant/1/state -m running -r -q 1
            kill %%; wait %% || true
        """,
    ),
    "queues": Scene(
        places=(("docs/queues.md", ""), ("docs/queue-stores.md", "")),
        setup=f"""
            cat > porto.toml <<'END'\n{of("toml", "docs/queues.md")[0].text.replace("]", ', "unix:///run/mqmesh.sock"]', 1)}\nEND
            mqmesh broker -c porto.toml
            HERE=unix:///run/mqmesh.sock
            seq -f 'order %g' 30 | mqmesh pub -t '$queue/orders' -q 1 -l
        """,
        edits={
            "-h lyon.example -V": "-V",
            "-h turin.example -V": "-V",
            "mosquitto_pub ": "mosquitto_pub -p 1883 ",
            "mosquitto_sub ": "mosquitto_sub -p 1883 ",
            "-i worker-1 ": "-i worker-1 -C 1 ",
            "-i worker-4": "-i worker-4 -C 1",
            "/alerts'": "/alerts' -W 1",
            "withdraw orders 17 ": "withdraw orders 18 ",
            "reveal orders 17 ": "reveal orders 19 || true ",
            "expire orders 17 ": "expire orders 20 ",
            "priority orders 17 9": "priority orders 21 9",
            "again orders 17 worker-1 ": "again orders 1 worker-1 || true ",
            "declare orders ": "declare invoices ",
            "move orders ": "move invoices ",
            "delete orders ": "delete invoices --dry-run ",
            "dead_letters=orders-dead age": "age",
        },
        said=("order 1\n",),
    ),
    "a directory": Scene(
        places=(("docs/directory.md", "Applications"), ("docs/directory.md", "Brokers")),
        setup="""
            export MQMESH_DIRECTORY_ACCOUNT=plant-a MQMESH_DIRECTORY_URL=http://127.0.0.1:8090
            export MQMESH_DIRECTORY_SECRET=$(mqmesh directory account plant-a --organisation acme)
            printing ^ready mqmesh directory serve --listen 127.0.0.1:8090
            mqmesh directory import topologies/ring-of-five.toml
        """,
        said=("name=porto number=1", "name=lyon number=2"),
    ),
    "a metabroker": Scene(
        places=(
            ("docs/metabroker.md", "As a process"),
            ("docs/metabroker.md", "Look"),
            ("docs/metabroker-protocol.md", "With nothing but mosquitto_pub and mosquitto_rr"),
        ),
        setup="""
            printf '[services]\\nweather = ["mqtt://127.0.0.1:1884"]\\n' > services.toml
            printf '[[allow]]\\nclients = ["*"]\\nremotes = ["mqtt://127.0.0.1:1884"]\\npublish = ["demo/#"]\\n' > policy.toml
            export HOME=$PWD session=none
            mqmesh broker -p 1884
            mqmesh broker -p 1883
        """,
        edits={"mosquitto_pub ": "mosquitto_pub -p 1883 ", "services.toml\n": "services.toml\n"},
        said=("published through session", '"up":true'),
    ),
    "metabrokers with one database": Scene(
        places=(("docs/metabroker.md", "Several metabrokers"),),
        setup="""
            printf '[[allow]]\\nclients = ["*"]\\nremotes = ["mqtt://127.0.0.1:1884"]\\n' > policy.toml
            export HOME=$PWD
            mqmesh broker -p 1883 > /dev/null
        """,
        edits={"mqtt://127.0.0.1 ": "mqtt://127.0.0.1:1883 ", "postgresql://mqmesh@db.example/mqmesh": POSTGRES},
        said=("ready mqtt://127.0.0.1:",),
    ),
    "rules": Scene(
        places=(("docs/interchange-rules.md", "Try it"),),
        setup=f"cat > services.toml <<'END'\n{of('toml', 'docs/interchange-rules.md')[0].text}\n"
        '[services."map/ids"]\n[services."score/credit"]\nEND\n',
        said=('score/credit (visible ["body"]) -> bank/credit',),
    ),
    "an interchange": Scene(
        places=(
            ("docs/interchange.md", "A first request"),
            ("docs/interchange.md", "From the command line"),
            ("docs/interchange-sessions.md", ""),
        ),
        setup="".join(
            f"cat > {name}.toml <<'END'\n{of('toml', 'docs/interchange.md', 'A first request')[number].text}\nEND\n"
            for number, name in enumerate(("porto", "services"))
        ),
        edits={
            "mosquitto_rr ": "mosquitto_rr -p 1883 ",
            "mosquitto_pub ": "mosquitto_pub -p 1883 ",
            "mosquitto_sub ": "mosquitto_sub -p 1883 ",
            "interchange post ": "interchange post -p 1883 ",
            "interchange poll ": "interchange poll -p 1883 ",
        },
        said=("sender:shop/orders", "sender:bank/credit", "credit granted", '"status":"answered"', "rows whole", '"handle": "order-17"'),
    ),
    "an interchange over HTTP": Scene(
        places=tuple(("docs/interchange-http.md", one) for one in ("A first request", "To post", "CloudEvents")),
        setup="".join(
            f"cat > {name}.toml <<'END'\n{of('toml', 'docs/interchange-http.md', 'A first request')[number].text}\nEND\n"
            for number, name in enumerate(("porto", "services"))
        ),
        said=('"body":"credit granted"', '"unknown":[]', '"source":"shop/orders"'),
    ),
    "services in a directory": Scene(
        places=(("docs/interchange.md", "Services in a directory"),),
        setup=f"cat > services.toml <<'END'\n{of('toml', 'docs/interchange.md', 'A first request')[1].text}\nEND\n"
        "export MQMESH_DIRECTORY_URL=http://127.0.0.1:8090\n",
        edits={"mqmesh directory serve": "mqmesh directory serve --listen 127.0.0.1:8090"},
        said=("registered 1 service", '"revision": 1', '"users"'),
    ),
}


@pytest.mark.service
@pytest.mark.parametrize("name", SCENES)
def test_commands_do_what_the_page_says(name: str, tmp_path: Path) -> None:
    scene = SCENES[name]
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))

    def moved(text: str) -> str:
        text = text.replace("/var/lib/mqmesh", f"{tmp_path}/data").replace("/run/mqmesh.sock", f"{tmp_path}/mqmesh.sock")
        return re.sub(rf"\b({'|'.join(PORTS)})\b", lambda found: ports[found[0]], text)

    text = "\n".join(block.text for block in scene.blocks)
    for wanted, given in scene.edits.items():
        assert wanted in text, f"no longer on the page: {wanted}"
        text = text.replace(wanted, given)
    for tool in ("curl", "mosquitto_pub", "mosquitto_rr"):
        if tool.partition("_")[0] in text:
            require(tool)
    with contextlib.ExitStack() as services:
        if POSTGRES in text:
            text = text.replace(POSTGRES, services.enter_context(server()).url)
        said = pasted(tmp_path, moved(f"{PRELUDE}\nHERE=mqtt://127.0.0.1:1883\n{scene.setup}\n{text}"))
    assert "wrong: " not in said, said
    for words in scene.said:
        assert words in said, (words, said)


def pasted(folder: Path, text: str) -> str:
    """What is printed until the commands have ended."""
    terminal = Terminal(folder)
    try:
        terminal.paste(f"{text}\necho; echo all have ended\n")
        terminal.wait("^all have ended")
        return "".join(terminal.said)
    finally:
        terminal.close()


def test_each_block_of_commands_is_run_or_marked() -> None:
    run = {str(block) for scene in SCENES.values() for block in scene.blocks}
    run |= {str(block) for page, section in ELSEWHERE for block in of("sh", page, section)}
    assert [str(block) for block in BLOCKS if block.language == "sh" and block.mark is None and str(block) not in run] == []
    assert [test for test in ELSEWHERE.values() if not (ROOT / test).exists()] == []
    assert len([block for block in BLOCKS if block.mark is not None]) <= 10


def test_commands_stand_in_blocks_that_name_their_language() -> None:
    programs = re.compile(r"^ *(mqmesh|mosquitto_\w+|curl|python|make) ", re.MULTILINE)
    assert [str(block) for block in BLOCKS if block.language in ("", "text") and programs.search(block.text)] == []
    for page in PAGES:
        text = BLOCK.sub("", page.read_text())
        assert re.findall(r"\n\n    (?:mqmesh|mosquitto_\w+|curl|python|make) .*", text) == [], page.name
