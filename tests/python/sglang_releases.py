"""Downloads the files of SGLang releases that the tests of the plug-in need.

    python tests/python/sglang_releases.py 0.5.12 0.5.23

It needs pip and a package index, and fills target/sglang. CI does not run it. Without the files,
`test_engine_sglang.py` runs fewer tests.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "target/sglang"
#: The plug-in framework, and the stream groups of multiplexing.
FILES = (
    "sglang/srt/plugins/__init__.py",
    "sglang/srt/plugins/hook_registry.py",
    "sglang/srt/multiplex/pdmux_context.py",
)


def fetch(version):
    with tempfile.TemporaryDirectory() as folder:
        download = ["download", "-q", "--no-deps", "--only-binary=:all:", "--python-version=3.12", "-d", folder]
        subprocess.run([sys.executable, "-m", "pip", *download, f"sglang=={version}"], check=True)
        (wheel,) = Path(folder).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            metadata = f"sglang-{version}.dist-info/METADATA"
            for name in (*FILES, metadata):
                archive.extract(name, FOLDER / version)


if __name__ == "__main__":
    for version in sys.argv[1:]:
        fetch(version)
        print(FOLDER / version)
