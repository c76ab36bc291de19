// SPDX-License-Identifier: Apache-2.0
// The extension module: registers the subjects, holds no logic. Documentation is in Python.
#include "bindings/bindings.h"

PYBIND11_MODULE(_core, m) {
  hkv::bind_errors(m);
  hkv::bind_layout(m);
  hkv::bind_keys(m);
  hkv::bind_tier(m);
  hkv::bind_tier_stack(m);
  hkv::bind_cache(m);
  hkv::bind_watch(m);
  hkv::bind_disk_tier(m);
  hkv::bind_store_walk(m);
  hkv::bind_transfer(m);
  hkv::bind_kernels(m);
  hkv::bind_compress(m);
}
