// SPDX-License-Identifier: Apache-2.0
// HybridCache for Python: arguments in, arrays out. No logic; documentation is in hybridkv.cache.
#include <pybind11/stl.h>

#include <string_view>

#include "alloc/stranded.h"
#include "bindings/bindings.h"
#include "bindings/cache_box.h"
#include "bindings/without_gil.h"
#include "cache/transfers.h"

namespace py = pybind11;

namespace hkv {

std::vector<Selection> selections_from(const HybridCache&, const py::list& groups) {
  std::vector<Selection> result;
  result.reserve(groups.size());
  for (const py::handle item : groups) {
    Selection selection;
    if (py::isinstance<py::bool_>(item)) {
      selection.all = item.cast<bool>();
    } else {
      const auto blocks =
          py::cast<py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>>(item);
      selection.blocks.assign(blocks.data(), blocks.data() + blocks.size());
    }
    result.push_back(std::move(selection));
  }
  return result;
}

namespace {

Digest16 digest_from(const py::handle& bytes) {
  const auto text = bytes.cast<std::string_view>();
  Digest16 digest{};
  if (text.size() != digest.size())
    throw Error(ErrorCode::ArgumentError, "format", "16 bytes", std::to_string(text.size()));
  std::copy(text.begin(), text.end(), reinterpret_cast<char*>(digest.data()));
  return digest;
}

// (name, kind, rule, parameter, block_units, pages, page_bytes, layers, tokens_per_row, row_bytes,
//  rows_per_page, alignment, page_stride, in_step_with, rebuildable, fingerprint, footer_offset,
//  replay_tokens, rows_in_order)
Group group_from(const py::tuple& t) {
  Group g;
  g.name = t[0].cast<std::string>();
  g.kind = t[1].cast<int>();
  g.coverage = {static_cast<Rule>(t[2].cast<int>()), t[3].cast<std::int64_t>()};
  g.block_units = t[4].cast<std::int64_t>();
  g.pages = t[5].cast<std::int64_t>();
  g.page_bytes = t[6].cast<std::int64_t>();
  g.layers = t[7].cast<std::int64_t>();
  g.tokens_per_row = t[8].cast<std::int64_t>();
  g.row_bytes = t[9].cast<std::int64_t>();
  g.rows_per_page = t[10].cast<std::int64_t>();
  g.alignment = t[11].cast<std::int64_t>();
  g.page_stride = t[12].cast<std::int64_t>();
  g.in_step_with = t[13].cast<int>();
  g.rebuildable = t[14].cast<bool>();
  g.footer_offset = t[16].cast<std::int64_t>();
  g.replay_tokens = t[17].cast<std::int64_t>();
  g.rows_in_order = t[18].cast<bool>();
  return g;
}

// (max_requests, max_combinations, watermark low and high in millionths, step_tokens); 0: no limit
AdmissionLimits limits_from(const py::tuple& t) {
  return {t[0].cast<std::int64_t>(), t[1].cast<std::int64_t>(), t[2].cast<std::int64_t>(),
          t[3].cast<std::int64_t>(), t[4].cast<std::int64_t>()};
}

std::shared_ptr<CacheBox> make_cache(std::int64_t unit_tokens, const py::list& groups, std::int64_t blocks,
                                     int eviction, const py::tuple& admission) {
  std::vector<Group> made;
  std::vector<Digest16> formats;
  for (const py::handle item : groups) {
    const auto tuple = item.cast<py::tuple>();
    made.push_back(group_from(tuple));
    formats.push_back(digest_from(tuple[15]));
  }
  return std::make_shared<CacheBox>(make_layout(unit_tokens, std::move(made)), blocks, std::move(formats),
                                    static_cast<EvictionOrder>(eviction), limits_from(admission));
}

py::array_t<std::int64_t> boundaries(CacheBox& box, const std::shared_ptr<const KeyChain>& keys,
                                     std::int64_t limit, const py::object& formats) {
  const std::vector<FormatId> reader = formats_from(box.cache, formats);
  Question question;
  question.keys = keys.get();
  question.limit = limit < 0 ? keys->tokens() : limit;
  question.verify = Verify::Off;
  question.formats = reader.empty() ? box.cache.spec_formats() : std::span<const FormatId>(reader);
  const std::vector<std::int64_t> lengths = box.cache.boundaries(question);
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(lengths.size()), lengths.data());
}

py::dict counters(const CacheBox& box) {
  const CacheCounters& c = box.cache.counters();
  static constexpr std::pair<const char*, int> names[] = {{"lookups", kLookups},
                                                          {"lookups_tokens", kLookupsTokens},
                                                          {"misses", kMisses},
                                                          {"misses_tokens", kMissesTokens},
                                                          {"false_hits_tokens", kFalseHitsTokens},
                                                          {"effective_hits", kEffective},
                                                          {"effective_hits_tokens", kEffectiveTokens},
                                                          {"pending", kPending},
                                                          {"pending_tokens", kPendingTokens},
                                                          {"withdrawn", kWithdrawn},
                                                          {"withdrawn_tokens", kWithdrawnTokens},
                                                          {"raced", kRaced},
                                                          {"duplicates", kDuplicates},
                                                          {"unplaced", kUnplaced},
                                                          {"tips_displaced", kTipsDisplaced},
                                                          {"leaks", kLeaks},
                                                          {"quarantined", kQuarantined},
                                                          {"published", kPublished},
                                                          {"retired", kRetired},
                                                          {"staged_to_host_bytes", kStagedToHost},
                                                          {"staged_to_device_bytes", kStagedToDevice},
                                                          {"copy_failures", kCopyFailures}};
  py::dict result;
  for (const auto& [name, which] : names) result[name] = c.read(which);
  py::list false_hits, lost_tokens;
  for (int i = 0; i < check_count * kind_count; ++i) {
    false_hits.append(c.read(kFalseHits + i));
    lost_tokens.append(c.read(kLostTokens + i));
  }
  py::list not_admitted;
  for (int i = 0; i < refusal_count; ++i) not_admitted.append(c.read(kNotAdmitted + i));
  result["not_admitted"] = not_admitted;
  py::list eager;
  for (int i = 0; i < eager_count; ++i) eager.append(c.read(kEager + i));
  result["eager"] = eager;
  for (const auto& [name, base] : {std::pair{"restores", kRestores}, std::pair{"offloads", kOffloads}}) {
    py::list moved;
    for (int i = 0; i < moved_count * kind_count; ++i) moved.append(c.read(base + i));
    result[name] = moved;
  }
  for (const auto& [name, base] :
       {std::pair{"load_failures", kLoadFailures}, std::pair{"store_failures", kStoreFailures}}) {
    py::list failures;
    for (int i = 0; i < tier_status_count; ++i) failures.append(c.read(base + i));
    result[name] = failures;
  }
  py::dict lost_by_code;
  for (int i = 0; i < code_count; ++i) {
    const auto code = static_cast<Code>(i);
    lost_by_code[code == Code::None ? "untold" : name_of(code)] = c.read(by_code(code));
  }
  result["lost_by_code_tokens"] = lost_by_code;
  result["false_hits"] = false_hits;
  result["lost_tokens"] = lost_tokens;
  return result;
}

py::dict census(const CacheBox& box, int group) {
  const HybridCache& cache = box.cache;
  auto census = const_cast<HybridCache&>(cache).store().census(
      group, static_cast<std::uint64_t>(cache.private_pages(group)));
  census.held += static_cast<std::uint64_t>(cache.quarantined_pages(group));
  py::dict result;
  result["free"] = census.free;
  result["filling"] = census.filling;
  result["held"] = census.held;
  result["cached"] = census.cached;
  return result;
}

// Pages of each group that no usable length needs.
py::array_t<std::int64_t> stranded(CacheBox& box) {
  std::vector<std::int64_t> pages;
  without_gil([&] { pages = stranded_pages(box.cache.layout(), box.cache.store()); });
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(pages.size()), pages.data());
}

