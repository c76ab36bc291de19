// SPDX-License-Identifier: Apache-2.0
// Coverage rules for Python, so that requirements and match share one definition.
#include "layout/coverage.h"

#include "bindings/bindings.h"

namespace py = pybind11;

namespace hkv {

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
}

}  // namespace hkv
