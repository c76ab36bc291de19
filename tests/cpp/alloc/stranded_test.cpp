// SPDX-License-Identifier: Apache-2.0
// Pages that no usable length needs: windows without history, history without windows, forks, tips, what came back.
// One thread: left out under ThreadSanitizer.
#include "alloc/stranded.h"

#include "alloc/eviction_world.h"

namespace hkv {
using namespace eviction;

namespace {

// Pages of the first groups, as "3 1".
std::string stranded(World& w) {
  std::string text;
  for (const std::int64_t pages : stranded_pages(w.cache.layout(), w.cache.store()))
    text += (text.empty() ? "" : " ") + std::to_string(pages);
  return text;
}

std::vector<Group> wide_window() {  // two blocks before a resume
  return {group("kv", Rule::Prefix, 0, 64), group("swa", Rule::Window, 9, 64)};
}

}  // namespace

HKV_TEST("stranded: history behind the last length whose window is whole") {
  World w(wide_window(), 256, EvictionOrder::Usability);
  w.insert(branch(1, 8));
  EXPECT_EQ(stranded(w), std::string("0 0"));
  w.forget(branch(1, 8), 1, {6});  // 7 and 8 cannot be resumed at: their blocks of the window are of no use
  EXPECT_EQ(stranded(w), std::string("2 1"));
  EXPECT_EQ(w.use(branch(1, 8)), 6 * unit);
  w.forget(branch(1, 8), 1, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(stranded(w), std::string("8 1"));
  EXPECT_EQ(w.use(branch(1, 8)), 0);
}

HKV_TEST("stranded: states whose history is gone, until it comes back in another place") {
  World w(wide_window(), 10, EvictionOrder::Usability);
  const auto place = [&](const Chain& keys, std::int64_t block) {
    return w.cache.store().table().find(keys->keys()[block]).id;
  };
  w.insert(branch(1, 8));
  const DescriptorId old = place(branch(1, 8), 2);
  w.forget(branch(1, 8), 0, {2});
  EXPECT_EQ(stranded(w), std::string("5 6"));
  w.forget(branch(1, 8), 1, {2});  // the descriptor goes, and its line to somebody else
  w.insert(branch(2, 3));
  EXPECT_EQ(stranded(w), std::string("5 5"));
  const std::int64_t other = place(branch(2, 3), 2) == old ? 0 : 2;
  for (const int g : {0, 1}) w.forget(branch(2, 3), g, {other});
  w.insert_blocks(branch(1, 8), {2});
  EXPECT(place(branch(1, 8), 2) != old);
  for (const int g : {0, 1}) w.forget(branch(2, 3), g, {0, 1, 2});
  EXPECT_EQ(stranded(w), std::string("0 0"));
  EXPECT_EQ(w.use(branch(1, 8)), 8 * unit);
}

HKV_TEST("stranded: one side of a fork keeps what both share") {
  World w(wide_window(), 256, EvictionOrder::Usability);
  w.insert(branch(1, 6, 3));
  w.insert(branch(2, 6, 3));
  w.forget(branch(1, 6, 3), 1, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(stranded(w), std::string("3 0"));  // the other side resumes at 5 and 6, from blocks 3 to 5
  EXPECT_EQ(w.use(branch(1, 6, 3)), 0);
  EXPECT_EQ(w.use(branch(2, 6, 3)), 6 * unit);
}

HKV_TEST("stranded: a tip needs what is before it, and keeps its own page") {
  World w(wide_window(), 256, EvictionOrder::Usability);
  w.insert(branch(1, 4, 0, 2));
  EXPECT_EQ(stranded(w), std::string("0 0"));
  w.forget(branch(1, 4, 0, 2), 1, {1, 3});  // the tip needs 2, 3 and its own; 4 tokens can be resumed at
  EXPECT_EQ(stranded(w), std::string("4 2"));
  w.insert_blocks(branch(1, 4), {3});
  EXPECT_EQ(stranded(w), std::string("0 0"));
}

HKV_TEST("stranded: what a lease holds does not count, its neighbours in the word included") {
  std::vector<Group> groups = wide_window();
  groups.push_back(group("tail", Rule::Checkpoint, 0, 64));
  World w(groups, 256, EvictionOrder::Usability);
  w.insert(branch(1, 4));
  auto lease = w.match(branch(1, 4));
  w.forget(branch(1, 4), 1,
           {1});  // 8 and 12 cannot be resumed at; the word of block 2 is pinned for its window
  EXPECT_EQ(stranded(w), std::string("0 0 1"));
  w.drop(std::move(lease));
  EXPECT_EQ(stranded(w), std::string("0 0 2"));
  w.forget(branch(1, 4), 1, {3});
  EXPECT_EQ(stranded(w), std::string("3 1 3"));
}

}  // namespace hkv
