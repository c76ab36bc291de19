// SPDX-License-Identifier: Apache-2.0
#include "bindings/tier_adapter.h"

#include <cxxabi.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "base/check.h"
#include "bindings/bindings.h"
#include "bindings/lent_memory.h"

namespace py = pybind11;

namespace hkv {
namespace {

[[noreturn]] void stop_here() {
  for (;;) pause();
}

// Where the interpreter ends, a thread that wants its lock is ended by unwinding, and destructors on the way would touch
// Python objects without the lock: such a thread stops for good, as in without_gil.h. So what may wait for the lock
// stands in frames without a destructor.
PyGILState_STATE take_gil() {
  try {
    return PyGILState_Ensure();
  } catch (abi::__forced_unwind&) {
    stop_here();
  }
}
PyObject* call(PyObject* callable, PyObject* arguments) {
  try {
    return PyObject_Call(callable, arguments, nullptr);
  } catch (abi::__forced_unwind&) {
    stop_here();
  }
}

struct Gil {
  Gil() : state(take_gil()) {}
  ~Gil() { PyGILState_Release(state); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;
  PyGILState_STATE state;
};

// The bytes of something that exports a buffer.
class Exported {
 public:
  explicit Exported(py::handle from) {
    if (PyObject_GetBuffer(from.ptr(), &view_, PyBUF_C_CONTIGUOUS) != 0) throw py::error_already_set();
  }
  ~Exported() { PyBuffer_Release(&view_); }
  Exported(const Exported&) = delete;
  Exported& operator=(const Exported&) = delete;
  const std::byte* data() const { return static_cast<const std::byte*>(view_.buf); }
  std::size_t bytes() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

py::list labels_of(const std::vector<Part>& parts) {
  py::list labels;
  for (const Part& part : parts) {
    labels.append(py::make_tuple(part.label.group, part.label.layer, part.label.block, part.label.rows));
  }
  return labels;
}

}  // namespace

AdapterTier::AdapterTier(py::object engine, const AdapterOptions& options)
    : Tier(options.limits), options_(options), engine_(engine.ptr()) {
  if (options.threads == 0) throw Error(ErrorCode::ArgumentError, "threads", "at least 1", "0");
  if (options.most_bytes == 0) throw Error(ErrorCode::ArgumentError, "most_bytes", "at least 1", "0");
  Py_INCREF(engine_);
  try {
    for (std::size_t i = 0; i < options.threads; ++i) threads_.emplace_back([this] { run(); });
  } catch (...) {  // the threads that there are have never heard of Python yet
    end();
    throw;
  }
}

TierCaps AdapterTier::caps() const {
  TierCaps caps;
  caps.durable = options_.durable;
  caps.depth = options_.threads;
  caps.most_bytes = options_.most_bytes;
  return caps;
}

void AdapterTier::abandon() {
  std::unique_lock lock(mutex_);
  abandoned_ = true;
  entered_.wait(lock, [&] { return entering_ == 0; });
}

void AdapterTier::begin(Operation* operation) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(operation);
  wake_.notify_one();
}

void AdapterTier::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    wake_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  const Gil gil;
  Py_CLEAR(engine_);
}

TierUsage AdapterTier::engine_usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

void AdapterTier::drop(const Operation& operation) {
  Operation discard;
  discard.kind = Operation::Kind::Remove;
  discard.key = operation.key;
  known_->forget(operation.key);
  ask(discard);  // whatever it says: nothing more can be done
}

void AdapterTier::count(std::uint64_t read, std::uint64_t written) {
  const std::lock_guard lock(mutex_);
  usage_.bytes_read += read;
  usage_.bytes_written += written;
}

void AdapterTier::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Operation* const operation = queue_.front();
    queue_.pop_front();
    lock.unlock();
    const Answer answer = ask(*operation);
    if (answer.status == TierStatus::Corrupt) drop(*operation);
    note(*operation, answer.status);
    finish(operation, answer.status, answer.damage);
    lock.lock();
  }
}

