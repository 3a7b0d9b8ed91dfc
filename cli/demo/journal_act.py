"""The demo's last act: Spark over the journal that the brokers have just written.

It begins when the brokers have ended, so that their journals are closed. It shows one message's whole way, the traffic between the sites as
a picture, and the faults that the journal knows beside what the demo did. The pictures stay; their paths are printed.

The act needs the extras `journal`, `spark` and `java`; without them, or with --no-spark, no journal is written and the act is left out.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.extras import install

if TYPE_CHECKING:
    from ...broker.journal.settings import JournalSettings

JOBS = ("messages", "traffic", "faults", "usage", "audit")
PATIENCE = 600.0  # seconds for all jobs
EARLY = 0.3  # seconds that a fault may seem to begin before the demo did it
NEEDED = {"pyarrow": "journal", "pyspark": "spark"}  # library -> extra
PICTURES = ("traffic-matrix.svg", "traffic.svg", "message.svg")


@dataclass(frozen=True, slots=True)
class KnownFault:
    """A fault as the journal shows it. at: seconds since traffic began. lasted, noticed: seconds; None: it has no end, or nobody noticed.

    did: what the demo did at that time; "": nothing.
    """

    what: str
    at: float
    lasted: float | None
    noticed: float | None
    did: str = ""


@dataclass(slots=True)
class JournalResult:
    """The result of the act.

    skipped: why it was left out; "": it was not. seconds: of all jobs. messages: in the journal, by whether they are complete.
    story: one message's way, as lines. pictures: their paths.
    """

    skipped: str = "the demo ended before"
    seconds: float = 0.0
    events: int = 0
    messages: dict[str, int] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)
    faults: list[KnownFault] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)
    failed: str = ""

    def problems(self) -> list[str]:
        return [self.failed] if self.failed else []


def missing() -> str:
    """Why the act cannot be played; "": it can."""
    for library, extra in NEEDED.items():
        if find_spec(library) is None:
            return f"{library} is not installed: {install(extra)}"
    return ""


def settings(folder: Path) -> JournalSettings:
    """The table `[journal]` of the demo's brokers: one journal for all, in full."""
    from ...broker.journal.settings import JournalSettings

    return JournalSettings(str(folder / "journal"))


class JournalAct:
    """Plays the act. folder: of the demo's files. pictures: where pictures are kept. sites: number of a broker -> name.

    began: when traffic began, seconds since 1970. did: what the demo did, in seconds since then.
    """

    def __init__(
        self,
        folder: Path,
        pictures: Path,
        sites: Mapping[int, str],
        began: float,
        did: Iterable[tuple[float, str]],
        say: Callable[[str], None],
    ) -> None:
        self.journal, self.out, self.log = folder / "journal", folder / "tables", folder / "spark.log"
        self.pictures, self.sites, self.began, self.did, self.say = pictures, sites, began, list(did), say
        self.result = JournalResult("")

    def site(self, number: int) -> str:
        return self.sites.get(number, str(number))

    def run(self) -> JournalResult:
        """Run the jobs, and read what they made."""
        begin = time.monotonic()
        self.say(f"Spark starts, and runs {', '.join(jobs())} over the journal of these minutes")
        try:
            summary = self._pipeline()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.result.failed = f"the pipeline failed: {error}; see {self.log}"
            return self.result
        self.result.seconds = time.monotonic() - begin
        self.result.events = summary.get("events", 0) if isinstance(summary.get("events"), int) else 0
        from ...pipeline.errors import PipelineError

        try:
            self._messages()
            self._faults()
        except PipelineError as error:
            self.result.failed = f"the pipeline's tables: {error}"
        self._pictures()
        return self.result

    def _pipeline(self) -> dict[str, Any]:
        """The jobs, in a process of their own: Spark writes what it likes to its standard error. Raises ValueError."""
        command = [sys.executable, "-m", "mqmesh.cli.main", "pipeline", "run", *jobs(), "--json", "--master", "local[2]"]
        command += ["--journal", str(self.journal), "--out", str(self.out)]
        with self.log.open("w") as log:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=PATIENCE)
        if done.returncode:
            lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith("mqmesh: ")]
            raise ValueError(lines[-1].removeprefix("mqmesh: ") if lines else f"status {done.returncode}")
        found = json.loads(done.stdout)
        return found if isinstance(found, dict) else {}

    def _messages(self) -> None:
        """Count messages, and take one that went to every site by the shortest tree."""
        from ...broker.journal.kinds import MessageId
        from ...broker.journal.search import Query
        from ...pipeline.tables.tables import Tables
        from ...pipeline.trace import drawing, sources

        columns = ["origin", "origin_epoch", "stream", "sequence", "status", "forwards", "deliveries", "published"]
        rows = Tables(self.out).arrow("messages", columns).to_pylist()
        found = [row for row in rows if row["published"]]  # of the brokers' own messages only the end of custody is in the journal
        words = {1: "complete", 2: "not received everywhere", 3: "without an end", 4: "whose publication is not in the journal"}
        self.result.messages = {words[status]: count for status, count in sorted(Counter(row["status"] for row in found).items())}
        whole = [row for row in found if row["status"] == 1]
        if not whole:
            return
        best = len(self.sites) - 1  # copies of the best tree
        chosen = max(whole, key=lambda row: (-abs(row["forwards"] - best), row["deliveries"], -row["published"]))
        message = MessageId(*(chosen[name] for name in columns[:4]))
        gathered = sources.gather([sources.journal_at(str(self.journal))], Query(message=message))
        for story in gathered.stories():
            self.result.story = drawing.text(story, self.site).splitlines()
            self.pictures.mkdir(parents=True, exist_ok=True)
            (self.pictures / "message.svg").write_text(drawing.svg(story, self.site), encoding="utf-8")

    def _faults(self) -> None:
        """Faults of links, from the first to the last, beside what the demo did."""
        from ...pipeline.tables.tables import Tables

        if "faults" not in jobs():
            return
        for row in sorted(Tables(self.out).arrow("faults").to_pylist(), key=lambda row: row["began"]):
            self.result.faults.append(self._known(row))

    def _known(self, row: Mapping[str, Any]) -> KnownFault:
        def since(name: str) -> float | None:
            return (row[name] - row["began"]) / 1e6 if row[name] else None

        at = row["began"] / 1e6 - self.began
        subject = (
            f"link {self.site(row['a'])} - {self.site(row['b'])}" if row["what"] == "link" else f"{row['what']} at {self.site(row['a'])}"
        )
        did = [text for moment, text in self.did if moment <= at + EARLY]
        return KnownFault(subject, at, since("ended"), since("noticed"), did[-1] if did and at > 0 else "")

    def _pictures(self) -> None:
        """Keep the pictures."""
        for name in PICTURES:
            made = self.out / "reports" / name
            if made.exists():
                self.pictures.mkdir(parents=True, exist_ok=True)
                shutil.copy(made, self.pictures / name)
            if (self.pictures / name).exists():
                self.result.pictures.append(str(self.pictures / name))


def jobs() -> list[str]:
    """The act's jobs."""
    from ...pipeline.registry import JOBS as KNOWN

    return [name for name in JOBS if name in KNOWN]
