// SPDX-License-Identifier: Apache-2.0
// Question: what does a running request cost in the core: a step of decoding for 1,024 of them, a prompt's pages
// taken and published, the same where each page has to be evicted first, the release of a million tokens, and the
// pins of a lease on blocks that lie in memory?
//
//   tickets [--json] [--smoke]
//
// A round measures every form once, and random reads of the descriptors' own lines as the limit of the pins; printed
// are min / median. "A block" is one block of one group.
#include "limits/bench.hpp"

#include <memory>

#include "cache/cache.h"
#include "cache/ticket.h"
#include "layout/key_chain.h"
#include "rounds.hpp"

namespace {

using hkv::Rule;

hkv::Group group(Rule rule, std::int64_t tokens, std::int64_t pages) {
  hkv::Group g;
  g.name = rule == Rule::Prefix ? "full" : "window";
  g.kind = rule == Rule::Prefix ? 0 : 2;
  g.coverage = {rule, tokens};
  g.pages = pages;
  g.page_bytes = 64;
  return g;
}

std::unique_ptr<hkv::HybridCache> cache_of(std::int64_t unit, int groups, std::int64_t blocks,
                                           std::int64_t pages) {
  std::vector<hkv::Group> made = {group(Rule::Prefix, 0, pages)};
  for (int g = 1; g < groups; ++g) made.push_back(group(Rule::Window, 128, pages));
  return std::make_unique<hkv::HybridCache>(hkv::make_layout(unit, std::move(made)), blocks,
                                            std::vector<hkv::Digest16>(static_cast<std::size_t>(groups)));
}

std::shared_ptr<const hkv::KeyChain> chain(std::int64_t units, std::int64_t unit_tokens, Rng& random) {
  std::vector<hkv::Key128> keys(static_cast<std::size_t>(units));
  for (auto& k : keys) k = {random(), random()};
  return hkv::KeyChain::from_hashes(std::move(keys), unit_tokens);
}

std::shared_ptr<const hkv::KeyChain> no_tokens(std::int64_t unit) {
  const std::string_view parts[hkv::identity_parts] = {};
  return hkv::KeyChain::build(hkv::KeyChain::identity_root(unit, parts), unit, {}, {});
}

std::unique_ptr<hkv::Ticket> admitted(hkv::HybridCache& cache, std::shared_ptr<const hkv::KeyChain> start,
                                      std::int64_t max_tokens) {
  hkv::AdmitQuestion question;
  question.start = std::move(start);
  question.max_tokens = max_tokens;
  question.formats = cache.spec_formats();
  hkv::NotAdmitted refused;
  auto ticket = cache.admit(question, refused);
  if (ticket == nullptr) std::abort();
  return ticket;
}

double now_ns() { return static_cast<double>(std::chrono::steady_clock::now().time_since_epoch().count()); }

void end(hkv::HybridCache& cache, hkv::Ticket& ticket) {
  cache.close(ticket);
  cache.end(ticket, false, false);
}

// Requests of one length that decode side by side, one token a step.
class Decoding {
 public:
  Decoding(int requests, int groups)
      : cache_(cache_of(64, groups, requests * 20, requests * 20)),
        handles_(requests),
        computed_(requests),
        starts_(requests + 1),
        grow_(requests, 1),
        status_(requests),
        ids_(requests),
        out_(static_cast<std::size_t>(requests) * groups) {
    const auto root = no_tokens(64);
    for (int i = 0; i < requests; ++i) {
      tickets_.push_back(admitted(*cache_, root, 1000));
      handles_[i] = tickets_.back()->handle;
      starts_[i] = i;
      const std::int64_t tokens = 1 + (i * 37) % 64;  // so that every step some of them begin a block
      computed_[i] = tokens;
      hkv::Ticket& ticket = *tickets_.back();
      std::vector<std::uint32_t> ids(static_cast<std::size_t>(tokens), static_cast<std::uint32_t>(i));
      cache_->grow(ticket, tokens, {});
      ticket.keys.append(view(ids), 0, tokens);
      cache_->advance(ticket, tokens, {}, 0, true);
      cache_->settle_advance(ticket, tokens, 0);
      cache_->grow(ticket, 1, {});
    }
    starts_[requests] = requests;
  }
  ~Decoding() {
    for (auto& ticket : tickets_) end(*cache_, *ticket);
  }

