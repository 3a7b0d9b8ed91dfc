"""Make the zip for `spark-submit --py-files`: python packaging/spark/bundle.py mqmesh.zip

    spark-submit --master spark://host:7077 --py-files mqmesh.zip packaging/spark/submit.py run --journal ... --out ...

The zip holds mqmesh without what it depends on. The driver needs what the extra `spark` needs; the workers need pyarrow and pandas.
The same content gives the same bytes.
"""

from __future__ import annotations

import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOMENT = (1980, 1, 1, 0, 0, 0)  # of every file: the earliest that a zip knows


def bundle(target: Path) -> int:
    """Write the zip. Returns how many files it holds."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    files = sorted(path for package in packages for path in ROOT.joinpath(*package.split(".")[1:]).glob("*.py"))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            archive.writestr(
                zipfile.ZipInfo(f"mqmesh/{path.relative_to(ROOT).as_posix()}", MOMENT), path.read_bytes(), zipfile.ZIP_DEFLATED
            )
    return len(files)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".zip"):
        sys.exit("bundle.py: give the name of the zip, such as mqmesh.zip")
    print(f"{sys.argv[1]}: {bundle(Path(sys.argv[1]))} modules")
