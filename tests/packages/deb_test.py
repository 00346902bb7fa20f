# SPDX-License-Identifier: Apache-2.0
"""The Debian packages on a bare Debian: the tool runs without a compiler, and programs find the library."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import PACKAGES, ROOT, VERSION, run

sys.path.append(str(ROOT / "tests"))
import symbols  # tests

NAMES = ["libejk", "libejk-dev", "ejk"]


def file_of(name):
    (file,) = PACKAGES.glob(f"{name}_{VERSION}_*.deb")
    return file


def field(name, which):
    return run("dpkg-deb", "--field", file_of(name), which).strip()


def files_of(name):
    """Paths of its files, without the folder that is named after the processor."""
    lines = run("dpkg-deb", "--contents", file_of(name)).splitlines()
    triplet = run("dpkg-architecture", "-qDEB_HOST_MULTIARCH").strip()
    paths = [line.split()[5].removeprefix(".").replace(f"/{triplet}/", "/") for line in lines]
    return {path for path in paths if not path.endswith("/")}


def test_each_part_has_its_files():
    minor = VERSION.rpartition(".")[0]
    assert files_of("libejk") == {
        f"/usr/lib/libejk.so.{VERSION}",
        f"/usr/lib/libejk.so.{minor}",
        "/usr/share/doc/libejk/copyright",
    }
    assert files_of("ejk") == {
        "/usr/bin/ejk",
        "/usr/share/man/man1/ejk.1",
        "/usr/share/bash-completion/completions/ejk",
        "/usr/share/zsh/site-functions/_ejk",
        "/usr/share/fish/vendor_completions.d/ejk.fish",
        "/usr/share/doc/ejk/copyright",
    }
    dev = files_of("libejk-dev")
    headers = {f"/usr/include/{path.relative_to(ROOT / 'include')}" for path in ROOT.glob("include/**/*.h")}
    assert headers <= dev
    assert {"/usr/lib/libejk.so", "/usr/lib/pkgconfig/ejk.pc", "/usr/lib/cmake/ejk/ejkConfig.cmake"} <= dev
    assert not [path for path in dev - headers if not path.startswith(("/usr/lib/", "/usr/share/doc/libejk-dev/"))]


def test_packages_ask_for_what_they_use():
    assert {field(name, "Version") for name in NAMES} == {VERSION}
    assert "libhwy1" in field("libejk", "Depends") and "libstdc++6" in field("libejk", "Depends")
    assert field("libejk-dev", "Depends") == f"libejk (= {VERSION})"
    assert "libhwy1" in field("ejk", "Depends")


def test_the_library_is_found_by_a_name_with_its_version(tmp_path):
    run("dpkg-deb", "--extract", file_of("libejk"), tmp_path)
    (library,) = [path for path in tmp_path.rglob("libejk.so.*") if not path.is_symlink()]
    assert f"Library soname: [libejk.so.{VERSION.rpartition('.')[0]}]" in run("readelf", "-d", library)


def test_the_library_exports_what_its_headers_declare_and_nothing_else(tmp_path):
    run("dpkg-deb", "--extract", file_of("libejk"), tmp_path)
    (library,) = [path for path in tmp_path.rglob("libejk.so.*") if not path.is_symlink()]
    assert symbols.strange(library) == []


EXAMPLES = """
cmake_minimum_required(VERSION 3.25)
project(examples LANGUAGES CXX)
find_package(ejk REQUIRED)
add_library(ejk ALIAS ejk::ejk)
add_library(ejk_warnings INTERFACE)
include(${sources}/cmake/fresh_cache.cmake)
enable_testing()
add_subdirectory(${sources}/examples examples)
"""


def test_programs_that_use_the_headers_find_all_of_it_in_the_library(tmp_path):
    for name in ("libejk", "libejk-dev"):
        run("dpkg-deb", "--extract", file_of(name), tmp_path / "unpacked")
    (tmp_path / "CMakeLists.txt").write_text(f"set(sources {ROOT})\n{EXAMPLES}")
    launcher = [f"-DCMAKE_CXX_COMPILER_LAUNCHER={path}"] if (path := shutil.which("ccache")) else []
    run(
        "cmake",
        "-G",
        "Ninja",
        "-S",
        tmp_path,
        "-B",
        tmp_path / "build",
        f"-DCMAKE_PREFIX_PATH={tmp_path / 'unpacked' / 'usr'}",
        *launcher,
    )
    run("cmake", "--build", tmp_path / "build", "--parallel", str(os.cpu_count()))
    environment = {**os.environ, "EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "store")}
    assert "known from memory" in run(tmp_path / "build/examples/01_first_kernel", env=environment)


def install(debian, *names):
    for name in names:
        debian.copy(file_of(name), f"srv/{name}.deb")
    debian("apt-get", "install", "-y", "--no-install-recommends", *(f"/srv/{name}.deb" for name in names))


def test_the_tool_works_where_there_is_no_compiler(bare_debian):
    install(bare_debian, "ejk")
    assert not [tool for tool in ("c++", "cc", "cmake") if bare_debian.has(tool)]
    assert bare_debian("ejk", "--version").strip() == f"ejk {VERSION}"
    arguments = [
        word for given in ("f32[1,64,64]", "f32[1,64,64]", "null", "f32[1,64,64]") for word in ("--arg", given)
    ]
    bare_debian("ejk", "tune", "matmul", *arguments)
    assert "matmul" in bare_debian("ejk", "ls")
    page = (bare_debian.folder / "usr/share/man/man1/ejk.1").read_text()
    assert page == bare_debian("ejk", "manual")
    for shell, file in (("bash", "bash-completion/completions/ejk"), ("zsh", "zsh/site-functions/_ejk")):
        assert (bare_debian.folder / "usr/share" / file).read_text() == bare_debian("ejk", "completion", shell)


def test_programs_are_built_with_find_package_and_with_pkg_config(bare_debian):
    install(bare_debian, "libejk", "libejk-dev")
    bare_debian("apt-get", "install", "-y", "--no-install-recommends", "cmake", "g++", "make", "pkgconf")
    bare_debian.copy(ROOT / "tests/install/consumer", "srv/consumer")
    bare_debian("cmake", "-S", "/srv/consumer", "-B", "/srv/build", "-D", f"ejk_expected_version={VERSION}")
    bare_debian("cmake", "--build", "/srv/build")
    assert "block" in bare_debian("/srv/build/consumer")
    compile = "c++ -std=c++20 /srv/consumer/version.cpp -o /srv/version $(pkg-config --cflags --libs ejk)"
    bare_debian("sh", "-c", compile)
    assert f"library {VERSION}" in bare_debian("/srv/version", VERSION)
    # Programs stay with the versions that they were built for.
    assert f"libejk.so.{VERSION.rpartition('.')[0]}" in bare_debian("ldd", "/srv/version")


def test_nothing_stays_when_the_packages_go(bare_debian):
    installed = [
        name
        for name in NAMES
        if subprocess.run(["chroot", bare_debian.folder, "dpkg", "-s", name], capture_output=True).returncode == 0
    ]
    if installed != NAMES:
        pytest.skip("the tests before this one installed nothing")
    bare_debian("apt-get", "purge", "-y", *NAMES)
    left = run("find", bare_debian.folder / "usr", "-name", "*ejk*")
    assert left == ""
