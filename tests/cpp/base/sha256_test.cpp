// SPDX-License-Identifier: Apache-2.0
// SHA-256 against published vectors, streaming against one shot, and one path against the other. The
// comparison with an independent implementation (hashlib) is in tests/python/test_keys_sha256.py.
// One thread: left out under ThreadSanitizer.
#include "base/sha256.h"

#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/sha256_chain.h"
#include "testing.h"

namespace {

using namespace hkv;

std::vector<Sha256Path> paths() {
  std::vector<Sha256Path> all = {Sha256Path::Portable};
  if (sha256_supported(Sha256Path::ShaNi)) all.push_back(Sha256Path::ShaNi);
  return all;
}

std::string hex(const Sha256Words& words) {
  std::string out;
  char byte[3];
  for (const std::uint8_t b : sha256_bytes(words)) {
    std::snprintf(byte, sizeof byte, "%02x", b);
    out += byte;
  }
  return out;
}

std::vector<std::uint8_t> sample(std::size_t bytes, std::uint32_t seed) {
  std::vector<std::uint8_t> out(bytes);
  for (auto& byte : out) byte = static_cast<std::uint8_t>((seed = seed * 1664525u + 1013904223u) >> 24);
  return out;
}

// Chooses a path for the length of a scope.
class Choice {
 public:
  explicit Choice(Sha256Path path) : before_(sha256_path()) { sha256_choose(path); }
  ~Choice() { sha256_choose(before_); }

 private:
  Sha256Path before_;
};

}  // namespace

HKV_TEST("the vectors of the standard come out on every path") {
  for (const Sha256Path path : paths()) {
    const Choice choice(path);
    EXPECT_EQ(hex(Sha256().finish()), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(hex(Sha256().update("abc", 3).finish()),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const std::string two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    EXPECT_EQ(hex(Sha256().update(two.data(), two.size()).finish()),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    const std::string million(1000000, 'a');
    EXPECT_EQ(hex(Sha256().update(million.data(), million.size()).finish()),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  }
}

HKV_TEST("any split of a message gives the digest of the whole") {
  const auto message = sample(300, 7);
  for (const Sha256Path path : paths()) {
    const Choice choice(path);
    for (std::size_t length = 0; length <= message.size(); ++length) {
      const std::string whole = hex(Sha256().update(message.data(), length).finish());
      for (const std::size_t step : {1, 3, 63, 64, 65}) {
        Sha256 stream;
        for (std::size_t at = 0; at < length; at += step) {
          stream.update(message.data() + at, std::min(step, length - at));
        }
        EXPECT_EQ(hex(stream.finish()), whole);
      }
    }
  }
}

HKV_TEST("a midstate goes on where the blocks before it ended") {
  const auto message = sample(640, 11);
  for (const Sha256Path path : paths()) {
    const Choice choice(path);
    Sha256Words midstate = sha256_start;
    sha256_blocks(midstate, message.data(), 5);
    EXPECT_EQ(hex(Sha256(midstate, 320).update(message.data() + 320, 320).finish()),
              hex(Sha256().update(message.data(), 640).finish()));
  }
}

HKV_TEST("both paths agree at every length") {
  if (paths().size() == 1) return;  // one path on this machine: the vectors above are its check
  const auto message = sample(300, 3);
  for (std::size_t length = 0; length <= message.size(); ++length) {
    std::string digest[2];
    for (const Sha256Path path : paths()) {
      const Choice choice(path);
      digest[static_cast<int>(path)] = hex(Sha256().update(message.data(), length).finish());
    }
    EXPECT_EQ(digest[0], digest[1]);
  }
}

HKV_TEST("a chain is the digests of its definition, whatever the record's length and the count") {
  const std::string trailer = "thirty-two bytes of trailer text";
  for (const Sha256Path path : paths()) {
    const Choice choice(path);
    for (const std::size_t bytes : {4, 20, 28, 48, 64, 68, 96, 128, 192, 256, 300, 1024}) {
      const Sha256Record record(bytes, trailer.data(), trailer.size());
      for (std::size_t count = 0; count <= 14; ++count) {
        const auto records = sample(bytes * count + 1, 5);
        const std::uint8_t* odd = records.data() + 1;  // records may lie at any address
        Sha256Words chain = sha256_start, expected = sha256_start;
        std::vector<Key128> heads(count), tails(count);
        sha256_chain(record, odd, count, chain, heads.data(), tails.data());
        for (std::size_t i = 0; i < count; ++i) {
          const Sha256Words local =
              Sha256().update(odd + i * bytes, bytes).update(trailer.data(), trailer.size()).finish();
          const auto parent = sha256_bytes(expected), child = sha256_bytes(local);
          expected = Sha256().update(parent.data(), 28).update(child.data(), 27).finish();
          EXPECT(sha256_join(heads[i], tails[i]) == expected);
        }
        EXPECT(chain == expected);
      }
    }
  }
}

HKV_TEST("a chain taken in two calls is the chain taken in one") {
  const auto records = sample(64 * 23, 9);
  const Sha256Record record(64, "t", 1);
  for (const Sha256Path path : paths()) {
    const Choice choice(path);
    Sha256Words whole = sha256_start;
    std::vector<Key128> heads(23), tails(23), other(23), rest(23);
    sha256_chain(record, records.data(), 23, whole, heads.data(), tails.data());
    for (std::size_t cut = 0; cut <= 23; ++cut) {
      Sha256Words chain = sha256_start;
      sha256_chain(record, records.data(), cut, chain, other.data(), rest.data());
      sha256_chain(record, records.data() + 64 * cut, 23 - cut, chain, other.data() + cut, rest.data() + cut);
      EXPECT(chain == whole);
      EXPECT(heads == other);
      EXPECT(tails == rest);
    }
  }
}
