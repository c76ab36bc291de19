// SPDX-License-Identifier: Apache-2.0
// A small HybridCache under the scheduler: two groups, sequences of one unit, pages whose bytes tell their key.
//
// Thread safety: none; the scheduler runs one thread at a time. What holds after every step: world.h.
#pragma once
#include "cache/cache.h"
#include "sim/world.h"

namespace hkv::sim {

class CacheWorld : public World {
 public:
  static constexpr std::int64_t unit = 4;
  static constexpr int groups = 2;
  using Chain = std::shared_ptr<const KeyChain>;

  CacheWorld(std::int64_t blocks, std::uint32_t pages) : CacheWorld(made(blocks, pages), pages) {}

  HybridCache& cache;
  const Chain a = chain(1), b = chain(2);

  // A sequence of one unit, or of a part of one; the same object each time.
  static Chain chain(std::uint32_t name, std::int64_t tokens = unit) {
    static std::vector<Chain> made(8 * unit);
    Chain& chain = made[static_cast<std::size_t>(name * unit + tokens - 1)];
    if (chain != nullptr) return chain;
    const std::string_view parts[identity_parts] = {"sim", "", "", "", ""};
    const auto ids =
        std::make_shared<const std::vector<std::uint32_t>>(static_cast<std::size_t>(tokens), name);
    TokenView view;
    view.data = reinterpret_cast<const std::byte*>(ids->data());
    view.count = tokens;
    view.owner = ids;
    return chain = KeyChain::build(KeyChain::identity_root(unit, parts), unit, view, {});
  }
  static const std::vector<Selection>& everything() {
    static const std::vector<Selection> all(groups, Selection{true, {}});
    return all;
  }

  // Takes pages for the sequence; they have no place in a word until published. Returns: none where short.
  std::unique_ptr<Fill> reserve(const Chain& keys) {
    ++standing_claims;
    try {
      return cache.reserve(keys, everything(), cache.spec_formats(), nullptr);
    } catch (const Error&) {
      --standing_claims;
      return nullptr;
    }
  }
  void write_pages(const Fill& fill) {
    for (int g = 0; g < groups; ++g) {
      for (const Fill::Entry& entry : fill.entries[static_cast<std::size_t>(g)])
        if (entry.state != Fill::State::Published && entry.state != Fill::State::Given)
          write(entry.page, entry.key, g);
    }
  }
  void publish(Fill& fill) { cache.publish(fill, everything()); }
  // Ends the fill. Unless quarantined its pages have their places again.
  void abort(Fill& fill, bool quarantine = false) {
    cache.abort(fill, quarantine);
    if (!quarantine) --standing_claims;
  }
  // Reserve, write, publish, close. Returns: whether there were pages.
  bool fill_all(const Chain& keys) {
    const std::unique_ptr<Fill> fill = reserve(keys);
    if (fill == nullptr) return false;
    write_pages(*fill);
    publish(*fill);
    abort(*fill);
    return true;
  }
  std::unique_ptr<Lease> match(const Chain& keys) {
    Question question;
    question.keys = keys.get();
    question.limit = unit + 1;
    question.formats = cache.spec_formats();
    question.verify = Verify::Off;
    std::unique_ptr<Lease> lease;
    const Busy busy(*this);
    cache.match(question, keys, lease);
    leases_ += lease != nullptr;
    return lease;
  }
  void read_lease(const Lease& lease) {
    std::vector<std::uint32_t> pages;
    for (int g = 0; g < groups; ++g) {
      cache.page_ids(lease, g, pages);
      HKV_MUST(pages.size() == 1 && !store.pool(g).is_free(PageId{pages[0]}));
      for (int i = 0; i < page_words; ++i)
        HKV_MUST(word(g, PageId{pages[0]}, i).get() == content(lease.keys->keys()[0], g, i));
    }
  }
  void drop(std::unique_ptr<Lease> lease) {
    const Busy busy(*this);
    --leases_;
    cache.settle(*lease, Settlement::Released);
    cache.drop(std::move(lease));
  }
  void evict(const Chain& keys) {
    const Busy busy(*this);
    cache.evict(*keys, everything());
  }

  void thread(int) override {}
  void after() override {
    HKV_MUST(cache.live_leases() == 0 && cache.live_fills() == 0);
    World::after();
  }

 private:
  CacheWorld(std::unique_ptr<HybridCache> made, std::uint32_t pages)
      : World(made->store(), pages), cache(*made), kept_(std::move(made)) {}

  // A new one each time: what a cache keeps for reuse would make executions differ.
  static std::unique_ptr<HybridCache> made(std::int64_t blocks, std::uint32_t pages) {
    std::vector<Group> of(groups);
    of[0].name = "kv", of[0].coverage = {Rule::Prefix, 0}, of[0].kind = 0;
    of[1].name = "swa", of[1].coverage = {Rule::Window, unit}, of[1].kind = 2;
    for (Group& g : of) g.pages = pages, g.page_bytes = 8 * page_words;
    return std::make_unique<HybridCache>(make_layout(unit, std::move(of)), blocks,
                                         std::vector<Digest16>(groups));
  }

  std::unique_ptr<HybridCache> kept_;
};

}  // namespace hkv::sim