// Pages that made room: a row a group, columns stranded, superseded, tail, history.
py::dict eviction_counts(CacheBox& box) {
  const HybridCache::EvictionCounts counts = box.cache.eviction_counts();
  py::array_t<std::int64_t> pages(
      {static_cast<py::ssize_t>(counts.pages.size()), py::ssize_t{eviction_class_count}});
  for (std::size_t g = 0; g < counts.pages.size(); ++g) {
    for (std::size_t why = 0; why < eviction_class_count; ++why)
      pages.mutable_at(static_cast<py::ssize_t>(g), static_cast<py::ssize_t>(why)) = counts.pages[g][why];
  }
  py::dict result;
  result["pages"] = pages;
  result["stranded_tokens"] = counts.stranded_tokens;
  result["stranded_now"] = counts.stranded_now;
  return result;
}

// One of the four facts of alignment, by its name; "": none.
Code alignment_named(std::string_view name) {
  if (name.empty()) return Code::None;
  for (const Code code : {Code::Base, Code::PageStride, Code::RowStride, Code::Footer}) {
    if (name == name_of(code)) return code;
  }
  throw Error{ErrorCode::ArgumentError, "of_kernels", "base, page_stride, row_stride or footer",
              std::string(name)};
}

void bind_arrays(CacheBox& box, int group, const py::list& arrays, bool host, const py::object& owners,
                 std::string_view of_kernels, bool writable) {
  std::vector<PoolArray> made;
  for (const py::handle item : arrays) {
    const auto t = item.cast<py::tuple>();
    made.push_back({t[0].cast<std::uint64_t>(), t[1].cast<std::int64_t>(), t[2].cast<std::int64_t>(),
                    t[3].cast<std::int64_t>()});
  }
  box.cache.bind(group, std::move(made), host, alignment_named(of_kernels), writable);
  box.pools[group] = owners;
}

}  // namespace

std::vector<FormatId> formats_from(HybridCache& cache, const py::object& formats) {
  std::vector<FormatId> ids;
  if (formats.is_none()) return ids;
  for (const py::handle item : formats.cast<py::list>()) ids.push_back(cache.format_id(digest_from(item)));
  return ids;
}

