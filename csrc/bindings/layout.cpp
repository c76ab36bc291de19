// SPDX-License-Identifier: Apache-2.0
// Coverage rules for Python, so that requirements and match share one definition.
#include <pybind11/stl.h>

#include <vector>

#include "bindings/bindings.h"
#include "layout/coverage.h"
#include "layout/residency.h"

namespace py = pybind11;

namespace hkv {
namespace {

// groups: (rule, parameter, block_units, rows_per_page or 0, tokens_per_row) each
std::vector<std::int64_t> worst_pages_of(std::int64_t unit_tokens, const py::list& groups,
                                         std::int64_t max_tokens, std::int64_t start_tokens,
                                         std::int64_t step_tokens, std::int64_t states) {
  std::vector<Group> made;
  for (const py::handle item : groups) {
    const auto t = item.cast<py::tuple>();
    Group g;
    g.coverage = {static_cast<Rule>(t[0].cast<int>()), t[1].cast<std::int64_t>()};
    g.block_units = t[2].cast<std::int64_t>();
    g.rows_per_page = t[3].cast<std::int64_t>();
    g.tokens_per_row = t[4].cast<std::int64_t>();
    made.push_back(std::move(g));
  }
  const Layout layout = make_layout(unit_tokens, std::move(made));
  std::vector<std::int64_t> pages;
  for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g)
    pages.push_back(worst_pages(layout, g, {max_tokens, start_tokens, step_tokens, states}));
  return pages;
}

}  // namespace

void bind_layout(py::module_& m) {
  m.def(
      "needed_span",
      [](int rule, std::int64_t parameter, std::int64_t tokens) {
        const TokenSpan span = needed_span({static_cast<Rule>(rule), parameter}, tokens);
        return py::make_tuple(span.from, span.to);
      },
      py::arg("rule"), py::arg("parameter"), py::arg("tokens"));
  m.def(
      "needed_blocks",
      [](int rule, std::int64_t parameter, std::int64_t block_tokens, std::int64_t tokens) {
        const BlockSpan span = needed_blocks({static_cast<Rule>(rule), parameter}, block_tokens, tokens);
        return py::make_tuple(span.from, span.to);
      },
      py::arg("rule"), py::arg("parameter"), py::arg("block_tokens"), py::arg("tokens"));
  m.def("worst_pages", &worst_pages_of, py::arg("unit_tokens"), py::arg("groups"), py::arg("max_tokens"),
        py::arg("start_tokens"), py::arg("step_tokens"), py::arg("states"));
}

}  // namespace hkv
