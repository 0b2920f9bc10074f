// A 64-bit number for any bytes, so that ranks find out whether they hold the same ones without
// exchanging them. Not for secrets: whoever wants two equal digests can make them.
//
// Every byte counts, and its place: a changed bit, swapped elements and a longer run of zeros give
// another number, but for a chance of 2^-64. The same on every machine of one byte order. Takes
// less time than a memcpy. Thread safe: no state.
#ifndef TFDIST_CORE_VALUE_DIGEST_H_
#define TFDIST_CORE_VALUE_DIGEST_H_

#include <cstdint>

namespace tfdist {

// Of `count` bytes, which need no alignment.
uint64_t Digest(const void* bytes, int64_t count);

}  // namespace tfdist

#endif  // TFDIST_CORE_VALUE_DIGEST_H_
