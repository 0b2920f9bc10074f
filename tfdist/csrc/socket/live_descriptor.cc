#include "socket/live_descriptor.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace tfdist {
namespace {

struct LiveDescriptors {
  std::mutex mutex;  // also held during a fork, so that the child finds the list whole
  std::vector<int> numbers;
};

// Never destroyed: a thread may still close one while the process exits.
LiveDescriptors& TheLiveDescriptors() {
  static LiveDescriptors* const all = new LiveDescriptors;
  return *all;
}

void LockBeforeFork() { TheLiveDescriptors().mutex.lock(); }

void UnlockInParent() { TheLiveDescriptors().mutex.unlock(); }

// Only what a child with the locks of unknown threads may do: no memory is taken or given back.
void CloseInChild() {
  LiveDescriptors& all = TheLiveDescriptors();
  for (int number : all.numbers) close(number);
  all.numbers.clear();
  all.mutex.unlock();
}

void CloseInForks() {
  static const int watched = pthread_atfork(LockBeforeFork, UnlockInParent, CloseInChild);
  static_cast<void>(watched);  // it fails for lack of memory alone
}

}  // namespace

LiveDescriptor::LiveDescriptor(int number) : number_(number) {
  if (number < 0) return;
  CloseInForks();
  std::lock_guard<std::mutex> lock(TheLiveDescriptors().mutex);
  TheLiveDescriptors().numbers.push_back(number);
}

// Under the lock, so that a fork finds it listed and open, or neither. Where it is not listed any
// more this is a child, in which the number may be another file's.
LiveDescriptor::~LiveDescriptor() {
  if (number_ < 0) return;
  std::lock_guard<std::mutex> lock(TheLiveDescriptors().mutex);
  std::vector<int>& numbers = TheLiveDescriptors().numbers;
  const auto found = std::find(numbers.begin(), numbers.end(), number_);
  if (found == numbers.end()) return;
  numbers.erase(found);
  close(number_);
}

}  // namespace tfdist
