// SPDX-License-Identifier: Apache-2.0
// Fills for Python.
#include <pybind11/stl.h>

#include <optional>

#include "bindings/cache_box.h"

namespace py = pybind11;

namespace hkv {
namespace {

std::unique_ptr<FillBox> reserve(const std::shared_ptr<CacheBox>& box,
                                 const std::shared_ptr<const KeyChain>& keys, const py::list& groups,
                                 const py::object& formats,
                                 const std::optional<std::shared_ptr<LeaseBox>>& lease,
                                 const std::optional<TicketBox*>& ticket) {
  HybridCache& cache = box->cache;
  const std::vector<FormatId> writer = formats_from(cache, formats);
  const Lease* from = lease ? &(*lease)->open() : nullptr;
  auto fill = cache.reserve(keys, selections_from(cache, groups),
                            writer.empty() ? cache.spec_formats() : std::span<const FormatId>(writer), from,
                            ticket ? (*ticket)->ticket.get() : nullptr);
  return std::make_unique<FillBox>(box, std::move(fill));
}

// One entry an own block that ends inside the keys, a tip's partial block last.
py::array_t<std::int32_t> page_ids(const FillBox& box, int group) {
  const KeyChain& keys = *box.fill->keys;
  const std::int64_t units = box.box->cache.layout().groups[group].block_units;
  const std::int64_t first = keys.begin_unit() / units;
  const bool tip = keys.rest_tokens() != 0 && keys.has_tokens();
  const std::int64_t end = keys.end_unit() / units + (tip ? 1 : 0);
  py::array_t<std::int32_t> out(static_cast<py::ssize_t>(end - first));
  std::fill_n(out.mutable_data(), out.size(), -1);
  for (const Fill::Entry& entry : box.fill->entries[group]) {
    if (entry.state != Fill::State::Given)
      out.mutable_at(static_cast<py::ssize_t>(entry.block - first)) =
          static_cast<std::int32_t>(index(entry.page));
  }
  return out;
}

// Tokens below which nothing was published: the first block's start; the end of the keys where there was none.
std::int64_t since(const FillBox& box) {
  const Layout& layout = box.box->cache.layout();
  std::int64_t start = box.fill->keys->tokens();
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    for (const Fill::Entry& entry : box.fill->entries[g])
      start = std::min(start, entry.block * layout.block_tokens(layout.groups[g]));
  }
  return start;
}

py::array_t<std::int32_t> copies(const FillBox& box, int group) {
  const auto& list = box.fill->copies[group];
  py::array_t<std::int32_t> out({static_cast<py::ssize_t>(list.size()), py::ssize_t{3}});
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto row = static_cast<py::ssize_t>(i);
    out.mutable_at(row, 0) = static_cast<std::int32_t>(index(list[i].source));
    out.mutable_at(row, 1) = static_cast<std::int32_t>(index(list[i].target));
    out.mutable_at(row, 2) = list[i].rows;
  }
  return out;
}

}  // namespace

void bind_fill(py::module_& m) {
  py::class_<FillBox>(m, "Fill")
      .def_property_readonly("closed", [](const FillBox& box) { return box.fill->closed; })
      .def_property_readonly("done", [](const FillBox& box) { return box.fill->done; })
      .def_property_readonly("claimed",
                             [](const FillBox& box) {
                               std::int64_t claimed = 0;
                               for (const auto& entries : box.fill->entries) {
                                 for (const Fill::Entry& entry : entries)
                                   claimed += entry.state == Fill::State::Claimed;
                               }
                               return claimed;
                             })
      .def_property_readonly(
          "keys", [](const FillBox& box) { return std::const_pointer_cast<KeyChain>(box.fill->keys); })
      .def_property_readonly("since", &since)
      .def("page_ids", &page_ids, py::arg("group"))
      .def("copies", &copies, py::arg("group"))
      .def(
          "check",
          [](const FillBox& box, const py::list& groups) {
            box.box->cache.check_selection(*box.fill, selections_from(box.box->cache, groups));
          },
          py::arg("groups"))
      .def("close", [](FillBox& box) { box.fill->closed = true; })
      .def(
          "publish",
          [](FillBox& box, const py::list& groups) {
            box.box->cache.publish(*box.fill, selections_from(box.box->cache, groups));
          },
          py::arg("groups"))
      .def(
          "abort", [](FillBox& box, bool quarantine) { box.box->cache.abort(*box.fill, quarantine); },
          py::arg("quarantine"));
  m.def("reserve", &reserve, py::arg("cache"), py::arg("keys"), py::arg("groups"), py::arg("formats"),
        py::arg("lease"), py::arg("ticket"));
}

}  // namespace hkv
