// SPDX-License-Identifier: Apache-2.0
// Question: how near is a batched look-up of the block table to what the memory allows, and does it stay
// there with a second reader, and beside a writer at full speed?
//
//   lookup [--json] [--smoke] [entries in Mi ...]       default: 1 16
//
// Limit ("two lines"): as many random prefetched 64-byte lines of the table's own two arenas, bucket lines and
// descriptors, 32 in flight, read and summed; for a miss the bucket line alone. Peers in the same rounds:
// boost::unordered_flat_map (where Boost is installed) and std::unordered_map, neither of them thread-safe.
// Keys are random and unrelated from look-up to look-up; a batch is 4,096 keys (64k tokens at unit 16).
#include "limits/bench.hpp"

#include "base/arena.h"
#include "block/id_pool.h"
#include "block/table.h"
#include "rounds.hpp"

// Named by a macro: the build skips programs that include Boost by name where it is absent; this one goes on.
#define FLAT_MAP_HEADER <boost/unordered/unordered_flat_map.hpp>
#if __has_include(FLAT_MAP_HEADER)
#include FLAT_MAP_HEADER
#define HAVE_BOOST 1
#endif
#include <memory>
#include <unordered_map>

namespace {

using hkv::Key128;

struct Hash {
  using is_avalanching = void;
  std::size_t operator()(const Key128& k) const { return k.hi ^ (k.lo * 0x9e3779b97f4a7c15ull); }
};
struct Equal {
  bool operator()(const Key128& a, const Key128& b) const { return a.lo == b.lo && a.hi == b.hi; }
};

// The table as BlockStore lays it out: the same arenas at the same load.
struct Subject {
  explicit Subject(std::uint32_t entries)
      : ids(entries + entries / 64 + 64),
        descriptors(ids.count()),
        lines(hkv::Table::lines_for(entries)),
        notes(new hkv::Atom<std::uint32_t>[ids.count()]),
        table(lines.data(), static_cast<std::uint32_t>(lines.size()), descriptors.data(), notes.get(), ids) {}
  hkv::IdPool ids;
  hkv::Arena<hkv::Descriptor> descriptors;
  hkv::Arena<hkv::Line> lines;
  std::unique_ptr<hkv::Atom<std::uint32_t>[]> notes;
  hkv::Table table;
};

constexpr std::size_t batch = 4096;

std::uint64_t look_up(const Subject& s, const std::vector<Key128>& keys) {
  static thread_local std::vector<hkv::Sighting> out(batch);
  std::uint64_t found = 0;
  for (std::size_t at = 0; at + batch <= keys.size(); at += batch) {
    s.table.find_batch(keys.data() + at, 1, batch, out.data());
    found += out[at % batch].found() + out[batch - 1].found();
  }
  return found;
}

std::uint64_t read_lines(const void* base, std::size_t lines, const std::vector<Key128>& keys) {
  constexpr std::size_t in_flight = 32;
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at + in_flight <= keys.size(); at += in_flight) {
    const char* line[in_flight];
    for (std::size_t i = 0; i < in_flight; ++i) {
      const auto n =
          static_cast<std::uint64_t>(static_cast<unsigned __int128>(keys[at + i].lo) * lines >> 64);
      line[i] = static_cast<const char*>(base) + n * 64;
      _mm_prefetch(line[i], _MM_HINT_T0);
    }
    for (std::size_t i = 0; i < in_flight; ++i) sum += *reinterpret_cast<const std::uint64_t*>(line[i]);
  }
  return sum;
}

// The same lines of both arenas in one stream, always 32 pairs in flight: what no look-up can do, since the
// descriptor is known only once the bucket line is there.
std::uint64_t read_pairs(const Subject& s, const std::vector<Key128>& keys) {
  constexpr std::size_t in_flight = 32;
  const auto line = [&](std::size_t i) {
    const auto n = static_cast<unsigned __int128>(keys[i].lo) * s.lines.size() >> 64;
    return reinterpret_cast<const char*>(&s.lines[static_cast<std::size_t>(n)]);
  };
  const auto descriptor = [&](std::size_t i) {
    const auto n = static_cast<unsigned __int128>(keys[i].hi) * s.descriptors.size() >> 64;
    return reinterpret_cast<const char*>(&s.descriptors[static_cast<std::size_t>(n)]);
  };
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < keys.size() + in_flight; ++i) {
    if (i < keys.size()) {
      _mm_prefetch(line(i), _MM_HINT_T0);
      _mm_prefetch(descriptor(i), _MM_HINT_T0);
    }
    if (i < in_flight) continue;
    sum += *reinterpret_cast<const std::uint64_t*>(line(i - in_flight));
    sum += *reinterpret_cast<const std::uint64_t*>(descriptor(i - in_flight));
  }
  return sum;
}

template <class Map>
std::uint64_t look_up_in(const Map& map, const std::vector<Key128>& keys) {
  std::uint64_t sum = 0;
  for (const Key128& key : keys) {
    const auto it = map.find(key);
    sum += it == map.end() ? 7 : it->second;
  }
  return sum;
}