  // One step; false once requests reach their end.
  bool step() {
    if (steps_++ == 900) return false;
    hkv::StepArrays arrays;
    arrays.requests = static_cast<std::int64_t>(handles_.size());
    arrays.tickets = handles_.data();
    arrays.grow = grow_.data();
    for (std::size_t i = 0; i < computed_.size(); ++i) {
      ++computed_[i];
      ids_[i] = static_cast<std::uint32_t>(i * 1000 + static_cast<std::size_t>(steps_));
    }
    arrays.computed = computed_.data();
    arrays.tokens = view(ids_);
    arrays.starts = starts_.data();
    arrays.out_pages = out_.data();
    arrays.new_pages = 1;
    arrays.status = status_.data();
    const double from = now_ns();
    cache_->step(arrays);
    took_ns = now_ns() - from;
    for (const std::int32_t status : status_) wrong += status != 0;
    return true;
  }
  double took_ns = 0;
  std::int64_t wrong = 0;

 private:
  static hkv::TokenView view(const std::vector<std::uint32_t>& ids) {
    hkv::TokenView v;
    v.data = reinterpret_cast<const std::byte*>(ids.data());
    v.count = static_cast<std::int64_t>(ids.size());
    return v;
  }

  std::unique_ptr<hkv::HybridCache> cache_;
  std::vector<std::unique_ptr<hkv::Ticket>> tickets_;
  std::vector<std::int64_t> handles_, computed_, starts_;
  std::vector<std::int32_t> grow_, status_;
  std::vector<std::uint32_t> ids_;
  std::vector<std::int32_t> out_;
  int steps_ = 0;
};

double decode_ns(int requests, int groups, int steps, std::int64_t& wrong) {
  static std::map<std::pair<int, int>, std::unique_ptr<Decoding>> all;
  auto& decoding = all[{requests, groups}];
  double total = 0;
  for (int i = 0; i < steps; ++i) {
    if (decoding == nullptr || !decoding->step()) {
      decoding.reset();
      decoding = std::make_unique<Decoding>(requests, groups);
      decoding->step();
    }
    total += decoding->took_ns;
  }
  wrong += decoding->wrong;
  return total / steps;
}

// A prompt with its keys ready: admit, grow, advance (all blocks published), close. Returns ns a block.
double prompt_ns(hkv::HybridCache& cache, std::int64_t tokens, Rng& random, double* close_ns) {
  const std::int64_t unit = cache.layout().unit_tokens;
  const auto keys = chain(tokens / unit, unit, random);
  const auto root = chain(0, unit, random);
  double closing = 0;
  const double whole = par(1, [&](int) {
    auto ticket = admitted(cache, root, tokens);
    cache.grow(*ticket, tokens, {});
    ticket->keys.follow(keys, tokens);
    cache.advance(*ticket, tokens, {}, 0, true);
    cache.settle_advance(*ticket, tokens, 0);
    const double from = now_ns();
    end(cache, *ticket);
    closing = now_ns() - from;
  });
  if (close_ns != nullptr) *close_ns = closing;
  return whole / static_cast<double>(tokens / unit * static_cast<std::int64_t>(cache.layout().groups.size()));
}

// Pins and their release on blocks in random order, of a table that does not fit into the cache of the core.
class Pins {
 public:
  explicit Pins(std::int64_t blocks)
      : cache_(cache_of(16, 1, blocks, blocks)), order_(static_cast<std::size_t>(blocks)) {
    Rng random(11);
    const auto keys = chain(blocks, 16, random);
    const hkv::Selection all{true, {}};
    auto fill = cache_->reserve(keys, {&all, 1}, cache_->spec_formats(), nullptr);
    cache_->publish(*fill, {&all, 1});
    for (std::int64_t i = 0; i < blocks; ++i)
      order_[static_cast<std::size_t>(i)] = cache_->store().table().find(keys->keys()[i]).id;
    for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random() % i]);
  }
  double line_ns(std::size_t count) {
    const std::size_t from = next(count);
    std::uint64_t sum = 0;
    const double took = par(1, [&](int) {
      for (std::size_t i = 0; i < count; ++i) {
        if (i + ahead < count) __builtin_prefetch(&store()[order_[from + i + ahead]]);
        sum += store()[order_[from + i]].word(hkv::WordClass::H).bits();
      }
    });
    sink += sum;
    return took / static_cast<double>(count);
  }
  double pin_ns(std::size_t count, double& drop_ns) {
    const std::size_t from = next(count);
    hkv::EvictableChange change;
    const double took = par(1, [&](int) {
      for (std::size_t i = 0; i < count; ++i) {
        if (i + ahead < count) __builtin_prefetch(&store()[order_[from + i + ahead]], 1);
        const hkv::DescriptorId id = order_[from + i];
        store().pin(id, hkv::WordClass::H, store()[id].word(hkv::WordClass::H), 1, change);
      }
      store().count_pins(change);
    });
    drop_ns = par(1,
                  [&](int) {
                    const std::uint32_t tick = store().recency().next();
                    for (std::size_t i = 0; i < count; ++i) {
                      if (i + ahead < count) store().prefetch_unpin(order_[from + i + ahead]);
                      store().unpin(order_[from + i], hkv::WordClass::H, tick, change);
                    }
                    store().count_unpins(change);
                  }) /
              static_cast<double>(count);
    return took / static_cast<double>(count);
  }
  std::uint64_t sink = 0;

 private:
  static constexpr std::size_t ahead = 24;
  hkv::BlockStore& store() { return cache_->store(); }
  std::size_t next(std::size_t count) {
    if (at_ + count > order_.size()) at_ = 0;
    const std::size_t from = at_;
    at_ += count;
    return from;
  }
  std::unique_ptr<hkv::HybridCache> cache_;
  std::vector<hkv::DescriptorId> order_;
  std::size_t at_ = 0;
};

