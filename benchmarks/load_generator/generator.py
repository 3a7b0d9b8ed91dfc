"""The load generator: one process that makes one measurement.

echo SPEC | python -m benchmarks.load_generator.generator        (SPEC and the result are JSON objects on one line)
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from benchmarks.load_generator import latency, stored, wire
from benchmarks.load_generator.load import Load
from benchmarks.load_generator.one_in_flight import OneInFlight
from benchmarks.spec import Result, Spec


def generate(spec: Spec) -> Result:
    """Run one measurement; a broker that misbehaves ends it with `error` set."""
    try:
        if spec.kind == "latency":
            return latency.measure(spec)
        load = OneInFlight(spec) if spec.kind == "one-in-flight" else Load(spec)
        try:
            return stored.measure(load) if spec.kind == "stored" else load.run()
        finally:
            load.close()
    except (wire.WireError, OSError, ValueError) as error:
        return Result(error=f"{type(error).__name__}: {error}")


def main() -> None:
    """Read a Spec from standard input, write a Result to standard output."""
    spec = Spec(**json.loads(sys.stdin.read()))
    print(json.dumps(asdict(generate(spec))), flush=True)


if __name__ == "__main__":
    main()
