"""Builds the extension with CMake for `pip install .`; everything else is in pyproject.toml.

An editable install builds nothing: its extension comes from a CMake build folder (python/README.md). Options of CMake
are taken from the environment, as in CMAKE_ARGS="-DMPFA_CUDA=OFF".
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()


class CMakeBuild(build_ext):
    def run(self) -> None:
        if not self.editable_mode:
            super().run()

    def build_extension(self, ext: Extension) -> None:
        build = Path(self.build_temp).resolve()
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "MPFA_BUILD_PYTHON": "ON",
            "MPFA_BUILD_TESTS": "OFF",
            "MPFA_BUILD_TOOLS": "OFF",
            "Python_EXECUTABLE": sys.executable,
        }
        arguments = [*(f"-D{k}={v}" for k, v in options.items()), *shlex.split(os.environ.get("CMAKE_ARGS", ""))]
        subprocess.run(["cmake", "--fresh", "-S", ROOT, "-B", build, *arguments], check=True)
        subprocess.run(["cmake", "--build", build, "--target", "mpfa_python", "--parallel"], check=True)
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        (built,) = (build / "python" / "mpfa").glob("_core*")
        target.parent.mkdir(parents=True, exist_ok=True)
        self.copy_file(built, target)

    def get_outputs(self) -> list[str]:
        return [] if self.editable_mode else super().get_outputs()

    def get_output_mapping(self) -> dict[str, str]:
        return {}


setup(ext_modules=[Extension("mpfa._core", sources=[])], cmdclass={"build_ext": CMakeBuild})