void run(Report& report, bool smoke) {
  Rounds all;
  const int requests = smoke ? 64 : 1024, rounds = smoke ? 2 : 25;
  const std::int64_t prompt = smoke ? 1024 : 65536, million = smoke ? 4096 : 1 << 20;
  std::int64_t wrong = 0;
  Rng random(3);
  Pins pins(smoke ? 1 << 12 : 1 << 20);
  auto roomy = cache_of(16, 2, prompt / 16 * (rounds + 2), prompt / 16 * (rounds + 2));
  auto full = cache_of(16, 2, prompt / 16 * 4, prompt / 16 * 4);
  auto large = cache_of(64, 6, million / 64 * 2, million / 64 * 2);
  for (int i = 0; i < 5; ++i) prompt_ns(*full, prompt, random, nullptr);
  for (int round = 0; round < rounds; ++round) {
    for (const int groups : {1, 3, 6})
      all.add("step_" + std::to_string(groups), decode_ns(requests, groups, smoke ? 3 : 30, wrong) / 1000);
    all.add("publish", prompt_ns(*roomy, prompt, random, nullptr));
    all.add("evicting", prompt_ns(*full, prompt, random, nullptr));
    double close = 0, drop = 0;
    prompt_ns(*large, million, random, &close);
    all.add("release_1M", close / 1e6);
    all.add("line", pins.line_ns(smoke ? 512 : 8192));
    all.add("pin", pins.pin_ns(smoke ? 512 : 8192, drop));
    all.add("drop", drop);
  }
  for (const std::string& name : all.names()) {
    report.line("%-12s %9.2f / %9.2f (min / median)\n", name.c_str(), all.min(name), all.median(name));
    report.figure(name, all.median(name));
  }
  report.figure("pin_of_line", all.ratio("pin", "line"));
  report.figure("wrong", static_cast<double>(wrong));
  const auto census = full->store().census(0, static_cast<std::uint64_t>(full->private_pages(0)));
  report.figure("held_at_end", static_cast<double>(census.held + census.filling));
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false, smoke = false;
  for (int i = 1; i < argc; ++i) {
    json |= std::string(argv[i]) == "--json";
    smoke |= std::string(argv[i]) == "--smoke";
  }
  Report report(json);
  run(report, smoke);
  return 0;
}
