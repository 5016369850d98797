"""hipRTC's worker process: its deaths, its silence, its nonsense. Launchers written here stand for hipRTC."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from code_objects import code_object
from helpers import Patch, run_script

from ptxrt.compilers import _disassembly_worker as disassembly_worker
from ptxrt.compilers import _hiprtc_worker as hiprtc_worker
from ptxrt.compilers import hiprtc
from ptxrt.compilers._hiprtc_process import Worker
from ptxrt.errors import BackendUnavailable, CompileError, InvalidArgument

TEXT = 'extern "C" __global__ void scale(float* x) {}'
BEFORE_7 = "Before ROCm 7 it ends so for a target that it does not know"
HEAD = """\
#!{python}
import importlib.util, json, os, signal, sys, time
spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
FACTS = {{"version": [9, 0], "file": "/lib/libhiprtc.so.6.4.1", "targets": ["gfx90a", "gfx1100"]}}
CODE = bytes.fromhex("{code}")
DONE = {{"status": "HIPRTC_SUCCESS", "log": "", "lowered": None}}
with open(sys.argv[0] + ".starts", "a") as file:
    file.write(f"{{os.getpid()}} {{os.environ['AMD_COMGR_CACHE']}} {{os.environ['PTXRT_PYTHON']}}\\n")
with open(sys.argv[0] + ".starts") as file:
    STARTS = len(file.readlines())
def read():
    head = sys.stdin.buffer.read(16)
    if not head:
        sys.exit()
    _, length, size = worker.HEAD.unpack(head)
    return json.loads(sys.stdin.buffer.read(length)), sys.stdin.buffer.read(size)
def answer(record, body=b""):
    sys.stdout.buffer.write(worker.message(record, body))
    sys.stdout.buffer.flush()
def raw(length, size, text):
    sys.stdout.buffer.write(worker.HEAD.pack(worker.MAGIC, length, size) + text)
    sys.stdout.buffer.flush()
def last_words(text):
    print(text, file=sys.stderr, flush=True)
"""
SERVE = """
while True:
    request, text = read()
    if request["do"] == "version":
        answer(FACTS)
        continue
    {before}
    answer({{"begun": True}})
    {during}
    answer(DONE, CODE)
"""


class Launcher:
    """A launcher that is a Python script; the text may hold what it does before and during a compile."""

    def __init__(self, path: Path, body: str | None = None, before: str = "pass", during: str = "pass") -> None:
        head = HEAD.format(python=sys.executable, code=code_object().hex())
        path.write_text(head + (SERVE.format(before=before, during=during) if body is None else body))
        path.chmod(0o755)
        self.path = path

    def starts(self) -> list[list[str]]:
        return [line.split() for line in Path(f"{self.path}.starts").read_text().splitlines()]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: Patch) -> Iterator[Any]:
    """Make a launcher and name it to ptxrt; afterwards its worker is ended."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the same for the processes of scripts

    def make(body: str | None = None, **how: str) -> Launcher:
        launcher = Launcher(tmp_path / "launcher", body, **how)
        monkeypatch.setenv("PTXRT_HIPRTC_PYTHON", shlex.quote(str(launcher.path)))
        return launcher

    yield make
    hiprtc._end()
    hiprtc._worker = None  # its facts would be the answer to the next who asks with the same command


def compile_it(entry: str = "scale", arch: str = "gfx90a:sramecc+:xnack-", **how: Any) -> Any:
    return hiprtc.compile_hip(TEXT, arch, entry=entry, **how)


