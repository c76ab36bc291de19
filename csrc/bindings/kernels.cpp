// SPDX-License-Identifier: Apache-2.0
// Kernels for Python. Python has checked arrays and addresses (kernel_arguments.py); ids are checked here, before a
// byte moves in any group.
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "bindings/bindings.h"
#include "bindings/without_gil.h"
#include "kernels/cpu_level.h"
#include "kernels/cuda_api.h"
#include "kernels/device_calls.h"
#include "kernels/device_image.h"
#include "kernels/fingerprint.h"
#include "kernels/paged_copy.h"
#include "kernels/piece_check.h"

namespace py = pybind11;

namespace hkv {
namespace {

constexpr std::int64_t copy_release_from_bytes = std::int64_t{1} << 19;  // about 50 us

template <class T>
T* pointer(py::handle address) {
  return reinterpret_cast<T*>(address.cast<std::uintptr_t>());
}

// What a copy and a fingerprint have in common: the first nine items of a tuple, and its buffer.
struct Pages {
  std::vector<PoolLayer> layers;
  PageRows rows;
  PieceList pieces;
  std::int64_t pages;
  std::string suffix;

  explicit Pages(const py::tuple& t) : pages(t[2].cast<std::int64_t>()), suffix(t[8].cast<std::string>()) {
    const auto arrays = t[0].cast<py::list>();
    layers.reserve(arrays.size());
    for (const py::handle item : arrays) {
      const auto pair = item.cast<py::tuple>();
      layers.push_back({pointer<std::byte>(pair[0]), pair[1].cast<std::int64_t>()});
    }
    const auto shape = t[1].cast<py::tuple>();
    rows = {shape[0].cast<std::int64_t>(), shape[1].cast<std::int64_t>(), shape[2].cast<std::int64_t>(),
            shape[3].cast<std::int64_t>(), shape[4].cast<std::int64_t>()};
    pieces.page_ids = pointer<const void>(t[3]);
    pieces.rows = pointer<const void>(t[4]);
    pieces.wide = t[5].cast<bool>();
    pieces.count = t[6].cast<std::int64_t>();
    pieces.null_page = t[7].cast<std::int64_t>();
    pieces.pages = pages;
  }
  void check(bool unique) const { check_pieces(pieces, pages, rows.rows, unique, suffix); }
  std::int32_t layer_count() const { return static_cast<std::int32_t>(layers.size()); }
};

std::vector<Pages> pages_of(const py::list& groups) {
  std::vector<Pages> made;
  made.reserve(groups.size());
  for (const py::handle item : groups) made.emplace_back(item.cast<py::tuple>());
  return made;
}

// The groups of a call, and what they point into.
struct PagedCopies {
  std::vector<Pages> pages;
  std::vector<PagedCopy> groups;
  std::int64_t bytes = 0;

  explicit PagedCopies(const py::list& given) : pages(pages_of(given)) {
    for (std::size_t g = 0; g < pages.size(); ++g) {
      const auto t = given[g].cast<py::tuple>();
      PagedCopy& one = groups.emplace_back();
      one.layers = pages[g].layers.data();
      one.layer_count = pages[g].layer_count();
      one.page = pages[g].rows;
      one.pieces = pages[g].pieces;
      one.buffer = pointer<std::byte>(t[9]);
      one.handouts = pointer<const std::uint64_t>(t[10]);
      one.expected = pointer<const std::uint64_t>(t[11]);
      one.status = pointer<std::int32_t>(t[12]);
      one.zero_missing = t[13].cast<bool>();
      bytes += one.piece_bytes() * one.pieces.count * one.layer_count;
    }
  }
  int count() const { return static_cast<int>(groups.size()); }
};

struct Fingerprints {
  std::vector<Pages> pages;
  std::vector<FingerprintGroup> groups;
  std::int64_t bytes = 0;

