# SPDX-License-Identifier: Apache-2.0
"""C++ kernels of a user's own library, inside JAX."""

import pathlib
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import run_program
from ejk import modules
from ejk.ops import policy_override

pytestmark = pytest.mark.usefixtures("no_tuning")

ROOT = pathlib.Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "build/python/libejk.a"

SOURCE = """
#include <algorithm>
#include <span>
#include <vector>

#include <ejk/registry.h>
#include <ejk/tensor.h>

struct Saxpy {
  static constexpr std::string_view op_id = "mine.saxpy", version = "2";
  struct Config { int block = 64; };
  void run(const Config& c, float alpha, std::span<const float> x, std::span<float> y) const {
    for (size_t from = 0; from < x.size(); from += size_t(c.block))
      for (size_t i = from; i < std::min(x.size(), from + size_t(c.block)); ++i) y[i] += alpha * x[i];
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {16}; }
  std::vector<Config> candidate_cfgs(const ejk::Invocation&) const { return {{16}, {1024}}; }
  bool is_valid(const Config& c, const ejk::Invocation&) const { return c.block > 0; }

  struct Residuals {};
  Residuals fwd_with_residuals(const Config& c, float alpha, std::span<const float> x, std::span<float> y) const {
    run(c, alpha, x, y);
    return {};
  }
  std::tuple<float, std::vector<float>, std::vector<float>> vjp(
      const Config&, const Residuals&, std::span<const float> dy, float alpha, std::span<const float> x,
      std::span<float>) const {
    std::vector<float> dx;
    for (float d : dy) dx.push_back(alpha * d);
    return {0.f, dx, {dy.begin(), dy.end()}};
  }
};
EJK_REGISTER(Saxpy);

struct Sums {  // of the rows of a matrix; and the number of rows
  static constexpr std::string_view op_id = "mine.sums", version = "1";
  struct Config { bool unused = false; };
  ejk::Tensor run(const Config&, ejk::View<const double, 2> x, ejk::Out<std::span<double>> sums) const {
    if (int64_t(sums->size()) != x.shape[0]) throw std::runtime_error("a sum for each row is needed");
    for (int64_t r = 0; r < x.shape[0]; ++r) {
      (*sums)[size_t(r)] = 0;
      for (int64_t c = 0; c < x.shape[1]; ++c) (*sums)[size_t(r)] += x(r, c);
    }
    const int32_t rows = int32_t(x.shape[0]);
    return ejk::Tensor::of<int32_t>({1}, std::span(&rows, 1));
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};
EJK_REGISTER(Sums);

struct Cube {  // what arrays of whole numbers are for is not asked
  static constexpr std::string_view op_id = "mine.cube", version = "1";
  struct Config { int times = 3; };
  ejk::Tensor power(const ejk::Tensor& x, const ejk::Tensor& factor, float of, int times) const {
    ejk::Tensor out = factor.clone();
    for (int64_t i = 0; i < x.size(); ++i) {
      out.data<float>()[i] *= of;
      for (int t = 0; t < times; ++t) out.data<float>()[i] *= x.data<float>()[i];
    }
    return out;
  }
  ejk::Tensor run(const Config&, std::span<const int32_t>, const ejk::Tensor& x) const { return power(x, x, 1, 2); }
  std::pair<ejk::Tensor, ejk::Tensor> fwd_with_residuals(const Config& c, std::span<const int32_t> n,
                                                         const ejk::Tensor& x) const {
    return {run(c, n, x), x};
  }
  std::tuple<ejk::Tensor> vjp(const Config&, const ejk::Tensor& kept, const ejk::Tensor& dy) const {
    return {power(kept, dy, 3, 2)};
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};
EJK_REGISTER(Cube);

struct Wrong : Cube {  // three gradients for two arguments
  static constexpr std::string_view op_id = "mine.wrong";
  std::tuple<ejk::Tensor, ejk::Tensor, ejk::Tensor> vjp(const Config&, const ejk::Tensor& kept, const ejk::Tensor&) const {
    return {kept, kept, kept};
  }
};
EJK_REGISTER(Wrong);

struct Fill {  // arrays inside of an argument
  static constexpr std::string_view op_id = "mine.fill", version = "1";
  struct Config { bool unused = false; };
  void run(const Config&, const std::vector<std::span<float>>& all) const {
    for (std::span<float> one : all) std::ranges::fill(one, 7.f);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};
EJK_REGISTER(Fill);
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not ARCHIVE.exists():
        pytest.skip("the library was not built here")
    folder = tmp_path_factory.mktemp("library")
    (folder / "mine.cpp").write_text(SOURCE)
    command = ["c++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{ROOT / 'include'}", folder / "mine.cpp"]
    subprocess.run([*command, ARCHIVE, "-lhwy", "-o", folder / "libmine.so"], check=True)
    return folder / "libmine.so"


@pytest.fixture(scope="module")
def kernels(library):
    return modules.load_kernels(library)


def test_it_names_its_kernels(kernels):
    assert sorted(kernels) == ["mine.cube@v1", "mine.fill@v1", "mine.saxpy@v2", "mine.sums@v1", "mine.wrong@v1"]


def test_arrays_that_a_kernel_changes_are_results(kernels):
    saxpy = kernels["mine.saxpy@v2"]
    x, y = jnp.arange(100.0), jnp.ones(100)
    expected = 2 * x + 1
    np.testing.assert_allclose(saxpy(2.0, x, y), expected)
    np.testing.assert_allclose(y, 1)
    np.testing.assert_allclose(jax.jit(lambda x, y: saxpy(2.0, x, y))(x, y), expected)
    np.testing.assert_allclose(saxpy(2.0, x, y, cfg={"block": 7}), expected)
    both = jax.vmap(lambda x: saxpy(0.5, x, y))(jnp.stack([x, 3 * x]))
    np.testing.assert_allclose(both, jnp.stack([0.5 * x + 1, 1.5 * x + 1]))


def test_gradients_are_those_of_the_kernel(kernels):
    saxpy, cube = kernels["mine.saxpy@v2"], kernels["mine.cube@v1"]
    x, y = jnp.arange(5.0), jnp.ones(5)

    def through(x, y, saxpy=lambda x, y: saxpy(2.0, x, y)):
        return (saxpy(x, y) ** 2).sum()

    expected = jax.grad(lambda x, y: through(x, y, lambda x, y: 2 * x + y), (0, 1))(x, y)
    for function in (through, jax.jit(through)):
        for a, b in zip(jax.grad(function, (0, 1))(x, y), expected):
            np.testing.assert_allclose(a, b)
    np.testing.assert_allclose(jax.vmap(jax.grad(through), (0, None))(jnp.stack([x, x]), y)[1], expected[0])

    whole, square = jnp.arange(3), jnp.arange(6.0).reshape(2, 3)
    like = jax.ShapeDtypeStruct((2, 3), "float32")
    found = jax.value_and_grad(lambda x: cube(whole, x, returns=like).sum())(square)
    np.testing.assert_allclose(found[0], (square**3).sum())
    np.testing.assert_allclose(found[1], 3 * square**2)


def test_without_a_gradient_that_is_what_is_said(kernels):
    types = jax.ShapeDtypeStruct((3,), "float64"), jax.ShapeDtypeStruct((1,), "int32")
    with jax.enable_x64(True):

        def sums(x):
            return kernels["mine.sums@v1"](x, types[0], returns=types[1])[0].sum()

        with pytest.raises(NotImplementedError, match=r"\[mine.sums\] the C\+\+ kernel has no gradient"):
            jax.grad(sums)(jnp.ones((3, 4), "float64"))
    like = jax.ShapeDtypeStruct((2,), "float32")
    wrong = jax.grad(lambda x: kernels["mine.wrong@v1"](jnp.arange(2), x, returns=like).sum())
    with pytest.raises(Exception, match=r"\[mine.wrong@v1\] vjp gave 3 gradients for 2 arguments"):
        jax.block_until_ready(wrong(jnp.ones(2)))


def test_it_is_tuned_like_any_other(kernels):
    from ejk.ops import ConfigCache, ConfigSelectorChain, Executor

    executor = Executor(ConfigSelectorChain(cache=ConfigCache()))
    x = jnp.arange(2000.0)
    assert executor.choose_config(kernels["mine.saxpy@v2"], 2.0, x, x) == {"block": 16}
    told = []
    chain = ConfigSelectorChain(cache=ConfigCache(), on_event=lambda kind, **data: told.append(kind))
    with policy_override(allow_autotune=True):
        chosen = Executor(chain).choose_config(kernels["mine.saxpy@v2"], 2.0, x, x)
    assert "autotune_start" in told and chosen in ({"block": 16}, {"block": 1024})


def test_results_that_are_written_and_returned(kernels):
    jax_types = jax.ShapeDtypeStruct((3,), "float64"), jax.ShapeDtypeStruct((1,), "int32")
    with jax.enable_x64(True):
        x = jnp.arange(12.0, dtype="float64").reshape(3, 4)
        sums, rows = kernels["mine.sums@v1"](x, jax_types[0], returns=jax_types[1])
    np.testing.assert_allclose(sums, np.asarray(x).sum(1))
    assert rows.tolist() == [3]


def test_mistakes_are_errors(kernels):
    saxpy = kernels["mine.saxpy@v2"]
    x = jnp.ones(4)
    with pytest.raises(Exception, match="saxpy"):
        saxpy(2.0, x)
    with pytest.raises(Exception, match="array as in_out is needed"):
        saxpy(2.0, x, jax.ShapeDtypeStruct((4,), "float32"))
    with pytest.raises(Exception, match="float32"):
        saxpy(2.0, x.astype("int32"), x)
    with pytest.raises(Exception, match="config"):
        saxpy(2.0, x, x, cfg={"no such field": 1})
    with pytest.raises(Exception, match="a sum for each row"), jax.enable_x64(True):
        wrong = jax.ShapeDtypeStruct((2,), "float64"), jax.ShapeDtypeStruct((1,), "int32")
        jax.block_until_ready(kernels["mine.sums@v1"](jnp.ones((3, 4), "float64"), wrong[0], returns=wrong[1]))
    with pytest.raises(ValueError, match="no kernel|cannot use|registers|library"):
        modules.load_kernels(next((ROOT / "build/python").rglob("_core*.so")))
    with pytest.raises(OSError, match="cannot load"):
        modules.load_kernels("/nowhere/lib.so")


def test_attributes_that_do_not_fit_the_arrays_are_refused(library):
    run_program(
        f"""
