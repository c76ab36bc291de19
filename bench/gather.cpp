// SPDX-License-Identifier: Apache-2.0
// Question: how near does a gather of scattered pages come to copying as many bytes in a row?
//
//   gather [--json] [--smoke] [--levels]
//
// Pages of 4 KiB to 64 KiB, drawn at random from a pool of 1 GiB, into a buffer of 32 MiB, on one thread and on two.
// Beside hkv::gather, in the same rounds: the limit, a sequential copy of as many bytes by 512-bit streamed stores;
// memcpy page by page; the same gather with hand-out counts verified; scatter; rows of 584 bytes as a top-k selection
// asks for them; and fingerprints of the same pages. A figure is the median over rounds of limit's time over subject's
// time: 1 is the limit. --levels: the other instruction sets as well.
#include "limits/bench.hpp"

#include "kernels/cpu_level.h"
#include "kernels/fingerprint.h"
#include "kernels/paged_copy.h"
#include "rounds.hpp"

namespace {

struct Sizes {
  std::size_t pool, buffer;
  int rounds;
};

// The limit of limits/gather2.cpp's measurement: a sequential copy, streamed, prefetched 1 KiB ahead.
void sequential_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 256) {
    for (int k = 0; k < 256; k += 64)
      _mm_prefetch(reinterpret_cast<const char*>(from + i + 1024 + k), _MM_HINT_NTA);
#ifdef __AVX512F__
    __m512i line[4];
    for (int k = 0; k < 4; ++k) line[k] = _mm512_load_si512(from + i + 64 * k);
    for (int k = 0; k < 4; ++k) _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 64 * k), line[k]);
#else
    __m128i line[16];
    for (int k = 0; k < 16; ++k)
      line[k] = _mm_load_si128(reinterpret_cast<const __m128i*>(from + i + 16 * k));
    for (int k = 0; k < 16; ++k) _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + 16 * k), line[k]);
#endif
  }
  _mm_sfence();
}

class Bench {
 public:
  explicit Bench(const Sizes& sizes)
      : sizes_(sizes),
        pool_(static_cast<std::byte*>(arena(sizes.pool, true))),
        buffer_(static_cast<std::byte*>(arena(sizes.buffer, true))) {}

  // One page size and number of threads: every subject once in each round.
  Rounds measure(std::size_t page_bytes, int threads, bool levels) {
    const std::size_t count = sizes_.buffer / page_bytes, pages = sizes_.pool / page_bytes;
    const double share = static_cast<double>(count * page_bytes) / static_cast<double>(sizes_.buffer);
    std::vector<std::int32_t> ids(count), status(count);
    std::vector<std::uint64_t> counts(pages, 1), expected(count, 1), prints(count);
    const hkv::PoolLayer layer{pool_, static_cast<std::int64_t>(page_bytes)};
    const auto bytes = static_cast<std::int64_t>(page_bytes);
    hkv::PagedCopy copy{&layer, 1, {1, bytes, bytes, 0, bytes}, {}, buffer_};
    copy.pieces = {ids.data(), nullptr, false, static_cast<std::int64_t>(count), -1};
    Rounds all;
    for (int round = 0; round < sizes_.rounds; ++round) {
      const auto timed = [&](const char* name, auto work) {
        draw(ids, pages);
        const double ns =
            par(threads, [&](int thread) { work(count * thread / threads, count * (thread + 1) / threads); });
        all.add(name, ns / share);
      };
      // Each thread of the bench copies its own part, so that none of the time is the waking of helpers.
      const auto part = [&](std::size_t from, std::size_t to) {
        hkv::PagedCopy mine = copy;
        mine.pieces.page_ids = ids.data() + from;
        mine.pieces.count = static_cast<std::int64_t>(to - from);
        mine.buffer = buffer_ + from * page_bytes;
        return mine;
      };
      limit(all, threads);
      timed("gather", [&](std::size_t from, std::size_t to) {
        const hkv::PagedCopy mine = part(from, to);
        hkv::gather(&mine, 1, 1);
      });
      timed("memcpy", [&](std::size_t from, std::size_t to) {
        for (std::size_t i = from; i < to; ++i) {
          std::memcpy(buffer_ + i * page_bytes, pool_ + static_cast<std::size_t>(ids[i]) * page_bytes,
                      page_bytes);
        }
      });
      timed("verified", [&](std::size_t from, std::size_t to) {
        hkv::PagedCopy mine = part(from, to);
        mine.handouts = counts.data();
        mine.expected = expected.data() + from;
        mine.status = status.data() + from;
        hkv::gather(&mine, 1, 1);
      });
      timed("scatter", [&](std::size_t from, std::size_t to) {
        const hkv::PagedCopy mine = part(from, to);
        hkv::scatter(&mine, 1, 1);
      });
      timed("fingerprint", [&](std::size_t from, std::size_t to) {
        const hkv::PagedCopy mine = part(from, to);
        const hkv::FingerprintGroup group{mine.layers, 1, mine.page, mine.pieces, prints.data() + from};
        hkv::fingerprint(&group, 1, 1);
      });
      for (const hkv::CpuLevel level : {hkv::CpuLevel::Portable, hkv::CpuLevel::Avx2}) {
        if (!levels) continue;
        const hkv::CpuLevel before = hkv::cpu_level();
        hkv::cpu_level_choose(level);
        timed(hkv::cpu_level_name(level), [&](std::size_t from, std::size_t to) {
          const hkv::PagedCopy mine = part(from, to);
          hkv::gather(&mine, 1, 1);
        });
        hkv::cpu_level_choose(before);
      }
      wrong_ += count - static_cast<std::size_t>(std::count(status.begin(), status.end(), 0));
    }
    wrong_ += differs(copy, ids, page_bytes);
    return all;
  }

