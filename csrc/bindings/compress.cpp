// SPDX-License-Identifier: Apache-2.0
// Tail compression for Python. Python has checked arrays and addresses (tail_compression.py); what lists of the host say
// is checked here, before anything is written.
#include <vector>

#include "bindings/bindings.h"
#include "bindings/without_gil.h"
#include "kernels/compress.h"
#include "kernels/compress_check.h"
#include "kernels/device_calls.h"

namespace py = pybind11;

namespace hkv {
namespace {

constexpr std::int64_t compress_release_from_bytes = std::int64_t{1} << 18;  // about 25 us

template <class T>
T item(const py::tuple& t, std::size_t i) {
  return t[i].cast<T>();
}
template <class T>
T* pointer(const py::tuple& t, std::size_t i) {
  return reinterpret_cast<T*>(t[i].cast<std::uintptr_t>());
}

ChannelRows channel_rows(const py::tuple& t) {
  return {pointer<const std::byte>(t, 0), item<std::int64_t>(t, 1), item<bool>(t, 2)};
}
CarryRings rings(const py::tuple& t) {
  return {pointer<std::byte>(t, 0), item<std::int64_t>(t, 1), item<std::int64_t>(t, 2)};
}
IntList int_list(const py::tuple& t) { return {pointer<const std::byte>(t, 0), item<std::int64_t>(t, 1)}; }

// parts, page rows, row bytes, data bytes, hadamard, element that is rounded to first or -1.
RowLayout row_layout(const py::tuple& t, std::vector<RowPart>& parts) {
  for (const py::handle each : t[0].cast<py::tuple>()) {
    const auto part = each.cast<py::tuple>();
    parts.push_back({item<std::int32_t>(part, 0), static_cast<Element>(item<std::int32_t>(part, 1)),
                     item<std::int32_t>(part, 2), static_cast<ScaleCode>(item<std::int32_t>(part, 3)),
                     item<bool>(part, 4), item<double>(part, 5), item<std::int32_t>(part, 6),
                     item<std::int32_t>(part, 7)});
  }
  RowLayout layout;
  layout.parts = parts.data();
  layout.part_count = static_cast<std::int32_t>(parts.size());
  layout.page_rows = item<std::int32_t>(t, 1);
  layout.row_bytes = item<std::int64_t>(t, 2);
  layout.data_bytes = item<std::int64_t>(t, 3);
  layout.hadamard = item<bool>(t, 4);
  const auto rounded = item<std::int32_t>(t, 5);
  layout.rounded = rounded >= 0;
  if (layout.rounded) layout.rounded_to = static_cast<Element>(rounded);
  return layout;
}

// A call, and the parts that it points into.
struct Compression {
  std::vector<RowPart> parts;
  CompressTail call;

  explicit Compression(const py::tuple& t) {
    call.kv = channel_rows(t[0]);
    call.score = channel_rows(t[1]);
    call.rows = item<std::int64_t>(t, 2);
    call.ratio = item<std::int64_t>(t, 3);
    call.overlap = item<bool>(t, 4);
    call.width = item<std::int64_t>(t, 5);
    call.norm_weight = channel_rows(t[6]);
    call.eps = item<double>(t, 7);
    const auto rope = t[8].cast<py::tuple>();
    call.frequencies = pointer<const double>(rope, 0);
    call.rope_dims = item<std::int64_t>(rope, 1);
    call.interleaved = item<bool>(rope, 2);
    call.layout = row_layout(t[9], parts);
    const auto pages = t[10].cast<py::tuple>();
    call.pages = pointer<std::byte>(pages, 0);
    call.page_stride = item<std::int64_t>(pages, 1);
    call.page_count = item<std::int64_t>(pages, 2);
    call.carry = rings(t[11]);
    call.new_carry = rings(t[12]);
    call.requests = item<std::int64_t>(t, 13);
    call.starts = int_list(t[14]);
    call.positions = int_list(t[15]);
    call.write_mask = int_list(t[16]);
    const auto ids = t[17].cast<py::tuple>();
    call.page_ids = int_list(ids);
    call.page_id_stride = item<std::int64_t>(ids, 2);
    call.page_columns = item<std::int64_t>(ids, 3);
  }
};

void on_host(const py::tuple& given, int threads) {
  const Compression made(given);
  const CompressTail& call = made.call;
  check_compress(call);
  const std::int64_t bytes = call.rows * call.row_width() * 4;
  if (bytes < compress_release_from_bytes) return compress_tail(call, threads);
  without_gil([&] { compress_tail(call, threads); });
}

// The stream is the driver's handle; the device is where its context comes from if the thread has none.
void on_device(const py::tuple& given, std::uintptr_t stream, int device) {
  const Compression made(given);
  check_device_compress(made.call);
  device_compress_tail(made.call, CudaStream{stream, device});
}

}  // namespace

void bind_compress(py::module_& m) {
  m.def("compress_tail", &on_host, py::arg("call"), py::arg("threads"));
  m.def("device_compress_tail", &on_device, py::arg("call"), py::arg("stream"), py::arg("device"));
}

}  // namespace hkv
