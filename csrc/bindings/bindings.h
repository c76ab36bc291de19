// SPDX-License-Identifier: Apache-2.0
// What the module file calls: one function per subject, each in its own file.
#pragma once
#include <pybind11/pybind11.h>

#include "base/types.h"
#include "layout/key_chain_tokens.h"

namespace hkv {

struct Recovered;

void bind_errors(pybind11::module_& m);
void bind_layout(pybind11::module_& m);
void bind_keys(pybind11::module_& m);
void bind_cache(pybind11::module_& m);
void bind_watch(pybind11::module_& m);
void bind_disk_tier(pybind11::module_& m);
void bind_store_walk(pybind11::module_& m);
void bind_transfer(pybind11::module_& m);
void bind_kernels(pybind11::module_& m);
void bind_compress(pybind11::module_& m);
void bind_tier(pybind11::module_& m);
void bind_tier_stack(pybind11::module_& m);  // behind bind_tier

// Token ids out of a list, a tuple or a buffer of integers. Throws Error(ArgumentError).
TokenView token_view(pybind11::handle tokens);

// The 16 bytes of a key, of a digest or of a format.
pybind11::bytes key_bytes(const Key128& key);
Key128 key_from(const char* field,
                const pybind11::bytes& bytes);  // throws Error(ArgumentError): not 16 bytes

// What opening a store found, by name.
pybind11::dict recovered_dict(const Recovered& recovered);

}  // namespace hkv
