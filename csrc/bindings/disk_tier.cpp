// SPDX-License-Identifier: Apache-2.0
// Opening a disk tier from Python. No logic; documentation is in hybridkv.tiers.disk.
#include "tier/disk_tier.h"

#include <pybind11/stl.h>

#include "base/crc32c.h"
#include "bindings/bindings.h"
#include "bindings/tier_box.h"
#include "tier/region.h"

namespace py = pybind11;

namespace hkv {
py::dict recovered_dict(const Recovered& r) {
  using py::literals::operator""_a;
  return py::dict("regions"_a = r.regions, "records"_a = r.records, "bytes"_a = r.bytes,
                  "scanned_regions"_a = r.scanned_regions, "torn"_a = r.torn, "stale"_a = r.stale,
                  "orphans"_a = r.orphans, "removed"_a = r.removed, "unknown_files"_a = r.unknown_files,
                  "seconds"_a = r.seconds);
}

namespace {

// (capacity, region, budget, burst) in bytes; keep_share.
using Sizes = std::array<std::uint64_t, 4>;

py::tuple open_disk(const std::string& path, const Sizes& sizes, double keep_share, int engine, bool direct,
                    std::size_t depth, int admission, bool reclaim_when_full, const TierLimits& limits) {
  DiskOptions options;
  options.path = path;
  options.capacity_bytes = sizes[0];
  options.region_bytes = sizes[1];
  options.budget_bytes_per_second = sizes[2];
  options.budget_burst_bytes = sizes[3];
  options.keep_share = keep_share;
  options.engine = static_cast<IoEngine>(engine);
  options.direct = direct;
  options.depth = depth;
  options.admission = static_cast<WriteAdmission>(admission);
  options.reclaim_when_full = reclaim_when_full;
  options.limits = limits;
  std::unique_ptr<DiskTier> tier;
  without_gil([&] { tier = open_disk_tier(options); });
  const py::dict recovered = recovered_dict(tier->recovered());
  const std::string name = tier->engine();
  py::list formats;
  for (const Key128& format : tier->recovered().formats) formats.append(key_bytes(format));
  return py::make_tuple(std::make_shared<TierBox>(std::move(tier)), recovered, name, formats);
}

}  // namespace

void bind_disk_tier(py::module_& m) {
  m.attr("record_version") = record_version;
  m.attr("store_version") = disk_layout_version;
  m.attr("writers_files") = py::make_tuple(writers_name, writers_draft_name, writers_damaged_name);
  m.def("crc32c_path", [] { return crc32c_name(crc32c_path()); });
  m.def("open_disk_tier", &open_disk, py::arg("path"), py::arg("sizes"), py::arg("keep_share"),
        py::arg("engine"), py::arg("direct"), py::arg("depth"), py::arg("admission"),
        py::arg("reclaim_when_full"), py::arg("limits"));
}

}  // namespace hkv
