// SPDX-License-Identifier: Apache-2.0
// Leases for Python: page ids, addresses and hand-out counts as arrays; settling and dropping.
#include "bindings/cache_box.h"

namespace py = pybind11;

namespace hkv {
namespace {

py::array_t<std::int32_t> page_ids(const LeaseBox& box, int group) {
  std::vector<std::uint32_t> pages;
  box.box->cache.page_ids(box.open(), group, pages);
  return py::array_t<std::int32_t>(static_cast<py::ssize_t>(pages.size()),
                                   reinterpret_cast<const std::int32_t*>(pages.data()));
}

py::array_t<std::uint64_t> handouts(const LeaseBox& box, int group) {
  std::vector<std::uint32_t> pages;
  HybridCache& cache = box.box->cache;
  cache.page_ids(box.open(), group, pages);
  py::array_t<std::uint64_t> out(static_cast<py::ssize_t>(pages.size()));
  for (std::size_t i = 0; i < pages.size(); ++i) {
    out.mutable_at(static_cast<py::ssize_t>(i)) =
        pages[i] == none_u32 ? 0 : cache.store().pool(group)[PageId{pages[i]}].handouts.load();
  }
  return out;
}

py::array_t<std::uint64_t> addresses(const LeaseBox& box, int group) {
  std::vector<std::uint32_t> pages;
  const PoolMemory& memory = box.box->cache.memory(group);
  box.box->cache.page_ids(box.open(), group, pages);
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

std::int64_t extend(LeaseBox& box, const std::shared_ptr<const KeyChain>& keys, const py::object& formats,
                    int verify) {
  HybridCache& cache = box.box->cache;
  const std::vector<FormatId> reader = formats_from(cache, formats);
  Question question;
  question.keys = keys.get();
  question.limit = keys->tokens();
  question.verify = static_cast<Verify>(verify);
  question.formats = reader.empty() ? cache.spec_formats() : std::span<const FormatId>(reader);
  return cache.extend(box.open(), question, keys);
}

}  // namespace

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
      .def_property_readonly("taken", [](const LeaseBox& box) { return box.taken; })
      .def("take",
           [](LeaseBox& box) {
             const bool mine = !box.taken;
             box.taken = true;
             return mine;
           })
      .def("give_back", [](LeaseBox& box) { box.taken = false; })
      .def("page_ids", &page_ids, py::arg("group"))
      .def("handouts", &handouts, py::arg("group"))
      .def("addresses", &addresses, py::arg("group"))
      .def("extend", &extend, py::arg("keys"), py::arg("formats"), py::arg("verify"))
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
      .def("drop", [](LeaseBox& box) {
        if (box.lease != nullptr) box.box->cache.drop(std::move(box.lease));
      });
}

}  // namespace hkv