void AdapterTier::note(const Operation& operation, TierStatus status) {
  const bool here = operation.kind != Operation::Kind::Remove && operation.kind != Operation::Kind::Flush;
  if (status == TierStatus::Ok && here) {
    const bool read =
        operation.kind == Operation::Kind::Get && operation.envelope.size() >= envelope_fixed_bytes;
    known_->note(operation.key,
                 read ? std::to_integer<std::uint8_t>(operation.envelope[7]) : operation.flags);
  } else if (status == TierStatus::Ok || status == TierStatus::Miss) {
    known_->forget(operation.key);
  }
}

AdapterTier::Answer AdapterTier::ask(Operation& operation) {
  {
    std::unique_lock lock(mutex_);
    if (abandoned_) {
      lock.unlock();
      stop_here();
    }
    ++entering_;
  }
  const Gil gil;
  {
    const std::lock_guard lock(mutex_);
    --entering_;
    entered_.notify_all();
  }
  try {
    return asked(operation);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("an adapter of a tier");
  } catch (const std::exception&) {  // what came back is no answer
  }
  return {TierStatus::IoError, Damage::None};
}

// Requires: the GIL.
AdapterTier::Answer AdapterTier::asked(Operation& operation) {
  constexpr const char* verbs[] = {"get", "put", "remove", "probe", "flush"};
  const bool put = operation.kind == Operation::Kind::Put;
  std::vector<LentMemory> lent;
  py::object detail = py::none();
  if (put) {
    const auto front = static_cast<std::uint32_t>(envelope_bytes(operation.parts.size()));
    std::string envelope(front, '\0');
    write_envelope(seal(operation, 0, front), std::as_writable_bytes(std::span(envelope)));
    py::list views;
    lent.reserve(operation.parts.size());
    for (const Part& part : operation.parts) views.append(lent.emplace_back(part.data, part.bytes).view());
    detail = py::make_tuple(py::bytes(envelope), views, operation.pinned);
  } else if (operation.kind == Operation::Kind::Get) {
    detail = labels_of(operation.parts);
  }
  const py::tuple key = py::make_tuple(key_bytes(operation.key.digest), key_bytes(operation.key.format),
                                       static_cast<int>(operation.key.kind));
  const py::tuple arguments = py::make_tuple(verbs[static_cast<int>(operation.kind)], key, detail);
  const auto came = py::reinterpret_steal<py::object>(call(engine_, arguments.ptr()));
  bool returned = true;
  for (LentMemory& memory : lent) returned = memory.take_back() && returned;
  if (!came) throw py::error_already_set();
  const auto answer = came.cast<py::tuple>();
  const int status = answer[0].cast<int>();
  if (status < 0 || status >= tier_status_count || !returned) return {};
  if (put && status == static_cast<int>(TierStatus::Ok)) {
    std::uint64_t written = envelope_bytes(operation.parts.size());
    for (const Part& part : operation.parts) written += part.bytes;
    count(0, written);
  }
  if (operation.kind == Operation::Kind::Get && status == static_cast<int>(TierStatus::Ok)) {
    return take(operation, answer[1], answer[2]);
  }
  return {static_cast<TierStatus>(status), Damage::None};
}

// Short data is never Ok: where buffers are not of the sizes asked for, either the envelope says so too, and the shared
// half tells, or it is not the record that the envelope promises.
AdapterTier::Answer AdapterTier::take(Operation& operation, py::handle envelope, py::handle buffers) {
  const auto list = py::reinterpret_borrow<py::object>(buffers).cast<py::list>();
  const Exported front(envelope);
  operation.envelope.assign(front.data(), front.data() + front.bytes());
  std::uint64_t read = front.bytes();
  bool whole = list.size() == operation.parts.size();
  for (std::size_t i = 0; whole && i < operation.parts.size(); ++i) {
    const Exported bytes(list[i]);
    whole = bytes.bytes() == operation.parts[i].bytes;
    if (whole) std::memcpy(operation.parts[i].data, bytes.data(), bytes.bytes());
    read += bytes.bytes();
  }
  count(read, 0);
  Envelope said;
  const bool promised = read_envelope(operation.envelope, said) == Damage::None &&
                        match_envelope(said, operation.key, operation.parts) == Damage::None;
  if (whole || !promised) return {TierStatus::Ok, Damage::None};
  return {TierStatus::Corrupt, Damage::Short};
}

}  // namespace hkv
