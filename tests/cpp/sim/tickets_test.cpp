// SPDX-License-Identifier: Apache-2.0
// Running requests under the scheduler: what a ticket gives up is promised before it is free.
#include "cache/cache.h"
#include "cache/ticket.h"
#include "sim/scheduler.h"

namespace hkv::sim {
namespace {

constexpr std::int64_t unit = 4, longest = 20;

Group group(const char* name, Rule rule, std::int64_t pages, std::int64_t block_units = 1) {
  Group g;
  g.name = name, g.coverage = {rule, rule == Rule::Window ? unit : 0};
  g.kind = rule == Rule::Prefix ? 0 : rule == Rule::Checkpoint ? 1 : 2;
  g.block_units = block_units, g.pages = pages, g.page_bytes = 64;
  return g;
}

TokenView tokens_of(std::uint32_t name, std::int64_t count) {
  static const std::vector<std::vector<std::uint32_t>> ids = [] {
    std::vector<std::vector<std::uint32_t>> made;
    for (std::uint32_t n = 0; n < 4; ++n) made.emplace_back(longest, n);
    return made;
  }();
  TokenView view;
  view.data = reinterpret_cast<const std::byte*>(ids[name].data());
  view.count = count;
  return view;
}
std::shared_ptr<const KeyChain> chain(std::uint32_t name, std::int64_t count) {
  const std::string_view parts[identity_parts] = {};
  return KeyChain::build(KeyChain::identity_root(unit, parts), unit, tokens_of(name, count), {});
}

// Two requests, one a thread, and what must hold of all promises when they are idle.
class Requests : public Program {
 public:
  explicit Requests(std::vector<Group> groups) : cache(made(std::move(groups))) {}

  std::unique_ptr<HybridCache> cache;
  std::unique_ptr<Ticket> ticket[2];

  std::unique_ptr<Ticket> admit(std::int64_t tokens, std::uint32_t used = ~0u) {
    AdmitQuestion question;
    question.groups = used;
    question.start = root_;
    question.max_tokens = tokens;
    question.formats = cache->spec_formats();
    NotAdmitted refused;
    return cache->admit(question, refused);
  }
  // A step of one unit, not settled; the states at its end are kept.
  void advance(Ticket& t, std::uint32_t name) {
    cache->grow(t, unit, {});
    t.keys.append(tokens_of(name, longest), t.advanced, unit);
    cache->advance(t, t.advanced + unit, {}, cache->store().group_count(), false);
  }
  // Pages of one group for a prefix.
  std::unique_ptr<Fill> reserve(std::uint32_t name, std::int64_t tokens, int group, Ticket* t = nullptr) {
    return cache->reserve(chain(name, tokens), only(group), cache->spec_formats(), nullptr, t);
  }
  std::vector<Selection> only(int group) const {
    std::vector<Selection> some(static_cast<std::size_t>(cache->store().group_count()));
    some[static_cast<std::size_t>(group)].all = true;
    return some;
  }
  void insert(std::uint32_t name, std::int64_t tokens) {
    const std::vector<Selection> all(static_cast<std::size_t>(cache->store().group_count()), {true, {}});
    cache->publish(*cache->reserve(chain(name, tokens), all, cache->spec_formats(), nullptr), all);
  }

  void after() override {
    for (int g = 0; g < cache->store().group_count(); ++g) {
      const std::int64_t free = cache->store().pool(g).free_count() + cache->store().evictable(g);
      HKV_MUST(cache->admission().promised(g) <= free ||
               (!cache->layout().groups[static_cast<std::size_t>(g)].prefix() &&
                cache->admission().caps(g) <= cache->store().pool(g).count()));
    }
    for (auto& t : ticket) {
      if (t == nullptr) continue;
      cache->close(*t);
      cache->end(*t, false, false);
    }
    for (int g = 0; g < cache->store().group_count(); ++g) HKV_MUST(cache->admission().promised(g) == 0);
  }

