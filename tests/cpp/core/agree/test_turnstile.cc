// Calls pass in the order in which they were announced, whatever the order in which they come.
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "core/agree/turnstile.h"
#include "expect.h"

using tfdist::Turnstile;

TEST(TurnstileKeepsThePlacesOfThoseWhoComeLater) {
  constexpr int kCalls = 8;
  Turnstile turnstile;
  std::vector<int64_t> places;
  for (int i = 0; i < kCalls; ++i) places.push_back(turnstile.Announce());
  std::mutex mutex;
  std::vector<int> passed;
  std::atomic<int> come{0};
  std::vector<std::thread> threads;
  for (int i = kCalls - 1; i >= 0; --i) {
    threads.emplace_back([&, i] {
      if (i == 0) {  // the first to go comes last
        while (come < kCalls - 1) std::this_thread::yield();
      }
      ++come;
      turnstile.Enter(places[i]);
      {
        std::lock_guard<std::mutex> lock(mutex);
        passed.push_back(i);
      }
      turnstile.Leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(passed.size(), static_cast<size_t>(kCalls));
  for (int i = 0; i < kCalls; ++i) EXPECT_EQ(passed[i], i);
}

TEST(TurnstileLetsOneInAtATime) {
  Turnstile turnstile;
  std::atomic<int> inside{0}, most{0};
  int total = 0;  // a race on it is what the thread sanitizer would see
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < 1000; ++call) {
        turnstile.Enter(turnstile.Announce());
        const int now = ++inside;
        if (now > most) most = now;
        ++total;
        --inside;
        turnstile.Leave();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most.load(), 1);
  EXPECT_EQ(total, 4000);
}
