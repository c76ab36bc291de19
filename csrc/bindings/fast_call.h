// SPDX-License-Identifier: Apache-2.0
// For functions with the fast calling convention, which pybind11 does not wrap.
#pragma once
#include <pybind11/pybind11.h>

#include <memory>

#include "base/check.h"

namespace hkv {

namespace py = pybind11;

// Every call from Python ends here: no C++ exception may pass.
template <class Body>
PyObject* guarded(Body&& body) {
  try {
    return body();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (...) {
    py::detail::try_translate_exceptions();
  }
  return nullptr;
}

// The C++ object in a Python object of exactly a registered class; pybind11's own cast looks the type up.
template <class T>
const std::shared_ptr<T>& held_by(PyObject* object, const char* field) {
  static PyTypeObject* const type = reinterpret_cast<PyTypeObject*>(py::type::of<T>().release().ptr());
  if (Py_TYPE(object) != type)
    throw Error(ErrorCode::ArgumentError, field, type->tp_name, Py_TYPE(object)->tp_name);
  auto held = reinterpret_cast<py::detail::instance*>(object)->get_value_and_holder();
  if (!held.holder_constructed())
    throw Error(ErrorCode::ArgumentError, field, "an initialised object", "an empty one");
  return held.template holder<std::shared_ptr<T>>();
}

}  // namespace hkv
