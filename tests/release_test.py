# SPDX-License-Identifier: Apache-2.0
"""tools/release on a small project, whose Makefile makes packages of nothing."""

import pathlib
import shutil
import subprocess
import tarfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAKEFILE = """
sdist wheel deb:
	mkdir -p build/packages && grep VERSION_MINOR include/ejk/version.h > build/packages/ejk.$@
docs:
	mkdir -p build/docs/html && echo site > build/docs/html/index.html
check-packages:
	test ! -e fails && ls build/packages/ejk.wheel
"""
CHANGELOG = "# Changelog\n\n## 0.2.0, unreleased\n\n- **News**: it is faster.\n\n## 0.1.0, 2026-01-02\n\n- **Old**.\n"


def git(project, *command):
    done = subprocess.run(["git", *command], cwd=project, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path):
    for name in ("tools/release", "include/ejk/version.h"):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / ".gitignore").write_text("/build/\n")
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "config", "user.name", "somebody")
    git(tmp_path, "config", "user.email", "somebody@example.com")
    commit(tmp_path)
    return tmp_path


def commit(project):
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "test: Be a project")


def release(project, *arguments):
    command = [str(project / "tools/release"), *arguments]
    return subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


def test_a_release_is_a_commit_a_tag_and_a_folder_to_publish(project):
    before = git(project, "rev-parse", "HEAD")
    done = release(project, "0.2.0")
    assert done.returncode == 0, done.stderr
    assert git(project, "rev-parse", "HEAD~1") == before
    assert git(project, "rev-parse", "v0.2.0^{commit}") == git(project, "rev-parse", "HEAD")
    assert git(project, "status", "--porcelain") == ""
    header = (project / "include/ejk/version.h").read_text()
    assert "_MAJOR 0\n" in header and "_MINOR 2\n" in header and "_PATCH 0\n" in header
    assert "0.2.0, unreleased" not in (project / "CHANGELOG.md").read_text()
    news = git(project, "tag", "-l", "--format=%(contents)", "v0.2.0")
    assert news.startswith("## 0.2.0, 2") and news.endswith("- **News**: it is faster.")

    made = project / "build/release-0.2.0"
    names = {"ejk.sdist", "ejk.wheel", "ejk.deb", "ejk-0.2.0-site.tar.gz"}
    assert {path.name for path in made.iterdir()} == names | {"SHA256SUMS"}
    assert "VERSION_MINOR 2" in (made / "ejk.wheel").read_text()  # built after the version was set
    assert "ejk-0.2.0-site/index.html" in tarfile.open(made / "ejk-0.2.0-site.tar.gz").getnames()
    checked = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=made, capture_output=True, text=True, check=True)
    assert checked.stdout.count(": OK") == len(names)
    assert "git push --follow-tags" in done.stdout


def test_a_release_whose_packages_fail_changes_nothing(project):
    (project / "fails").touch()
    commit(project)
    before = git(project, "rev-parse", "HEAD")
    assert release(project, "0.2.0").returncode != 0
    assert git(project, "rev-parse", "HEAD") == before
    assert git(project, "status", "--porcelain") == git(project, "tag") == ""


@pytest.mark.parametrize(
    "version, why",
    [
        ("0.2", "expected three numbers"),
        ("0.2.0-rc1", "expected three numbers"),
        ("0.0.9", "expected 0.1.0 or a later one"),
        ("0.3.0", "no section '## 0.3.0, unreleased'"),
    ],
)
def test_a_version_that_cannot_be_is_refused(project, version, why):
    done = release(project, version)
    assert (done.returncode, git(project, "tag")) == (1, "")
    assert why in done.stderr


def test_changes_that_are_not_committed_are_not_released(project):
    (project / "new.txt").touch()
    assert "not committed" in release(project, "0.2.0").stderr


def test_a_version_is_released_once(project):
    git(project, "tag", "v0.2.0")
    assert "v0.2.0 is there already" in release(project, "0.2.0").stderr


def test_help_says_what_is_made_and_that_nothing_is_uploaded(project):
    done = release(project, "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: tools/release VERSION")
    assert "Nothing is pushed" in done.stdout
    assert release(project).returncode == 2