  // Rows of 584 bytes, 64 to a page: 576 bytes with 8 of the page's footer.
  Rounds measure_rows(int threads) {
    constexpr std::int64_t row = 584, rows = 64;
    const std::size_t pages = sizes_.pool / (row * rows), count = sizes_.buffer / 4 / row;
    std::vector<std::int32_t> ids(count), in_page(count);
    const hkv::PoolLayer layer{pool_, row * rows};
    Rounds all;
    for (int round = 0; round < sizes_.rounds; ++round) {
      const auto timed = [&](const char* name, auto work) {
        for (std::size_t i = 0; i < count; ++i) {
          ids[i] = static_cast<std::int32_t>(random_() % pages);
          in_page[i] = static_cast<std::int32_t>(random_() % rows);
        }
        const double ns =
            par(threads, [&](int thread) { work(count * thread / threads, count * (thread + 1) / threads); });
        all.add(name, ns * static_cast<double>(sizes_.buffer) / static_cast<double>(count * row));
      };
      limit(all, threads);
      timed("rows", [&](std::size_t from, std::size_t to) {
        hkv::PagedCopy mine{&layer, 1, {rows, row - 8, row - 8, 8, rows * (row - 8)}};
        mine.pieces = {ids.data() + from, in_page.data() + from, false, static_cast<std::int64_t>(to - from),
                       -1};
        mine.buffer = buffer_ + from * row;
        hkv::gather(&mine, 1, 1);
      });
      timed("memcpy", [&](std::size_t from, std::size_t to) {
        for (std::size_t i = from; i < to; ++i) {
          const std::byte* const page = pool_ + ids[i] * row * rows;
          std::memcpy(buffer_ + i * row, page + in_page[i] * (row - 8), row - 8);
          std::memcpy(buffer_ + i * row + row - 8, page + rows * (row - 8) + in_page[i] * 8, 8);
        }
      });
    }
    return all;
  }

  std::size_t wrong() const { return wrong_; }

 private:
  // Without repetition, as scatter asks.
  void draw(std::vector<std::int32_t>& ids, std::size_t pages) {
    std::vector<bool> taken(pages);
    for (auto& id : ids) {
      do {
        id = static_cast<std::int32_t>(random_() % pages);
      } while (taken[id]);
      taken[id] = true;
    }
  }
  void limit(Rounds& all, int threads) {
    const std::size_t base = random_() % (sizes_.pool - sizes_.buffer - 8192) / 4096 * 4096;
    all.add("limit", par(threads, [&](int thread) {
              const std::size_t part = sizes_.buffer / threads;
              sequential_copy(buffer_ + part * thread, pool_ + base + part * thread, part);
            }));
  }
  std::size_t differs(const hkv::PagedCopy& copy, const std::vector<std::int32_t>& ids,
                      std::size_t page_bytes) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      std::memset(pool_ + static_cast<std::size_t>(ids[i]) * page_bytes, static_cast<int>(i % 251 + 1),
                  page_bytes);
    }
    hkv::gather(&copy, 1, 1);
    std::size_t found = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      found += std::memcmp(buffer_ + i * page_bytes, pool_ + static_cast<std::size_t>(ids[i]) * page_bytes,
                           page_bytes) != 0;
    }
    return found;
  }

  Sizes sizes_;
  std::byte* pool_;
  std::byte* buffer_;
  Rng random_{1};
  std::size_t wrong_ = 0;
};

void show(Report& report, const Rounds& all, const std::string& what, double bytes) {
  report.line("%-12s limit %5.1f GB/s |", what.c_str(), bytes / all.median("limit"));
  report.figure(what + "_limit_gbps", bytes / all.median("limit"));
  for (const std::string& name : all.names()) {
    if (name == "limit") continue;
    report.line(" %s %.2f", name.c_str(), all.ratio("limit", name));
    report.figure(what + "_" + name, all.ratio("limit", name));
  }
  report.line("\n");
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false, smoke = false, levels = false;
  for (int i = 1; i < argc; ++i) {
    json |= std::string(argv[i]) == "--json";
    smoke |= std::string(argv[i]) == "--smoke";
    levels |= std::string(argv[i]) == "--levels";
  }
  Report report(json);
  const Sizes sizes = smoke ? Sizes{8u << 20, 1u << 20, 1} : Sizes{std::size_t{1} << 30, 32u << 20, 11};
  Bench bench(sizes);
  for (const std::size_t page : {4096, 16384, 37376, 65536}) {
    for (const int threads : {1, 2}) {
      const std::string what = std::to_string(page) + "_" + std::to_string(threads);
      show(report, bench.measure(page, threads, levels), what, static_cast<double>(sizes.buffer));
    }
  }
  for (const int threads : {1, 2}) {
    show(report, bench.measure_rows(threads), "rows_" + std::to_string(threads),
         static_cast<double>(sizes.buffer));
  }
  report.figure("wrong", static_cast<double>(bench.wrong()));
  return 0;
}
