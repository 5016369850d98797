"""Which options of a caller's go to a compiler: those that are known to name neither an architecture nor a file.

A list of what is allowed, since none of what is forbidden stays complete: compilers have many options that read or
write files (precompiled headers, files of further options, traces, plug-ins), some of them undocumented, and get new
ones. Headers and their folders are the exception: a module cache knows what was read of them.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from itertools import zip_longest

from ptxrt.compilers.ptx_text import suggestion
from ptxrt.errors import InvalidArgument

__all__ = ["HIPRTC", "NVJITLINK", "NVRTC", "OptionTable", "include_folders", "macro_lines"]

_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w#+-]*)(?:(?P<sign>=|\s+)(?P<value>.*))?", re.ASCII)
_PLAIN = re.compile(r"[\w.,:+-]*", re.ASCII)  # a value that is no path
_ARCHITECTURE = re.compile(
    "arch|gpu-architecture|gpu-name|cuda-gpu-arch|offload-arch|no-offload-arch|offload|mcpu|march|target"
)


@dataclass(frozen=True)
class OptionTable:
    """The options of one compiler, by name without dashes.

    Attributes
    ----------
    compiler
        Its name, for messages.
    flags
        Those that take no value, or one that is no file: a number or a word.
    texts
        Those with a value of any kind, which may also follow as the next option: macros, headers, and their folders.
    joined
        Those of `texts` whose value may follow at once: ``-I/folder``.
    patterns
        Regular expressions for families of flags.
    separate
        Whether the value of a flag may be the next option.
    passed_on
        Options whose value is a list of options of another compiler, with that one's table.
    """

    compiler: str
    flags: frozenset[str]
    texts: frozenset[str] = frozenset()
    joined: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    separate: bool = False
    passed_on: dict[str, OptionTable] = field(default_factory=dict)

    def check(self, options: object) -> None:
        """Raise InvalidArgument unless `options` are a tuple of str that may go to the compiler."""
        if not isinstance(options, tuple) or not all(isinstance(option, str) for option in options):
            fix = "A single option is written ('-O1',)"
            raise _wrong("a tuple of str", repr(options), fix)
        for option in options:
            if not option.strip() or re.search("[\0-\x1f\x7f\ud800-\udc7f\udd00-\udfff]", option):
                raise _wrong("options of printable characters, none of them empty", repr(option))
        rest = deque(options)
        while rest:
            option = rest.popleft()
            self._check(option, option, rest)

    def _check(self, option: str, part: str, rest: deque[str]) -> None:
        match = _OPTION.fullmatch(part)
        name = match["name"] if match else part.lstrip("-")
        if _ARCHITECTURE.fullmatch(name):
            raise _wrong("no architecture among the options", repr(option), "It is the argument `arch`")
        value = match["value"] if match and match["sign"] else None
        if name in self.passed_on:
            for word in (value or (rest.popleft() if rest else "")).split(","):
                self.passed_on[name]._check(option, word, deque())
        elif name in self.texts:
            # One that looks like an option would go unchecked.
            if value is None and rest and rest.popleft().startswith("-"):
                raise self._unknown(option, name)
        elif match and (name in self.flags or any(re.fullmatch(pattern, name) for pattern in self.patterns)):
            if self.separate and value is None and rest and not rest[0].startswith("-"):
                value = rest.popleft()
            if not _PLAIN.fullmatch(value or ""):
                raise self._unknown(option, name)
        elif not any(re.fullmatch(f"-{letters}[^-].*", part) for letters in self.joined):
            raise self._unknown(option, name)

    def _unknown(self, option: str, name: str) -> InvalidArgument:
        fix = None if name in self.texts else suggestion(name, self.flags | self.texts)
        return _wrong(
            f"options of {self.compiler} that ptxrt knows to read and write no file but headers",
            repr(option),
            fix or "Headers come through -I and -include; the binary is what the call returns",
        )


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# ptxas --help of 12.9 to 13.5.
_PTXAS = OptionTable(
    "ptxas",
    _words("""
        O O0 O1 O2 O3 opt-level Ofast-compile Ofc fmad v verbose w disable-warnings warning-as-error Werror
        maxrregcount device-function-maxrregcount func-maxrregcount register-usage-level
        allow-expensive-optimizations disable-optimizer-constants disable-optimizer-consts optimize-float-atomics
        dont-merge-basicblocks no-membermask-overlap return-at-end preserve-relocs position-independent-code pic
        def-load-cache dlcm def-store-cache dscm force-load-cache flcm force-store-cache fscm
        device-debug g generate-line-info lineinfo suppress-debug-info sp-bounds-check device-stack-protector
        warn-on-spills warn-spills warn-on-local-memory-usage warn-lmem-usage
        warn-on-double-precision-use warn-double-usage suppress-stack-size-warning suppress-double-demote-warning
        suppress-sparse-mma-advisory-warning suppress-async-bulk-multicast-advisory-warning
        extensible-whole-program ewp compile-only c legacy-bar-warp-wide-behavior jump-table-density split-compile
    """),
)
# The user's guide of NVRTC 12.9 to 13.5.
NVRTC = OptionTable(
    "NVRTC",
    _words("""
        std G device-debug lineinfo generate-line-info dopt maxrregcount ftz prec-sqrt prec-div fmad use_fast_math
        extra-device-vectorization modify-stack-limit restrict minimal split-compile Ofast-compile Ofc ofast-compile
        dc device-c dw device-w rdc relocatable-device-code ewp extensible-whole-program dlto dlink-time-opt gen-opt-lto
        optix-ir jump-table-density device-stack-protector no-cache frandom-seed random-seed no-source-include
        builtin-move-forward builtin-initializer-list w disable-warnings Werror warning-as-error Wreorder Wconversion
        device-as-default-execution-space default-device device-int128 device-float128
        optimization-info opt-info display-error-number err-no no-display-error-number no-err-no
        diag-error diag-suppress diag-warn brief-diagnostics brief-diag fdevice-syntax-only version-ident dQ
        no-version-ident no-lineinfo-inlined-at fassociative-math ffinite-math-only fno-signed-zeros uumn
    """),
    texts=_words("D define-macro U undefine-macro I include-path include pre-include"),
    joined=("D", "U", "I"),
    separate=True,
    passed_on={"Xptxas": _PTXAS, "ptxas-options": _PTXAS},
)
# Its user's guide, 12.9 to 13.5.
NVJITLINK = OptionTable(
    "nvJitLink",
    _words("""
        O0 O1 O2 O3 fma ftz prec-div prec-sqrt maxrregcount g lineinfo verbose time lto ptx no-cache split-compile
        split-compile-extended kernels-used variables-used optimize-unused-variables jump-table-density
        device-stack-protector device-stack-protector-frame-size-threshold
    """),
    passed_on={"Xptxas": _PTXAS},
)
_LLVM = OptionTable(
    "LLVM", frozenset(), patterns=("amdgpu-[a-z0-9-]+", "(?:enable|disable)-[a-z0-9-]+", "[a-z-]+-threshold")
)
# clang's, as far as they are about a device's code: of its thousand many are families.
HIPRTC = OptionTable(
    "hipRTC",
    _words("""
        std w pedantic pedantic-errors g g0 g1 g2 g3 ggdb gline-tables-only gdwarf-4 gdwarf-5
        nogpulib nogpuinc nostdinc nostdinc++ nostdlibinc nobuiltininc gpu-max-threads-per-block
        mcumode mno-cumode mwavefrontsize64 mno-wavefrontsize64 mtgsplit mno-tgsplit mcode-object-version
        munsafe-fp-atomics mno-unsafe-fp-atomics mamdgpu-ieee mno-amdgpu-ieee mamdgpu-precise-memory-op
        mno-amdgpu-precise-memory-op mnop-mcount
    """),
    texts=_words("D U I isystem iquote idirafter include"),
    joined=("D", "U", "I", "isystem", "iquote", "idirafter"),
    patterns=(
        "O(?:[0-3sz]|fast)?",
        "W[a-z0-9#+-]*",
        "R(?:no-)?pass(?:-missed|-analysis)?",
        "f(?:no-)?(?:"
        "fast-math|unsafe-math-optimizations|associative-math|reciprocal-math|finite-math-only|signed-zeros|trapping-math|"
        "math-errno|honor-nans|honor-infinities|approx-func|rounding-math|denormal-fp-math(?:-f32)?|strict-float-cast-overflow|"
        "fp-contract|fp-model|fp-exception-behavior|fp-eval-method|complex-arithmetic|cx-limited-range|cx-fortran-rules|"
        "(?:gpu|cuda)-flush-denormals-to-zero|(?:gpu|cuda)-approx-transcendentals|"
        "hip-fp32-correctly-rounded-divide-sqrt|hip-kernel-arg-name|gpu-rdc|gpu-defer-diag|gpu-sanitize|"
        "offload-uniform-block|atomic-(?:ignore-denormal-mode|remote-memory|fine-grained-memory)|"
        "unroll-loops|vectorize|tree-vectorize|slp-vectorize|tree-slp-vectorize|inline|inline-functions|"
        "inline-hint-functions|builtin|builtin-[a-z0-9_]+|convergent-functions|finite-loops|merge-all-constants|"
        "strict-aliasing|strict-overflow|strict-enums|strict-return|wrapv|wrapv-pointer|trapv|delete-null-pointer-checks|"
        "optimize-sibling-calls|omit-frame-pointer|stack-protector|visibility|semantic-interposition|"
        "data-sections|function-sections|trivial-auto-var-init|zero-initialized-in-bss|common|"
        "exceptions|cxx-exceptions|rtti|char8_t|signed-char|unsigned-char|short-enums|short-wchar|ms-extensions|"
        "gnu-keywords|declspec|operator-names|sized-deallocation|aligned-allocation|aligned-new|threadsafe-statics|"
        "lax-vector-conversions|enable-matrix|native-half-type|native-half-arguments-and-returns|"
        "template-depth|constexpr-depth|constexpr-steps|bracket-depth|error-limit|message-length|max-type-align|"
        "clang-abi-compat|standalone-debug|debug-info-for-profiling|discard-value-names|"
        "color-diagnostics|caret-diagnostics|show-column|show-source-location|spell-checking|elide-type|"
        "diagnostics-(?:show-[a-z-]+|fixit-info|color))",
    ),
    passed_on={"mllvm": _LLVM},
)


def include_folders(options: tuple[str, ...]) -> list[str]:
    """Return the folders that options name for headers, in their order."""
    return _values("include-path|isystem|iquote|idirafter|I", options)


def macro_lines(options: tuple[str, ...]) -> str:
    """Return the macros that options define, as the lines of a text that would define them."""
    return "".join(f"#define {macro.replace('=', ' ', 1)}\n" for macro in _values("define-macro|D", options))


def _values(names: str, options: tuple[str, ...]) -> list[str]:
    """Return the values of those options whose name `names` matches."""
    values = []
    for option, after in zip_longest(options, options[1:], fillvalue=""):
        if match := re.match(rf"--?(?:{names})[=\s]*(.*)", option.strip(), re.DOTALL):
            values.append((match[1] or after).strip())
    return values


def _wrong(expected: str, given: str, fix: str | None = None) -> InvalidArgument:
    return InvalidArgument(op="compile", argument="options", expected=expected, given=given, fix=fix)
