// SPDX-License-Identifier: Apache-2.0
// Events and departures for Python. No logic; documentation is in hybridkv.events and hybridkv.explain.
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/cache_box.h"
#include "bindings/without_gil.h"

namespace py = pybind11;

namespace hkv {
namespace {

py::bytes bytes_of(const Key128& key) { return {reinterpret_cast<const char*>(&key), sizeof(key)}; }

py::tuple tuple_of(const Departure& why) {
  return py::make_tuple(static_cast<int>(why.cause), why.made_for, why.age_ms);
}

// (kind, group, key, end_tokens, parent or None, departure)
py::list events(CacheBox& box, bool anew) {
  std::vector<StoreEvent> read;
  without_gil([&] { read = box.cache.events(anew); });
  py::list result(read.size());
  for (std::size_t i = 0; i < read.size(); ++i) {
    const StoreEvent& event = read[i];
    const py::object parent = event.parent ? py::object(bytes_of(*event.parent)) : py::none();
    result[i] = py::make_tuple(static_cast<int>(event.kind), event.group, bytes_of(event.key),
                               event.end_tokens, parent, tuple_of(event.why));
  }
  return result;
}

// A row an own block, tip included: (phase, departure).
py::list blocks(const CacheBox& box, const KeyChain& keys, int group, std::int64_t count) {
  py::list result(static_cast<std::size_t>(count));
  for (std::int64_t block = 0; block < count; ++block) {
    const HybridCache::Inspection seen = box.cache.inspect(keys, group, block);
    result[static_cast<std::size_t>(block)] =
        py::make_tuple(static_cast<int>(seen.phase), tuple_of(box.cache.departure(keys, group, block)));
  }
  return result;
}

}  // namespace

void bind_watch(py::module_& m) {
  m.def("events", &events, py::arg("cache"), py::arg("anew"));
  m.def("blocks", &blocks, py::arg("cache"), py::arg("keys"), py::arg("group"), py::arg("count"));
}

}  // namespace hkv
