// SPDX-License-Identifier: Apache-2.0
// A walk of a store from Python: tuples and numbers. No logic; documentation is in hybridkv.tiers.store.
#include "tier/store_walk.h"

#include <pybind11/stl.h>
#include <unistd.h>

#include <cstring>
#include <mutex>

#include "bindings/bindings.h"
#include "bindings/without_gil.h"

namespace py = pybind11;

namespace hkv {
namespace {

py::list flaws_of(const std::vector<Flaw>& flaws) {
  py::list out;
  for (const Flaw& flaw : flaws) {
    const py::object part = flaw.part == none_u32 ? py::object(py::none()) : py::object(py::int_(flaw.part));
    out.append(py::make_tuple(static_cast<int>(flaw.at), static_cast<int>(flaw.damage), flaw.error, part,
                              flaw.offset));
  }
  return out;
}

py::tuple record_of(const WalkedRecord& r) {
  const int kind = static_cast<int>(r.standing == Standing::Tombstone ? r.removes : r.key.kind);
  return py::make_tuple(key_bytes(r.key.digest), key_bytes(r.key.format), kind, static_cast<int>(r.standing),
                        key_bytes(r.parent), key_bytes(r.identity), r.tokens, r.payload_bytes, r.parts,
                        r.offset, r.bytes, r.flags, r.pinned, r.above, flaws_of(r.flaws));
}

// The walk, for one call at a time. A read lets the interpreter go, and takes it back only after the mutex.
class StoreWalkBox {
 public:
  StoreWalkBox(const std::string& path, int engine, bool direct, std::size_t depth) {
    without_gil([&] { walk_ = open_store_walk(path, static_cast<IoEngine>(engine), direct, depth); });
  }
  ~StoreWalkBox() {
    if (::getpid() != process_)
      walk_.release();  // NOLINT: behind a fork its threads are gone; leaked on purpose
  }
  StoreWalkBox(const StoreWalkBox&) = delete;
  StoreWalkBox& operator=(const StoreWalkBox&) = delete;

  py::tuple superblock() const {
    const std::lock_guard lock(mutex_);
    const Superblock& s = here().superblock();
    return py::make_tuple(s.version, key_bytes(s.store), s.region_bytes, flaws_of(here().superblock_flaws()));
  }
  py::dict recovered() const {
    const std::lock_guard lock(mutex_);
    return recovered_dict(here().recovered());
  }
  std::size_t index_bytes() const {
    const std::lock_guard lock(mutex_);
    return here().index_bytes();
  }
  py::list files() const {
    const std::lock_guard lock(mutex_);
    py::list out;
    for (const StoreFile& file : here().files()) {
      // As Python has names that are no UTF-8.
      const py::object name = py::reinterpret_steal<py::object>(PyUnicode_DecodeFSDefault(file.name.c_str()));
      if (!name) throw py::error_already_set();
      out.append(py::make_tuple(name, static_cast<int>(file.kind), file.bytes, file.error));
    }
    return out;
  }
  std::size_t regions() const {
    const std::lock_guard lock(mutex_);
    return here().regions();
  }
  py::tuple read(std::size_t at, bool every_byte) {
    WalkedRegion r;
    without_gil([&] {
      const std::lock_guard lock(mutex_);
      r = here().read(at, every_byte);
    });
    py::list records;
    for (const WalkedRecord& record : r.records) records.append(record_of(record));
    return py::make_tuple(r.file, r.epoch, r.bytes, static_cast<int>(r.state), r.header_bytes, r.footer_bytes,
                          r.torn_bytes, r.torn, r.stale, records, flaws_of(r.flaws));
  }
  py::list parts(std::size_t at, std::uint64_t offset) {
    std::vector<PartEntry> found;
    without_gil([&] {
      const std::lock_guard lock(mutex_);
      found = here().parts(at, offset);
    });
    py::list out;
    for (const PartEntry& part : found) {
      out.append(py::make_tuple(part.label.group, part.label.layer, part.label.block, part.label.rows,
                                part.offset, part.bytes, part.crc));
    }
    return out;
  }
  std::uint64_t lost_with(const std::vector<std::tuple<py::bytes, py::bytes, int>>& keys) const {
    std::vector<RecordKey> all;
    for (const auto& [digest, format, kind] : keys) {
      all.push_back({key_from("digest", digest), key_from("format", format), static_cast<RecordKind>(kind)});
    }
    const std::lock_guard lock(mutex_);
    return here().lost_with(all);
  }
  void close() {
    if (::getpid() != process_) return;
    without_gil([&] {
      const std::lock_guard lock(mutex_);
      walk_.reset();
    });
  }

 private:
  StoreWalk& here() const {
    if (::getpid() != process_) {
      throw Error(ErrorCode::Closed, "store", "one that was opened by this process", "another process's");
    }
    if (walk_ == nullptr) throw Error(ErrorCode::Closed, "store", "an open one", "one that was closed");
    return *walk_;
  }

  mutable std::mutex mutex_;
  std::unique_ptr<StoreWalk> walk_;
  const pid_t process_ = ::getpid();
};

}  // namespace

void bind_store_walk(py::module_& m) {
  py::class_<StoreWalkBox>(m, "StoreWalk")
      .def(py::init<const std::string&, int, bool, std::size_t>(), py::arg("path"), py::arg("engine"),
           py::arg("direct"), py::arg("depth"))
      .def("superblock", &StoreWalkBox::superblock)
      .def("recovered", &StoreWalkBox::recovered)
      .def("index_bytes", &StoreWalkBox::index_bytes)
      .def("files", &StoreWalkBox::files)
      .def("regions", &StoreWalkBox::regions)
      .def("read", &StoreWalkBox::read, py::arg("at"), py::arg("every_byte"))
      .def("parts", &StoreWalkBox::parts, py::arg("at"), py::arg("offset"))
      .def("lost_with", &StoreWalkBox::lost_with, py::arg("keys"))
      .def("close", &StoreWalkBox::close);
}

}  // namespace hkv
