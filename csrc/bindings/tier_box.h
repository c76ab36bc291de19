// SPDX-License-Identifier: Apache-2.0
// What the bindings of tiers and transfers share: a tier kept alive by whoever refers to it.
#pragma once
#include <unistd.h>

#include <memory>

#include "base/check.h"
#include "bindings/tier_adapter.h"
#include "bindings/without_gil.h"
#include "tier/tier.h"

namespace hkv {

// A tier and the process that it is of. Behind a fork its threads are gone and its locks as they were: there it is
// refused, and left as it is.
class TierBox {
 public:
  explicit TierBox(std::unique_ptr<Tier> tier, AdapterTier* adapter = nullptr)
      : tier_(std::move(tier)), adapter_(adapter) {}
  ~TierBox() {
    if (abandoned_ || ::getpid() != process_) {
      tier_.release();  // NOLINT: leaked on purpose
      return;
    }
    without_gil([&] { tier_->close(); });
  }
  TierBox(const TierBox&) = delete;
  TierBox& operator=(const TierBox&) = delete;

  bool is_here() const { return !abandoned_ && ::getpid() == process_; }
  Tier& here() const {
    if (abandoned_ || ::getpid() != process_) {
      throw Error(ErrorCode::Closed, "tier", "a tier that was opened by this process", "another process's");
    }
    return *tier_;
  }
  void abandon() {
    here();
    abandoned_ = true;
    if (adapter_ != nullptr) without_gil([&] { adapter_->abandon(); });
  }

 private:
  std::unique_ptr<Tier> tier_;
  AdapterTier* adapter_;
  const pid_t process_ = ::getpid();
  bool abandoned_ = false;
};

}  // namespace hkv
