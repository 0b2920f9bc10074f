"""Builds tfdist: its shared libraries by CMake, and the folder-to-package map. Metadata is in pyproject.toml."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))

import build_environment  # noqa: E402  (found through the path set above)


class CMakeBuild(build_ext):
    """Configures and builds the libraries into the package folder of the wheel.

    With TFDIST_LIBRARIES, which tools/wheels.py sets, those of that folder are taken instead.
    """

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        build = Path(self.build_temp).resolve()
        build.mkdir(parents=True, exist_ok=True)
        for old in target.glob("libtfdist*.so"):
            old.unlink()  # of a build for another TensorFlow or MPI
        if folder := os.environ.get("TFDIST_LIBRARIES"):
            target.mkdir(parents=True, exist_ok=True)
            for library in sorted(Path(folder).glob("libtfdist*.so")):
                shutil.copy(library, target)
            return
        build_environment.check_platform()
        environment = build_environment.find()
        print(f"tfdist: building for {environment.summary()}", flush=True)
        cmake = build_environment.cmake_command()
        options = environment.cmake_options() | {
            "CMAKE_BUILD_TYPE": os.environ.get("TFDIST_BUILD_TYPE", "Release"),
            "CMAKE_LIBRARY_OUTPUT_DIRECTORY": str(target),
        }
        definitions = [f"-D{name}={value}" for name, value in options.items()]
        subprocess.run([*cmake, "-S", str(ROOT), "-B", str(build), *definitions], check=True)
        jobs = str(os.cpu_count() or 1)
        subprocess.run([*cmake, "--build", str(build), "--parallel", jobs], check=True)

    def get_ext_filename(self, fullname: str) -> str:
        """The libraries are loaded by name, so they carry no Python ABI tag."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))


class AnyPython(bdist_wheel):
    """The libraries use no name of Python's, so a wheel is for every Python 3 of its platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    packages=[
        *find_packages(include=["tfdist", "tfdist.*"]),
        *(
            f"tfdist.{name}"
            for name in find_packages(include=["callbacks", "callbacks.*", "data_service", "data_service.*"])
        ),
    ],
    package_dir={"tfdist": "tfdist", "tfdist.callbacks": "callbacks", "tfdist.data_service": "data_service"},
    ext_modules=[Extension("tfdist.libtfdist_core", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "bdist_wheel": AnyPython},
)