  explicit Fingerprints(const py::list& given) : pages(pages_of(given)) {
    for (std::size_t g = 0; g < pages.size(); ++g) {
      const auto t = given[g].cast<py::tuple>();
      groups.push_back({pages[g].layers.data(), pages[g].layer_count(), pages[g].rows, pages[g].pieces,
                        pointer<std::uint64_t>(t[9])});
      bytes += pages[g].rows.packed_bytes() * pages[g].pieces.count * pages[g].layer_count();
    }
  }
  int count() const { return static_cast<int>(groups.size()); }
};

template <class Work>
void run(std::int64_t bytes, Work&& work) {
  if (bytes < copy_release_from_bytes) return work();
  without_gil(work);
}

// `unique`: no piece may come twice.
template <class Call, auto kernel, bool unique>
void on_host(const py::list& groups, int threads) {
  const Call call(groups);
  for (const Pages& pages : call.pages) pages.check(unique);
  run(call.bytes, [&] { kernel(call.groups.data(), call.count(), threads); });
}

// The stream is the driver's handle; the device is where its context comes from if the thread has none.
template <class Call, auto kernel>
void on_device(const py::list& groups, std::uintptr_t stream, int device) {
  const Call call(groups);
  for (const Pages& pages : call.pages) check_device_group(pages.rows, pages.layer_count(), pages.suffix);
  kernel(call.groups.data(), call.count(), CudaStream{stream, device});
}

py::dict cuda_facts() {
  const CudaStatus& status = cuda_status();
  py::dict facts;
  facts["available"] = status.available;
  facts["reason"] = status.reason;
  facts["devices"] = status.devices;
  facts["driver_version"] = status.driver_version;
  facts["image_bytes"] = device_image().bytes;
  return facts;
}

// What the driver says of the devices, whether or not this build carries kernels for them.
py::dict cuda_driver_facts() {
  const CudaLibrary& library = cuda_library();
  py::list devices;
  for (const CudaDevice& device : cuda_devices())
    devices.append(py::make_tuple(device.name, device.major, device.minor));
  py::dict facts;
  facts["reason"] = library.reason;
  facts["driver_version"] = library.driver_version;
  facts["devices"] = devices;
  return facts;
}

CpuLevel level_named(std::string_view name) {
  for (const CpuLevel level : {CpuLevel::Portable, CpuLevel::Avx2, CpuLevel::Avx512}) {
    if (name == cpu_level_name(level)) return level;
  }
  throw Error{ErrorCode::ArgumentError, "level", "portable, avx2 or avx512", std::string(name)};
}

}  // namespace

void bind_kernels(py::module_& m) {
  m.def("gather", &on_host<PagedCopies, &gather, false>, py::arg("groups"), py::arg("threads"));
  m.def("scatter", &on_host<PagedCopies, &scatter, true>, py::arg("groups"), py::arg("threads"));
  m.def("fingerprint", &on_host<Fingerprints, &fingerprint, false>, py::arg("groups"), py::arg("threads"));
  m.def("device_gather", &on_device<PagedCopies, &device_gather>, py::arg("groups"), py::arg("stream"),
        py::arg("device"));
  m.def("device_scatter", &on_device<PagedCopies, &device_scatter>, py::arg("groups"), py::arg("stream"),
        py::arg("device"));
  m.def("device_fingerprint", &on_device<Fingerprints, &device_fingerprint>, py::arg("groups"),
        py::arg("stream"), py::arg("device"));
  m.def("cuda_facts", &cuda_facts);
  m.def("cuda_driver_facts", &cuda_driver_facts);
  m.def("cpu_level", [] { return cpu_level_name(cpu_level()); });
  m.def(
      "cpu_level_supported", [](std::string_view name) { return cpu_level_supported(level_named(name)); },
      py::arg("level"));
  m.def(
      "cpu_level_choose", [](std::string_view name) { cpu_level_choose(level_named(name)); },
      py::arg("level"));
}

}  // namespace hkv
