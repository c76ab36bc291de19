// SPDX-License-Identifier: Apache-2.0
// Running requests under the scheduler: what a ticket gives up is promised before it is free.
#include "cache/cache.h"
#include "cache/ticket.h"
#include "sim/scheduler.h"

namespace hkv::sim {
namespace {

// A request whose window slides while another asks to be admitted: it may not be let in on the page that has slid
// out and was promised to the first one's next blocks.
struct SlideBesideAdmit : Program {
  static constexpr std::int64_t unit = 4, longest = 20;
  std::unique_ptr<HybridCache> cache = made();
  std::shared_ptr<const KeyChain> root = no_tokens();
  std::unique_ptr<Ticket> sliding, other;

  void before() override {
    sliding = admit(longest);
    HKV_MUST(sliding != nullptr);
    advance_to(unit);
    cache->settle_advance(*sliding, unit, 0);
    advance_to(2 * unit);
  }
  void thread(int self) override {
    if (self == 0) {
      cache->settle_advance(*sliding, 2 * unit, 0);  // the window moves on by a block
    } else {
      other = admit(2 * unit);
    }
  }
  void after() override {
    for (int g = 0; g < cache->store().group_count(); ++g) {
      const std::int64_t free = cache->store().pool(g).free_count() + cache->store().evictable(g);
      HKV_MUST(cache->admission().promised(g) <= free ||
               (g != 0 && cache->admission().caps(g) <= cache->store().pool(g).count()));
    }
    for (const auto& ticket : {std::ref(sliding), std::ref(other)}) {
      if (ticket.get() == nullptr) continue;
      cache->close(*ticket.get());
      cache->end(*ticket.get(), false, false);
    }
    for (int g = 0; g < cache->store().group_count(); ++g) HKV_MUST(cache->admission().promised(g) == 0);
  }

 private:
  static std::unique_ptr<HybridCache> made() {
    std::vector<Group> groups(2);
    groups[0].name = "kv", groups[0].coverage = {Rule::Prefix, 0}, groups[0].pages = 9;
    groups[1].name = "swa", groups[1].coverage = {Rule::Window, unit}, groups[1].kind = 2;
    groups[1].pages = 4;
    for (Group& g : groups) g.page_bytes = 64;
    AdmissionLimits limits;
    limits.step_tokens = unit;
    return std::make_unique<HybridCache>(make_layout(unit, std::move(groups)), 16, std::vector<Digest16>(2),
                                         EvictionOrder::Lru, limits);
  }
  static std::shared_ptr<const KeyChain> no_tokens() {
    const std::string_view parts[identity_parts] = {};
    return KeyChain::build(KeyChain::identity_root(unit, parts), unit, {}, {});
  }
  std::unique_ptr<Ticket> admit(std::int64_t tokens) {
    AdmitQuestion question;
    question.start = root;
    question.max_tokens = tokens;
    question.formats = cache->spec_formats();
    NotAdmitted refused;
    return cache->admit(question, refused);
  }
  void advance_to(std::int64_t tokens) {
    static const std::vector<std::uint32_t> ids(longest, 7);
    TokenView view;
    view.data = reinterpret_cast<const std::byte*>(ids.data());
    view.count = longest;
    cache->grow(*sliding, unit, {});
    sliding->keys.append(view, sliding->advanced, tokens - sliding->advanced);
    cache->advance(*sliding, tokens, {}, 0, false);
  }
};

}  // namespace

HKV_TEST("what slides out of a window is promised before it is free") {
  search_all<SlideBesideAdmit>("slide beside admit", Every::State);
}

}  // namespace hkv::sim
