// SPDX-License-Identifier: Apache-2.0
// Small random histories of a disk store, and what must be true of the disk after any of their moments.
//
// Thread safety: values of one thread.
#pragma once
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tier/disk_world.h"

namespace hkv {

// What a key's caller was told.
struct KeyModel {
  bool put = false;                           // a put of it was begun, ever
  bool there = false;                         // the last put was Ok, and no remove was begun since
  bool durable = false;                       // ... and it was told to survive
  bool removed = false;                       // a remove was Ok, and no put was begun since
  std::size_t last_put = 0, last_remove = 0;  // begun, by number of the ask
  int life = 0;                               // grows when a put finds that it was reclaimed or removed
};

struct HistoryStep {
  enum class Kind : std::uint8_t { Put, Get, Remove, Flush, Reopen } kind = Kind::Put;
  int key = 0, parent = -1;
  bool durable = false, pinned = false;
  bool waits = true;  // else the next step comes at once
};

// Chains of blocks 0..4, 5..9, ... with a boundary on every second block; enough of them to go round the regions.
inline std::vector<HistoryStep> random_history(std::uint64_t seed, int steps) {
  std::mt19937_64 random(seed);
  const auto one_in = [&](unsigned n) { return random() % n == 0; };
  std::vector<HistoryStep> out;
  int next = 0;
  std::vector<int> written;
  for (int i = 0; i < steps; ++i) {
    HistoryStep step;
    const unsigned draw = random() % 16;
    const int old = written.empty() ? 0 : written[random() % written.size()];
    if (draw < 9) {
      step.key = one_in(4) && !written.empty() ? old : next;
      if (step.key == next) next = (next + 1) % 30;
      step.durable = one_in(3);
      step.pinned = one_in(6);
      written.push_back(step.key);
    } else if (draw < 12) {
      step.kind = HistoryStep::Kind::Get;
      step.key = old;
    } else if (draw < 14) {
      step.kind = HistoryStep::Kind::Remove;
      step.key = old;
    } else if (draw < 15) {
      step.kind = HistoryStep::Kind::Flush;
    } else {
      step.kind = one_in(3) ? HistoryStep::Kind::Reopen : HistoryStep::Kind::Put;
      step.key = 100 + old % 100;
    }
    const int block = step.key % 100;
    step.parent = step.key >= 100 ? block : block % 5 == 0 ? -1 : block - 1;
    step.waits = !one_in(3);
    out.push_back(step);
  }
  return out;
}

class HistoryRun {
 public:
  HistoryRun(SimulatedDisk disk, std::uint64_t seed, std::uint64_t regions = 5)
      : seed_(seed), regions_(regions), disk_(std::move(disk)) {}

  // Effect: runs the steps until they end or the power goes. Returns: whether it came to its end.
  bool run(const std::vector<HistoryStep>& steps, std::size_t cut = ~std::size_t{0}, bool after = false,
           const std::vector<SimulatedFault>& faults = {}, bool lying = false) {
    lying_ = lying;
    world_ = std::make_unique<DiskWorld>(std::move(disk_), world_options(regions_));
    world_->io.cut_at(cut, after);
    for (const SimulatedFault& fault : faults) world_->io.add(fault);
    world_->io.choose([this](std::size_t count) { return next_random() % count; });
    if (!open()) return false;
    for (const HistoryStep& step : steps) {
      if (do_step(step)) continue;
      if (world_->store != nullptr) remember();
      return false;
    }
    const bool closed = settle_all() && world_->close() && !world_->io.dead();
    remember();
    return closed;
  }
  std::size_t calls() const { return world_->io.calls(); }
  SimulatedDisk disk() const { return world_->io.disk(); }
  const std::map<int, KeyModel>& keys() const { return keys_; }
  // Whether the index had it at the last moment: what it does not have was reclaimed, or lost with a region.
  bool had(int key) const { return had_.contains(key) && had_.at(key); }
  DiskWorld* world() { return world_.get(); }
  // What was wrong while it ran.
  const std::vector<std::string>& wrong() const { return wrong_; }

 private:
  struct Open {
    HistoryStep step;
    DiskWorld::Ask ask;
    std::size_t number;
    std::vector<std::pair<int, int>> flushed;  // of a flush: what was there when it began, and its life
  };

  bool open() {
    try {
      world_->open();
    } catch (const Error&) {
      refused_ = !world_->io.dead();
      return false;
    }
    return true;
  }
  std::size_t next_random() {
    return seed_ = seed_ * 6364136223846793005u + 1442695040888963407u, seed_ >> 33;
  }

