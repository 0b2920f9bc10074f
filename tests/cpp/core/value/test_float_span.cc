// float16 and bfloat16 against float32: all 65,536 values, and rounding at every boundary.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/value/float_span.h"
#include "expect.h"

using tfdist::Bfloat16Format;
using tfdist::HalfFormat;
using tfdist::Stores;

namespace {

using Floats = tfdist::FloatSpan<tfdist::NativeFormat<float>>;
using Halves = tfdist::FloatSpan<HalfFormat>;
using Brains = tfdist::FloatSpan<Bfloat16Format>;

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

std::vector<uint16_t> AllBits() {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  return all;
}

// The value of a half from its definition, in double.
double Meaning(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

bool IsHalfFinite(uint16_t bits) { return (bits & 0x7c00) != 0x7c00; }

// Floats around everything that matters: all exponents, mantissas near ties, NaNs, random bits.
std::vector<float> ManyFloats() {
  std::vector<float> floats;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u,
                         0xefffu, 0xf000u, 0xf001u, 0xffffu}) {
      floats.push_back(FloatOf(high << 16 | low));
    }
  }
  std::mt19937 random(20261121);
  for (int i = 0; i < 300000; ++i) floats.push_back(FloatOf(static_cast<uint32_t>(random())));
  return floats;
}

}  // namespace

TEST(HalfToFloatIsExactForAllBits) {
  for (uint16_t bits : AllBits()) {
    const float value = HalfFormat::ToFloat(bits);
    if (IsHalfFinite(bits)) {
      EXPECT_EQ(static_cast<double>(value), Meaning(bits));
      EXPECT_EQ(std::signbit(value), (bits & 0x8000) != 0);
    } else if ((bits & 0x3ff) == 0) {
      EXPECT(std::isinf(value) && std::signbit(value) == ((bits & 0x8000) != 0));
    } else {
      EXPECT(std::isnan(value));
    }
  }
}

TEST(HalfRoundTripIsIdentityForAllButSignallingNan) {
  for (uint16_t bits : AllBits()) {
    const bool nan = !IsHalfFinite(bits) && (bits & 0x3ff) != 0;
    const uint16_t expected = nan ? static_cast<uint16_t>(bits | 0x200) : bits;
    EXPECT_EQ(HalfFormat::FromFloat(HalfFormat::ToFloat(bits)), expected);
  }
}

TEST(FloatToHalfRoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const double low = Meaning(static_cast<uint16_t>(bits));
    const double high = Meaning(static_cast<uint16_t>(bits + 1));
    const float tie = static_cast<float>((low + high) / 2);  // exact in float
    EXPECT_EQ(HalfFormat::FromFloat(tie), bits + (bits & 1));
    EXPECT_EQ(HalfFormat::FromFloat(std::nextafter(tie, 0.0f)), bits);
    EXPECT_EQ(HalfFormat::FromFloat(std::nextafter(tie, 1e9f)), bits + 1);
    EXPECT_EQ(HalfFormat::FromFloat(-tie), (bits + (bits & 1)) | 0x8000);
  }
  EXPECT_EQ(HalfFormat::FromFloat(65519.996f), 0x7bff);
  EXPECT_EQ(HalfFormat::FromFloat(65520.0f), 0x7c00);
  EXPECT_EQ(HalfFormat::FromFloat(-std::numeric_limits<float>::infinity()), 0xfc00);
}

TEST(Bfloat16KeepsAllItsValuesAndRoundsToNearestEven) {
  for (uint16_t bits : AllBits()) {
    const float value = Bfloat16Format::ToFloat(bits);
    EXPECT_EQ(BitsOf(value),
              static_cast<uint32_t>(bits) << 16 | (std::isnan(value) ? 0x400000 : 0));
    if (std::isnan(value)) {
      EXPECT(std::isnan(Bfloat16Format::ToFloat(Bfloat16Format::FromFloat(value))));
      continue;
    }
    EXPECT_EQ(Bfloat16Format::FromFloat(value), bits);
    if (std::isinf(value)) continue;
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    EXPECT_EQ(Bfloat16Format::FromFloat(FloatOf(wide | 0x7fff)), bits);
    EXPECT_EQ(Bfloat16Format::FromFloat(FloatOf(wide | 0x8000)), bits + (bits & 1));
    EXPECT_EQ(Bfloat16Format::FromFloat(FloatOf(wide | 0x8001)), bits + 1);
  }
}

TEST(HalfSpansAgreeWithSingleValuesBitForBit) {
  std::printf("       spans run on %s\n", tfdist::SpansAreVectorized() ? "vectors" : "scalars");
  const std::vector<float> floats = ManyFloats();
  const int64_t count = static_cast<int64_t>(floats.size());
  std::vector<uint16_t> halves(floats.size());
  std::vector<uint16_t> brains(floats.size());
  Halves::Narrow(floats.data(), count, 1, halves.data());
  Brains::Narrow(floats.data(), count, 1, brains.data());
  for (size_t i = 0; i < floats.size(); ++i) {
    EXPECT_EQ(halves[i], HalfFormat::FromFloat(floats[i]));
    EXPECT_EQ(brains[i], Bfloat16Format::FromFloat(floats[i]));
  }
  const std::vector<uint16_t> all = AllBits();
  std::vector<float> from_half(all.size());
  std::vector<float> from_brain(all.size());
  Halves::Widen(all.data(), 65536, 1, from_half.data());
  Brains::Widen(all.data(), 65536, 1, from_brain.data());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(BitsOf(from_half[i]), BitsOf(HalfFormat::ToFloat(all[i])));
    EXPECT_EQ(BitsOf(from_brain[i]), BitsOf(Bfloat16Format::ToFloat(all[i])));
  }
}

