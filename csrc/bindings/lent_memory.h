// SPDX-License-Identifier: Apache-2.0
// Memory lent to Python for the time of a call: read-only views of it, and whether anything still exports it afterwards.
//
// A memoryview's own `release` does not tell: views and arrays made of it share the buffer below it and live on. So the
// memory is exported by an object of our own, which counts.
//
// Thread safety: under the GIL.
#pragma once
#include <pybind11/pybind11.h>

#include <cstddef>

namespace hkv {

class LentMemory {
 public:
  LentMemory(const void* data, std::size_t bytes)
      : lender_(pybind11::reinterpret_steal<pybind11::object>(PyType_GenericAlloc(type(), 0))) {
    if (!lender_) throw pybind11::error_already_set();
    self()->data = const_cast<void*>(data);
    self()->bytes = static_cast<Py_ssize_t>(bytes);
    view_ = pybind11::reinterpret_steal<pybind11::object>(PyMemoryView_FromObject(lender_.ptr()));
    if (!view_) throw pybind11::error_already_set();
  }

  pybind11::handle view() const { return view_; }

  // Effect: the view can be used no longer. Returns: whether nothing else can be, either.
  bool take_back() {
    PyObject* const done = PyObject_CallMethod(view_.ptr(), "release", nullptr);
    if (done == nullptr) PyErr_Clear();
    Py_XDECREF(done);
    return self()->exports == 0;
  }

 private:
  struct Lender {
    PyObject_HEAD void* data;
    Py_ssize_t bytes, exports;
  };
  Lender* self() const { return reinterpret_cast<Lender*>(lender_.ptr()); }

  static int lend(PyObject* object, Py_buffer* view, int flags) {
    auto* const lender = reinterpret_cast<Lender*>(object);
    if (PyBuffer_FillInfo(view, object, lender->data, lender->bytes, 1, flags) != 0) return -1;
    ++lender->exports;
    return 0;
  }
  static void give_back(PyObject* object, Py_buffer*) { --reinterpret_cast<Lender*>(object)->exports; }
  static void destroy(PyObject* object) {
    PyTypeObject* const type = Py_TYPE(object);
    type->tp_free(object);
    Py_DECREF(type);
  }
  static PyTypeObject* type() {  // never given back: objects may outlive whoever made them
    static PyTypeObject* const made = [] {
      PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&lend)},
                             {Py_bf_releasebuffer, reinterpret_cast<void*>(&give_back)},
                             {Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
                             {0, nullptr}};
      PyType_Spec spec = {"hybridkv._core.LentMemory", sizeof(Lender), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
      PyObject* const object = PyType_FromSpec(&spec);
      if (object == nullptr) throw pybind11::error_already_set();
      return reinterpret_cast<PyTypeObject*>(object);
    }();
    return made;
  }

  pybind11::object lender_, view_;
};

}  // namespace hkv
