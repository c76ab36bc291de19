// SPDX-License-Identifier: Apache-2.0
// Verdict for Python, and match: the hot call, written by hand. No logic; documentation is in hybridkv.cache.
//
// A pybind11 method with these arguments and a bound result costs 0.5 us, more than a whole miss. Here match is
// a vectorcall function with positional arguments alone, and Verdict a plain object type that the Python class
// of the same name derives from.
#include "bindings/bindings.h"
#include "bindings/cache_box.h"
#include "bindings/fast_call.h"

#include <structmember.h>  // after Python.h

#include <new>

namespace py = pybind11;

namespace hkv {
namespace {

struct VerdictObject {
  PyObject_HEAD Verdict verdict;
  std::vector<std::pair<int, std::int64_t>> replay;  // group, from
  PyObject* cache;  // the Python cache, keys and formats that were asked with
  PyObject* keys;
  PyObject* formats;
  PyObject* held;        // the core's lease where Reusable
  PyObject* lease;       // what the Python class makes of it
  PyObject* boundaries;  // once asked for
  PyObject* choice;      // by cost, once asked for
  std::int64_t exactly;  // the one length that was asked about; -1: none
};

const VerdictObject& of(PyObject* self) { return *reinterpret_cast<VerdictObject*>(self); }

std::int64_t integer(PyObject* object) {
  const long long value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
  return value;
}

void check_keys(const HybridCache& cache, const KeyChain& keys) {
  if (keys.unit_tokens() != cache.layout().unit_tokens) {
    throw Error(ErrorCode::ArgumentError, "keys",
                "keys of unit " + std::to_string(cache.layout().unit_tokens),
                "unit " + std::to_string(keys.unit_tokens()));
  }
  if (keys.begin_unit() != 0) {
    throw Error(ErrorCode::ArgumentError, "keys", "keys from the start of the sequence",
                "a slice from unit " + std::to_string(keys.begin_unit()));
  }
}

enum Argument : int {
  Class,
  Cache,
  CoreCache,
  Keys,
  CoreKeys,
  Limit,
  Formats,
  Listed,
  DropTokens,
  Exactly,
  VerifyMode,
  Count
};

void ask(VerdictObject& result, PyObject* const* arguments) {
  const std::shared_ptr<CacheBox>& box = held_by<CacheBox>(arguments[CoreCache], "cache");
  const std::shared_ptr<const KeyChain> keys = held_by<KeyChain>(arguments[CoreKeys], "keys");
  HybridCache& cache = box->cache;
  check_keys(cache, *keys);
  const std::vector<FormatId> reader =
      formats_from(cache, py::reinterpret_borrow<py::object>(arguments[Listed]));
  Question question;
  question.keys = keys.get();
  question.limit = integer(arguments[Limit]);
  if (question.limit < 0) question.limit = keys->tokens();
  question.drop_tokens = integer(arguments[DropTokens]);
  question.exactly = integer(arguments[Exactly]);
  const std::int64_t mode = integer(arguments[VerifyMode]);  // below 0: only look
  question.formats = reader.empty() ? cache.spec_formats() : std::span<const FormatId>(reader);
  result.exactly = question.exactly;
  if (mode < 0) {
    result.verdict = cache.look(question);
    return;
  }
  question.verify = static_cast<Verify>(mode);
  std::unique_ptr<Lease> lease;
  result.verdict = cache.match(question, keys, lease);
  if (lease == nullptr) return;
  for (int g = 0; g < static_cast<int>(cache.layout().groups.size()); ++g) {
    if (!(lease->replayed >> g & 1)) continue;
    result.replay.emplace_back(g, lease->resume_tokens);
  }
  result.held = py::cast(std::make_shared<LeaseBox>(box, std::move(lease))).release().ptr();
}

PyObject* match(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    if (count != Count || !PyType_Check(arguments[Class])) {
      throw Error(ErrorCode::ArgumentError, "arguments", "a class and 10 arguments", std::to_string(count));
    }
    auto* type = reinterpret_cast<PyTypeObject*>(arguments[Class]);
    auto made = py::reinterpret_steal<py::object>(type->tp_alloc(type, 0));
    if (!made) throw py::error_already_set();
    auto* result = reinterpret_cast<VerdictObject*>(made.ptr());
    new (&result->verdict) Verdict();
    new (&result->replay) std::vector<std::pair<int, std::int64_t>>();
    result->cache = Py_NewRef(arguments[Cache]);
    result->keys = Py_NewRef(arguments[Keys]);
    result->formats = Py_NewRef(arguments[Formats]);
    ask(*result, arguments);
    return made.release().ptr();
  });
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  const VerdictObject& v = of(self);
  Py_VISIT(Py_TYPE(self));
  for (PyObject* object : {v.cache, v.keys, v.formats, v.held, v.lease, v.boundaries, v.choice})
    Py_VISIT(object);
  return 0;
}

