"""tools/fetch_hiprtc.py: what it chooses, what it falls back to, what it leaves behind; without the network."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import fetch_hiprtc
import pytest
from fetch_hiprtc import AptRoot, FetchError, SuiteError, fetch_newest, obtain
from helpers import REQUIRED, ROOT, Capture, Patch

Make: TypeAlias = Callable[..., str]
FETCHED = ROOT / ".hiprtc"
LOADER = Path("/lib64/ld-linux-x86-64.so.2")

needs_apt = pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt")
needs_gpg = pytest.mark.skipif(shutil.which("gpg") is None, reason="no gpg to sign a repository with")
needs_glibc = pytest.mark.skipif(not LOADER.exists(), reason="no C library of GNU's for x86-64")


# What is chosen


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        # Of experimental with sid, of sid, and of trixie, where hipRTC is inside libamdhip64.so
        (
            "libamdhip64-5 libamdhip64-6 libamdhip64-7 libamdhip64-dev libhiprtc-builtins5 libhiprtc-builtins6"
            " libhiprtc-builtins7 libhiprtc6 libhiprtc7 rocm-device-libs-22",
            ["libamdhip64-7", "libhiprtc-builtins7", "libhiprtc7"],
        ),
        (
            "libhiprtc6 libhiprtc-builtins6 libhiprtc-builtins5 libamdhip64-6 libamdhip64-5",
            ["libamdhip64-6", "libhiprtc-builtins6", "libhiprtc6"],
        ),
        ("libamdhip64-5 libamdhip64-doc libhiprtc-builtins5", ["libamdhip64-5", "libhiprtc-builtins5"]),
        ("libamdhip64-9 libamdhip64-10 libhiprtc9 libhiprtc10", ["libamdhip64-10", "libhiprtc10"]),
    ],
)
def test_the_packages_are_those_of_the_newest_rocm(names: str, chosen: Any) -> None:
    assert fetch_hiprtc.compiler_packages(names.split()) == chosen


def test_a_suite_without_rocm_is_none() -> None:
    with pytest.raises(SuiteError, match="no package libamdhip64-N"):
        fetch_hiprtc.compiler_packages(["libamdhip64-dev", "libhiprtc7"])


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("7.2.4-1~exp2", "7.2.4"),
        ("5.7.1-6+deb13u1", "5.7.1"),
        ("1:22.1.8-3", "22.1.8"),
        ("2.44-3", "2.44"),
        ("7.2.4+dfsg-1~exp1", "7.2.4"),
    ],
)
def test_the_upstream_version_is_read_off_a_packages(version: str, upstream: str) -> None:
    assert fetch_hiprtc.upstream_version(version) == upstream


@pytest.mark.parametrize(
    ("uris", "mirror"),
    [
        ("'http://a.example/debian/dists/sid/InRelease' a_sid 0", "http://a.example/debian"),
        ("'https://a.example/debian//dists/sid/InRelease' a_sid 0", "https://a.example/debian"),
        (
            "'http://s.example/debian-security/dists/x/InRelease' s 0\n'http://b.example/debian/dists/x/InRelease' b 0",
            "http://b.example/debian",
        ),
        ("'https://a.example/linux/debian/dists/sid/InRelease' a 0", None),  # somebody's repository for Debian
        ("'http://a.example/ubuntu/dists/noble/InRelease' a 0", None),
        ("", None),
    ],
)
def test_the_mirror_is_the_machines_own(uris: str, mirror: str | None) -> None:
    assert fetch_hiprtc.find_mirror(uris) == mirror


def test_a_machine_without_a_debian_mirror_is_asked_to_name_one(monkeypatch: Patch) -> None:
    monkeypatch.setattr(fetch_hiprtc, "run", lambda *command: "'http://a.example/ubuntu/dists/noble/InRelease' a 0")
    with pytest.raises(FetchError, match="--mirror"):
        fetch_hiprtc.own_mirror()


# What a machine must have


def test_a_python_without_hip_python_is_shown_what_to_do(monkeypatch: Patch, tmp_path: Path, capsys: Capture) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert fetch_hiprtc.main(["--into", str(tmp_path / "new")]) == 1
    assert "pip install 'ptxrt[hip]'" in capsys.readouterr().err


@pytest.fixture
def machine(monkeypatch: Patch, tmp_path: Path) -> Path:
    """A machine that has everything; returns its keyring."""
    keyring = tmp_path / "keyring.gpg"
    keyring.touch()
    monkeypatch.setattr(fetch_hiprtc, "KEYRING", keyring)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    fetch_hiprtc.check_machine()
    return keyring


@pytest.mark.parametrize("name", ["apt-get", "apt-cache", "apt-config", "dpkg-deb"])
def test_a_machine_without_apt_is_refused(machine: Path, monkeypatch: Patch, name: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda other: None if other == name else other)
    with pytest.raises(FetchError, match=f"^{name} not found; install the packages apt and dpkg"):
        fetch_hiprtc.check_machine()


def test_a_machine_without_debians_keys_is_shown_the_package(machine: Path) -> None:
    machine.unlink()
    with pytest.raises(FetchError, match="install debian-archive-keyring"):
        fetch_hiprtc.check_machine()


def test_another_processor_is_refused(machine: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(FetchError, match="x86-64, this is linux on aarch64"):
        fetch_hiprtc.check_machine()


def test_another_system_is_refused(machine: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(FetchError, match="Linux on x86-64, this is darwin"):
        fetch_hiprtc.check_machine()


# apt, in a root of its own


@needs_apt
def test_of_apts_settings_only_the_way_to_the_mirror_and_its_age_hold(tmp_path: Path, monkeypatch: Patch) -> None:
    config = tmp_path / "machine.conf"
    config.write_text(
        'Acquire::http::Proxy "http://proxy.example:3128";\nAcquire::Check-Valid-Until "false";\n'
        'APT::Get::AllowUnauthenticated "true";\nAcquire::AllowInsecureRepositories "true";\n'
        'APT::Update::Post-Invoke { "touch /nowhere"; };\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(config))
    apt = AptRoot(tmp_path / "apt", "sid", "http://mirror.example/debian")
    settings = apt.run("apt-config", "dump")
    assert 'Acquire::http::Proxy "http://proxy.example:3128";' in settings
    assert 'Acquire::Check-Valid-Until "false";' in settings
    assert "AllowUnauthenticated" not in settings
    assert 'Acquire::AllowInsecureRepositories "true"' not in settings
    assert "Post-Invoke" not in settings
    assert f'Dir "{tmp_path}/apt/";' in settings
    for name in ("State", "Cache", "Etc", "Etc::parts", "Etc::preferencesparts", "Etc::trustedparts", "Log"):
        (line,) = (line for line in settings.splitlines() if line.startswith(f"Dir::{name} "))
        assert '"/' not in line  # relative to Dir


@needs_apt
@pytest.mark.parametrize(("suite", "suites"), [("experimental", ["experimental", "sid"]), ("forky", ["forky"])])
def test_its_sources_are_the_suite_with_debians_keys(tmp_path: Path, suite: str, suites: Any) -> None:
    AptRoot(tmp_path / "apt", suite, "http://mirror.example/debian")
    key = f"[signed-by={fetch_hiprtc.KEYRING}]"
    lines = (tmp_path / "apt/etc/apt/sources.list").read_text().splitlines()
    assert lines == [f"deb {key} http://mirror.example/debian {name} main" for name in suites]


def test_packages_are_fetched_of_the_suite_and_not_installed(tmp_path: Path, monkeypatch: Patch) -> None:
    commands: Any = []
    monkeypatch.setattr(fetch_hiprtc, "run", lambda *command, **environment: commands.append(command) or "")
    apt = AptRoot(tmp_path / "apt", "experimental", "http://mirror.example/debian")
    (tmp_path / "apt/var/cache/apt/archives/a.deb").touch()
    assert [path.name for path in apt.download(["libamdhip64-7"])] == ["a.deb"]
    install = " ".join(commands[-1])
    assert "-t experimental" in install
    assert "--download-only" in install


def gpg(home: Path, *arguments: str) -> None:
    command = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--passphrase", "", "--pinentry-mode", "loopback"]
    subprocess.run([*command, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: Patch) -> Iterator[Make]:
    """Return a function that makes a repository with one package, and returns its address."""

    def make(signed: bool = True, damaged: bool = False) -> str:
        home = tmp_path / "gnupg"
        home.mkdir(mode=0o700)
        keyring = tmp_path / "keyring.gpg"
        gpg(home, "--quick-gen-key", "test@example", "default", "sign", "never")
        gpg(home, "--output", str(keyring), "--export")
        monkeypatch.setattr(fetch_hiprtc, "KEYRING", keyring)
        tree = tmp_path / "tree"
        (tree / "DEBIAN").mkdir(parents=True)
        control = "Package: libamdhip64-7\nVersion: 7.2.4-1\nArchitecture: amd64\nMaintainer: a <a@example>\n"
        (tree / "DEBIAN/control").write_text(control + "Description: none\n")
        (tree / "usr/lib").mkdir(parents=True)
        (tree / "usr/lib/content").write_text("content")
        top = tmp_path / "debian"
        lists = top / "dists/sid/main/binary-amd64"
        lists.mkdir(parents=True)
        archive = top / "hip.deb"
        subprocess.run(["dpkg-deb", "--build", str(tree), str(archive)], check=True, capture_output=True)
        data = archive.read_bytes()
        entry = f"{control}Filename: hip.deb\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
        (lists / "Packages").write_text(entry + "Description: none\n")
        if damaged:
            archive.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        index = (lists / "Packages").read_bytes()
        (top / "dists/sid/Release").write_text(
            "Origin: Debian\nSuite: unstable\nCodename: sid\nArchitectures: amd64\nComponents: main\n"
            f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S UTC', time.gmtime())}\n"
            f"SHA256:\n {hashlib.sha256(index).hexdigest()} {len(index)} main/binary-amd64/Packages\n"
        )
        release = top / "dists/sid/Release"
        if signed:
            gpg(home, "--clearsign", "--output", str(release.with_name("InRelease")), str(release))
        return f"copy:{top}"

    yield make
    if (tmp_path / "gnupg").exists():
        subprocess.run(["gpgconf", "--homedir", str(tmp_path / "gnupg"), "--kill", "all"], check=False)


@needs_apt
@needs_gpg
def test_a_package_is_fetched_and_unpacked_with_nothing_installed(tmp_path: Path, repository: Make) -> None:
    apt = AptRoot(tmp_path / "apt", "sid", repository())
    apt.run("apt-get", "update", "-qq")
    assert apt.run("apt-cache", "pkgnames").split() == ["libamdhip64-7"]
    archives = apt.download(["libamdhip64-7"])
    (tmp_path / "new").mkdir()
    assert fetch_hiprtc.unpack(archives, tmp_path / "new") == {"libamdhip64-7": "7.2.4-1"}
    assert (tmp_path / "new/root/usr/lib/content").read_text() == "content"
    assert (tmp_path / "apt/var/lib/dpkg/status").read_text() == ""


@needs_apt
@needs_gpg
def test_an_unsigned_suite_is_refused(tmp_path: Path, repository: Make) -> None:
    apt = AptRoot(tmp_path / "apt", "sid", repository(signed=False))
    with pytest.raises(SuiteError, match="is not signed"):
        apt.run("apt-get", "update", "-qq")


@needs_apt
@needs_gpg
def test_a_suite_signed_by_somebody_else_is_refused(tmp_path: Path, repository: Make, monkeypatch: Patch) -> None:
    mirror = repository()
    monkeypatch.setattr(fetch_hiprtc, "KEYRING", tmp_path / "other.gpg")
    (tmp_path / "other.gpg").touch()
    apt = AptRoot(tmp_path / "apt", "sid", mirror)
    with pytest.raises(SuiteError, match="is not signed"):
        apt.run("apt-get", "update", "-qq")


@needs_apt
@needs_gpg
def test_a_package_of_another_digest_is_refused(tmp_path: Path, repository: Make) -> None:
    apt = AptRoot(tmp_path / "apt", "sid", repository(damaged=True))
    apt.run("apt-get", "update", "-qq")
    with pytest.raises(SuiteError, match="Hash Sum mismatch"):
        apt.download(["libamdhip64-7"])


@needs_apt
@needs_gpg
def test_a_package_that_cannot_be_resolved_is_a_reason(tmp_path: Path, repository: Make) -> None:
    apt = AptRoot(tmp_path / "apt", "sid", repository())
    apt.run("apt-get", "update", "-qq")
    with pytest.raises(SuiteError, match="Unable to locate package libhiprtc7"):
        apt.download(["libamdhip64-7", "libhiprtc7"])


@needs_apt
@needs_gpg
def test_a_mirror_on_a_disk_that_apt_does_not_copy_from_is_a_reason(tmp_path: Path, repository: Make) -> None:
    apt = AptRoot(tmp_path / "apt", "sid", repository().replace("copy:", "file:"))
    apt.run("apt-get", "update", "-qq")
    with pytest.raises(SuiteError, match="begins with copy:"):
        apt.download(["libamdhip64-7"])


@needs_apt
@pytest.mark.parametrize("mirror", ["file:/nowhere/debian", "http://127.0.0.1:9/debian"])
def test_a_mirror_that_is_not_there_is_a_reason(tmp_path: Path, monkeypatch: Patch, mirror: str) -> None:
    settings = AptRoot._settings
    monkeypatch.setattr(AptRoot, "_settings", lambda root: [*settings(root), 'Acquire::Retries "0";'])  # which wait
    apt = AptRoot(tmp_path / "apt", "sid", mirror)
    with pytest.raises(SuiteError, match="apt-get update: E:"):
        apt.run("apt-get", "update", "-qq")


def test_a_command_that_does_not_end_is_a_reason(monkeypatch: Patch) -> None:
    monkeypatch.setattr(fetch_hiprtc, "_APT_SECONDS", 0.1)
    with pytest.raises(SuiteError, match=r"sleep 60 has not ended within 0\.1 s"):
        fetch_hiprtc.run("sleep", "60")


def test_a_command_that_fails_without_a_word_of_apts_is_a_reason() -> None:
    with pytest.raises(SuiteError, match="status 3, the last"):
        fetch_hiprtc.run("sh", "-c", "echo first; echo the last; exit 3")


# What is unpacked


def test_the_c_library_is_unpacked_alone_and_the_rest_together(tmp_path: Path, monkeypatch: Patch) -> None:
    places = {}

    def run(*command: str) -> str:
        if command[1] == "--extract":
            places[Path(command[2]).stem] = command[3]
        return f"{Path(command[-1]).stem} 1-1"

    monkeypatch.setattr(fetch_hiprtc, "run", run)
    names = ["libc6", "libgcc-s1", "libstdc++6", "libamdhip64-7", "zlib1g"]
    versions = fetch_hiprtc.unpack([Path(f"{name}.deb") for name in names], tmp_path)
    assert versions == dict.fromkeys(names, "1-1")
    assert places == {name: str(tmp_path / ("libc" if n < 3 else "root")) for n, name in enumerate(names)}


def test_the_libraries_get_hip_pythons_names(tmp_path: Path) -> None:
    folder = tmp_path / "root/usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    for name in ("libamdhip64.so", "libhiprtc.so"):
        (folder / f"{name}.7.2.1").write_text(name)
        (folder / f"{name}.7").symlink_to(f"{name}.7.2.1")
    (folder / "libhiprtc-builtins.so.7").touch()
    assert fetch_hiprtc.link_libraries(tmp_path) == "libhiprtc.so.7.2.1"
    tmp_path.joinpath("root").rename(tmp_path / "elsewhere")
    assert not (tmp_path / "rocm/lib/libhiprtc.so").exists()  # the links are relative
    tmp_path.joinpath("elsewhere").rename(tmp_path / "root")
    for name in ("libamdhip64.so", "libhiprtc.so"):
        assert (tmp_path / "rocm/lib" / name).read_text() == name
        assert not os.readlink(tmp_path / "rocm/lib" / name).startswith("/")


def test_where_hiprtc_is_inside_the_runtime_both_names_are_the_runtimes(tmp_path: Path) -> None:
    folder = tmp_path / "root/usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (folder / "libamdhip64.so.5.7.31921").write_text("both")
    assert fetch_hiprtc.link_libraries(tmp_path) == "libamdhip64.so.5.7.31921"
    assert (tmp_path / "rocm/lib/libhiprtc.so").read_text() == "both"


def test_packages_without_the_runtime_are_a_reason(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with pytest.raises(SuiteError, match=r"no libamdhip64\.so"):
        fetch_hiprtc.link_libraries(tmp_path)


# The launcher

SHOW = """
import json, os, sys
libraries = {line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps") if "libc.so.6" in line}
print(json.dumps([sys.executable, sys.prefix, os.environ["ROCM_PATH"], sys.argv[1:], sorted(libraries), sys.path]))
"""


def show(launcher: Path | str, *arguments: str, python: str | None = sys.executable, **options: Any) -> Any:
    environment = {**os.environ, "PTXRT_PYTHON": python} if python is not None else {**os.environ}
    done = subprocess.run(
        [launcher, "-c", SHOW, *arguments], check=False, env=environment, capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """A launcher beside a copy of this machine's C library, which says that it is newer than the machine's."""
    folder = tmp_path / "a folder"
    libc = folder / "libc/usr/lib/x86_64-linux-gnu"
    libc.mkdir(parents=True)
    for name in ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "libutil.so.1", "librt.so.1"):
        source = LOADER.resolve().with_name(name)
        if source.exists():
            shutil.copy(source, libc)
    shutil.copy(LOADER, libc)
    fetch_hiprtc.write_launcher(folder, "99.1-2")
    return folder / "python"


@needs_glibc
def test_the_launcher_runs_python_with_the_fetched_c_library(launcher: Path) -> None:
    executable, prefix, rocm, arguments, libraries, path = show(launcher, "one", "two words", "")
    assert (executable, prefix) == (sys.executable, sys.prefix)
    assert sysconfig.get_path("purelib") in path
    assert rocm == str(launcher.parent / "rocm")
    assert arguments == ["one", "two words", ""]
    assert libraries == [str(launcher.parent / "libc/usr/lib/x86_64-linux-gnu/libc.so.6")]


@needs_glibc
@pytest.mark.parametrize("version", ["2.0-1", "system"])
def test_where_the_systems_c_library_is_as_new_python_keeps_it(launcher: Path, version: str) -> None:
    if version == "system":
        version = str(os.confstr("CS_GNU_LIBC_VERSION")).split()[1] + "-1"
    fetch_hiprtc.write_launcher(launcher.parent, version)
    executable, *_, libraries, _ = show(launcher)
    assert executable == sys.executable
    assert libraries
    assert not libraries[0].startswith(str(launcher.parent))


@needs_glibc
def test_versions_are_compared_by_number(launcher: Path) -> None:
    fetch_hiprtc.write_launcher(launcher.parent, "2.4-1")  # as text, more than 2.36
    assert not show(launcher)[4][0].startswith(str(launcher.parent))


@needs_glibc
def test_the_launcher_works_where_it_was_moved_to_from_any_folder_and_by_a_link(launcher: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    launcher.parent.rename(moved)
    (tmp_path / "link").symlink_to(moved / "python")
    for command, folder in ((moved / "python", "/"), ("./python", moved), (tmp_path / "link", tmp_path)):
        _, _, rocm, _, libraries, _ = show(command, cwd=folder)
        assert rocm == str(moved / "rocm")
        assert libraries[0].startswith(str(moved))


@needs_glibc
def test_a_virtual_environment_keeps_its_packages(launcher: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv/bin/python"
    executable, prefix, _, _, _, path = show(launcher, python=str(python))
    assert (executable, prefix) == (str(python), str(tmp_path / "venv"))
    assert any(folder.startswith(str(tmp_path / "venv")) for folder in path)


@needs_glibc
def test_without_the_variable_it_is_python3(launcher: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')  # a script, as of a version manager
    (tmp_path / "python3").chmod(0o755)
    monkeypatch.delenv("PTXRT_PYTHON", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert show(launcher, python=None)[0] == sys.executable


@needs_glibc
def test_a_python_that_is_not_there_ends_the_launcher(launcher: Path) -> None:
    environment = {**os.environ, "PTXRT_PYTHON": "/nowhere/python"}
    done = subprocess.run([launcher, "-c", ""], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert "/nowhere/python" in done.stderr
    assert len(done.stderr.splitlines()) == 1  # and nothing is tried with it


@needs_glibc
def test_the_exit_status_is_pythons(launcher: Path) -> None:
    assert subprocess.run([launcher, "-c", "raise SystemExit(7)"], check=False).returncode == 7
    assert subprocess.run([launcher, "-c", "import os; os.abort()"], check=False).returncode == -signal.SIGABRT


# The trial


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_compiler_that_works_has_no_fault(tmp_path: Path) -> None:
    condition = '[ "$3 $AMD_COMGR_CACHE" = "gfx90a 0" ] && [ -x "$PTXRT_PYTHON" ]'
    assert fetch_hiprtc.trial(script(tmp_path / "python", condition), "gfx90a") is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("echo 'no such target' >&2; exit 1", "status 1, no such target"),
        ("echo 'free(): invalid pointer' >&2; kill -ABRT $$", "signal 6, free(): invalid pointer"),
        ("exit 4", "status 4"),
    ],
)
def test_a_compiler_that_fails_or_dies_is_a_fault(tmp_path: Path, text: str, fault: str) -> None:
    assert fetch_hiprtc.trial(script(tmp_path / "python", text), "gfx90a") == fault


def test_a_compiler_that_hangs_is_a_fault(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(fetch_hiprtc, "_TRIAL_SECONDS", 0.1)
    assert fetch_hiprtc.trial(script(tmp_path / "python", "exec sleep 60"), "gfx90a") == "no end within 0.1 s"


def test_a_launcher_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    assert "No such file" in str(fetch_hiprtc.trial(tmp_path / "python", "gfx90a"))


# Falling back


def made(suite: str, new: Path) -> dict[str, Any]:
    """Make what `fetch` makes, with a launcher that only says that it works."""
    script(new / "python", "exit 0")
    return {
        "layout": 1,
        "suite": suite,
        "rocm": "7.2.4",
        "library": "libhiprtc.so.7.2",
        "targets": ["gfx90a"],
        "unsupported": {"gfx1201": "signal 6"},
        "packages": {"libamdhip64-7": "7.2.4-1"},
        "downloaded_bytes": 66_000_000,
        "unpacked_bytes": 297_000_000,
        "seconds": 12.0,
    }


@pytest.fixture
def fetches(monkeypatch: Patch, machine: Path) -> list[str]:
    """The suites that were fetched; what stands for fetching is `made`."""
    suites: list[str] = []

    def fetch(suite: str, mirror: str, new: Path) -> dict[str, Any]:
        suites.append(suite)
        assert not new.exists()
        return made(suite, new)

    monkeypatch.setattr(fetch_hiprtc, "fetch", fetch)
    monkeypatch.setattr(fetch_hiprtc, "check_python", lambda: None)
    monkeypatch.setattr(fetch_hiprtc, "own_mirror", lambda: "http://mirror.example/debian")
    return suites


def failing(monkeypatch: Patch, *suites: str) -> None:
    """Let these suites fail, with half of them made."""
    good = fetch_hiprtc.fetch

    def fetch(suite: str, mirror: str, new: Path) -> dict[str, Any]:
        record = good(suite, mirror, new)
        if suite in suites:
            raise SuiteError(f"no {suite} today")
        return record

    monkeypatch.setattr(fetch_hiprtc, "fetch", fetch)


def test_the_newest_suite_comes_first(fetches: list[str], tmp_path: Path) -> None:
    assert obtain(tmp_path / "hiprtc")["suite"] == "experimental"
    assert fetches == ["experimental"]


def test_an_older_suite_takes_over_and_the_reason_is_printed_and_recorded(
    fetches: list[str], tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    failing(monkeypatch, "experimental", "sid", "forky")
    assert fetch_hiprtc.main(["--into", str(tmp_path / "hiprtc")]) == 0
    assert fetches == ["experimental", "sid", "forky", "trixie"]
    out = capsys.readouterr().out
    assert "sid cannot be used: no sid today" in out
    assert "Debian trixie" in out
    assert "experimental could not be used: no experimental today" in out
    record = json.loads((tmp_path / "hiprtc/record.json").read_text())
    assert record["skipped"] == {suite: f"no {suite} today" for suite in ("experimental", "sid", "forky")}


def test_where_no_suite_works_every_reason_is_printed_and_nothing_is_left(
    fetches: list[str], tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    failing(monkeypatch, *fetch_hiprtc.SUITES)
    assert fetch_hiprtc.main(["--into", str(tmp_path / "hiprtc")]) == 1
    error = capsys.readouterr().err
    assert [suite for suite in fetch_hiprtc.SUITES if f"{suite}: no {suite} today" not in error] == []
    assert not list(tmp_path.glob("hiprtc*/"))


def test_a_suite_that_is_asked_for_is_the_only_one(fetches: list[str], tmp_path: Path, monkeypatch: Patch) -> None:
    failing(monkeypatch, "sid")
    with pytest.raises(FetchError, match="no sid today"):
        obtain(tmp_path / "hiprtc", "sid")
    assert fetches == ["sid"]


class FakeApt:
    """An apt whose packages are a runtime and a C library."""

    def __init__(self, folder: Path, suite: str, mirror: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    def run(self, *command: str) -> str:
        return "libamdhip64-7 libhiprtc7"

    def download(self, packages: list[str]) -> list[Path]:
        assert packages == ["libamdhip64-7", "libhiprtc7"]
        (self.folder / "a.deb").write_bytes(b"12345")
        return [self.folder / "a.deb"]


@pytest.fixture
def packages(monkeypatch: Patch) -> dict[str, str | None]:
    """Packages without apt; returns the faults of the targets, to be changed."""
    faults: dict[str, str | None] = {"gfx1201": "signal 6"}

    def unpack(archives: list[Path], new: Path) -> dict[str, str]:
        library = new / "root/usr/lib/x86_64-linux-gnu/libamdhip64.so.7.2.9"
        library.parent.mkdir(parents=True)
        library.write_text("1234567")
        return {"libamdhip64-7": "7.2.4-1~exp2", "libc6": "2.44-3"}

    monkeypatch.setattr(fetch_hiprtc, "AptRoot", FakeApt)
    monkeypatch.setattr(fetch_hiprtc, "unpack", unpack)
    monkeypatch.setattr(fetch_hiprtc, "trial", lambda launcher, target: faults.get(target))
    return faults


def test_the_record_says_what_was_got_and_apts_files_are_gone(packages: dict[str, str | None], tmp_path: Path) -> None:
    record = fetch_hiprtc.fetch("sid", "http://mirror.example/debian", tmp_path / "new")
    assert record["rocm"] == "7.2.4"
    assert record["library"] == "libamdhip64.so.7.2.9"
    assert record["packages"] == {"libamdhip64-7": "7.2.4-1~exp2", "libc6": "2.44-3"}
    assert record["targets"] == ["gfx90a", "gfx942", "gfx1100", "gfx950"]
    assert record["unsupported"] == {"gfx1201": "signal 6"}
    assert record["downloaded_bytes"] == 5
    assert record["unpacked_bytes"] > 7
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"python", "root", "rocm"}
    assert "2.44 |" in (tmp_path / "new/python").read_text()


def test_a_compiler_that_does_not_work_makes_a_suite_unusable(packages: dict[str, str | None], tmp_path: Path) -> None:
    packages["gfx90a"] = "status 1, no version GLIBC_2.44"
    with pytest.raises(SuiteError, match=r"does not work here: status 1, no version GLIBC_2\.44"):
        fetch_hiprtc.fetch("sid", "http://mirror.example/debian", tmp_path / "new")


# All or nothing


def test_a_second_time_nothing_is_fetched(fetches: list[str], tmp_path: Path, capsys: Capture) -> None:
    for _ in range(2):
        assert fetch_hiprtc.main(["--into", str(tmp_path / "hiprtc")]) == 0
    assert fetches == ["experimental"]
    *_, text = capsys.readouterr().out.partition("\nhipRTC of ROCm")[2].partition("hipRTC of ROCm")
    for word in ("7.2.4", "libhiprtc.so.7.2", "experimental", "gfx90a", "for gfx1201: signal 6", "66 MB", "297 MB"):
        assert word in text
    assert "libamdhip64-7 7.2.4-1" in text


def test_a_folder_that_no_longer_works_is_fetched_anew(fetches: list[str], tmp_path: Path, capsys: Capture) -> None:
    obtain(tmp_path / "hiprtc")
    script(tmp_path / "hiprtc/python", "echo gone; exit 1")
    obtain(tmp_path / "hiprtc")
    assert fetches == ["experimental"] * 2
    assert "does not work: status 1, gone" in capsys.readouterr().out
    assert fetch_hiprtc.trial(tmp_path / "hiprtc/python", "gfx90a") is None


def test_a_folder_of_another_suite_is_fetched_anew_where_one_is_asked_for(fetches: list[str], tmp_path: Path) -> None:
    assert obtain(tmp_path / "hiprtc", "sid")["suite"] == "sid"
    assert obtain(tmp_path / "hiprtc")["suite"] == "sid"
    assert obtain(tmp_path / "hiprtc", "forky")["suite"] == "forky"
    assert fetches == ["sid", "forky"]


def test_a_folder_of_another_layout_is_fetched_anew(fetches: list[str], tmp_path: Path) -> None:
    record = obtain(tmp_path / "hiprtc")
    (tmp_path / "hiprtc/record.json").write_text(json.dumps({**record, "layout": 0}))
    assert obtain(tmp_path / "hiprtc")["layout"] == 1
    assert len(fetches) == 2


def test_a_folder_of_somebody_else_is_left_alone(fetches: list[str], tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/one.txt").touch()
    with pytest.raises(FetchError, match="--into"):
        obtain(tmp_path / "letters")
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["one.txt"]
    assert fetches == []


@pytest.mark.parametrize("record", ["{}", "[1]", "3"])
def test_a_record_of_somebody_else_is_none_of_ours(fetches: list[str], tmp_path: Path, record: str) -> None:
    (tmp_path / "music").mkdir()
    (tmp_path / "music/record.json").write_text(record)
    with pytest.raises(FetchError, match="was not made by this tool"):
        obtain(tmp_path / "music")
    assert (tmp_path / "music/record.json").read_text() == record


def test_an_empty_folder_is_filled(fetches: list[str], tmp_path: Path) -> None:
    (tmp_path / "hiprtc").mkdir()
    assert obtain(tmp_path / "hiprtc")["suite"] == "experimental"


def test_a_file_for_a_folder_is_an_error_and_no_traceback(fetches: list[str], tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").touch()
    assert fetch_hiprtc.main(["--into", str(tmp_path / "file")]) == 1
    assert "Not a directory" in capsys.readouterr().err


def test_what_was_there_stays_where_the_new_one_fails(fetches: list[str], tmp_path: Path, monkeypatch: Patch) -> None:
    obtain(tmp_path / "hiprtc", "sid")
    failing(monkeypatch, "forky")
    with pytest.raises(FetchError):
        obtain(tmp_path / "hiprtc", "forky")
    assert obtain(tmp_path / "hiprtc")["suite"] == "sid"
    assert {path.name for path in tmp_path.glob("hiprtc*")} == {"hiprtc", "hiprtc.lock"}


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, OSError])
def test_an_interrupted_one_leaves_nothing(fetches: list[str], tmp_path: Path, monkeypatch: Patch, end: Any) -> None:
    def fetch(suite: str, mirror: str, new: Path) -> dict[str, Any]:
        made(suite, new)
        raise end

    monkeypatch.setattr(fetch_hiprtc, "fetch", fetch)
    with pytest.raises(end):
        obtain(tmp_path / "hiprtc")
    assert {path.name for path in tmp_path.glob("hiprtc*")} == {"hiprtc.lock"}


def test_what_a_killed_one_left_is_cleared_away(fetches: list[str], tmp_path: Path) -> None:
    obtain(tmp_path / "hiprtc", "sid")
    for name in ("hiprtc.fetching", "hiprtc.replaced"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").touch()
    obtain(tmp_path / "hiprtc")
    assert {path.name for path in tmp_path.glob("hiprtc*")} == {"hiprtc", "hiprtc.lock"}


def test_what_is_there_needs_nothing_of_the_machine(fetches: list[str], machine: Path, tmp_path: Path) -> None:
    obtain(tmp_path / "hiprtc")
    machine.unlink()
    assert obtain(tmp_path / "hiprtc")["suite"] == "experimental"
    with pytest.raises(FetchError, match="debian-archive-keyring"):
        obtain(tmp_path / "other")
    assert fetches == ["experimental"]


INTERRUPTED = """
import sys, time
sys.path.insert(0, sys.argv[1])
import fetch_hiprtc
def fetch(suite, mirror, new):
    new.mkdir()
    print("made", flush=True)
    time.sleep(60)
fetch_hiprtc.fetch = fetch
fetch_hiprtc.check_python = fetch_hiprtc.check_machine = lambda: None
sys.exit(fetch_hiprtc.main(["--into", sys.argv[2], "--mirror", "none"]))
"""


def test_one_that_is_asked_to_end_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(ROOT / "tools"), str(tmp_path / "hiprtc")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "made\n" in iter(process.stdout.readline, "")
        assert (tmp_path / "hiprtc.fetching").exists()
        process.terminate()
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert {path.name for path in tmp_path.iterdir()} == {"hiprtc.lock"}


def test_of_two_at_once_one_waits(fetches: list[str], tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    good, others = fetch_hiprtc.fetch, threading.Event()

    def fetch(suite: str, mirror: str, new: Path) -> dict[str, Any]:
        others.wait(30)
        return good(suite, mirror, new)

    monkeypatch.setattr(fetch_hiprtc, "fetch", fetch)
    threads = [threading.Thread(target=obtain, args=(tmp_path / "hiprtc",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    out = ""
    for _ in range(300):
        out += capsys.readouterr().out
        if "waiting for another process" in out:
            break
        time.sleep(0.1)
    others.set()
    for thread in threads:
        thread.join(30)
    assert "waiting for another process" in out
    assert fetches == ["experimental"]


def test_reasons_are_in_the_order_of_the_suites(fetches: list[str], tmp_path: Path, monkeypatch: Patch) -> None:
    failing(monkeypatch, "experimental", "sid")
    record = fetch_newest(fetch_hiprtc.SUITES, "http://mirror.example/debian", tmp_path / "new")
    assert list(record["skipped"]) == ["experimental", "sid"]


# For real


@pytest.mark.hiprtc
def test_what_was_fetched_compiles_for_the_targets_of_its_record() -> None:
    record = fetch_hiprtc.read_record(FETCHED)
    if record is None:
        if "hiprtc" in REQUIRED:
            pytest.fail("PTXRT_REQUIRE=hiprtc, but make hiprtc has fetched nothing")
        pytest.skip("make hiprtc has fetched nothing")
    assert {"gfx90a", "gfx942", "gfx1100"} <= set(record["targets"])
    faults = {target: fetch_hiprtc.trial(FETCHED / "python", target) for target in fetch_hiprtc.TARGETS}
    assert [target for target, fault in faults.items() if fault is None] == record["targets"]
    assert (FETCHED / "rocm/lib/libhiprtc.so").resolve().name == record["library"]
