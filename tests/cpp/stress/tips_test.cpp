// SPDX-License-Identifier: Apache-2.0
// Directories and the lives of the descriptors they name: an entry may outlive its tip, and the id may by then
// stand for anything, a directory included.
#include "cache/cache.h"
#include "testing.h"

namespace hkv {
namespace {

constexpr std::int64_t unit = 8;
using Chain = std::shared_ptr<const KeyChain>;

Chain chain_of(std::string_view model, std::vector<std::uint32_t> ids) {
  const std::string_view parts[identity_parts] = {model, "", "", "", ""};
  const auto owned = std::make_shared<const std::vector<std::uint32_t>>(std::move(ids));
  TokenView view;
  view.data = reinterpret_cast<const std::byte*>(owned->data());
  view.count = static_cast<std::int64_t>(owned->size());
  view.owner = owned;
  return KeyChain::build(KeyChain::identity_root(unit, parts), unit, view, {});
}

Layout one_group() {
  std::vector<Group> groups(1);
  groups[0].name = "kv", groups[0].pages = 16, groups[0].page_bytes = 64;
  return make_layout(unit, std::move(groups));
}

}  // namespace

HKV_TEST("a stale entry that names a directory by now takes nothing from it") {
  HybridCache cache(one_group(), 32, std::vector<Digest16>(1));
  const std::vector<Selection> all(1, Selection{true, {}});
  const auto reserve = [&](const Chain& chain) {
    return cache.reserve(chain, all, cache.spec_formats(), nullptr);
  };
  const auto tip_of = [&](const Chain& chain) {
    return cache.store().table().find(chain->tip_key(0, chain->rest_tokens()));
  };
  const Chain first = chain_of("a", {1, 2});
  cache.publish(*reserve(first), all);
  const DescriptorId id = tip_of(first).id;
  // Another sequence is about to publish its first tip; then the first tip goes as a damaged page does, which
  // leaves its entry; and the directory of the other sequence takes over its id.
  const Chain other = chain_of("b", {7, 7});
  const auto fill = reserve(other);
  EXPECT(cache.store().retire_of(first->tip_key(0, 2), 0));
  cache.publish(*fill, all);
  EXPECT_EQ(index(cache.store().table().find(other->tip_directory_key(0)).id), index(id));
  // Four more tips beside the first: the last of them takes the place of the stale entry.
  std::vector<Chain> more;
  for (std::uint32_t i = 0; i < 4; ++i) {
    more.push_back(chain_of("a", {1, 10 + i, 3}));
    cache.publish(*reserve(more.back()), all);
  }
  EXPECT(cache.store().table().find(other->tip_directory_key(0)).found());
  EXPECT(tip_of(other).found());
  for (const Chain& chain : more) EXPECT(tip_of(chain).found());
  EXPECT_EQ(cache.store().pool(0).free_count(), 11u);
  const auto census = cache.store().census(0, 0);
  EXPECT_EQ(census.free + census.cached, 16u);
}

namespace {

// Tips below the root of one sequence each.
struct Tips {
  HybridCache cache{one_group(), 32, std::vector<Digest16>(1)};
  const std::vector<Selection> all = std::vector<Selection>(1, Selection{true, {}});

  void publish(const Chain& chain) {
    cache.publish(*cache.reserve(chain, all, cache.spec_formats(), nullptr), all);
  }
  bool take_away(const Chain& chain) {
    return cache.store().retire_of(chain->tip_key(0, chain->rest_tokens()), 0);
  }
  // Whether a match resumes at the tip.
  bool resumes(const Chain& chain) {
    Question question;
    question.keys = chain.get();
    question.limit = chain->tokens() + 1;
    question.formats = cache.spec_formats();
    std::unique_ptr<Lease> lease;
    cache.match(question, chain, lease);
    const bool whole = lease != nullptr && lease->tokens == chain->tokens();
    if (lease != nullptr) {
      cache.settle(*lease, Settlement::Released);
      cache.drop(std::move(lease));
    }
    return whole;
  }
};

}  // namespace

HKV_TEST("a tip that comes back under another id is not taken for the one whose place it gets") {
  Tips tips;
  const Chain tip = chain_of("a", {1, 2});
  for (std::uint32_t turn = 0; turn < 4; ++turn) {
    const Chain before = chain_of("b", {turn});
    tips.publish(before);
    tips.publish(tip);
    EXPECT(tips.resumes(tip));
    const DescriptorId id = tips.cache.store().table().find(tip->tip_key(0, 2)).id;
    EXPECT(tips.take_away(before));  // an id comes free, below the tip's
    EXPECT(tips.take_away(tip));
    EXPECT(!tips.resumes(tip));
    tips.publish(tip);
    EXPECT(tips.cache.store().table().find(tip->tip_key(0, 2)).id != id);
    EXPECT(tips.resumes(tip));
    EXPECT(tips.take_away(tip));
  }
}

HKV_TEST("an id that is another tip of the same unit by now has one place") {
  Tips tips;
  const Chain first = chain_of("a", {1, 2}), second = chain_of("a", {1, 2, 3});
  tips.publish(first);
  const DescriptorId id = tips.cache.store().table().find(first->tip_key(0, 2)).id;
  EXPECT(tips.take_away(first));
  tips.publish(second);
  EXPECT_EQ(index(tips.cache.store().table().find(second->tip_key(0, 3)).id), index(id));
  std::vector<Chain> more;
  for (std::uint32_t i = 0; i < 3; ++i) {
    more.push_back(chain_of("a", {20 + i}));
    tips.publish(more.back());
  }
  EXPECT(tips.resumes(second));
  for (const Chain& chain : more) EXPECT(tips.resumes(chain));
}

}  // namespace hkv