  bool do_step(const HistoryStep& step) {
    if (step.kind == HistoryStep::Kind::Reopen) {
      if (!settle_all() || !world_->close()) return false;
      remember();
      return open();
    }
    Open open{step, nullptr, ++asks_, {}};
    KeyModel& key = keys_[step.key];
    switch (step.kind) {
      case HistoryStep::Kind::Put:
        key.put = true;
        key.removed = false;
        key.last_put = open.number;
        if (!world_->here(step.key)) {
          key.there = key.durable = false;
          ++key.life;
        }
        open.ask = world_->put(step.key, step.parent, step.durable, step.pinned);
        break;
      case HistoryStep::Kind::Get: open.ask = world_->get(step.key); break;
      case HistoryStep::Kind::Remove:
        key.there = key.durable = false;
        key.last_remove = open.number;
        open.ask = world_->remove(step.key);
        break;
      case HistoryStep::Kind::Flush:
        for (const auto& [k, model] : keys_) {
          if (model.there) open.flushed.emplace_back(k, model.life);
        }
        open.ask = world_->flush();
        break;
      case HistoryStep::Kind::Reopen: break;
    }
    open_.push_back(std::move(open));
    note_answers();
    if (!step.waits) return !world_->io.dead();
    return settle_all();
  }
  bool settle_all() {
    world_->store->pump();
    note_answers();
    while (!open_.empty() && world_->step()) note_answers();
    note_answers();
    if (world_->io.dead()) return false;
    if (!open_.empty()) {
      stalled_ = true;
      return false;
    }
    return true;
  }
  void note_answers() {
    if (world_->io.dead()) return;  // nobody heard
    for (std::size_t i = 0; i < open_.size();) {
      if (!open_[i].ask->status) {
        ++i;
        continue;
      }
      note(open_[i]);
      open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  void note(const Open& open) {
    KeyModel& key = keys_[open.step.key];
    const TierStatus status = *open.ask->status;
    switch (open.step.kind) {
      case HistoryStep::Kind::Put:
        if (status != TierStatus::Ok || key.last_remove > open.number) break;
        key.there = true;
        key.durable = key.durable || open.step.durable;
        break;
      case HistoryStep::Kind::Get:
        if (status == TierStatus::Ok && !right_bytes(open.step.key, open.ask))
          wrong_.push_back("wrong bytes");
        if (status == TierStatus::Ok && key.removed && !lying_) wrong_.push_back("a removed record was got");
        break;
      case HistoryStep::Kind::Remove:
        if (status != TierStatus::Ok && status != TierStatus::Miss) break;
        key.removed = key.last_put < open.number;
        break;
      case HistoryStep::Kind::Flush:
        if (status != TierStatus::Ok) break;
        for (const auto& [k, life] : open.flushed) {
          if (keys_[k].life == life) keys_[k].durable = keys_[k].durable || keys_[k].there;
        }
        break;
      case HistoryStep::Kind::Reopen: break;
    }
  }
  void remember() {
    had_.clear();
    for (const auto& [key, model] : keys_) had_[key] = world_->here(key);
  }

 public:
  bool stalled() const { return stalled_; }
  bool refused() const { return refused_; }  // an open said why it could not

 private:
  std::uint64_t seed_, regions_;
  SimulatedDisk disk_;
  std::unique_ptr<DiskWorld> world_;
  std::size_t asks_ = 0;
  bool stalled_ = false, refused_ = false, lying_ = false;
  std::map<int, KeyModel> keys_;
  std::map<int, bool> had_;
  std::vector<Open> open_;
  std::vector<std::string> wrong_;
};

// What is wrong with what a new opener of the disk finds; empty: nothing. Not `strict`: the disk lied, so that records may
// be lost, told to be damaged or, where a tombstone was lost, be there again; but never wrong.
inline std::string check_reopened(const HistoryRun& run, SimulatedDisk disk, std::uint64_t regions,
                                  bool strict) {
  DiskWorld world(std::move(disk), world_options(regions));
  try {
    world.open();
  } catch (const Error& error) {
    return strict ? std::string("not opened: ") + error.what() : std::string();
  }
  for (const auto& [key, model] : run.keys()) {
    const std::string name = "key " + std::to_string(key) + ": ";
    const int parent = key >= 100 ? key - 100 : key % 5 == 0 ? -1 : key - 1;
    if (world.here(key) && parent >= 0 && !world.here(parent)) return name + "there without its parent";
    const auto get = world.get(key);
    const TierStatus status = world.wait(get);
    if (status == TierStatus::Ok && !right_bytes(key, get)) return name + "wrong bytes";
    if (status == TierStatus::Ok && !model.put) return name + "never put";
    if (strict && status == TierStatus::Ok && model.removed) return name + "removed, and back";
    if (strict && status != TierStatus::Ok && status != TierStatus::Miss) return name + name_of(status);
    if (strict && model.durable && run.had(key) && status != TierStatus::Ok)
      return name + "durable, and lost";
  }
  return {};
}

}  // namespace hkv