namespace {

void bind_looks(py::class_<CacheBox, std::shared_ptr<CacheBox>>& cache) {
  cache.def("counters", &counters)
      .def("census", &census, py::arg("group"))
      .def(
          "states",
          [](CacheBox& box, bool exact) {  // exact: copies that the tier dropped since do not count
            if (exact && box.tier != nullptr && box.tier->is_here())
              without_gil([&] { box.cache.transfers().check_copies(); });
            py::list counts;
            for (int kind = 0; kind < state_kind_count; ++kind)
              counts.append(box.cache.store().index_of_states().count(static_cast<StateKind>(kind)));
            return counts;
          },
          py::arg("exact") = true)
      .def("verify",
           [](CacheBox& box) {
             const DescriptorId bad = box.cache.store().verify();
             return bad == no_descriptor ? std::int64_t{-1} : static_cast<std::int64_t>(index(bad));
           })
      .def("unit_bytes", [](CacheBox& box) { return box.cache.store().unit_bytes(); })
      .def("page_record_bytes", [](CacheBox&) { return sizeof(PageRecord); })
      .def("free_blocks", [](CacheBox& box) { return box.cache.store().ids().free_count(); })
      .def("live", [](const CacheBox& box) {
        return py::make_tuple(box.cache.live_leases(), box.cache.live_fills(), box.cache.live_tickets());
      });
}

// Hand-out counts of pages by their numbers, whoever has them; 0 of what is no page of the pool.
py::array_t<std::uint64_t> handouts(CacheBox& box, int group,
                                    const py::array_t<std::int32_t, py::array::c_style>& pages) {
  if (group < 0 || static_cast<std::size_t>(group) >= box.cache.layout().groups.size())
    throw Error(ErrorCode::ArgumentError, "group", "the number of a group", std::to_string(group));
  const auto& pool = box.cache.store().pool(group);
  py::array_t<std::uint64_t> counts(pages.size());
  const std::int32_t* const asked = pages.data();
  std::uint64_t* const found = counts.mutable_data();
  for (py::ssize_t i = 0; i < pages.size(); ++i) {
    const std::int64_t page = asked[i];
    found[i] =
        page < 0 || page >= pool.count() ? 0 : pool[PageId{static_cast<std::uint32_t>(page)}].handouts.load();
  }
  return counts;
}

}  // namespace

void bind_cache(py::module_& m) {
  py::class_<CacheBox, std::shared_ptr<CacheBox>> cache(m, "Cache");
  bind_lease(m);
  bind_verdict(m);
  bind_ticket(m);
  bind_fill(m);
  bind_looks(cache);
  cache
      .def(py::init(&make_cache), py::arg("unit_tokens"), py::arg("groups"), py::arg("blocks"),
           py::arg("eviction"), py::arg("admission"))
      .def("boundaries", &boundaries, py::arg("keys"), py::arg("limit"), py::arg("formats"))
      .def(
          "evict",
          [](CacheBox& box, const KeyChain& keys, const py::list& groups) {
            return box.cache.evict(keys, selections_from(box.cache, groups));
          },
          py::arg("keys"), py::arg("groups"))
      .def(
          "make_room",
          [](CacheBox& box, int group, std::int64_t pages) { return box.cache.make_room(group, pages); },
          py::arg("group"), py::arg("pages"))
      .def("withdraw_all", [](CacheBox& box) { return box.cache.withdraw_all(); })
      .def(
          "evictable", [](CacheBox& box, int group) { return box.cache.store().evictable(group); },
          py::arg("group"))
      .def(
          "free_pages", [](CacheBox& box, int group) { return box.cache.store().pool(group).free_count(); },
          py::arg("group"))
      .def("eviction_counts", &eviction_counts)
      .def("stranded", &stranded)
      .def("handouts", &handouts, py::arg("group"), py::arg("pages"))
      .def(
          "set_graph_widths",
          [](CacheBox& box, const std::vector<std::int64_t>& widths) { box.cache.set_graph_widths(widths); },
          py::arg("widths"))
      .def("bind", &bind_arrays, py::arg("group"), py::arg("arrays"), py::arg("host"), py::arg("owners"),
           py::arg("of_kernels") = "", py::arg("writable") = true)
      .def("unbind", [](CacheBox& box) { box.pools.clear(); })
      .def(
          "inspect",
          [](const CacheBox& box, const KeyChain& keys, int group, std::int64_t block) {
            const HybridCache::Inspection seen = box.cache.inspect(keys, group, block);
            const std::int64_t page = seen.page == no_page ? -1 : static_cast<std::int64_t>(index(seen.page));
            return py::make_tuple(static_cast<int>(seen.phase), seen.pins, page, seen.handouts);
          },
          py::arg("keys"), py::arg("group"), py::arg("block"))
      .def(
          "format",
          [](const CacheBox& box, FormatId id) {
            const Digest16& digest = box.cache.format(id);
            return py::bytes(reinterpret_cast<const char*>(digest.data()), digest.size());
          },
          py::arg("id"))
      .def("leak", [](CacheBox& box) { box.cache.leak(); })
      .def("reset", [](CacheBox& box) { box.cache.reset(); });
}

}  // namespace hkv