def gone(pid: int) -> bool:
    """Whether a process has ended, within some seconds."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def test_a_launcher_may_lie_in_a_folder_with_a_space(launch: Any, tmp_path: Path, monkeypatch: Patch) -> None:
    launcher = launch()
    there = tmp_path / "a folder" / "launcher"
    there.parent.mkdir()
    launcher.path.rename(there)
    monkeypatch.setenv("PTXRT_HIPRTC_PYTHON", str(there))
    assert compile_it().compiler == "hipRTC 6.4.1"


def test_one_worker_serves_all_calls(launch: Any) -> None:
    launcher = launch()
    assert [compile_it().compiler for _ in range(3)] == ["hipRTC 6.4.1"] * 3
    assert hiprtc.version() == "6.4.1"
    assert hiprtc.architectures() == ("gfx90a", "gfx1100")
    assert hiprtc.available() is None
    assert len(launcher.starts()) == 1


def test_the_worker_gets_the_interpreter_and_has_no_cache(launch: Any) -> None:
    launcher = launch()
    compile_it()
    assert launcher.starts()[0][1:] == ["0", sys.executable]


@pytest.mark.parametrize(
    ("during", "words"),
    [
        ("last_words('free(): invalid pointer'); os.abort()", ["killed by SIGABRT", "free(): invalid pointer"]),
        ("os.kill(os.getpid(), signal.SIGKILL)", ["killed by SIGKILL", "it left no word"]),
        ("os.kill(os.getpid(), signal.SIGSEGV)", ["killed by SIGSEGV"]),
        ("last_words('so long'); sys.exit(3)", ["exit status 3", "so long"]),
        ("os._exit(134)", ["exit status 134, which is a shell's for SIGABRT"]),
        ("sys.stdout.buffer.write(worker.MAGIC[:3]); sys.stdout.flush(); os._exit(1)", ["exit status 1"]),
        ("sys.stdout.buffer.write(worker.MAGIC + bytes(3)); sys.stdout.flush(); os._exit(1)", ["exit status 1"]),
        (
            "sys.stdout.buffer.write(worker.message(DONE, CODE)[:-9]); sys.stdout.flush(); os._exit(1)",
            ["exit status 1"],
        ),
    ],
)
def test_a_death_in_a_compile_is_a_compile_error_and_the_next_call_works(launch: Any, during: str, words: Any) -> None:
    launcher = launch(during=f"\n    if STARTS == 1:\n        {during}")
    with pytest.raises(CompileError) as caught:
        compile_it()
    error = caught.value
    assert not [word for word in ("hipRTC 6.4.1 ended while it compiled", *words) if word not in str(error)]
    killed = "killed by SIGKILL" in str(error)
    ways = "Try again, or for gfx90a with other flags or none"
    assert error.fix == ("The system kills so where memory runs out" if killed else ways)
    assert (error.kernel, error.arch, error.compiler_lost) == ("scale", "gfx90a:sramecc+:xnack-", True)
    assert compile_it().symbols == {"scale": "scale"}
    assert len(launcher.starts()) == 2


@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGSEGV", "SIGABRT"])
@pytest.mark.parametrize(
    ("release", "listed", "fix"),
    [
        ("6.4.1", True, "Try again"),
        ("6.4.1", False, f"{BEFORE_7}. Try again, or for another processor"),
        ("7.2.53211", True, "Try again"),
        ("7.2.53211", False, "Try again, or for another processor"),
    ],
)
def test_a_death_is_laid_to_the_target_only_where_that_can_be(
    launch: Any, signal_name: str, release: str, listed: bool, fix: str
) -> None:
    launch(during=f"os.kill(os.getpid(), signal.{signal_name})")
    hiprtc.version()
    hired: Any = hiprtc._worker
    hired.version = release
    if not listed:  # as where the compiler library cannot be asked
        hired.targets = ()
    with pytest.raises(CompileError, match=f"killed by {signal_name}") as caught:
        compile_it(arch="gfx1100", defines={"N": 4})
    assert caught.value.fix == fix


def test_what_a_dead_worker_had_started_ends_with_it(launch: Any, tmp_path: Path) -> None:
    launch(
        during="import subprocess; left = subprocess.Popen(['sleep', '99'], stdout=subprocess.DEVNULL)\n"
        f"    open({str(tmp_path / 'left')!r}, 'w').write(str(left.pid)); os.abort()"
    )
    with pytest.raises(CompileError, match="SIGABRT"):
        compile_it()
    assert gone(int((tmp_path / "left").read_text()))


def test_a_worker_that_was_ended_is_not_killed_again_by_its_old_number(launch: Any, monkeypatch: Patch) -> None:
    launch()
    compile_it()
    hiprtc._end()
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("killed again"))
    hiprtc._end()


@pytest.mark.parametrize("how", ["os.abort()", "time.sleep(100)", "pass"])
def test_what_the_compiler_leaves_in_its_folder_goes_with_the_worker(launch: Any, monkeypatch: Patch, how: str) -> None:
    launch(during=f"open(os.path.join(sys.argv[2], 'left'), 'w').close(); {how}")
    hiprtc.version()
    hired: Any = hiprtc._worker
    folder = Path(hired.worker._folder)
    monkeypatch.setenv("PTXRT_HIPRTC_TIMEOUT", "1")
    if how == "pass":
        compile_it()
        assert [file.name for file in folder.iterdir()] == ["left"]
        hiprtc._end()
    else:
        with pytest.raises(CompileError):
            compile_it()
    assert not folder.exists()


def test_only_this_compiles_words_are_the_last_words(launch: Any) -> None:
    launch(during="last_words(text.decode() or '-')\n    if b'die' in text: os.abort()")
    hiprtc.compile_hip("// first", "gfx1100")
    with pytest.raises(CompileError) as caught:
        hiprtc.compile_hip("// die", "gfx1100")
    assert caught.value.log == "// die"


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_death_between_calls_is_repaired_in_silence(launch: Any, sign: Any) -> None:
    launcher = launch()
    compile_it()
    os.kill(int(launcher.starts()[0][0]), sign)
    assert compile_it().symbols == {"scale": "scale"}
    assert len(launcher.starts()) == 2


def test_a_death_before_the_request_was_read_is_no_fault_of_the_text(launch: Any) -> None:
    launcher = launch(before="\n    if STARTS == 1:\n        os.abort()")
    assert compile_it().symbols == {"scale": "scale"}
    assert len(launcher.starts()) == 2


def test_a_worker_that_always_dies_before_the_request_is_unusable(launch: Any) -> None:
    launcher = launch(before="last_words('not today'); os.abort()")
    with pytest.raises(
        BackendUnavailable, match="ended before it answered: killed by SIGABRT; its last words: not today"
    ):
        compile_it()
    assert len(launcher.starts()) == 2


def test_a_compile_that_takes_too_long_is_stopped(launch: Any, monkeypatch: Patch) -> None:
    launcher = launch(during="\n    if STARTS == 1:\n        time.sleep(100)")
    hiprtc.version()
    monkeypatch.setenv("PTXRT_HIPRTC_TIMEOUT", "0.5")
    started = time.monotonic()
    with pytest.raises(CompileError, match=r"did not end within 0.5 s and was stopped.*PTXRT_HIPRTC_TIMEOUT"):
        compile_it()
    assert time.monotonic() - started < 20
    assert gone(int(launcher.starts()[0][0]))
    monkeypatch.delenv("PTXRT_HIPRTC_TIMEOUT")
    assert compile_it().symbols == {"scale": "scale"}


def test_the_time_is_that_of_all_of_a_compiles_requests(launch: Any, monkeypatch: Patch) -> None:
    launch(during="time.sleep(0.6)")
    hiprtc.version()
    monkeypatch.setenv("PTXRT_HIPRTC_TIMEOUT", "1")
    with pytest.raises(CompileError, match="did not end within 1 s"):
        compile_it("another")  # which is asked for a second time, as an expression


@pytest.mark.parametrize("seconds", ["soon", "0", "-1", "nan", "inf"])
def test_a_timeout_is_a_number_of_seconds(launch: Any, monkeypatch: Patch, seconds: str) -> None:
    launch()
    monkeypatch.setenv("PTXRT_HIPRTC_TIMEOUT", seconds)
    with pytest.raises(InvalidArgument, match="PTXRT_HIPRTC_TIMEOUT: expected seconds"):
        compile_it()


def test_a_timeout_that_is_none_starts_no_worker(launch: Any, monkeypatch: Patch) -> None:
    launch()
    monkeypatch.setattr(hiprtc, "Worker", lambda command: pytest.fail("started"))
    monkeypatch.setenv("PTXRT_HIPRTC_TIMEOUT", "soon")
    with pytest.raises(InvalidArgument):
        hiprtc.version()
    assert "PTXRT_HIPRTC_TIMEOUT" in str(hiprtc.available())


def test_a_launcher_that_says_nothing_is_given_up(launch: Any, monkeypatch: Patch) -> None:
    launch("time.sleep(100)")
    monkeypatch.setenv("PTXRT_HIPRTC_TIMEOUT", "0.5")
    with pytest.raises(BackendUnavailable, match="did not answer within 60 s, or PTXRT_HIPRTC_TIMEOUT if that is less"):
        compile_it()


def test_a_launcher_that_reads_nothing_is_given_up_however_long_the_text(launch: Any, monkeypatch: Patch) -> None:
    launch("read(); answer(FACTS); time.sleep(100)")
    hiprtc.version()
    monkeypatch.setenv("PTXRT_HIPRTC_TIMEOUT", "0.5")
    with pytest.raises(CompileError, match="did not end within"):
        hiprtc.compile_hip("//" + "x" * 300_000, "gfx1100")


@pytest.mark.parametrize(
    "body",
    [
        "print('Welcome to this machine', flush=True); time.sleep(100)",
        "print('hi')",
        "read(); raw(2**31, 0, b''); time.sleep(100)",
        "read(); raw(4, 0, b'{1:2'); time.sleep(9)",
        "read(); raw(2, 0, b'[]'); time.sleep(9)",
        "read(); answer({}); time.sleep(9)",
        "read(); answer({**FACTS, 'version': 'x'}); time.sleep(9)",
    ],
)
def test_an_answer_that_is_none_is_unusable(launch: Any, body: str) -> None:
    launch(body)
    with pytest.raises(BackendUnavailable, match="gave an answer that is none of ptxrt's worker"):
        compile_it()
    assert "PTXRT_HIPRTC_PYTHON names the Python" in str(hiprtc.available())


@pytest.mark.parametrize("record", ["{}", "{**DONE, 'status': 3}", "{**DONE, 'log': None}", "{**DONE, 'lowered': 1}"])
def test_an_answer_to_a_compile_that_is_none_is_unusable(launch: Any, record: str) -> None:
    launcher = launch(during=f"\n    if STARTS == 1:\n        answer({record}); continue")
    with pytest.raises(BackendUnavailable, match="gave an answer that is none"):
        compile_it()
    assert compile_it().symbols == {"scale": "scale"}
    assert len(launcher.starts()) == 2  # it is not used again


def test_bytes_that_are_no_code_object_are_a_compile_error(launch: Any) -> None:
    launch(during="answer(DONE, b'mush'); continue")
    with pytest.raises(CompileError, match="made no code object"):
        compile_it()
    launch(during="answer(DONE); continue")
    hiprtc._end()
    with pytest.raises(CompileError, match="made no code: an option asks for something else"):
        compile_it()


def test_a_launcher_that_ends_at_once_is_unusable_with_its_last_words(launch: Any) -> None:
    launch("last_words('no loader here'); sys.exit(7)")
    with pytest.raises(
        BackendUnavailable, match="ended before it answered: exit status 7; its last words: no loader here"
    ):
        compile_it()


def test_pain24_what_is_missing_is_named_with_what_brings_it(launch: Any) -> None:
    launch("read(); answer({'missing': 'hip-python', 'text': 'No module named hip'}); time.sleep(9)")
    with pytest.raises(BackendUnavailable) as caught:
        compile_it()
    assert "hip-python cannot be loaded by" in str(caught.value)
    words: tuple[str, ...] = ("7.2 or newer", "the Python that PTXRT_HIPRTC_PYTHON starts", 'pip install "ptxrt[hip]"')
    assert not [word for word in words if word not in str(caught.value.fix)]
    launch("read(); answer({'missing': 'libhiprtc.so', 'text': 'failed to dlopen'}); time.sleep(9)")
    with pytest.raises(BackendUnavailable) as caught:
        compile_it()
    words = ("libhiprtc.so cannot be loaded by", "failed to dlopen", "ROCm, 6.0 or newer", "`make hiprtc`", "ROCM_PATH")
    assert not [word for word in words if word not in str(caught.value)]
    assert hiprtc.available() == str(caught.value)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("/nowhere/python", "cannot be started"),
        ("/etc/passwd", "cannot be started"),
        ("'unclosed", "is no command"),
        ("  ", "is no command"),
        ("/bin/false", "ended before it answered: exit status 1"),
        ("/bin/cat", "gave an answer that is none|ended before it answered"),
    ],
)
def test_pain24_a_launcher_that_cannot_be_used_is_named(monkeypatch: Patch, command: str, words: str) -> None:
    monkeypatch.setenv("PTXRT_HIPRTC_PYTHON", command)
    with pytest.raises(BackendUnavailable, match=words) as caught:
        compile_it()
    assert "PTXRT_HIPRTC_PYTHON" in str(caught.value.fix)


def test_pain24_a_python_without_hip_python_says_what_to_install(tmp_path: Path) -> None:
    out = run_script(
        "import sys; sys.modules['hip'] = None\n"
        "import importlib.util; importlib.util.find_spec = lambda name: None\n"
        "from ptxrt.compilers import hiprtc\nprint(hiprtc.available())",
        PTXRT_HIPRTC_PYTHON=f"{shlex.quote(sys.executable)} -S",
    ).stdout
    assert "hip-python cannot be loaded by" in out
    assert 'pip install "ptxrt[hip]"' in out


def test_pain24_without_the_library_its_name_and_rocms_versions_are_said() -> None:
    pytest.importorskip("hip")
    out = run_script(
        "from ptxrt.compilers import hiprtc\nprint(hiprtc.available())",
        PTXRT_HIPRTC_PYTHON=shlex.quote(sys.executable),
        ROCM_PATH="/nowhere",
        LD_LIBRARY_PATH="",
    ).stdout
    if out.strip() == "None":
        pytest.skip("hipRTC is where the loader finds it")
    assert "libhiprtc.so cannot be loaded by" in out
    assert "ROCm, 6.0 or newer" in out


def test_another_launcher_is_used_from_the_next_compile_on(launch: Any, tmp_path: Path, monkeypatch: Patch) -> None:
    first = launch()
    compile_it()
    second = Launcher(
        tmp_path / "second",
        SERVE.format(before="pass", during="pass").replace("FACTS", "{**FACTS, 'file': '/x/libamdhip64.so.5.7.2'}"),
    )
    monkeypatch.setenv("PTXRT_HIPRTC_PYTHON", str(second.path))
    assert compile_it().compiler == "hipRTC 5.7.2"
    assert hiprtc.version() == "5.7.2"
    assert gone(int(first.starts()[0][0]))


def test_a_command_may_have_arguments(launch: Any, monkeypatch: Patch) -> None:
    launcher = launch()
    monkeypatch.setenv("PTXRT_HIPRTC_PYTHON", f"/usr/bin/env WHAT=ever {shlex.quote(str(launcher.path))}")
    assert compile_it().symbols == {"scale": "scale"}


def test_a_file_without_a_release_in_its_name_leaves_the_librarys_own_word(launch: Any) -> None:
    launch("read(); answer({**FACTS, 'file': '/x/libhiprtc.so'}); time.sleep(9)")
    assert hiprtc.version() == "9.0"


def test_ctrl_c_leaves_no_worker_that_would_answer_the_next_call(launch: Any) -> None:
    launcher = launch(during="\n    if STARTS == 1:\n        time.sleep(100)")
    hiprtc.version()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest-xdist's processes ignore it
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            compile_it()
    finally:
        signal.signal(signal.SIGINT, before)
    assert gone(int(launcher.starts()[0][0]))
    assert compile_it().symbols == {"scale": "scale"}


def test_ctrl_c_while_a_late_worker_is_given_up_leaves_none_either(launch: Any, monkeypatch: Patch) -> None:
    def interrupted(worker: Worker) -> str:
        raise KeyboardInterrupt

    launcher = launch(during="time.sleep(0.6 if STARTS == 1 else 0)")
    hiprtc.version()
    with monkeypatch.context() as patch:
        patch.setenv("PTXRT_HIPRTC_TIMEOUT", "0.3")
        patch.setattr(Worker, "_last_words", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compile_it()
    assert compile_it().symbols == {"scale": "scale"}
    assert len(launcher.starts()) == 2


def test_threads_are_served_in_turn_and_the_version_is_said_meanwhile(launch: Any) -> None:
    launcher = launch(during="time.sleep(0.3)")
    hiprtc.version()
    binaries: list[object] = []
    threads = [threading.Thread(target=lambda: binaries.append(compile_it().symbols)) for _ in range(4)]
    for thread in threads:
        thread.start()
    started = time.monotonic()
    assert hiprtc.version() == "6.4.1"
    assert time.monotonic() - started < 0.25
    for thread in threads:
        thread.join()
    assert binaries == [{"scale": "scale"}] * 4
    assert len(launcher.starts()) == 1


def test_a_forked_child_has_a_worker_of_its_own_and_leaves_the_parents_alone(launch: Any) -> None:
    launcher = launch()
    compile_it()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if compile_it().symbols == {"scale": "scale"} and len(launcher.starts()) == 2 else 1)
        except BaseException:  # noqa: BLE001 (the child must not go on with the tests)
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    compile_it()
    assert len(launcher.starts()) == 2


def test_a_child_forked_while_another_thread_compiles_is_not_held_up(launch: Any) -> None:
    launch(during="time.sleep(1 if STARTS == 1 else 0)")
    hiprtc.version()
    thread = threading.Thread(target=compile_it)
    thread.start()
    time.sleep(0.3)
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            os._exit(0 if compile_it().symbols == {"scale": "scale"} else 1)
        except BaseException:  # noqa: BLE001 (the child must not go on with the tests)
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()


@pytest.mark.parametrize("how", ["sys.exit()", "os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"])
def test_the_worker_ends_with_its_parent(launch: Any, how: str) -> None:
    launcher = launch()
    run_script(
        "import os, signal, sys\nfrom ptxrt.compilers import hiprtc\nhiprtc.version()\n" + how,
        PTXRT_HIPRTC_PYTHON=str(launcher.path),
    )
    ((pid, *_),) = launcher.starts()
    assert gone(int(pid))


# The real worker --------------------------------------------------------------------------------------------------


def test_the_real_worker_ends_with_its_input_whatever_it_is_at(tmp_path: Path) -> None:
    (tmp_path / "hip").mkdir()
    (tmp_path / "hip" / "__init__.py").write_text(
        "import time\nclass hiprtc:\n    @staticmethod\n    def hiprtcVersion():\n"
        "        print('begun', flush=True)\n        time.sleep(100)\n"
    )
    worker: Any = subprocess.Popen(
        [sys.executable, hiprtc_worker.__file__, "", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    worker.stdin.write(hiprtc_worker.message({"do": "version"}))
    worker.stdin.flush()
    assert worker.stderr.readline() == b"begun\n"  # what is printed does not get among the answers
    worker.stdin.close()
    assert worker.wait(10) == 0
    assert worker.stdout.read() == b""
    worker.stdout.close()
    worker.stderr.close()


def test_the_real_worker_says_that_it_has_begun(launch: Any, tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "hip").mkdir()
    (tmp_path / "hip" / "__init__.py").write_text(
        "import os\nclass hiprtc:\n    hiprtcVersion = lambda: (0, 9, 0)\n"
        "    hiprtcCreateProgram = lambda *_: os.abort()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PTXRT_HIPRTC_PYTHON", shlex.quote(sys.executable))
    with pytest.raises(CompileError, match="ended while it compiled: killed by SIGABRT"):
        compile_it()


@pytest.mark.parametrize("length", [5, 30])
def test_the_real_worker_ends_where_its_input_ends_in_the_middle_of_a_request(length: int, tmp_path: Path) -> None:
    request = hiprtc_worker.message({"do": "version"})[:length]
    folder = tmp_path / f"{hiprtc_worker.FOLDER}of a parent that is gone"
    folder.mkdir()
    command = [sys.executable, hiprtc_worker.__file__, str(folder)]
    done = subprocess.run(command, input=request, capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (0, b"")
    assert not folder.exists()


@pytest.mark.parametrize("script", [hiprtc_worker, disassembly_worker], ids=lambda script: script.__name__)
def test_a_worker_starts_in_a_folder_that_has_been_removed(tmp_path: Path, script: Any) -> None:
    start = (
        "import os, runpy, sys\nos.mkdir(sys.argv[2]); os.chdir(sys.argv[2]); os.rmdir(sys.argv[2])\n"
        "sys.path.append('relative')  # as an editable install's hook is\n"
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    request = hiprtc_worker.message({"do": "version"}) if script is hiprtc_worker else b'{"code": ""}'
    command = [sys.executable, "-c", start, script.__file__, str(tmp_path / "removed")]
    done = subprocess.run(command, input=request, capture_output=True, timeout=60, check=False)
    assert b"FileNotFoundError" not in done.stderr


def test_the_librarys_file_is_found_in_a_folder_with_a_space(tmp_path: Path) -> None:
    library = tmp_path / "a folder" / "libhiprtc.so.7.2.53211"
    library.parent.mkdir()
    library.write_bytes(disassembly_worker._empty_library(library.name))
    out = run_script(f"""
        import ctypes, types
        from ptxrt.compilers import _hiprtc_worker as hiprtc_worker
        ctypes.CDLL({str(library)!r})
        hiprtc_worker._hiprtc = lambda: types.SimpleNamespace(hiprtcVersion=lambda: (0, 9, 0))
        print(hiprtc_worker._facts()["file"])
    """).stdout
    assert out.strip() == str(library)