 private:
  static std::unique_ptr<HybridCache> made(std::vector<Group> groups) {
    AdmissionLimits limits;
    limits.step_tokens = unit;
    std::vector<Digest16> formats(groups.size());
    return std::make_unique<HybridCache>(make_layout(unit, std::move(groups)), 16, std::move(formats),
                                         EvictionOrder::Usability, limits);
  }
  std::shared_ptr<const KeyChain> root_ = chain(0, 0);
};

// A request whose window slides while another asks to be admitted: it may not be let in on the page that has slid
// out and was promised to the first one's next blocks.
struct SlideBesideAdmit : Requests {
  SlideBesideAdmit() : Requests({group("kv", Rule::Prefix, 9), group("swa", Rule::Window, 4)}) {}
  void before() override {
    ticket[0] = admit(longest);
    advance(*ticket[0], 1);
    cache->settle_advance(*ticket[0], unit, 0);
    advance(*ticket[0], 1);
  }
  void thread(int self) override {
    if (self == 0) {
      cache->settle_advance(*ticket[0], 2 * unit, 0);  // the window moves on by a block
    } else {
      ticket[1] = admit(2 * unit);
    }
  }
};

// What one request evicts for a page of kv holds the page of idx that the other one was promised: it is neither
// free nor to be evicted for a while, and is waited for.
struct GrowBesideEvict : Requests {
  GrowBesideEvict() : Requests({group("kv", Rule::Prefix, 4), group("idx", Rule::Prefix, 2, 2)}) {}
  void before() override {
    insert(1, 2 * unit);
    insert(2, unit);
    ticket[0] = admit(2 * unit);
    ticket[1] = admit(2 * unit);
    HKV_MUST(ticket[1] != nullptr);
    advance(*ticket[0], 3);
    for (int g = 0; g < 2; ++g) HKV_MUST(cache->store().pool(g).free_count() == 0);
  }
  void thread(int self) override { cache->grow(*ticket[self], unit, {}); }
};

// A state that is published while another request asks to be admitted: what its owner may take next is promised
// before the page can be evicted.
struct StateBesideAdmit : Requests {
  StateBesideAdmit() : Requests({group("kv", Rule::Prefix, 10), group("state", Rule::Checkpoint, 3)}) {}
  void before() override {
    ticket[0] = admit(longest);
    advance(*ticket[0], 1);
    HKV_MUST(cache->store().pool(1).free_count() == 1 && cache->admission().promised(1) == 0);
  }
  void thread(int self) override {
    if (self == 0) {
      cache->settle_advance(*ticket[0], unit, unit);
    } else {
      ticket[1] = admit(longest);
    }
  }
};

// A unit is published, pinned, while another's page of it becomes visible. That page is nobody's promise, and who comes
// next may be admitted on it: the pin may not hold it then.
struct PublishBesideFill : Requests {
  PublishBesideFill() : Requests({group("kv", Rule::Prefix, 9), group("idx", Rule::Prefix, 4)}) {}
  std::unique_ptr<Fill> fill;
  void before() override {
    fill = reserve(1, unit, 1);
    ticket[0] = admit(unit);
    advance(*ticket[0], 1);
    HKV_MUST(cache->store().pool(1).free_count() == 2);
  }
  void thread(int self) override {
    if (self == 0) {
      cache->settle_advance(*ticket[0], unit, 0);
    } else {
      cache->publish(*fill, only(1));
      ticket[1] = admit(3 * unit);
    }
  }
};

// A page of a request's fill is published while another request pins its unit for a group before it: it would not be
// free, hence the right to another may not come back for it.
struct FillBesidePublish : Requests {
  FillBesidePublish() : Requests({group("kv", Rule::Prefix, 9), group("idx", Rule::Prefix, 1)}) {}
  std::unique_ptr<Fill> fill;
  void before() override {
    ticket[0] = admit(unit);
    fill = reserve(1, unit, 1, ticket[0].get());
    ticket[1] = admit(unit, 1u);  // of kv alone
    HKV_MUST(ticket[1] != nullptr);
    advance(*ticket[1], 1);
  }
  void thread(int self) override {
    if (self == 0) {
      cache->publish(*fill, only(1));
    } else {
      cache->settle_advance(*ticket[1], unit, 0);
    }
  }
  void after() override {
    cache->abort(*fill, false);
    Requests::after();
  }
};

}  // namespace

HKV_TEST("what slides out of a window is promised before it is free") {
  search_all<SlideBesideAdmit>("slide beside admit", Every::State);
}

HKV_TEST("a page on its way back to its pool is waited for by whoever was promised it") {
  sample<GrowBesideEvict>("grow beside evict", 20000);
}

HKV_TEST("a state is promised again before it can be evicted") {
  search_all<StateBesideAdmit>("state beside admit", Every::State);
}

HKV_TEST("a pin holds no page that became visible while it was taken") {
  search_interrupted<PublishBesideFill>("publish beside fill", 3);
}

HKV_TEST("the right to a page comes back only for one that nobody pins") {
  search_interrupted<FillBesidePublish>("fill beside publish", 3);
}

}  // namespace hkv::sim
