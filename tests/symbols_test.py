# SPDX-License-Identifier: Apache-2.0
"""The library as a shared object: it exports what its headers declare, and nothing else."""

import os
import pathlib
import subprocess

import symbols

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("EJK_BUILD_DIR", ROOT / "build/dev"))

HEADER = """
namespace [[gnu::visibility("default")]] ejk {
class Named;
enum class Kind : int { a, b };
template <class T> requires (sizeof(T) < 4) struct Holder : Base<T> {
  static constexpr std::string_view words = "not; a { member }", more_words = f(1, 2), last_words = {};
  explicit Holder(int size, const Options& with = {}, int more = 2) : size_(size), kind_{} {}
  virtual ~Holder() = default;
  bool operator==(const Holder&) const = default;
  std::vector<int> all(Named& from) const { int local = 0; return {local}; }
  struct State;
  friend void swap(Holder& a, Holder& b);
 private:
  int size_;
  static std::map<int, std::function<void(int)>> known_;
};
namespace detail {
template <class T>
inline constexpr bool is_held = false;
template <class T>
inline constexpr bool is_held<Holder<T>> = true;
}
[[nodiscard]] auto made(int by) -> Holder<char>;
}
"""


def test_declarations_are_read_with_their_scopes():
    names = symbols.declared(HEADER)
    assert {"ejk::Kind", "ejk::Holder", "ejk::Holder::Holder", "ejk::Holder::~Holder", "ejk::Holder::operator"} <= names
    assert {"ejk::Holder::words", "ejk::Holder::more_words", "ejk::Holder::last_words", "ejk::Holder::all", "ejk::Holder::known_", "ejk::swap", "ejk::made"} <= names
    assert "ejk::detail::is_held" in names
    # What is only named, what is inside of bodies and types, and parameters.
    words = {name.rpartition("::")[2] for name in names}
    assert not words & {"Named", "State", "local", "from", "by", "more", "with", "member", "Options", "string_view"}


def test_the_headers_declare_what_they_are_known_for_and_nothing_that_comments_name():
    names = symbols.declared(symbols.preprocessed())
    assert {"ejk::ConfigSelectorChain::choose", "ejk::Tuner::tune", "ejk::Error", "ejk_plugin"} <= names
    assert "ejk::Saxpy" not in names and not any(name.startswith("std") for name in names)


def test_private_names_made_of_public_words_are_found(tmp_path):
    library = tmp_path / "lib.so"
    source = """
        namespace ejk {
        int tune() { return 1; }
        struct Tuner { struct State { int choose(); }; int measure(); };
        int Tuner::State::choose() { return 2; }
        int Tuner::measure() { return 3; }
        }
    """
    command = ["c++", "-shared", "-fPIC", "-x", "c++", "-", "-o", library]
    subprocess.run(command, input=source, text=True, check=True)
    assert symbols.exported(library) == {"ejk::tune", "ejk::Tuner::State::choose", "ejk::Tuner::measure"}
    assert symbols.strange(library) == ["ejk::Tuner::State::choose", "ejk::tune"]


def test_the_library_exports_what_its_headers_declare_and_nothing_else():
    library = BUILD / "tests/libejk_as_shared.so"
    assert library.exists(), f"{library} is not there: cmake --preset dev && cmake --build --preset dev --target ejk_as_shared"
    assert {"ejk::ConfigSelectorChain::choose", "ejk::Tuner::tune", "ejk::Error"} <= symbols.exported(library)
    assert symbols.strange(library) == []
