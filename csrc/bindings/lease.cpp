// SPDX-License-Identifier: Apache-2.0
// Leases for Python: page ids, addresses and hand-out counts as arrays; settling and dropping.
#include <algorithm>

#include "bindings/cache_box.h"

namespace py = pybind11;

namespace hkv {
namespace {

std::vector<std::uint32_t> pages_of(const LeaseBox& box, int group) {
  std::vector<std::uint32_t> pages;
  box.box->cache.page_ids(box.open(), group, pages);
  return pages;
}

std::int64_t extend_lease(LeaseBox& box, const std::shared_ptr<const KeyChain>& keys,
                          const py::object& formats, int verify) {
  HybridCache& cache = box.box->cache;
  const std::vector<FormatId> reader = formats_from(cache, formats);
  Question question;
  question.keys = keys.get();
  question.limit = keys->tokens();
  question.verify = static_cast<Verify>(verify);
  question.formats = reader.empty() ? cache.spec_formats() : std::span<const FormatId>(reader);
  return cache.extend(box.open(), question, keys);
}

// Withdraws an open lease that no fill has taken over. One call under the GIL, so whoever settles or takes the
// lease comes wholly before or after. Returns: whether it did. The pins stay until drop.
bool revoke(LeaseBox& box) {
  if (box.lease == nullptr || box.lease->settlement != Settlement::Open || box.taken) return false;
  box.box->cache.settle(*box.lease, Settlement::Withdrawn);
  return true;
}

// (tokens, pages) as long as the pins are held, settled or not; None once they are dropped.
py::object holds(const LeaseBox& box) {
  if (box.lease == nullptr) return py::none();
  const HybridCache& cache = box.box->cache;
  std::int64_t held = 0;
  std::vector<std::uint32_t> pages;
  for (int g = 0; g < static_cast<int>(cache.layout().groups.size()); ++g) {
    cache.page_ids(*box.lease, g, pages);
    held += std::count_if(pages.begin(), pages.end(), [](std::uint32_t page) { return page != none_u32; });
  }
  return py::make_tuple(box.lease->tokens, held);
}

}  // namespace

py::array_t<std::int32_t> page_array(const std::vector<std::uint32_t>& pages) {
  return py::array_t<std::int32_t>(static_cast<py::ssize_t>(pages.size()),
                                   reinterpret_cast<const std::int32_t*>(pages.data()));
}

py::array_t<std::uint64_t> handouts_of(HybridCache& cache, int group,
                                       const std::vector<std::uint32_t>& pages) {
  py::array_t<std::uint64_t> out(static_cast<py::ssize_t>(pages.size()));
  for (std::size_t i = 0; i < pages.size(); ++i) {
    out.mutable_at(static_cast<py::ssize_t>(i)) =
        pages[i] == none_u32 ? 0 : cache.store().pool(group)[PageId{pages[i]}].handouts.load();
  }
  return out;
}

py::array_t<std::uint64_t> addresses_of(HybridCache& cache, int group,
                                        const std::vector<std::uint32_t>& pages) {
  const PoolMemory& memory = cache.memory(group);
  py::array_t<std::uint64_t> out(
      {static_cast<py::ssize_t>(memory.rows()), static_cast<py::ssize_t>(pages.size())});
  auto rows = out.mutable_unchecked<2>();
  for (py::ssize_t row = 0; row < rows.shape(0); ++row) {
    for (py::ssize_t i = 0; i < rows.shape(1); ++i) {
      const std::uint32_t page = pages[i];
      rows(row, i) = page == none_u32 ? 0 : memory.address(row, page);
    }
  }
  return out;
}

void bind_lease(py::module_& m) {
  py::class_<LeaseBox, std::shared_ptr<LeaseBox>>(m, "Lease")
      .def_property_readonly("tokens", [](const LeaseBox& box) { return box.open().tokens; })
      .def_property_readonly("valid",
                             [](const LeaseBox& box) {
                               return box.lease != nullptr && box.lease->settlement == Settlement::Open;
                             })
      .def_property_readonly("pins", [](const LeaseBox& box) { return box.open().pins.size(); })
      .def(
          "continues", [](const LeaseBox& box, const KeyChain& keys) { return continues(box.open(), keys); },
          py::arg("keys"))
      .def_property_readonly("matched_tokens",
                             [](const LeaseBox& box) { return box.open().verdict.matched_tokens; })
      .def_property_readonly("taken", [](const LeaseBox& box) { return box.taken; })
      .def("take",
           [](LeaseBox& box) {
             const bool mine = !box.taken;
             box.taken = true;
             return mine;
           })
      .def("give_back", [](LeaseBox& box) { box.taken = false; })
      .def(
          "page_ids", [](const LeaseBox& box, int group) { return page_array(pages_of(box, group)); },
          py::arg("group"))
      .def(
          "handouts",
          [](const LeaseBox& box, int group) {
            return handouts_of(box.box->cache, group, pages_of(box, group));
          },
          py::arg("group"))
      .def(
          "addresses",
          [](const LeaseBox& box, int group) {
            return addresses_of(box.box->cache, group, pages_of(box, group));
          },
          py::arg("group"))
      .def("extend", &extend_lease, py::arg("keys"), py::arg("formats"), py::arg("verify"))
      .def(
          "settle",
          [](LeaseBox& box, int how, int kind) {
            Lease& lease = box.open();
            if (kind < 0 || kind >= kind_count) {
              throw Error(ErrorCode::ArgumentError, "kind", "a StateKind", std::to_string(kind));
            }
            box.box->cache.settle(lease, static_cast<Settlement>(how), kind);
          },
          py::arg("how"), py::arg("kind"))
      .def("revoke", &revoke)
      .def("holds", &holds)
      .def("drop", [](LeaseBox& box) {
        if (box.lease != nullptr) box.box->cache.drop(std::move(box.lease));
      });
}

}  // namespace hkv
