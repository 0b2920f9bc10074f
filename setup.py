"""Builds tfdist: one shared library by CMake, and the folder-to-package map. Metadata is in pyproject.toml."""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))

import build_environment  # noqa: E402  (found through the path set above)


class CMakeBuild(build_ext):
    """Configures and builds the library into the package folder of the wheel."""

    def build_extension(self, ext: Extension) -> None:
        environment = build_environment.find()
        target = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        build = Path(self.build_temp).resolve()
        build.mkdir(parents=True, exist_ok=True)
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
        """The library is loaded by name, so it carries no Python ABI tag."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))


setup(
    packages=[
        *find_packages(include=["tfdist", "tfdist.*"]),
        *(
            f"tfdist.{name}"
            for name in find_packages(include=["callbacks", "callbacks.*", "data_service", "data_service.*"])
        ),
    ],
    package_dir={"tfdist": "tfdist", "tfdist.callbacks": "callbacks", "tfdist.data_service": "data_service"},
    ext_modules=[Extension("tfdist.libtfdist", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
