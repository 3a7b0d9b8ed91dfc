"""`mqmesh pipeline` under spark-submit, which gives master, memory and settings. See bundle.py."""

from __future__ import annotations

import sys

from mqmesh.cli.main import app

if __name__ == "__main__":
    app(["pipeline", *sys.argv[1:]])
