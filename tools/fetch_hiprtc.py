"""Fetches hipRTC, AMD's run-time compiler, from Debian's packages into a folder: ``python tools/fetch_hiprtc.py``.

Nothing of the system is changed and nobody need be root: apt works in a root of its own, where it checks Debian's
signature and each package's digest, and the packages are unpacked, not installed. The newest suite whose compiler
works here is taken. The folder then holds

    python        starts the Python that PTXRT_PYTHON names so that it finds these libraries; for PTXRT_HIPRTC_PYTHON
    rocm/lib      the libraries under the names that hip-python looks for
    root, libc    the unpacked packages; those of the C and C++ library apart
    record.json   what was fetched, and for which targets it compiles

and can be moved. It is complete or not there: all is done in a folder beside it, which is renamed at the end.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SUITES = ("experimental", "sid", "forky", "trixie")  # newest first
TARGETS = ("gfx90a", "gfx942", "gfx1100", "gfx950", "gfx1201")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

_INTO = Path(__file__).resolve().parents[1] / ".hiprtc"
_LAYOUT = 1  # of the folder; one of another layout is fetched anew
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_LIBC = ("libc6", "libgcc-s1", "libstdc++6")
_APT_SECONDS, _TRIAL_SECONDS = 1800, 120

# What the machine's own apt is told about its way to the mirror and the mirror's age holds here too.
_KEPT = re.compile(r"Acquire::(https?::proxy|Check-Valid-Until|Check-Date|Max-FutureTime)\b", re.IGNORECASE)

_LAUNCHER = """\
#!/bin/sh
# Starts the Python that PTXRT_PYTHON names (else python3) so that it finds AMD's libraries of this folder.
here=$(dirname -- "$(readlink -f -- "$0")")
python=$("${PTXRT_PYTHON:-python3}" -I -S -c 'import sys; print(sys.executable)') || exit
binary=$(readlink -f -- "$python")
# hip-python 10 looks in ROCM_PATH, 7 where the loader does.
export ROCM_PATH="$here/rocm"
libraries=$here/rocm/lib:$here/root/@LIBRARIES@
# The loader belongs to its C library. The fetched one serves programs of older systems; newer ones need their own.
loader=/lib64/ld-linux-x86-64.so.2
system=$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)
if [ "$(printf '%s\\n' "$system" @LIBC@ | sort -V | tail -n 1)" != "$system" ]; then
    libraries=$libraries:$here/libc/@LIBRARIES@
    loader=$here/libc/@LIBRARIES@/ld-linux-x86-64.so.2
fi
# After these come the folders that the loader knows by itself: those of ld.so.cache.
libraries=$libraries:$(dirname -- "$(dirname -- "$binary")")/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# Under the name `python` a virtual environment finds itself; $ORIGIN in `binary` is the place of the real file.
exec "$loader" --argv0 "$python" --library-path "$libraries" "$binary" "$@"
"""

# Exits with 0 if hipRTC makes a code object for the target; expf is from AMD's device libraries.
_TRIAL = """
import sys
from hip import hiprtc
def call(function, *arguments):
    error, *results = function(*arguments)
    if error != hiprtc.hiprtcResult.HIPRTC_SUCCESS:
        sys.exit(f"{function.__name__}: {error!r}")
    return results[0] if results else None
