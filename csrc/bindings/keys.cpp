// SPDX-License-Identifier: Apache-2.0
// Key chains for Python: token ids out of lists, tuples and buffers, and the SHA-256 path in use.
#include <pybind11/numpy.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/sha256.h"
#include "bindings/bindings.h"
#include "bindings/without_gil.h"
#include "layout/key_chain.h"

namespace py = pybind11;

namespace hkv {

py::bytes key_bytes(const Key128& key) { return {reinterpret_cast<const char*>(&key), sizeof key}; }

Key128 key_from(const char* field, const py::bytes& bytes) {
  const auto text = static_cast<std::string_view>(bytes);
  Key128 key;
  if (text.size() != sizeof key)
    throw Error(ErrorCode::ArgumentError, field, "16 bytes", std::to_string(text.size()));
  std::memcpy(&key, text.data(), sizeof key);
  return key;
}

namespace {

// Hashing that takes longer than about 50 us lets other Python threads run; for less, giving the
// interpreter lock back and forth costs more than it brings.
constexpr std::int64_t release_from_tokens_sha_ni = 32768;
constexpr std::int64_t release_from_tokens_portable = 4096;

[[noreturn]] void refuse(const char* field, std::string expected, std::string got) {
  throw Error{ErrorCode::ArgumentError, field, std::move(expected), std::move(got)};
}

std::string type_name(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

// A buffer that is given back when the last chain that reads it is gone, on whatever thread that is.
std::shared_ptr<const void> keep_buffer(std::unique_ptr<Py_buffer> buffer) {
  return std::shared_ptr<const void>(buffer.release(), [](Py_buffer* held) {
    if (Py_IsInitialized() == 0) return;  // the interpreter is gone, and its memory with it
    const PyGILState_STATE state = PyGILState_Ensure();
    PyBuffer_Release(held);
    PyGILState_Release(state);
    delete held;
  });
}

// Size class of a buffer's item: 'u' unsigned, 'i' signed integer of the machine's byte order, else 0.
char integer_kind(const char* format) {
  if (format == nullptr) return 'u';  // bytes by definition of the protocol
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (*format == '\0' || format[1] != '\0') return 0;
  if (std::strchr("bhilqn", *format) != nullptr) return 'i';
  return std::strchr("BHILQN", *format) != nullptr ? 'u' : 0;
}

TokenView view_of_buffer(py::handle object) {
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), buffer.get(), PyBUF_RECORDS_RO) != 0) {
    PyErr_Clear();
    refuse("tokens", "an integer array or sequence of ids", type_name(object) + " without such a buffer");
  }
  Py_buffer* const raw = buffer.get();
  TokenView view;
  view.owner = keep_buffer(std::move(buffer));
  const char kind = integer_kind(raw->format);
  if (kind == 0 || (raw->itemsize != 1 && raw->itemsize != 2 && raw->itemsize != 4 && raw->itemsize != 8)) {
    refuse("tokens", "integers of the machine's byte order",
           type_name(object) + " of format '" + (raw->format == nullptr ? "" : raw->format) + "'");
  }
  if (raw->ndim != 1) refuse("tokens", "one dimension", std::to_string(raw->ndim) + " dimensions");
  view.data = static_cast<const std::byte*>(raw->buf);
  view.count = raw->shape[0];
  view.stride_bytes = raw->strides[0];
  view.item_bytes = static_cast<int>(raw->itemsize);
  view.is_signed = kind == 'i';
  return view;
}

[[noreturn]] void refuse_item(py::handle item, Py_ssize_t index) {
  const std::string at = " at index " + std::to_string(index);
  if (PyLong_CheckExact(item.ptr())) refuse("tokens", "0 <= id < 2**32", std::string(py::str(item)) + at);
  refuse("tokens", "integers", type_name(item) + at);
}

// Whatever is not a small exact int. Returns: the id, or -1 where it is none.
std::int64_t slow_id(PyObject* item) {
  if (PyBool_Check(item) || !PyIndex_Check(item)) return -1;
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(item));
  if (!number) {
    PyErr_Clear();
    return -1;
  }
  int overflow = 0;
  const long long id = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  return overflow != 0 || id < 0 || id > 0xFFFFFFFFLL ? -1 : id;
}

