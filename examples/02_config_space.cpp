// SPDX-License-Identifier: Apache-2.0
// A space of configurations with constraints, a config given by hand, compile, and explain.
#include <algorithm>
#include <iostream>

#include <ejk/ejk.h>

struct Transpose {
  static constexpr std::string_view op_id = "transpose_tiles", version = "1";
  enum class Walk { rows, columns };
  struct Config {  // numbers, bools, enums, strings, optionals, vectors, structs: all become JSON
    Walk walk = Walk::rows;
    int tile = 16;
  };

  void run(const Config& c, ejk::View<const float, 2> in, ejk::Out<ejk::View<float, 2>> out) const {
    const int64_t rows = in.shape[0], columns = in.shape[1];
    for (int64_t i0 = 0; i0 < rows; i0 += c.tile)
      for (int64_t j0 = 0; j0 < columns; j0 += c.tile) {
        const int64_t i1 = std::min(rows, i0 + c.tile), j1 = std::min(columns, j0 + c.tile);
        if (c.walk == Walk::rows)
          for (int64_t i = i0; i < i1; ++i)
            for (int64_t j = j0; j < j1; ++j) (*out)(j, i) = in(i, j);
        else
          for (int64_t j = j0; j < j1; ++j)
            for (int64_t i = i0; i < i1; ++i) (*out)(j, i) = in(i, j);
      }
  }
  bool is_valid(const Config& c, const ejk::Invocation&) const { return c.tile > 0; }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
  auto candidate_cfgs(const ejk::Invocation& inv) const {
    const int64_t rows = inv.args[0].shape[0];  // the call's shapes may decide what is worth trying
    return ejk::space<Config>()
        .param(&Config::walk, {Walk::rows, Walk::columns})
        .param(&Config::tile, {4, 8, 16, 32, 64, 1024})
        .where([rows](const Config& c) { return c.tile <= rows; });
  }
};

int main() {
  const ejk::Tensor in = ejk::Tensor::of<float>({300, 200});
  const ejk::Tensor out = ejk::Tensor::of<float>({200, 300});
  const auto from = in.view<float, 2>(), to = out.view<float, 2>();
  for (int64_t i = 0; i < in.size(); ++i) from.data[i] = static_cast<float>(i);
  ejk::Executor executor;
  const auto budget = ejk::policy_override({.budget_seconds = 1});  // an example is in a hurry

  // A given config is used for this call and not kept.
  executor(Transpose{}, {.walk = Transpose::Walk::columns, .tile = 8}, in, out);
  const bool by_hand = to(7, 5) == from(5, 7);
  std::cout << "before tuning:\n" << executor.explain(Transpose{}, in, out);

  const auto transpose = executor.compile(Transpose{}, in, out);  // chooses (here: tunes) once
  transpose(in, out);                                             // the bare kernel
  std::cout << "\nafter:\n" << executor.explain(Transpose{}, in, out);
  std::cout << "\ncompiled with " << ejk::to_json(transpose.config()) << '\n';
  return by_hand && to(199, 299) == from(299, 199) && to(0, 299) == from(299, 0) ? 0 : 1;
}
