"""Find a Chromium for the browser tests, or install one: `python -m tests.browser.chromium`.

A browser of the system comes first, then Debian's package (only as root), then the one inside the npm package
`@sparticuz/chromium`, which is put into `.peers/chromium` with the libraries that it needs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent.parent / ".peers" / "chromium"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGE = "@sparticuz/chromium@>=130"
INSTALL_SECONDS = 600
MISSING = "NO BROWSER: the browser tests are skipped. `make browser` installs one, or set CHROMIUM=/path/to/chromium"

UNPACK = """
import { createWriteStream, createReadStream } from "node:fs";
import { pipeline } from "node:stream/promises";
import { createBrotliDecompress } from "node:zlib";
const [from, to] = process.argv.slice(1);
await pipeline(createReadStream(from), createBrotliDecompress(), createWriteStream(to, { mode: 0o755 }));
"""


def find() -> Path | None:
    """The browser to use, or None."""
    if named := os.environ.get("CHROMIUM"):
        return Path(named) if Path(named).exists() else None
    for name in NAMES:
        if found := shutil.which(name):
            return Path(found)
    own = FOLDER / "chromium"
    return own if own.exists() else None


def environment() -> dict[str, str]:
    """The environment to start it with: the one of `.peers/chromium` brings libraries that a small machine lacks."""
    libraries = FOLDER / "lib"
    if find() != FOLDER / "chromium" or not libraries.exists():
        return dict(os.environ)
    path = os.pathsep.join(filter(None, [os.environ.get("LD_LIBRARY_PATH"), str(libraries)]))
    return {**os.environ, "LD_LIBRARY_PATH": path}


def _run(*command: str, cwd: Path | None = None) -> bool:
    try:
        done = subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=INSTALL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def install_debian() -> bool:
    """Debian's package, where that is possible without asking for a password."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    install = ("apt-get", "install", "--yes", "--no-install-recommends", "chromium")
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    return _run(*install) or (_run("apt-get", "update") and _run(*install))


def install_npm() -> bool:
    """The browser inside an npm package, unpacked into `.peers/chromium`."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        return False
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not _run("npm", "install", "--no-save", "--no-audit", "--no-fund", "--prefix", str(FOLDER), PACKAGE):
        return False
    packed = FOLDER / "node_modules" / "@sparticuz" / "chromium" / "bin"
    libraries = FOLDER / "libraries.tar"
    node = ("node", "--input-type=module", "-e", UNPACK)
    if _run(*node, str(packed / "al2023.tar.br"), str(libraries)):
        _run("tar", "-xf", str(libraries), "-C", str(FOLDER))
        libraries.unlink(missing_ok=True)
    partial = FOLDER / "chromium.partial"
    if not _run(*node, str(packed / "chromium.br"), str(partial)):
        return False
    partial.rename(FOLDER / "chromium")
    shutil.rmtree(FOLDER / "node_modules")
    return True


def main() -> None:
    found = find()
    if found is None:
        print("installing a browser for the tests (once) ...", flush=True)
        found = find() if install_debian() or install_npm() else None
    print(f"browser: {found}" if found else MISSING, file=sys.stdout if found else sys.stderr)


if __name__ == "__main__":
    main()