TEST(HalfSpansOfEveryLengthTouchNothingElse) {
  const std::vector<float> floats(40, 1.5f);
  for (int64_t count = 0; count <= 33; ++count) {
    std::vector<uint16_t> halves(40, 0xabcd);
    Halves::Narrow(floats.data(), count, 1, halves.data());
    for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(halves[i], i < count ? 0x3e00 : 0xabcd);
    std::vector<uint16_t> brains(40, 0xabcd);
    Brains::Narrow(floats.data(), count, 1, brains.data());
    for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(brains[i], i < count ? 0x3fc0 : 0xabcd);
  }
}

// From every place that a float may have within a vector.
TEST(StreamedSpansOfEveryLengthAndPlaceEqualTheOthers) {
  std::vector<uint16_t> bits(40);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(0x3c00 + 77 * i);
  for (int64_t place = 0; place < 8; ++place) {
    for (int64_t count = 0; count <= 40; ++count) {
      std::vector<float> cached(56, -1.0f), streamed(56, -1.0f);
      Halves::Widen(bits.data(), count, 0.1f, cached.data() + place);
      Halves::Widen(bits.data(), count, 0.1f, streamed.data() + place, Stores::kStreamed);
      EXPECT(cached == streamed);
      Brains::Widen(bits.data(), count, 0.1f, cached.data() + place);
      Brains::Widen(bits.data(), count, 0.1f, streamed.data() + place, Stores::kStreamed);
      EXPECT(cached == streamed);
    }
  }
}

TEST(HalfSpansScaleBeforeTheyRoundAndAfterTheyWiden) {
  const std::vector<float> floats(21, 3.0f);
  std::vector<uint16_t> halves(21);
  Halves::Narrow(floats.data(), 21, 1e-4f, halves.data());
  for (uint16_t bits : halves) EXPECT_EQ(bits, HalfFormat::FromFloat(3.0f * 1e-4f));
  Brains::Narrow(floats.data(), 21, 1e30f, halves.data());
  for (uint16_t bits : halves) EXPECT_EQ(bits, Bfloat16Format::FromFloat(3e30f));
  std::vector<float> wide(21);
  Brains::Widen(halves.data(), 21, 0.5f, wide.data());
  for (float value : wide) EXPECT_EQ(value, Bfloat16Format::ToFloat(halves[0]) * 0.5f);
  halves.assign(21, HalfFormat::FromFloat(60000.0f));
  Halves::Widen(halves.data(), 21, 1024.0f, wide.data());
  for (float value : wide) EXPECT_EQ(value, HalfFormat::ToFloat(halves[0]) * 1024.0f);
}

// Sums of 3 parts by vectors (elements 0 to 15) and by scalars (the rest), against the definition.
TEST(HalfSumsRoundOnceAndDivideBeforeThat) {
  constexpr int kCount = 21;
  const float values[3] = {2048, 0.75f,
                           0.5f};  // the second and the third together are worth a place
  std::vector<uint16_t> parts[3];
  std::vector<uint16_t> brains[3];
  for (int p = 0; p < 3; ++p) {
    parts[p].assign(kCount, HalfFormat::FromFloat(values[p]));
    brains[p].assign(kCount, Bfloat16Format::FromFloat(values[p]));
  }
  const std::vector<const void*> half_parts = {parts[0].data(), parts[1].data(), parts[2].data()};
  const std::vector<const void*> brain_parts = {brains[0].data(), brains[1].data(),
                                                brains[2].data()};
  std::vector<uint16_t> sums(kCount);
  Halves::Sum(half_parts, kCount, 1, 1, sums.data());
  for (uint16_t bits : sums) EXPECT_EQ(HalfFormat::ToFloat(bits), 2050.0f);
  Halves::Sum(half_parts, kCount, 3, 2,
              parts[1].data());  // over one of its parts
  for (uint16_t bits : parts[1]) EXPECT_EQ(bits, HalfFormat::FromFloat(2049.25f / 3 * 2));
  Brains::Sum(brain_parts, kCount, 3, 2, sums.data());
  for (uint16_t bits : sums) EXPECT_EQ(bits, Bfloat16Format::FromFloat(2049.25f / 3 * 2));
}

// Two turns of vectors and the rest by scalars, each element unlike the others.
TEST(FloatSumsAreThoseOfTheirElements) {
  constexpr int kCount = 39;
  std::vector<float> parts[3], expected(kCount);
  for (int i = 0; i < kCount; ++i) {
    for (int p = 0; p < 3; ++p) parts[p].push_back(0.1f * static_cast<float>(i + 1) + p * 1e4f);
    expected[i] = (parts[0][i] + parts[1][i] + parts[2][i]) / 3 * 7;
  }
  const std::vector<const void*> spans = {parts[0].data(), parts[1].data(), parts[2].data()};
  std::vector<float> sums(kCount);
  Floats::Sum(spans, kCount, 3, 7, sums.data());
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(sums[i], expected[i]);
  Floats::Sum(spans, kCount, 3, 7,
              parts[2].data());  // over one of its parts
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(parts[2][i], expected[i]);
}