// Erases and inserts random keys until told to stop. Returns: updates done.
std::uint64_t write_until(Subject& s, const std::vector<Key128>& keys, Rng random,
                          const std::atomic<bool>& stop) {
  std::uint64_t updates = 0;
  while (!stop.load(std::memory_order_relaxed)) {
    const Key128 key = keys[random() % keys.size()];
    const hkv::Sighting seen = s.table.find(key);
    if (!seen.found()) continue;
    s.table.erase_if_empty(seen.id, key);
    s.table.get_or_insert(key);
    ++updates;
  }
  return updates;
}

// One size: the table, the peers with the same keys, and the figures of all rounds.
class Bench {
 public:
  Bench(Report& report, std::size_t entries, std::string name, bool smoke)
      : report_(report),
        name_(std::move(name)),
        queries_(smoke ? 1 << 13 : 1 << 17),
        rounds_(smoke ? 2 : 15),
        keys_(entries),
        absent_(std::min<std::size_t>(entries, 1 << 20)),
        subject_(static_cast<std::uint32_t>(entries)) {
    for (auto& k : keys_) k = {random_(), random_()};
    for (auto& k : absent_) k = {random_(), random_()};
    for (const auto& k : keys_) {
      if (subject_.table.get_or_insert(k).how != hkv::Placed::Inserted)
        report_.figure(name_ + "_unplaced", 1);
    }
#ifdef HAVE_BOOST
    flat_.reserve(entries);
    for (std::size_t i = 0; i < entries; ++i) flat_.emplace(keys_[i], i);
#endif
    node_.reserve(entries);
    for (std::size_t i = 0; i < entries; ++i) node_.emplace(keys_[i], i);
  }

  void run() {
    check();
    for (int round = 0; round < rounds_; ++round) {
      for (const int threads : {1, 2}) look_ups(threads, threads == 1 ? "" : " x2");
      beside_a_writer(round);
    }
    // Of large tables ageing would take minutes.
    if (keys_.size() <= std::size_t{2} << 20) aged();
    print();
  }

 private:
  std::vector<Key128> draw(const std::vector<Key128>& from) {
    std::vector<Key128> drawn(queries_);
    for (auto& k : drawn) k = from[random_() % from.size()];
    return drawn;
  }

  // What is measured must be right: every key is found, no absent one is.
  void check() {
    std::vector<hkv::Sighting> out(batch);
    std::size_t found = 0, false_hits = 0, asked = 0;
    for (std::size_t at = 0; at + batch <= absent_.size(); at += batch, asked += batch) {
      subject_.table.find_batch(keys_.data() + at, 1, batch, out.data());
      for (std::size_t i = 0; i < batch; ++i) {
        found += out[i].found() && subject_.table[out[i].id].key() == keys_[at + i];
      }
      subject_.table.find_batch(absent_.data() + at, 1, batch, out.data());
      for (const auto& sighting : out) false_hits += sighting.found();
    }
    report_.figure(name_ + "_found", static_cast<double>(found) / static_cast<double>(asked));
    report_.figure(name_ + "_false_hits", static_cast<double>(false_hits));
  }

  // Each figure has keys of its own, so that none finds what the one before it brought into the cache.
  template <class Body>
  void timed(int threads, const std::string& what, const std::vector<Key128>& from, Body body) {
    const std::vector<Key128> drawn[2] = {draw(from), draw(from)};
    const double ns = par(threads, [&](int t) { keep(body(drawn[t])); });
    all_.add(what, ns / static_cast<double>(queries_ * threads));
  }

  void look_ups(int threads, const std::string& with) {
    Subject& s = subject_;
    timed(threads, "line" + with, keys_,
          [&](const auto& k) { return read_lines(s.lines.data(), s.lines.size(), k); });
    timed(threads, "descriptor" + with, keys_,
          [&](const auto& k) { return read_lines(s.descriptors.data(), s.descriptors.size(), k); });
    timed(threads, "pair" + with, keys_, [&](const auto& k) { return read_pairs(s, k); });
    timed(threads, "hit" + with, keys_, [&](const auto& k) { return look_up(s, k); });
    timed(threads, "miss" + with, absent_, [&](const auto& k) { return look_up(s, k); });
#ifdef HAVE_BOOST
    timed(threads, "boost hit" + with, keys_, [&](const auto& k) { return look_up_in(flat_, k); });
    timed(threads, "boost miss" + with, absent_, [&](const auto& k) { return look_up_in(flat_, k); });
#endif
    if (threads == 2) return;
    timed(threads, "std hit", keys_, [&](const auto& k) { return look_up_in(node_, k); });
    timed(threads, "std miss", absent_, [&](const auto& k) { return look_up_in(node_, k); });
  }

