// The digest sees every bit of every byte, and its place.
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "core/engine/c_api.h"
#include "core/value/digest.h"
#include "expect.h"

namespace {

using Bytes = std::vector<unsigned char>;

uint64_t Of(const Bytes& bytes) {
  return tfdist::Digest(bytes.data(), static_cast<int64_t>(bytes.size()));
}

Bytes Counted(size_t count) {
  Bytes bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<unsigned char>(i * 37 + i / 256);
  return bytes;
}

uint64_t OfFloats(const std::vector<float>& floats) {
  return tfdist::Digest(floats.data(), static_cast<int64_t>(floats.size() * sizeof(float)));
}

}  // namespace

TEST(DigestSeesEveryBitOfEveryLength) {
  for (size_t count = 1; count < 200; ++count) {
    Bytes bytes = Counted(count);
    std::set<uint64_t> seen{Of(bytes)};
    for (size_t bit = 0; bit < 8 * count; ++bit) {
      bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
      seen.insert(Of(bytes));
      bytes[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    }
    EXPECT_EQ(seen.size(), 8 * count + 1);
  }
}

TEST(DigestSeesTwoChangedBits) {
  // In one word, in two that are multiplied with each other, and in one lane 64 bytes apart.
  const Bytes bytes = Counted(132);
  std::set<uint64_t> seen{Of(bytes)};
  size_t pairs = 0;
  for (size_t first = 0; first < 8 * bytes.size(); ++first) {
    for (size_t second = first + 1; second < 8 * bytes.size(); ++second, ++pairs) {
      Bytes changed = bytes;
      changed[first / 8] ^= static_cast<unsigned char>(1 << first % 8);
      changed[second / 8] ^= static_cast<unsigned char>(1 << second % 8);
      seen.insert(Of(changed));
    }
  }
  EXPECT_EQ(seen.size(), pairs + 1);
}

TEST(DigestSeesLengthOrderAndTheBitsOfNan) {
  std::set<uint64_t> zeros;
  for (size_t count = 0; count < 300; ++count) zeros.insert(Of(Bytes(count)));
  EXPECT_EQ(zeros.size(), 300u);

  std::vector<float> floats(1000);
  for (size_t i = 0; i < floats.size(); ++i) floats[i] = static_cast<float>(i);
  std::set<uint64_t> orders{OfFloats(floats)};
  for (size_t i = 1; i < floats.size(); ++i) {
    std::swap(floats[0], floats[i]);
    orders.insert(OfFloats(floats));
    std::swap(floats[0], floats[i]);
  }
  EXPECT_EQ(orders.size(), floats.size());

  std::set<uint64_t> nans;
  for (uint32_t bits : {0x7fc00000u, 0x7fc00001u, 0xffc00000u, 0x7f800000u}) {
    std::memcpy(&floats[500], &bits, sizeof(bits));
    nans.insert(OfFloats(floats));
  }
  EXPECT_EQ(nans.size(), 4u);
}

TEST(DigestNeedsNoAlignmentAndIsTheOneOfTheCApi) {
  const Bytes bytes = Counted(1000);
  const uint64_t expected = Of(bytes);
  for (size_t offset = 0; offset < 9; ++offset) {
    Bytes moved(offset + bytes.size());
    std::memcpy(moved.data() + offset, bytes.data(), bytes.size());
    EXPECT_EQ(tfdist_digest(moved.data() + offset, static_cast<int64_t>(bytes.size())), expected);
  }
  EXPECT_EQ(tfdist_digest(nullptr, 0), tfdist::Digest(bytes.data(), 0));
}
