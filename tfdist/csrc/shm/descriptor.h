// A file descriptor that is closed with its owner.
#ifndef TFDIST_SHM_DESCRIPTOR_H_
#define TFDIST_SHM_DESCRIPTOR_H_

#include <unistd.h>

#include <cstdint>
#include <utility>

namespace tfdist {

class Descriptor {
 public:
  // Takes over `number`; a negative one is none.
  explicit Descriptor(int64_t number) : number_(static_cast<int>(number)) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;

  int get() const { return number_; }

 private:
  int number_;
};

}  // namespace tfdist

#endif  // TFDIST_SHM_DESCRIPTOR_H_
