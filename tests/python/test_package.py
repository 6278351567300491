"""Import: version handshake, no torch pulled in, no torch or NumPy symbol in the compiled part."""

import subprocess
import sys
from pathlib import Path

import mpfa

ROOT = Path(__file__).resolve().parents[2]


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_versions_agree():
    assert mpfa.__version__ == (ROOT / "VERSION").read_text().strip() == mpfa._core.version()


def test_extension_of_another_version_is_refused():
    code = (
        "import sys, types\n"
        "version = types.ModuleType('mpfa.version'); version.__version__ = '9.9.9'\n"
        "sys.modules['mpfa.version'] = version\n"
        "import mpfa\n"
    )
    result = run(code)
    assert result.returncode != 0 and "9.9.9" in result.stderr and "rebuild" in result.stderr


def test_missing_extension_says_how_to_build_it():
    result = run("import sys; sys.modules['mpfa._core'] = None; import mpfa")
    assert result.returncode != 0 and "mpfa_python_develop" in result.stderr


def test_import_does_not_import_torch():
    result = run("import sys, mpfa; print('torch' in sys.modules)")
    assert result.stdout.strip() == "False", result.stderr


def test_compiled_part_knows_neither_torch_nor_numpy():
    binary = Path(mpfa._core.__file__).read_bytes()
    for symbol in (b"libtorch", b"libc10", b"_ZN2at", b"_ZN3c10", b"PyArray_"):
        assert symbol not in binary


def test_every_public_name_has_documentation():
    for name in mpfa.__all__:
        if name != "__version__":
            assert getattr(mpfa, name).__doc__, name
