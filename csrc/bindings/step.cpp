// SPDX-License-Identifier: Apache-2.0
// The batched step for Python, with the fast calling convention.
#include <pybind11/stl.h>

#include <algorithm>

#include "bindings/cache_box.h"
#include "bindings/fast_call.h"

namespace hkv {
namespace {

enum StepArgument {
  CoreCache,
  Tickets,
  Grow,
  Computed,
  OutPages,
  Tokens,
  Starts,
  Copies,
  Status,
  Eager,
  Settles,
  Count
};

[[noreturn]] void refuse(const char* field, const char* expected, const std::string& got) {
  throw Error(ErrorCode::ArgumentError, field, expected, got);
}

// An argument as an array of one type, dense and aligned; checked by hand, since a conversion would cost more
// than the step.
template <class T>
T* dense(PyObject* object, const char* field, const char* expected, py::ssize_t dimensions, bool written,
         py::ssize_t* shape) {
  if (!py::isinstance<py::array>(object)) refuse(field, expected, Py_TYPE(object)->tp_name);
  const auto array = py::reinterpret_borrow<py::array>(object);
  const auto type = array.dtype();
  const char order = type.byteorder();
  const bool native = order == '=' || order == '|' || order == '<';
  const bool kind = type.kind() == 'i' || (std::is_same_v<T, const std::uint32_t> && type.kind() == 'u');
  if (!kind || !native || type.itemsize() != static_cast<py::ssize_t>(sizeof(T)) ||
      array.ndim() != dimensions || (array.flags() & py::array::c_style) == 0 ||
      (written && !array.writeable()))
    refuse(field, expected,
           py::str(py::repr(type)).cast<std::string>() + ", " + std::to_string(array.ndim()) + " dimensions");
  std::copy_n(array.shape(), dimensions, shape);
  return const_cast<T*>(static_cast<const T*>(array.data()));
}

void read_ids(PyObject* const* arguments, StepArrays& step) {
  if (arguments[Tokens] == Py_None) {
    if (arguments[Starts] != Py_None) refuse("tokens", "token ids, since there are starts", "None");
    return;
  }
  py::ssize_t ids = 0, ends = 0;
  const auto* first =
      dense<const std::uint32_t>(arguments[Tokens], "tokens", "int32 or uint32 [[ids]]", 1, false, &ids);
  step.starts =
      dense<const std::int64_t>(arguments[Starts], "starts", "int64 [[requests + 1]]", 1, false, &ends);
  if (ends != step.requests + 1) refuse("starts", "int64 [[requests + 1]]", std::to_string(ends));
  step.tokens.data = reinterpret_cast<const std::byte*>(first);
  step.tokens.count = ids;
  step.tokens.is_signed = py::reinterpret_borrow<py::array>(arguments[Tokens]).dtype().kind() == 'i';
  if (step.starts[0] < 0 || step.starts[step.requests] > ids)
    refuse("starts", "positions in tokens", std::to_string(step.starts[step.requests]));
  for (std::int64_t i = 0; i < step.requests; ++i) {
    if (step.starts[i] > step.starts[i + 1])
      refuse("starts", "ascending", std::to_string(step.starts[i + 1]));
  }
}

void read_step(PyObject* const* arguments, const HybridCache& cache, StepArrays& step) {
  py::ssize_t n = 0, other[3];
  step.tickets = dense<const std::int64_t>(arguments[Tickets], "tickets", "int64 [[requests]]", 1, false, &n);
  step.requests = n;
  const auto same = [&](const char* field) {
    if (other[0] != n) refuse(field, "one entry a request", std::to_string(other[0]));
  };
  step.grow = dense<const std::int32_t>(arguments[Grow], "grow", "int32 [[requests]]", 1, false, other);
  same("grow");
  step.computed =
      dense<const std::int64_t>(arguments[Computed], "computed", "int64 [[requests]]", 1, false, other);
  same("computed");
  step.out_pages = dense<std::int32_t>(arguments[OutPages], "out_pages",
                                       "int32 [[requests, groups, new pages]]", 3, true, other);
  same("out_pages");
  if (other[1] != static_cast<py::ssize_t>(cache.layout().groups.size()))
    refuse("out_pages", "int32 [[requests, groups, new pages]]", std::to_string(other[1]) + " groups");
  step.new_pages = other[2];
  read_ids(arguments, step);
  if (arguments[Copies] != Py_None) {
    step.copies = dense<std::int32_t>(arguments[Copies], "copies", "int32 [[rows, 4]]", 2, true, other);
    if (other[1] != 4) refuse("copies", "int32 [[rows, 4]]", std::to_string(other[1]) + " columns");
    step.copies_room = other[0];
  }
  step.status = dense<std::int32_t>(arguments[Status], "status", "int32 [[requests]]", 1, true, other);
  same("status");
  if (arguments[Eager] != Py_None) {
    step.eager = dense<std::int32_t>(arguments[Eager], "eager", "int32 [[requests]]", 1, true, other);
    same("eager");
  }
  step.settles = arguments[Settles] == Py_True;
}

PyObject* step(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    if (count != Count) refuse("arguments", "11 arguments", std::to_string(count));
    HybridCache& cache = py::handle(arguments[CoreCache]).cast<CacheBox&>().cache;
    StepArrays arrays;
    read_step(arguments, cache, arrays);
    cache.step(arrays);
    return Py_NewRef(arguments[Status]);
  });
}

PyMethodDef step_definition = {
    "step", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(step)), METH_FASTCALL,
    "step(cache: Cache, tickets: object, grow: object, computed: object, out_pages: object, tokens: object, "
    "starts: object, copies: object, status: object, eager: object, settles: bool) -> typing.Any"};

}  // namespace

void bind_step(py::module_& m) {
  m.def(
      "settle_step",
      [](CacheBox& box, const std::vector<std::int64_t>& handles, const std::vector<std::int64_t>& totals) {
        for (std::size_t i = 0; i < handles.size(); ++i) box.cache.settle_step(handles[i], totals[i]);
      },
      py::arg("cache"), py::arg("handles"), py::arg("totals"));
  m.attr("step") = py::reinterpret_steal<py::object>(
      PyCFunction_NewEx(&step_definition, nullptr, m.attr("__name__").ptr()));
}

}  // namespace hkv
