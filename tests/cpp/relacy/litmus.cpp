// SPDX-License-Identifier: Apache-2.0
// The reduced search against Relacy's own full search: the same outcomes of small programs.
#include "relacy/harness.h"

namespace hkv::relacy {
namespace {

using Outcomes = std::bitset<1 << 16>;  // four values below 16
Outcomes* outcomes = nullptr;

template <class Derived>
struct Litmus : rl::test_suite<Derived, 2> {
  Atom<unsigned> x, y, z;
  unsigned seen[4] = {0, 0, 0, 0};
  void after() { outcomes->set(seen[0] | seen[1] << 4 | seen[2] << 8 | seen[3] << 12); }
};

struct StoreBuffering : Litmus<StoreBuffering> {
  void thread(unsigned t) {
    if (t == 0) x.store(1), seen[0] = y.load();
    if (t == 1) y.store(1), seen[1] = x.load();
  }
};
struct StoreBufferingSeqCst : Litmus<StoreBufferingSeqCst> {
  void thread(unsigned t) {
    unsigned zero = 0;
    if (t == 0) x.compare_exchange(zero, 1, seq_cst), seen[0] = y.load(seq_cst);
    if (t == 1) y.compare_exchange(zero, 1, seq_cst), seen[1] = x.load(seq_cst);
  }
};
struct MessagePassing : Litmus<MessagePassing> {
  void thread(unsigned t) {
    if (t == 0) x.store(1), y.store(1, release), x.store(2), y.store(2);
    if (t == 1) seen[0] = y.load(acquire), seen[1] = x.load(), seen[2] = x.load();
  }
};
struct Updates : Litmus<Updates> {
  void thread(unsigned t) {
    seen[t] = x.fetch_add(1 + t);
    z.store(t);
    seen[2 + t] = t == 0 ? y.exchange(5) : y.load();
    if (x.fetch_or(4) == 3) z.fetch_add(8, acq_rel);
  }
};

template <class Suite>
bool same(const char* name) {
  static Outcomes full, reduced;
  full.reset(), reduced.reset();
  outcomes = &full;
  bool ok = search<Suite>((std::string(name) + ".full").c_str(), Search::Full);
  outcomes = &reduced;
  ok &= search<Suite>(name, Search::Reduced);
  std::printf("%-28s %zu outcomes, full search %zu\n", name, reduced.count(), full.count());
  return ok && full == reduced && full.count() > 1;
}

}  // namespace
}  // namespace hkv::relacy

int main() {
  using namespace hkv::relacy;
  bool ok = same<StoreBuffering>("store buffering");
  ok &= same<StoreBufferingSeqCst>("store buffering, seq_cst");
  ok &= same<MessagePassing>("message passing");
  ok &= same<Updates>("updates");
  return !ok;
}