// Reads ints of one digit without a call: 1 ns an id instead of 17 by a converter.
inline std::int64_t fast_id(PyObject* item) {
  if (!PyLong_CheckExact(item)) return -1;
#if PY_VERSION_HEX >= 0x030C0000
  const auto* number = reinterpret_cast<PyLongObject*>(item);
  return PyUnstable_Long_IsCompact(number) ? PyUnstable_Long_CompactValue(number) : -1;
#else
  const Py_ssize_t digits = Py_SIZE(item);
  if (digits == 1) return reinterpret_cast<PyLongObject*>(item)->ob_digit[0];
  return digits == 0 ? 0 : -1;
#endif
}

TokenView view_of_sequence(py::handle sequence) {
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(sequence.ptr());
  auto ids = std::make_shared<std::vector<std::uint32_t>>(static_cast<std::size_t>(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    // An item's __index__ may run code that shortens the list.
    if (i >= PySequence_Fast_GET_SIZE(sequence.ptr())) refuse("tokens", "a list at rest", "one that shrank");
    PyObject* const item = PySequence_Fast_GET_ITEM(sequence.ptr(), i);
    std::int64_t id = fast_id(item);
    if (id < 0) {
      const auto held = py::reinterpret_borrow<py::object>(item);
      id = slow_id(item);
      if (id < 0) refuse_item(held, i);
    }
    (*ids)[i] = static_cast<std::uint32_t>(id);
  }
  TokenView view;
  view.data = reinterpret_cast<const std::byte*>(ids->data());
  view.count = n;
  view.owner = std::move(ids);
  return view;
}

std::vector<MediaSpan> media_of(const py::tuple& spans) {
  std::vector<MediaSpan> media;
  for (const py::handle item : spans) {
    const auto span = py::cast<py::tuple>(item);
    media.push_back(
        {span[0].cast<std::int64_t>(), span[1].cast<std::int64_t>(), span[2].cast<std::string>()});
  }
  return media;
}

template <class Hash>
std::shared_ptr<KeyChain> hashed(std::int64_t tokens, Hash hash) {
  const bool is_fast = sha256_path() == Sha256Path::ShaNi;
  if (tokens < (is_fast ? release_from_tokens_sha_ni : release_from_tokens_portable)) return hash();
  std::shared_ptr<KeyChain> chain;
  without_gil([&] { chain = hash(); });
  return chain;
}

std::shared_ptr<KeyChain> build(py::handle tokens, std::int64_t unit_tokens, const py::tuple& identity,
                                const py::tuple& media, const py::bytes& fingerprint) {
  std::array<std::string_view, identity_parts> parts;
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = identity[i].cast<std::string_view>();
  const Sha256Words root = KeyChain::identity_root(unit_tokens, parts);
  const Key128 whose = key_from("fingerprint", fingerprint);
  TokenView view = token_view(tokens);
  auto spans = media_of(media);
  return hashed(view.count,
                [&] { return KeyChain::build(root, unit_tokens, std::move(view), std::move(spans), whose); });
}

std::shared_ptr<KeyChain> extend(const KeyChain& parent, py::handle tokens, const py::tuple& media) {
  TokenView view = token_view(tokens);
  auto spans = media_of(media);
  return hashed(view.count, [&] { return parent.extend(std::move(view), std::move(spans)); });
}

std::shared_ptr<KeyChain> from_hashes(const py::list& hashes, std::int64_t unit_tokens) {
  std::vector<Key128> keys(hashes.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const py::handle hash = hashes[i];
    const std::string at = " at index " + std::to_string(i);
    if (!PyBytes_Check(hash.ptr())) refuse("hashes", "bytes of 16 or more each", type_name(hash) + at);
    const Py_ssize_t n = PyBytes_GET_SIZE(hash.ptr());
    if (n < 16) refuse("hashes", "bytes of 16 or more each", std::to_string(n) + " bytes" + at);
    std::memcpy(&keys[i], PyBytes_AS_STRING(hash.ptr()), sizeof keys[i]);
  }
  return KeyChain::from_hashes(std::move(keys), unit_tokens);
}

py::array digests(const py::object& self) {
  const auto& chain = self.cast<const KeyChain&>();
  const auto* first = reinterpret_cast<const std::uint8_t*>(chain.keys() + chain.begin_unit());
  py::array_t<std::uint8_t> view({chain.end_unit() - chain.begin_unit(), std::int64_t{sizeof(Key128)}},
                                 {std::int64_t{sizeof(Key128)}, std::int64_t{1}}, first, self);
  py::detail::array_proxy(view.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return view;
}

std::shared_ptr<KeyChain> slice(const KeyChain& chain, std::int64_t begin, std::int64_t end, bool keep_rest) {
  if (begin < chain.begin_unit() || end < begin || end > chain.end_unit()) {
    refuse("slice", "units within the chain", std::to_string(begin) + ":" + std::to_string(end));
  }
  return chain.slice(begin, end, keep_rest);
}

py::bytes tip_key(const KeyChain& chain, std::int64_t unit, std::int64_t length) {
  if (!chain.has_tokens()) refuse("keys", "keys made from tokens", "keys made from hashes");
  if (unit < 0 || unit > chain.end_unit() || length < 1 || length >= chain.unit_tokens() ||
      unit * chain.unit_tokens() + length > chain.tokens()) {
    refuse("tip", "a part of a unit of the chain",
           "unit " + std::to_string(unit) + ", length " + std::to_string(length));
  }
  return key_bytes(chain.tip_key(unit, length));
}

py::bytes tip_directory_key(const KeyChain& chain, std::int64_t unit) {
  if (unit < 0 || unit > chain.end_unit()) refuse("unit", "a unit of the chain", std::to_string(unit));
  return key_bytes(chain.tip_directory_key(unit));
}

std::size_t key_hash(const KeyChain& chain) {
  const Key128 last = chain.end_unit() == 0 ? chain.root() : chain.keys()[chain.end_unit() - 1];
  return last.lo ^ static_cast<std::size_t>(chain.tokens() * 31 + chain.begin_unit());
}

Sha256Path path_named(std::string_view name) {
  for (const Sha256Path path : {Sha256Path::Portable, Sha256Path::ShaNi}) {
    if (name == sha256_name(path)) return path;
  }
  refuse("path", "portable or sha_ni", std::string(name));
}

// For checks against another implementation: the message is fed in pieces of `piece` bytes (0: at once).
py::bytes sha256(std::string_view message, std::size_t piece) {
  Sha256 stream;
  const std::size_t step = piece == 0 ? message.size() : piece;
  for (std::size_t at = 0; at < message.size(); at += step) {
    stream.update(message.data() + at, std::min(step, message.size() - at));
  }
  const Sha256Digest digest = sha256_bytes(stream.finish());
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

TokenView token_view(py::handle tokens) {
  const bool is_sequence = PyList_Check(tokens.ptr()) || PyTuple_Check(tokens.ptr());
  return is_sequence ? view_of_sequence(tokens) : view_of_buffer(tokens);
}

void bind_keys(py::module_& m) {
  py::class_<KeyChain, std::shared_ptr<KeyChain>>(m, "KeyChain")
      .def_static("build", &build, py::arg("tokens"), py::arg("unit_tokens"), py::arg("identity"),
                  py::arg("media"), py::arg("fingerprint"))
      .def_static("from_hashes", &from_hashes, py::arg("hashes"), py::arg("unit_tokens"))
      .def("extend", &extend, py::arg("tokens"), py::arg("media"))
      .def("slice", &slice, py::arg("begin"), py::arg("end"), py::arg("keep_rest"))
      .def("equals", &KeyChain::equals, py::arg("other"))
      .def("key_hash", &key_hash)
      .def("tip_key", &tip_key, py::arg("unit"), py::arg("length"))
      .def("tip_directory_key", &tip_directory_key, py::arg("unit"))
      .def("root", [](const KeyChain& chain) { return key_bytes(chain.root()); })
      .def_property_readonly("digests", &digests)
      .def_property_readonly("begin_unit", &KeyChain::begin_unit)
      .def_property_readonly("end_unit", &KeyChain::end_unit)
      .def_property_readonly("unit_tokens", &KeyChain::unit_tokens)
      .def_property_readonly("tokens", &KeyChain::tokens)
      .def_property_readonly("rest_tokens", &KeyChain::rest_tokens)
      .def_property_readonly("first_tip_unit", &KeyChain::first_tip_unit)
      .def_property_readonly("has_tokens", &KeyChain::has_tokens);
  m.attr("key_profile") = key_profile;
  m.def("sha256", &sha256, py::arg("message"), py::arg("piece") = 0);
  m.def("sha256_path", [] { return sha256_name(sha256_path()); });
  m.def(
      "sha256_supported", [](std::string_view name) { return sha256_supported(path_named(name)); },
      py::arg("path"));
  m.def("sha256_choose", [](std::string_view name) { sha256_choose(path_named(name)); }, py::arg("path"));
}

}  // namespace hkv
