// SPDX-License-Identifier: Apache-2.0
// One thread: left out under ThreadSanitizer.
// Events and departures of single steps: a key in two descriptors, pages under a pin, a flush, for whom a page went.
#include "cache/events.h"

#include "cache/cache.h"
#include "testing.h"

namespace hkv {
namespace {

constexpr std::int64_t unit = 4;
using Chain = std::shared_ptr<const KeyChain>;

Layout layout_of(int groups, std::int64_t pages) {
  std::vector<Group> made(static_cast<std::size_t>(groups));
  for (int g = 0; g < groups; ++g) {
    Group& group = made[static_cast<std::size_t>(g)];
    group.name = "g" + std::to_string(g), group.pages = pages, group.page_bytes = 64;
    group.coverage = g < 8 ? Coverage{Rule::Prefix, 0} : Coverage{Rule::Window, 6};
    group.kind = g < 8 ? 0 : 2;
  }
  return make_layout(unit, std::move(made));
}

Chain chain_of(std::uint32_t first, std::int64_t tokens) {
  const std::string_view parts[identity_parts] = {"events", "", "", "", ""};
  const auto ids = std::make_shared<std::vector<std::uint32_t>>();
  for (std::int64_t t = 0; t < tokens; ++t) ids->push_back(first + static_cast<std::uint32_t>(t));
  TokenView view;
  view.data = reinterpret_cast<const std::byte*>(ids->data());
  view.count = tokens;
  view.owner = ids;
  return KeyChain::build(KeyChain::identity_root(unit, parts), unit, view, {});
}

struct World {
  World(int groups, std::int64_t blocks, std::int64_t pages)
      : cache(layout_of(groups, pages), blocks, std::vector<Digest16>(static_cast<std::size_t>(groups))),
        all(static_cast<std::size_t>(groups), Selection{true, {}}) {}
  HybridCache cache;
  std::vector<Selection> all;

  void insert(const Chain& chain) {
    const auto fill = cache.reserve(chain, all, cache.spec_formats(), nullptr);
    cache.publish(*fill, all);
    cache.abort(*fill, false);
  }
  std::unique_ptr<Lease> match(const Chain& chain) {
    Question question;
    question.keys = chain.get();
    question.limit = chain->tokens();
    question.formats = cache.spec_formats();
    std::unique_ptr<Lease> lease;
    cache.match(question, chain, lease);
    return lease;
  }
  void release(std::unique_ptr<Lease> lease) {
    cache.settle(*lease, Settlement::Released);
    cache.drop(std::move(lease));
  }
};

int count(const std::vector<StoreEvent>& events, StoreEventKind kind) {
  int n = 0;
  for (const StoreEvent& event : events) n += event.kind == kind;
  return n;
}

// The end of the first life is noted late: a thread stopped between its step and its note.
HKV_TEST("a key that lives elsewhere by the time its first life is told to be over stays in every index") {
  const GroupSlot slots[] = {{WordClass::H, 0, StateKind::Compressed}};
  const std::uint32_t pages[] = {8};
  BlockStore store(8, slots, pages);
  EventReader reader(store);
  const Key128 key{5, 7};
  const auto publish = [&] {
    const DescriptorId id = store.table().get_or_insert(key).id;
    bool lives = false;
    EXPECT(store.claim(id, key, 0, store.pool(0).take(), lives));
    store.publish(id, 0);
    return id;
  };
  const DescriptorId first = publish();
  EXPECT_EQ(count(reader.read(false), StoreEventKind::Stored), 1);
  EXPECT(store.evict(key, 0));
  store.changes().take(8, false, [](DescriptorId) {});  // the note is not there yet
  const Placement other = store.table().get_or_insert({6, 7});
  const DescriptorId second = publish();
  EXPECT(other.id == first && second != first);
  EXPECT(reader.read(false).empty());  // in two places of what was told, and there all the time
  store.changes().note(first);
  EXPECT(reader.read(false).empty());
  EXPECT(store.evict(key, 0));
  EXPECT_EQ(count(reader.read(false), StoreEventKind::Removed), 1);
}

HKV_TEST("pages withdrawn under a pin are removed at once, and once") {
  World world(1, 16, 8);
  const Chain chain = chain_of(0, 9);
  world.insert(chain);
  world.cache.events(false);
  auto lease = world.match(chain);
  EXPECT(lease != nullptr);
  for (const Lease::Pin& pin : lease->pins) world.cache.quarantine(pin.id, 0);
  const auto events = world.cache.events(false);
  EXPECT_EQ(count(events, StoreEventKind::Removed), 2);
  for (const StoreEvent& event : events)
    EXPECT(event.why.cause == Cause::None || event.why.cause == Cause::Damaged);
  world.release(std::move(lease));
  EXPECT(world.cache.events(false).empty());
}

HKV_TEST("a flush is one event, and what is published later comes after it") {
  World world(2, 16, 8);
  world.insert(chain_of(0, 9));
  world.cache.events(false);
  world.cache.withdraw_all();
  world.insert(chain_of(100, 5));
  const auto events = world.cache.events(false);
  EXPECT_EQ(count(events, StoreEventKind::Removed), 0);
  EXPECT(!events.empty() && events.front().kind == StoreEventKind::Cleared);
  EXPECT_EQ(count(events, StoreEventKind::Stored), static_cast<int>(events.size()) - 1);
}

HKV_TEST("room that is made is told, with its reason") {
  World world(1, 16, 8);
  world.insert(chain_of(0, 16));
  world.cache.events(false);
  EXPECT_EQ(world.cache.make_room(0, 2), 2);
  const auto events = world.cache.events(false);
  EXPECT_EQ(count(events, StoreEventKind::Removed), 2);
  for (const StoreEvent& event : events) EXPECT(event.why.cause != Cause::None && event.why.made_for == 0);
}

HKV_TEST("for whom a page went is remembered, with when") {
  World world(1, 4, 8);  // descriptors are short, and pages are not
  const Chain first = chain_of(0, 17), second = chain_of(100, 9);
  world.insert(chain_of(0, 16));
  world.insert(chain_of(100, 8));
  int gone = 0;
  for (std::int64_t block = 0; block < 4; ++block) {
    const Departure why = world.cache.departure(*first, 0, block);
    if (why.cause == Cause::None) continue;
    ++gone;
    EXPECT_EQ(why.made_for, for_descriptors);
    EXPECT(why.age_ms >= 0 && why.age_ms < 60000);
  }
  EXPECT_EQ(gone, 2);
}

HKV_TEST("groups beyond the eighth are told from those whose place they share") {
  Gone gone(64);
  const Key128 key{3u, std::uint64_t{9} << 32};
  gone.note(key, 9, Cause::Expired, Gone::now());
  EXPECT(gone.find(key, 9).cause == Cause::Expired);
  EXPECT(gone.find(key, 1).cause == Cause::None);
  EXPECT(gone.find({key.lo ^ std::uint64_t{1} << 60, key.hi}, 9).cause == Cause::None);
  for (int cause = 1; cause < cause_count; ++cause) {
    gone.note(key, 15, static_cast<Cause>(cause), Gone::now() - 250, for_nobody);
    const Departure why = gone.find(key, 15);
    EXPECT(static_cast<int>(why.cause) == cause && why.made_for == for_nobody);
    EXPECT(why.age_ms >= 2500 && why.age_ms < 62500);
  }
}

}  // namespace
}  // namespace hkv
