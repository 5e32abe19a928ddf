"""Replace the CUDA libraries of a torch build, so that it can be tested without downloading gigabytes.

The registry has CUDA builds of most torch versions, but CPU builds of few. Importing a CUDA build loads its CUDA
libraries, although it calls none of them if no device is used. In the replacements each function returns an error, so
torch finds no device, and the CPU part works as usual.
"""

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path

NO_DEVICE = 100
"""The value of the CUDA error `cudaErrorNoDevice`."""
CUDA = re.compile(r"cuda|nvidia|triton")
SYSTEM = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1")


def install_without_cuda(place: Path, torch: str) -> None:
    """Install a torch version and the replacements for CUDA into an environment; `place` is its `bin` folder."""
    pip = (str(place / "python"), "-m", "pip", "install", "--quiet")
    subprocess.run([*pip, "--no-deps", f"torch=={torch}"], check=True)
    [packages] = place.parent.glob("lib/python*/site-packages")
    [installed] = distributions(name="torch", path=[str(packages)])
    wanted = [text for text in installed.requires or () if "extra ==" not in text and not CUDA.match(text)]
    subprocess.run([*pip, *wanted], check=True)
    write_stubs(packages / "torch" / "lib")


def write_stubs(folder: Path) -> None:
    """Write a replacement for each library that the libraries in the folder need and that does not exist."""
    libraries = sorted(folder.glob("*.so*"))
    missing = missing_libraries(libraries)
    symbols = missing_symbols(libraries)
    # Some libraries give their symbols no version, or not their own name: any library that is loaded may have those.
    other = min(missing)
    by_library: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for symbol, version in symbols.items():
        owner = next((name for name in missing if version and version.split(".so")[0] == name.split(".so")[0]), other)
        by_library[owner][symbol] = version
    for name in missing:
        write_stub(folder / name, by_library[name])


def missing_libraries(libraries: Iterable[Path]) -> set[str]:
    """Return the names of the libraries that these libraries need and that neither they nor the system provide."""
    needed = {
        name for path in libraries for name in re.findall(r"\(NEEDED\).*\[(.*)\]", printed("readelf", "-d", path))
    }
    present = {path.name for path in libraries}
    return {name for name in needed - present if system_path(name) is None}


def missing_symbols(libraries: Iterable[Path]) -> dict[str, str]:
    """Return {symbol: version} of the symbols that these libraries need and nothing defines; an empty version means
    none.
    """
    system = [path for name in SYSTEM if (path := system_path(name))]
    defined = {symbol for path in (*libraries, *system) for kind, symbol, _ in symbols_of(path) if kind not in "Uwv"}
    wanted = {symbol: version for path in libraries for kind, symbol, version in symbols_of(path) if kind == "U"}
    return {
        symbol: version
        for symbol, version in wanted.items()
        if symbol not in defined and not symbol.startswith(("Py", "_Py"))
    }


def symbols_of(library: Path) -> Iterable[tuple[str, str, str]]:
    """Yield (kind, name, version) of each dynamic symbol of a library."""
    for line in printed("nm", "-D", library).splitlines():
        kind, symbol = line.split()[-2:]
        name, _, version = symbol.partition("@")
        yield kind, name, version.lstrip("@")


def system_path(name: str) -> Path | None:
    """Return the path at which the linker finds a system library; None if there is none."""
    found = re.search(rf"^\s*{re.escape(name)} \(.*=> (.+)$", printed("/sbin/ldconfig", "-p"), re.MULTILINE)
    return Path(found[1]) if found else None


def printed(*words: str | Path) -> str:
    return subprocess.run([*map(str, words)], capture_output=True, text=True, check=True).stdout


def write_stub(library: Path, symbols: dict[str, str]) -> None:
    """Build a library whose functions all return an error."""
    functions = "\n".join(f".globl {name}\n{name}: mov ${NO_DEVICE}, %eax\nret" for name in symbols)
    versions: defaultdict[str, list[str]] = defaultdict(list)
    for name, version in symbols.items():
        versions[version].append(name)
    script = "\n".join(
        f"{version} {{ global: {'; '.join(names)}; }};" for version, names in versions.items() if version
    )
    source, map_file = library.with_suffix(".s"), library.with_suffix(".map")
    source.write_text(f'.text\n{functions}\n.section .note.GNU-stack,"",@progbits\n')
    map_file.write_text(script)
    options = [f"-Wl,--version-script={map_file}"] if script else []
    command = ["gcc", "-shared", "-nostdlib", "-o", str(library), str(source), f"-Wl,-soname,{library.name}", *options]
    subprocess.run(command, check=True)
    source.unlink()
    map_file.unlink()