int clear(PyObject* self) {
  auto* v = reinterpret_cast<VerdictObject*>(self);
  for (PyObject** place : {&v->choice, &v->lease, &v->held, &v->boundaries, &v->cache, &v->keys, &v->formats})
    Py_CLEAR(*place);
  return 0;
}

void deallocate(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  auto* v = reinterpret_cast<VerdictObject*>(self);
  using Replay = std::vector<std::pair<int, std::int64_t>>;
  v->replay.~Replay();
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* lost(PyObject* self, void*) {
  return guarded([&] {
    py::list tokens;
    for (const std::int64_t each : of(self).verdict.lost) tokens.append(each);
    return tokens.release().ptr();
  });
}

PyObject* why(PyObject* self, void*) {
  return guarded([&]() -> PyObject* {
    const Verdict& verdict = of(self).verdict;
    if (!verdict.has_why) return Py_NewRef(Py_None);
    const Why& w = verdict.why;
    return py::make_tuple(static_cast<int>(w.check), w.group, w.block, name_of(w.code), w.in_tier,
                          w.writer_format)
        .release()
        .ptr();
  });
}

PyObject* replay(PyObject* self, void*) {
  return guarded([&] {
    py::list pairs;
    for (const auto& [group, from] : of(self).replay) pairs.append(py::make_tuple(group, from));
    return pairs.release().ptr();
  });
}

template <auto field>
PyObject* number(PyObject* self, void*) {
  return PyLong_FromLongLong(static_cast<long long>(of(self).verdict.*field));
}

PyGetSetDef getters[] = {
    {"_outcome", number<&Verdict::outcome>, nullptr, nullptr, nullptr},
    {"_remedy", number<&Verdict::remedy>, nullptr, nullptr, nullptr},
    {"_matched_tokens", number<&Verdict::matched_tokens>, nullptr, nullptr, nullptr},
    {"_usable_tokens", number<&Verdict::usable_tokens>, nullptr, nullptr, nullptr},
    {"_limit_tokens", number<&Verdict::limit_tokens>, nullptr, nullptr, nullptr},
    {"_resume_tokens", number<&Verdict::resume_tokens>, nullptr, nullptr, nullptr},
    {"_restore_tokens", number<&Verdict::restore_tokens>, nullptr, nullptr, nullptr},
    {"_lost", lost, nullptr, nullptr, nullptr},
    {"_why", why, nullptr, nullptr, nullptr},
    {"_replay", replay, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMemberDef members[] = {
    {"_cache", T_OBJECT, offsetof(VerdictObject, cache), READONLY, nullptr},
    {"_keys", T_OBJECT, offsetof(VerdictObject, keys), READONLY, nullptr},
    {"_formats", T_OBJECT, offsetof(VerdictObject, formats), READONLY, nullptr},
    {"_held", T_OBJECT, offsetof(VerdictObject, held), READONLY, nullptr},
    {"lease", T_OBJECT, offsetof(VerdictObject, lease), 0, nullptr},
    {"_boundaries", T_OBJECT, offsetof(VerdictObject, boundaries), 0, nullptr},
    {"_choice", T_OBJECT, offsetof(VerdictObject, choice), 0, nullptr},
    {"_exactly", T_LONGLONG, offsetof(VerdictObject, exactly), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_getset, getters},
    {Py_tp_members, members},
    {0, nullptr},
};

PyType_Spec spec = {
    "hybridkv._core.Verdict", sizeof(VerdictObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

PyMethodDef match_definition = {
    "match", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(match)), METH_FASTCALL,
    "match(type: type, cache: object, core_cache: Cache, keys: object, core_keys: KeyChain, limit: int, "
    "formats: object, listed: list[bytes] | None, drop_tokens: int, exactly: int, verify: int) -> "
    "typing.Any"};

}  // namespace

void bind_verdict(py::module_& m) {
  m.attr("Verdict") = py::reinterpret_steal<py::object>(PyType_FromSpec(&spec));
  m.attr("match") = py::reinterpret_steal<py::object>(
      PyCFunction_NewEx(&match_definition, nullptr, m.attr("__name__").ptr()));
}

}  // namespace hkv
