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
  World w(wide_window(), 256, EvictionOrder::Usability);
  w.insert(branch(1, 8));
  w.forget(branch(1, 8), 0, {2});
  EXPECT_EQ(stranded(w), std::string("5 6"));
  w.forget(branch(1, 8), 1, {2});  // the descriptor goes, and its line to somebody else
  w.insert(branch(2, 3));
  EXPECT_EQ(stranded(w), std::string("5 5"));
  w.insert_blocks(branch(1, 8), {2});
  EXPECT_EQ(w.use(branch(1, 8)), 8 * unit);
  EXPECT_EQ(stranded(w), std::string("0 0"));
}

HKV_TEST("stranded: one side of a fork keeps what both share") {
  World w(wide_window(), 256, EvictionOrder::Usability);
  w.insert(branch(1, 6, 3));
  w.insert(branch(2, 6, 3));
  w.forget(branch(1, 6, 3), 1, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(stranded(w), std::string("3 1"));  // 4: the other side resumes at 5 and 6 alone
  EXPECT_EQ(w.use(branch(1, 6, 3)), 0);
  EXPECT_EQ(w.use(branch(2, 6, 3)), 6 * unit);
}

HKV_TEST("stranded: a tip needs what is before it, and keeps its own page") {
  World w(wide_window(), 256, EvictionOrder::Usability);
  w.insert(branch(1, 4, 0, 2));
  EXPECT_EQ(stranded(w), std::string("0 0"));
  w.forget(branch(1, 4, 0, 2), 1, {1, 3});  // the tip's window is two tokens of its own, and block 2 and 3
  EXPECT_EQ(stranded(w), std::string("4 2"));
  w.insert_blocks(branch(1, 4), {3});
  EXPECT_EQ(stranded(w), std::string("0 1"));
}

HKV_TEST("stranded: what a lease holds does not count") {
  World w(wide_window(), 256, EvictionOrder::Usability);
  w.insert(branch(1, 4));
  auto lease = w.match(branch(1, 4));
  w.forget(branch(1, 4), 1, {0, 1});
  EXPECT_EQ(stranded(w), std::string("0 0"));
  w.drop(std::move(lease));
  w.forget(branch(1, 4), 1, {2});
  EXPECT_EQ(stranded(w), std::string("4 1"));
}

}  // namespace hkv
