// SPDX-License-Identifier: Apache-2.0
#include "tier/region_stream.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

namespace hkv {
namespace {

constexpr std::uint64_t chunk_bytes = std::uint64_t{1} << 20;
constexpr std::size_t most_ahead = 8;
constexpr int most_tries = 2;

}  // namespace

RegionStream::RegionStream(Io& io, FileId file, std::uint64_t bytes) : io_(io), file_(file), bytes_(bytes) {
  const std::uint64_t whole = (bytes + chunk_bytes - 1) / chunk_bytes;
  const std::size_t ahead = std::clamp<std::size_t>(io.depth(), 1, most_ahead);
  chunks_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(whole, ahead)));
  for (std::size_t i = 0; i < chunks_.size(); ++i) ask(chunks_[i], i * chunk_bytes, chunk_bytes);
}

RegionStream::~RegionStream() {
  const auto under_way = [](const Chunk& chunk) { return !chunk.done; };
  while (std::any_of(chunks_.begin(), chunks_.end(), under_way)) take();
}

void RegionStream::ask(Chunk& chunk, std::uint64_t from, std::uint64_t bytes) {
  chunk.wanted = std::min(bytes, bytes_ - from);
  const std::uint64_t rounded = round_up_to_unit(chunk.wanted);  // as direct I/O asks
  if (chunk.read == nullptr || chunk.read->memory.size() != rounded) {
    chunk.read = std::make_unique<RecoveryRead>(file_, from, rounded);
  }
  chunk.read->request.offset = from;
  chunk.read->request.owner = &chunk;
  chunk.tried = 0;
  submit(chunk);
}

void RegionStream::submit(Chunk& chunk) {
  ++chunk.tried;
  chunk.done = false;
  chunk.read->request.pieces = {&chunk.read->piece, 1};
  io_.submit(&chunk.read->request);
}

// Effect: waits for what is done next. What failed or is short goes again, once.
void RegionStream::take() {
  std::array<IoRequest*, most_ahead> done;
  const std::size_t count = io_.wait(done, std::chrono::hours(1));
  for (std::size_t i = 0; i < count; ++i) {
    Chunk& chunk = *static_cast<Chunk*>(done[i]->owner);
    chunk.done = true;
    if (!chunk.whole() && chunk.tried < most_tries) submit(chunk);
  }
}

RegionStream::Piece RegionStream::next(std::uint64_t most) {
  for (; given_up_to_ < at_ / chunk_bytes; ++given_up_to_) {
    const std::uint64_t later = given_up_to_ + chunks_.size();
    if (later * chunk_bytes < bytes_) {
      ask(chunks_[given_up_to_ % chunks_.size()], later * chunk_bytes, chunk_bytes);
    }
  }
  Piece out;
  out.offset = at_;
  if (at_ >= bytes_ || most == 0) return out;
  Chunk* from = &chunks_[(at_ / chunk_bytes) % chunks_.size()];
  while (!from->done) take();
  if (!from->whole()) {
    from = &unit_;
    const std::uint64_t unit = at_ / disk_unit * disk_unit;
    if (unit_.read == nullptr || unit_.read->request.offset != unit) ask(unit_, unit, disk_unit);
    while (!unit_.done) take();
  }
  const std::uint64_t within = at_ - from->read->request.offset;
  out.count = std::min(most, from->wanted - within);
  if (from->whole()) {
    out.data = from->read->memory.data() + within;
  } else {
    const std::int64_t result = from->read->request.result;
    out.error = result < 0 ? static_cast<int>(-result) : EIO;
  }
  at_ += out.count;
  return out;
}

}  // namespace hkv
