"""Which BLAS computes float32 products on Linux.

The MLX wheel for CPUs brings the reference BLAS, which is correct and slow. A preloaded OpenBLAS takes its place, since
the dynamic loader looks for `cblas_sgemm` in preloaded libraries first.
"""

import ctypes
import re
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "libopenblas0-pthread"  # Debian's and Ubuntu's name
LIBRARY = "libopenblas.so.0"
OPTIMIZED = re.compile(r"openblas|mkl|blis|armpl|nvpl", re.IGNORECASE)
# Libraries of other packages: loaded, but with names of their own that MLX does not look for.
PRIVATE = re.compile(r"/(numpy|scipy)\.libs/")


@dataclass(frozen=True)
class Blas:
    """`in_use` is the library MLX calls, `installed` an OpenBLAS on this system that could be preloaded."""

    in_use: Path | None
    installed: Path | None = None

    @property
    def optimized(self) -> bool | None:
        """Whether it is a fast one; None when none was found."""
        if self.in_use is None:
            return None
        # Debian's OpenBLAS also comes as openblas-pthread/libblas.so.3.
        return bool(OPTIMIZED.search("/".join(self.in_use.parts[-2:])))


def detect() -> Blas:
    """Looks into this process, so MLX must have been imported."""
    try:
        maps = Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        maps = ""
    return Blas(in_use=preloaded(maps) or linked(maps), installed=find(library_folders()))


def linked(maps: str) -> Path | None:
    """The BLAS among the libraries of a process (/proc/PID/maps), libraries private to other packages left out."""
    paths = [path for _, _, path in _mappings(maps) if "blas" in path.name.lower() or OPTIMIZED.search(path.name)]
    return next((path for path in paths if not PRIVATE.search(str(path))), None)


def library_at(maps: str, address: int) -> Path | None:
    """The library that a process has mapped at an address."""
    return next((path for first, last, path in _mappings(maps) if first <= address < last), None)


def find(folders: tuple[Path, ...]) -> Path | None:
    """An installed OpenBLAS."""
    return next((folder / LIBRARY for folder in folders if (folder / LIBRARY).exists()), None)


def library_folders() -> tuple[Path, ...]:
    """Where distributions put shared libraries for this architecture."""
    multiarch = sysconfig.get_config_var("MULTIARCH")
    names = [f"/usr/lib/{multiarch}"] if multiarch else []
    return tuple(Path(name) for name in [*names, "/usr/lib64", "/usr/lib", "/usr/local/lib"])


def preload_line(library: Path, cpu_flags: frozenset[str], environment: Mapping[str, str]) -> str:
    """A shell line that makes every later command of that shell use `library`, ready to paste."""
    before = re.split(r"[:\s]+", environment.get("LD_PRELOAD", ""))
    preloads = dict.fromkeys([str(library), *filter(None, before)])
    words = [f"LD_PRELOAD={':'.join(preloads)}", "OPENBLAS_NUM_THREADS=1"]
    core = core_type(cpu_flags)
    if core:
        words.append(f"OPENBLAS_CORETYPE={core}")
    return f"export {' '.join(words)}"


def core_type(cpu_flags: frozenset[str]) -> str | None:
    """OpenBLAS's name of the kernels for this processor: an older OpenBLAS does not recognise a newer processor."""
    if "avx512f" in cpu_flags:
        return "SkylakeX"
    return "Haswell" if "avx2" in cpu_flags else None


def preloaded(maps: str) -> Path | None:
    """The library whose `cblas_sgemm` everything in this process finds before any other, if there is one."""
    try:
        symbol = ctypes.CDLL(None).cblas_sgemm
    except (AttributeError, OSError):
        return None
    address = ctypes.cast(symbol, ctypes.c_void_p).value
    return library_at(maps, address) if address else None


def _mappings(maps: str) -> list[tuple[int, int, Path]]:
    lines = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ +(/.*\.so\S*)$", maps, re.MULTILINE)
    return [(int(first, 16), int(last, 16), Path(path)) for first, last, path in lines]
