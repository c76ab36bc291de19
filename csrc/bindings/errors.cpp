// SPDX-License-Identifier: Apache-2.0
// hkv::Error becomes the class of hybridkv.errors that its code names.
#include "base/check.h"
#include "bindings/bindings.h"

namespace py = pybind11;

namespace hkv {
namespace {

const char* class_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::SpecError: return "SpecError";
    case ErrorCode::ArgumentError: return "ArgumentError";
    case ErrorCode::OutOfPages: return "OutOfPages";
    case ErrorCode::Busy: return "Busy";
    case ErrorCode::KernelContract: return "KernelContract";
    case ErrorCode::LeaseExpired: return "LeaseExpired";
    case ErrorCode::FillClosed: return "FillClosed";
    case ErrorCode::Closed: return "Closed";
    case ErrorCode::TierError: return "TierError";
  }
  return "HybridKVError";
}

}  // namespace

void bind_errors(py::module_&) {
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const OutOfPagesError& error) {
      py::object type = py::module_::import("hybridkv.errors").attr("OutOfPages");
      py::object value = type(error.field, error.expected, error.got, py::arg("pool") = error.pool,
                              py::arg("needed") = error.needed, py::arg("free") = error.free);
      PyErr_SetObject(type.ptr(), value.ptr());
    } catch (const Error& error) {
      py::object type = py::module_::import("hybridkv.errors").attr(class_name(error.code));
      py::object value = type(error.field, error.expected, error.got);
      PyErr_SetObject(type.ptr(), value.ptr());
    }
  });
}

}  // namespace hkv
