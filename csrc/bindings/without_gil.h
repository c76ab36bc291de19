// SPDX-License-Identifier: Apache-2.0
// For work that takes longer than about 50 us and touches no Python object: other Python threads run meanwhile.
#pragma once
#include <pybind11/pybind11.h>

#include <cxxabi.h>
#include <unistd.h>

#include <exception>

namespace hkv {

// Calls work() without the interpreter lock and takes it again, also where work() throws.
// Not gil_scoped_release: where the interpreter is shutting down, taking the GIL back ends this thread by
// unwinding, and destructors on the way would touch Python objects without the GIL. So it stops here for
// good, as Python 3.14 does with such threads; only daemon threads can come here, and nobody joins them.
template <class Work>
void without_gil(Work&& work) {
  PyThreadState* const state = PyEval_SaveThread();
  std::exception_ptr thrown;
  try {
    work();
  } catch (...) {
    thrown = std::current_exception();
  }
  try {
    PyEval_RestoreThread(state);
  } catch (abi::__forced_unwind&) {
    for (;;) pause();
  }
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace hkv