  // A reader alone and beside a writer; alone before in one round, after in the next: what the first leaves
  // behind must not decide. The writer's own speed is printed as well.
  void beside_a_writer(int round) {
    const std::vector<Key128> read[4] = {draw(keys_), draw(keys_), draw(keys_), draw(keys_)};
    const auto read_two = [&](int first) {
      const double start = now_ns();
      for (int i = 0; i < 2; ++i) keep(look_up(subject_, read[first + i]));
      return (now_ns() - start) / static_cast<double>(2 * queries_);
    };
    double alone = 0, beside = 0, writing = 0;
    std::uint64_t updates = 0;
    std::atomic<bool> stop{false};
    const auto read_alone = [&] { par(1, [&](int) { alone = read_two(0); }); };
    if (round % 2 == 0) read_alone();
    par(2, [&](int t) {
      if (t == 0) {
        beside = read_two(2);
        stop = true;
        return;
      }
      const double start = now_ns();
      updates = write_until(subject_, keys_, Rng(round), stop);
      writing = now_ns() - start;
    });
    if (round % 2 == 1) read_alone();
    all_.add("reader alone", alone);
    all_.add("reader beside writer", beside);
    all_.add("update", writing / static_cast<double>(updates ? updates : 1));
  }

  // After three updates an entry: lines that were full at some time or other carry their overflow flag.
  void aged() {
    for (std::size_t i = 0; i < 3 * keys_.size(); ++i) {
      const Key128 key = keys_[random_() % keys_.size()];
      const hkv::Sighting seen = subject_.table.find(key);
      if (seen.found()) subject_.table.erase_if_empty(seen.id, key);
      subject_.table.get_or_insert(key);
    }
    for (int round = 0; round < rounds_; ++round) {
      timed(1, "aged hit", keys_, [&](const auto& k) { return look_up(subject_, k); });
      timed(1, "aged miss", absent_, [&](const auto& k) { return look_up(subject_, k); });
    }
  }

  void ratio(const char* id, double value, const char* sentence) {
    report_.line("%-8s %-58s %5.2f\n", name_.c_str(), sentence, value);
    report_.figure(name_ + "_" + id, value);
  }

  void print() {
    for (const auto& what : all_.names()) {
      report_.line("%-8s %-22s %7.1f / %7.1f ns (min / median)\n", name_.c_str(), what.c_str(),
                   all_.min(what), all_.median(what));
      std::string id = name_ + "_" + what + "_ns";
      std::replace(id.begin(), id.end(), ' ', '_');
      report_.figure(id, all_.median(what));
    }
    ratio("hit_of_limit", all_.ratio_of_sum("line", "descriptor", "hit"),
          "hit: fraction of the two-line limit (must 0.60, aim 0.75)");
    ratio("hit_of_limit_x2", all_.ratio_of_sum("line x2", "descriptor x2", "hit x2"),
          "the same with two readers");
    ratio("hit_of_pairs", all_.ratio("pair", "hit"),
          "hit: fraction of the stricter limit (pairs in one stream)");
    ratio("miss_of_limit", all_.ratio("line", "miss"), "miss: fraction of the one-line limit");
    ratio("readers_1_to_2", all_.ratio("hit", "hit x2"), "hits a second, two readers over one (must 1.85)");
    ratio("beside_writer", all_.ratio("reader beside writer", "reader alone"),
          "time beside a writer over alone (must 1.10 at most)");
#ifdef HAVE_BOOST
    ratio("boost_hit", all_.ratio("boost hit", "hit"), "hit: times faster than boost::unordered_flat_map");
    ratio("boost_miss", all_.ratio("boost miss", "miss"),
          "miss: times faster than boost::unordered_flat_map");
#endif
    ratio("std_hit", all_.ratio("std hit", "hit"), "hit: times faster than std::unordered_map");
    ratio("std_miss", all_.ratio("std miss", "miss"), "miss: times faster than std::unordered_map");
  }

  Report& report_;
  std::string name_;
  std::size_t queries_;
  int rounds_;
  Rng random_{42};
  std::vector<Key128> keys_, absent_;
  Subject subject_;
#ifdef HAVE_BOOST
  boost::unordered_flat_map<Key128, std::uint32_t, Hash, Equal> flat_;
#endif
  std::unordered_map<Key128, std::uint32_t, Hash, Equal> node_;
  Rounds all_;
};

}  // namespace

int main(int argc, char** argv) {
  bool json = false, smoke = false;
  std::vector<std::size_t> sizes;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0)
      json = true;
    else if (std::strcmp(argv[i], "--smoke") == 0)
      smoke = true;
    else
      sizes.push_back(std::strtoull(argv[i], nullptr, 0));
  }
  Report report(json);
#ifndef HAVE_BOOST
  report.line("boost::unordered_flat_map: not installed, skipped\n");
#endif
  if (smoke) {
    Bench(report, std::size_t{1} << 14, "16Ki", true).run();
    return 0;
  }
  if (sizes.empty()) sizes = {1, 16};
  for (const std::size_t n : sizes) Bench(report, n << 20, std::to_string(n) + "Mi", false).run();
}
