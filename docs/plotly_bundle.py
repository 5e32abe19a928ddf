"""Make `workbench/web/assets/plotly.js`, a bundle of plotly.js with only the trace types that the dashboard draws.

    python docs/plotly_bundle.py     # needs npm and the registry

The whole of plotly.js has 4.8 MB, and compiling it took more than half of the CPU time that a page needs in the
browser. The bundle is kept in the repository, because users may have no npm. Dash loads its own plotly.js only if the
page has not loaded any.
"""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from plotly.offline import get_plotlyjs_version

_BUNDLE = Path(__file__).parents[1] / "workbench" / "web" / "assets" / "plotly.js"
TRACES = ("bar", "heatmap", "icicle", "scatter", "waterfall")
"""The kinds of traces in the bundle. plotly.js draws any other as a scatter chart, without an error."""
_ESBUILD = "0.28.2"
_HEADER = re.compile(r"/\* plotly\.js (\S+) with the traces (.*)\n")


def bundled() -> tuple[str, tuple[str, ...]]:
    """Return the version of plotly.js in the bundle and its trace types, read from the first line of the bundle."""
    with _BUNDLE.open(encoding="utf-8") as lines:
        header = _HEADER.match(lines.readline())
    if header is None:
        raise ValueError(f"{_BUNDLE} does not begin with what it holds")
    return header[1], tuple(header[2].split(", "))


def source() -> str:
    """Return the JavaScript program that the bundler starts from; plotly's core already draws scatter traces."""
    traces = ", ".join(f'require("plotly.js/lib/{name}")' for name in TRACES if name != "scatter")
    return f'const Plotly = require("plotly.js/lib/core");\nPlotly.register([{traces}]);\nmodule.exports = Plotly;\n'


def build(folder: Path, version: str) -> str:
    """Return the bundle of a version of plotly.js as JavaScript text; packages are installed into `folder`.

    Raises:
        CalledProcessError: npm or esbuild failed; it has printed the reason.
    """
    (folder / "program.js").write_text(source())
    packages = [f"plotly.js@{version}", f"esbuild@{_ESBUILD}"]
    npm = ["npm", "install", "--prefix", ".", "--ignore-scripts", "--no-audit", "--no-fund", *packages]
    subprocess.run(npm, cwd=folder, check=True)
    options = ["--bundle", "--minify", "--global-name=Plotly", "--define:global=window", "--define:define.amd=false"]
    esbuild = [str(folder / "node_modules" / ".bin" / "esbuild"), "program.js", *options, "--outfile=bundle.js"]
    subprocess.run(esbuild, cwd=folder, check=True)
    licence = (folder / "node_modules" / "plotly.js" / "LICENSE").read_text()
    header = f"/* plotly.js {version} with the traces {', '.join(TRACES)}\n\n{licence.strip()}\n*/\n"
    return header + (folder / "bundle.js").read_text(encoding="utf-8")


def main() -> None:
    if shutil.which("npm") is None:
        raise SystemExit("npm is not installed")
    with tempfile.TemporaryDirectory() as folder:
        _BUNDLE.write_text(build(Path(folder), get_plotlyjs_version()), encoding="utf-8")
    print(_BUNDLE, f"{_BUNDLE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
