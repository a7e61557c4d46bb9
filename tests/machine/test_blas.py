"""Which BLAS is in use, and the line that brings a better one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dspark.machine import blas
from dspark.machine.blas import Blas

REFERENCE = """\
7f00-7f10 r-xp 00000000 fe:00 11   /site-packages/numpy.libs/libscipy_openblas64_-8fb3d286.so
7f20-7f30 r--p 00000000 fe:00 12   /site-packages/mlx_cpu.libs/libblas-bd8a282c.so.3.10.0
7f30-7f40 r-xp 00130000 fe:00 12   /site-packages/mlx_cpu.libs/libblas-bd8a282c.so.3.10.0
7f50-7f60 rw-p 00000000 00:00 0    [heap]
"""


def test_the_library_that_mlx_linked_is_told_from_numpys_own() -> None:
    path = blas.linked(REFERENCE)
    assert path == Path("/site-packages/mlx_cpu.libs/libblas-bd8a282c.so.3.10.0")
    assert Blas(path).optimized is False


def test_a_library_is_found_by_an_address_in_it() -> None:
    assert blas.library_at(REFERENCE, 0x7F05) == Path("/site-packages/numpy.libs/libscipy_openblas64_-8fb3d286.so")
    assert blas.library_at(REFERENCE, 0x7F3F) == Path("/site-packages/mlx_cpu.libs/libblas-bd8a282c.so.3.10.0")
    assert blas.library_at(REFERENCE, 0x7F40) is None


def test_no_library_is_unknown() -> None:
    assert Blas(blas.linked("")).optimized is None


@pytest.mark.parametrize(
    ("name", "fast"),
    [
        ("libopenblasp-r0.3.21.so", True),
        ("openblas-pthread/libblas.so.3", True),
        ("libmkl_rt.so.2", True),
        ("libblis.so.4", True),
        ("libblas.so.3", False),
    ],
)
def test_fast_libraries(name: str, fast: bool) -> None:
    assert Blas(Path("/usr/lib") / name).optimized is fast


@pytest.mark.parametrize(
    ("flags", "core"),
    [({"avx512f", "avx2"}, "SkylakeX"), ({"avx2"}, "Haswell"), ({"sse2"}, None), (set(), None)],
)
def test_core_type_follows_the_processor(flags: set[str], core: str | None) -> None:
    assert blas.core_type(frozenset(flags)) == core


def test_an_installed_library_is_found(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "libopenblas.so.0").touch()
    assert blas.find((tmp_path / "first", tmp_path / "second")) == tmp_path / "second" / "libopenblas.so.0"
    assert blas.find((tmp_path / "first",)) is None


def test_the_line_works_pasted_into_a_shell() -> None:
    line = blas.preload_line(Path("/opt/lib/libopenblas.so.0"), frozenset({"avx2"}), {"LD_PRELOAD": "/opt/a.so"})
    show = 'echo "$LD_PRELOAD|$OPENBLAS_NUM_THREADS|$OPENBLAS_CORETYPE"'
    done = subprocess.run(["sh", "-c", f"{line}; {show}"], capture_output=True, text=True, check=True)
    assert done.stdout == "/opt/lib/libopenblas.so.0:/opt/a.so|1|Haswell\n"


def test_a_library_already_preloaded_is_not_named_twice() -> None:
    line = blas.preload_line(Path("/a/libopenblas.so.0"), frozenset(), {"LD_PRELOAD": "/a/libopenblas.so.0"})
    assert line == "export LD_PRELOAD=/a/libopenblas.so.0 OPENBLAS_NUM_THREADS=1"


INSTALLED = blas.find(blas.library_folders()) if sys.platform == "linux" else None


@pytest.mark.skipif(INSTALLED is None, reason="no OpenBLAS on this system")
@pytest.mark.parametrize("preload", [True, False])
def test_a_preloaded_library_is_the_one_in_use(preload: bool) -> None:
    pytest.importorskip("mlx.core")
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    if preload:
        environment["LD_PRELOAD"] = str(INSTALLED)
    program = "import mlx.core; from dspark.machine import blas; print(blas.detect().in_use)"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ("openblas" in done.stdout) is preload
