// SPDX-License-Identifier: Apache-2.0
// Stacks of tiers for Python. No logic; documentation is in hybridkv.tiers.stack.
#include "tier/tier_stack.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/tier_box.h"

namespace py = pybind11;

namespace hkv {
namespace {

// A stack keeps the boxes of its tiers, which close with it.
std::shared_ptr<TierBox> open_tier_stack(const std::vector<std::shared_ptr<TierBox>>& boxes,
                                         std::uint64_t promotion_bytes, const TierLimits& limits) {
  std::vector<std::shared_ptr<Tier>> tiers;
  for (const std::shared_ptr<TierBox>& box : boxes) tiers.emplace_back(box, &box->here());
  StackOptions options;
  options.promotion_bytes = promotion_bytes;
  options.limits = limits;
  return std::make_shared<TierBox>(std::make_unique<TierStack>(std::move(tiers), options));
}

// Of each tier (hits, failed, copies refused, promoted, not promoted). Requires: a stack.
py::list stack_counts(const TierBox& box) {
  const auto& stack = dynamic_cast<const TierStack&>(box.here());
  py::list counts;
  for (std::size_t tier = 0; tier < stack.tiers(); ++tier) {
    const StackCounts c = stack.counts_of(tier);
    counts.append(py::make_tuple(c.hits, c.failed, c.copies_refused, c.promoted, c.not_promoted));
  }
  return counts;
}

}  // namespace

void bind_tier_stack(py::module_& m) {
  m.def("open_tier_stack", &open_tier_stack, py::arg("tiers"), py::arg("promotion_bytes"), py::arg("limits"));
  m.def("stack_counts", &stack_counts, py::arg("stack"));
}

}  // namespace hkv