text = b'extern "C" __global__ void k(float* x) { x[threadIdx.x] = expf(x[threadIdx.x]); }'
program = call(hiprtc.hiprtcCreateProgram, text, b"trial.hip", 0, None, None)
call(hiprtc.hiprtcCompileProgram, program, 1, [b"--offload-arch=" + sys.argv[1].encode()])
code = bytearray(call(hiprtc.hiprtcGetCodeSize, program))
call(hiprtc.hiprtcGetCode, program, code)
sys.exit(0 if code.startswith(b"\\x7fELF") else "no code object")
"""


class FetchError(Exception):
    """What keeps this machine from fetching at all; the message says what to do."""


class SuiteError(FetchError):
    """What keeps one suite from being used; an older one may do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch unless it is there, print what there is, and return 0; 1 with the reason on stderr if nothing works."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", choices=SUITES, help="this one and no other (default: the newest that works)")
    parser.add_argument("--into", type=Path, default=_INTO, help="the folder to make (default: the checkout's .hiprtc)")
    parser.add_argument("--mirror", help="address of a Debian mirror (default: that of the machine's own apt sources)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that what is half-made is removed
    try:
        record = obtain(options.into.resolve(), options.suite, options.mirror)
    except (FetchError, OSError) as error:
        print(f"hipRTC was not fetched: {error}", file=sys.stderr)
        return 1
    print(describe(options.into, record))
    return 0


def obtain(into: Path, suite: str | None = None, mirror: str | None = None) -> dict[str, Any]:
    """Make the folder `into` unless it is there, from `suite` alone where given, and works.

    Returns its record. Raises FetchError if no suite can be used; a folder that was there is then left as it was.
    """
    check_python()
    into.parent.mkdir(parents=True, exist_ok=True)
    new, old = into.with_name(into.name + ".fetching"), into.with_name(into.name + ".replaced")
    with only_one(into):
        remove(new, old)  # of a process that was killed
        record = read_record(into)
        if record is None and into.exists() and any(into.iterdir()):
            raise FetchError(f"{into} was not made by this tool; move it away, or name another folder with --into")
        if record and record["layout"] == _LAYOUT and suite in (None, record["suite"]):
            if (fault := trial(into / "python", TARGETS[0])) is None:
                return record
            print(f"{into} does not work: {fault}", flush=True)
        check_machine()
        try:
            record = fetch_newest([suite] if suite else SUITES, mirror or own_mirror(), new)
            if into.exists():
                into.rename(old)
            new.rename(into)
        finally:
            remove(new, old)
        return record


def fetch_newest(suites: Sequence[str], mirror: str, new: Path) -> dict[str, Any]:
    """Make the folder `new` of the first of `suites` that can be used, and return its record."""
    skipped: dict[str, str] = {}
    for suite in suites:
        print(f"trying Debian's {suite} ...", flush=True)
        remove(new)
        try:
            record = {**fetch(suite, mirror, new), "skipped": skipped}
        except SuiteError as error:
            skipped[suite] = str(error)
            print(f"{suite} cannot be used: {error}", flush=True)
            continue
        (new / "record.json").write_text(json.dumps(record, indent=2) + "\n")
        return record
    raise FetchError("none of Debian's suites can be used:\n" + "\n".join(f"  {k}: {v}" for k, v in skipped.items()))


def fetch(suite: str, mirror: str, new: Path) -> dict[str, Any]:
    """Fetch, unpack and try one suite; return its record, without the key "skipped". Raises SuiteError."""
    started = time.monotonic()
    apt = AptRoot(new / "apt", suite, mirror)
    apt.run("apt-get", "update", "-qq")
    archives = apt.download(compiler_packages(apt.run("apt-cache", "pkgnames").split()))
    downloaded = sum(path.stat().st_size for path in archives)
    packages = unpack(archives, new)
    shutil.rmtree(apt.folder)
    library = link_libraries(new)
    write_launcher(new, packages["libc6"])
    faults = {target: trial(new / "python", target) for target in TARGETS}
    if fault := faults[TARGETS[0]]:
        raise SuiteError(f"its compiler does not work here: {fault}")
    (runtime,) = (name for name in packages if name.startswith("libamdhip64-"))
    return {
        "layout": _LAYOUT,
        "suite": suite,
        "rocm": upstream_version(packages[runtime]),
        "library": library,
        "targets": [target for target in TARGETS if faults[target] is None],
        "unsupported": {target: fault for target, fault in faults.items() if fault},
        "packages": packages,
        "downloaded_bytes": downloaded,
        "unpacked_bytes": sum(path.lstat().st_size for path in new.rglob("*")),
        "seconds": round(time.monotonic() - started, 1),
    }


def describe(into: Path, record: Mapping[str, Any]) -> str:
    """Say what was fetched, in lines for people."""
    lines = [
        f"hipRTC of ROCm {record['rocm']} ({record['library']}), Debian {record['suite']}, in {into}",
        f"  compiles for {', '.join(record['targets'])}",
        *(f"  does not compile for {target}: {fault}" for target, fault in record["unsupported"].items()),
        f"  {record['downloaded_bytes'] / 1e6:.0f} MB fetched, {record['unpacked_bytes'] / 1e6:.0f} MB unpacked, in"
        f" {record['seconds']:.0f} s: {', '.join(f'{name} {version}' for name, version in record['packages'].items())}",
        *(f"  {suite} could not be used: {fault}" for suite, fault in record["skipped"].items()),
        "make test and make demo find it by themselves; elsewhere say where it is:",
        f"  export PTXRT_HIPRTC_PYTHON={shlex.quote(str(into.resolve() / 'python'))}",
        "  ptxrt show group_norm_kernel --arch gfx1100",
    ]
    return "\n".join(lines)


def read_record(into: Path) -> dict[str, Any] | None:
    """Return the record of the folder; None where there is none, or another program's."""
    try:
        record = json.loads((into / "record.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return record if isinstance(record, dict) and "layout" in record else None


def remove(*folders: Path) -> None:
    """Remove the folders that are there."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def only_one(into: Path) -> Iterator[None]:
    """Keep other processes from making the same folder; they wait."""
    with open(into.with_name(into.name + ".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that fetches {into} ...", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def check_python() -> None:
    """Raise FetchError unless this Python has hip-python, through which the compiler is tried and used."""
    if importlib.util.find_spec("hip") is None:
        raise FetchError(f"{sys.executable} has no hip-python; install it there: pip install 'ptxrt[hip]'")


def check_machine() -> None:
    """Raise FetchError where AMD's libraries cannot run, or Debian's packages not be fetched."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise FetchError(f"AMD's libraries are for Linux on x86-64, this is {sys.platform} on {platform.machine()}")
    if missing := [name for name in ("apt-get", "apt-cache", "apt-config", "dpkg-deb") if not shutil.which(name)]:
        raise FetchError(f"{', '.join(missing)} not found; install the packages apt and dpkg (Debian, Ubuntu)")
    if not os.access(KEYRING, os.R_OK):
        raise FetchError(f"{KEYRING}, which checks Debian's signatures, is missing; install debian-archive-keyring")


def own_mirror() -> str:
    """Return the address of the Debian mirror that the machine's own apt uses; FetchError where it uses none."""
    if mirror := find_mirror(run("apt-get", "update", "--print-uris")):
        return mirror
    raise FetchError("the machine's apt sources have no Debian mirror; name one with --mirror (debian.org/mirror/list)")


def find_mirror(uris: str) -> str | None:
    """Return the first Debian mirror among the addresses that ``apt-get update --print-uris`` prints."""
    found = re.search(r"^'(\w+://[^/']+/debian)/+dists/", uris, re.MULTILINE)
    return found[1] if found else None


def compiler_packages(names: Sequence[str]) -> list[str]:
    """Choose hipRTC's packages of the newest ROCm among all of a suite's names; their dependencies bring the rest.

    Up to ROCm 5 hipRTC is inside the package of the HIP runtime. The device libraries are inside libamd_comgr.so.
    """
    numbers = [int(name.removeprefix("libamdhip64-")) for name in names if re.fullmatch(r"libamdhip64-\d+", name)]
    if not numbers:
        raise SuiteError("it has no package libamdhip64-N")
    newest = max(numbers)
    return [f"libamdhip64-{newest}", *sorted({f"libhiprtc{newest}", f"libhiprtc-builtins{newest}"} & set(names))]


class AptRoot:
    """An apt of its own in a folder: its sources, lists and packages, and no setting, key or lock of the system's."""

    def __init__(self, folder: Path, suite: str, mirror: str) -> None:
        self.folder = folder
        self.suite = suite
        self._archives = folder / "var/cache/apt/archives"
        for name in ("etc/apt", "var/lib/apt/lists/partial", "var/lib/dpkg", self._archives / "partial"):
            (folder / name).mkdir(parents=True)
        (folder / "var/lib/dpkg/status").touch()
        # What experimental has not is in sid.
        suites = (suite, "sid") if suite == "experimental" else (suite,)
        sources = [f"deb [signed-by={KEYRING}] {mirror} {name} main\n" for name in suites]
        (folder / "etc/apt/sources.list").write_text("".join(sources))
        kept = [line for line in run("apt-config", "dump").splitlines() if _KEPT.match(line)]
        (folder / "apt.conf").write_text("\n".join([*self._settings(), *kept, ""]))

    def _settings(self) -> list[str]:
        return [
            f'Dir "{self.folder}/";',  # the system's apt.conf.d, preferences and keys are out of sight
            f'Dir::State::status "{self.folder}/var/lib/dpkg/status";',
            'APT::Architecture "amd64";',
            'APT::Architectures "amd64";',
            'APT::Install-Recommends "false";',
            'APT::Sandbox::User "root";',  # the user _apt may not enter the folder
            'APT::Update::Error-Mode "any";',
            'Acquire::Languages "none";',
            'Acquire::Retries "3";',
            'Acquire::http::Timeout "30";',
            'Acquire::https::Timeout "30";',
            'Debug::NoLocking "true";',  # an ordinary user may not lock; `only_one` has
        ]

    def run(self, *command: str) -> str:
        """Run a command of apt's in this root, and return what it prints. Raises SuiteError."""
        return run(*command, APT_CONFIG=str(self.folder / "apt.conf"))

    def download(self, packages: Sequence[str]) -> list[Path]:
        """Fetch the packages and all that they depend on, and return the files. Raises SuiteError."""
        self.run("apt-get", "install", "-qq", "-y", "-t", self.suite, "--download-only", *packages)
        archives = sorted(self._archives.glob("*.deb"))
        if not archives:
            raise SuiteError("apt-get has copied no package; the address of a mirror on a disk begins with copy:")
        return archives


def run(*command: str, **environment: str) -> str:
    """Run a command and return what it prints; its errors are a SuiteError's message."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "LC_ALL": "C", **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_APT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SuiteError(f"{' '.join(command[:2])} has not ended within {_APT_SECONDS} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("E:")] or [last_words(done)]
        raise SuiteError(f"{' '.join(command[:2])}: {' '.join(errors)}")
    return done.stdout


def unpack(archives: Sequence[Path], new: Path) -> dict[str, str]:
    """Unpack each package into ``root``, or ``libc``; return the version of each."""
    packages = {}
    for archive in archives:
        name, version = run("dpkg-deb", "--show", "--showformat=${Package} ${Version}", str(archive)).split()
        run("dpkg-deb", "--extract", str(archive), str(new / ("libc" if name in _LIBC else "root")))
        packages[name] = version
    return packages


def link_libraries(new: Path) -> str:
    """Give the libraries the names that hip-python looks for, and return the real name of the one with hipRTC."""
    folder = new / "root" / _LIBRARIES
    links = new / "rocm" / "lib"
    links.mkdir(parents=True)
    runtime = next(folder.glob("libamdhip64.so.*"), None)
    compiler = next(folder.glob("libhiprtc.so.*"), runtime)
    if runtime is None or compiler is None:
        raise SuiteError("its packages have no libamdhip64.so")
    for name, library in (("libamdhip64.so", runtime), ("libhiprtc.so", compiler)):
        (links / name).symlink_to(os.path.relpath(library.resolve(), links.resolve()))
    return compiler.resolve().name


def write_launcher(new: Path, libc: str) -> None:
    """Write the launcher, which compares the version of the fetched C library with that of the system."""
    text = _LAUNCHER.replace("@LIBRARIES@", _LIBRARIES).replace("@LIBC@", upstream_version(libc))
    launcher = new / "python"
    launcher.write_text(text)
    launcher.chmod(0o755)


def upstream_version(version: str) -> str:
    """Return ``7.2.4`` for ``1:7.2.4+dfsg-1~exp2``: without epoch, Debian's repacking and revision."""
    return re.sub(r"^\d+:|\+.*|-[^-]*$", "", version)


def trial(launcher: Path, target: str) -> str | None:
    """Compile a small kernel in a process of its own, since some versions end it; return the fault, or None."""
    try:
        done = subprocess.run(
            [launcher, "-c", _TRIAL, target],
            env={**os.environ, "PTXRT_PYTHON": sys.executable, "AMD_COMGR_CACHE": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TRIAL_SECONDS,
            check=False,
        )
    except OSError as error:
        return str(error)
    except subprocess.TimeoutExpired:
        return f"no end within {_TRIAL_SECONDS} s"
    return last_words(done) if done.returncode else None


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Return how a command ended, and the last line that it printed."""
    lines = (done.stdout + done.stderr).strip().splitlines()
    status = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
    return f"{status}, {lines[-1].strip()}" if lines else status


if __name__ == "__main__":
    sys.exit(main())
