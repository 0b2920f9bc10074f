// Numbers and texts as bytes, for messages between ranks of one machine type. Knows no message.
#ifndef TFDIST_CORE_AGREE_BYTE_RECORD_H_
#define TFDIST_CORE_AGREE_BYTE_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

namespace tfdist {

class ByteWriter {
 public:
  template <typename T>
  void Add(T value) {
    static_assert(std::is_trivially_copyable<T>::value, "copied byte by byte");
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Add(const std::string& text) {
    Add(static_cast<uint64_t>(text.size()));
    bytes_ += text;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// After a read beyond the end it is not ok, and what it returns has no meaning.
class ByteReader {
 public:
  explicit ByteReader(const std::string& bytes) : bytes_(bytes) {}

  template <typename T>
  T Next() {
    T value{};
    if (Take(sizeof(value)))
      std::memcpy(&value, bytes_.data() + place_ - sizeof(value), sizeof(value));
    return value;
  }
  // A number of things that take at least `least_bytes` each, so it cannot ask for too much memory.
  size_t NextCount(size_t least_bytes) {
    const uint64_t count = Next<uint64_t>();
    if (count <= (bytes_.size() - place_) / least_bytes) return static_cast<size_t>(count);
    ok_ = false;
    return 0;
  }
  std::string NextText() {
    const size_t size = NextCount(1);
    Take(size);
    return ok_ ? bytes_.substr(place_ - size, size) : "";
  }
  bool ok() const { return ok_; }
  bool AtEnd() const { return ok_ && place_ == bytes_.size(); }

 private:
  bool Take(size_t size) {
    ok_ = ok_ && size <= bytes_.size() - place_;
    if (ok_) place_ += size;
    return ok_;
  }

  const std::string& bytes_;
  size_t place_ = 0;
  bool ok_ = true;
};

}  // namespace tfdist

#endif  // TFDIST_CORE_AGREE_BYTE_RECORD_H_