import jax, numpy as np
from ejk import _core, modules
from ejk.modules import _ffi
modules.load_kernels({str(library)!r})
assert _ffi.is_ready()
x, y = np.ones(4, "float32"), np.full(4, 2, "float32")

def call(attribute, inputs=(x, y), results=1):
    types = [jax.ShapeDtypeStruct((4,), "float32")] * results
    called = jax.ffi.ffi_call("ejk_call", types, has_side_effect=True)
    return jax.block_until_ready(called(*inputs, call=_core.stable_json(attribute)))

good = {{"registered": "mine.saxpy@v2", "config": {{"block": 16}}, "rank": 1, "copies": [[1, 0]],
        "arguments": [3.0, {{"given": 0}}, {{"given": 2}}]}}
pull = {{"inputs": 2, "written": 1, "wanted": [1, 2]}}
assert list(call(good)[0]) == [5.0] * 4
dx, dy = call(good | {{"pull": pull}}, (x, y, x), 2)
assert list(dx) == [3.0] * 4 and list(dy) == [1.0] * 4
given = lambda i: [3.0, {{"given": 0}}, {{"given": i}}]
BAD = [
    ({{"copies": [[1, 1]]}}, "a copy to result 1"), ({{"copies": [[1, -1]]}}, "a copy to result -1"),
    ({{"copies": [[2, 0]]}}, "a copy of input 2"), ({{"copies": [[2**63, 0]]}}, "a copy of input"),
    ({{"copies": [[1]]}}, "not a pair"), ({{"copies": [3]}}, "not a pair"), ({{"copies": 3}}, ""),
    ({{"arguments": given(3)}}, "no given array 3"), ({{"arguments": given(-1)}}, "no given array -1"),
    ({{"arguments": given(1)}}, "is an input"), ({{"arguments": given("0")}}, ""),
    ({{"arguments": []}}, ""), ({{"arguments": 3}}, ""), ({{"arguments": [3.0, 3.0, 3.0]}}, ""),
    ({{"config": {{"block": 0}}}}, "is_valid"), ({{"config": {{"block": 2**40}}}}, ""), ({{"config": []}}, ""),
    ({{"rank": 2}}, "axes"), ({{"rank": 0}}, "rank differs"), ({{"registered": "mine.saxpy@v3"}}, "mine.saxpy@v3"),
]
BAD_PULLS = [
    ({{"inputs": 4}}, "a number of inputs 4"), ({{"inputs": -1}}, "a number of inputs -1"),
    ({{"inputs": 2**63}}, "a number of inputs"), ({{"inputs": 0}}, ""), ({{"inputs": "2"}}, "a number of inputs"),
    ({{"written": 2}}, "a number of written arrays 2"), ({{"written": -1}}, "written arrays -1"), ({{"written": 0}}, ""),
    ({{"wanted": [1]}}, "1 gradients"), ({{"wanted": [1, 3]}}, "argument 3"), ({{"wanted": [1, -1]}}, "argument -1"),
    ({{"wanted": [0, 1, 2]}}, "3 gradients"), ({{"wanted": 1}}, ""),
]
cases = [((good | change,), told) for change, told in BAD]
cases += [((good | {{"pull": pull | change}}, (x, y, x), 2), told) for change, told in BAD_PULLS]
cases += [((good | {{"pull": 3}}, (x, y, x), 2), ""), ((good, (), 1), ""), ((good, (x,), 1), "no given array 2")]
fill = {{"registered": "mine.fill@v1", "config": {{"unused": False}}, "rank": 1, "copies": [], "arguments": [[{{"given": 2}}]]}}
assert list(call(fill)[0]) == [7.0] * 4
cases += [((fill | {{"arguments": [[{{"given": 2}}, {{"given": 1}}]]}},), "is an input")]
for case, told in cases:
    try:
        call(*case)
    except Exception as error:
        assert told in str(error), (case, told, str(error))
    else:
        raise AssertionError(case)
assert list(call(good)[0]) == [5.0] * 4 and list(y) == [2.0] * 4
"""
    )
