// Reads go to the reader's threads, come back once, and can be ended while a reader is busy.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "data/row_reader.h"
#include "data/row_reader_api.h"
#include "expect.h"
#include "gate.h"

using tfdist::RowRead;
using tfdist::RowReader;
using tfdist::Status;
using tfdist::StatusCode;

namespace {

// Keeps what it is given; lives as long as the test.
class Sample : public RowRead {
 public:
  explicit Sample(const std::string& request) : request_(request) {}
  const std::string& request() const override { return request_; }
  bool wanted() const override { return wanted_; }
  Status Give(int column, const Column& value) override {
    if (column != 0) return Status(StatusCode::kInvalidArgument, "no such column");
    const auto* numbers = static_cast<const int64_t*>(value.values);
    given.assign(numbers, numbers + value.bytes / static_cast<int64_t>(sizeof(int64_t)));
    return Status::Ok();
  }
  void Fail(const Status& why) override { status = why; }
  void Finish() override {
    ++finished;
    done.Open();
  }
  void GiveUp() { wanted_ = false; }

  std::vector<int64_t> given;
  Status status;
  std::atomic<int> finished{0};
  Gate done;

 private:
  const std::string request_;
  std::atomic<bool> wanted_{true};
};

std::shared_ptr<Sample> Submitted(RowReader* reader, const std::string& request) {
  auto read = std::make_shared<Sample>(request);
  reader->Submit(read);
  return read;
}

// Gives the length of the request twice.
void Length(void* read, const char*, int64_t bytes) {
  const int64_t numbers[] = {bytes, bytes};
  const int64_t shape[] = {2};
  const tfdist_column column = {shape, 1, numbers, sizeof(numbers), nullptr};
  char message[100];
  EXPECT_EQ(tfdist_give_column(read, 0, &column, message, 100), 0);
  EXPECT_EQ(tfdist_give_column(read, 1, &column, message, 100), 3);
  EXPECT_CONTAINS(message, "no such column");
}

void Refuse(void* read, const char*, int64_t) { tfdist_fail_read(read, 5, "not there"); }

// Tells that it has begun, and waits.
Gate* begun = nullptr;
Gate* may_end = nullptr;
void Wait(void*, const char*, int64_t) {
  begun->Open();
  may_end->Pass();
}

struct Gates {
  Gates() {
    begun = &first;
    may_end = &second;
  }
  Gate first, second;
};

}  // namespace

TEST(row_reader_serves_every_read_once) {
  RowReader reader;
  reader.Open(&Length, 2);
  std::vector<std::shared_ptr<Sample>> reads;
  for (int i = 0; i < 50; ++i) reads.push_back(Submitted(&reader, std::string(i, 'x')));
  for (int i = 0; i < 50; ++i) {
    reads[i]->done.Pass();
    EXPECT(reads[i]->status.ok());
    EXPECT_EQ(reads[i]->given.size(), 2u);
    EXPECT_EQ(reads[i]->given[0], i);
  }
  EXPECT(reader.Close(10));
  for (const auto& read : reads) EXPECT_EQ(read->finished.load(), 1);
}

TEST(row_reader_hands_on_a_failure) {
  RowReader reader;
  reader.Open(&Refuse, 1);
  const auto read = Submitted(&reader, "file");
  read->done.Pass();
  EXPECT_EQ(static_cast<int>(read->status.code()), 5);
  EXPECT_CONTAINS(read->status.message(), "not there");
}

TEST(row_reader_without_a_reader_fails_at_once) {
  RowReader reader;
  const auto read = Submitted(&reader, "file");
  EXPECT_EQ(read->finished.load(), 1);
  EXPECT_CONTAINS(read->status.message(), "this process has no running row reader");
}

TEST(row_reader_skips_what_nobody_wants) {
  Gates gates;
  RowReader reader;
  reader.Open(&Wait, 1);
  const auto busy = Submitted(&reader, "first");
  gates.first.Pass();
  const auto unwanted = Submitted(&reader, "second");
  unwanted->GiveUp();
  gates.second.Open();
  unwanted->done.Pass();
  EXPECT(unwanted->given.empty());
  EXPECT_EQ(busy->finished.load(), 1);
}

TEST(row_reader_closes_while_one_reads_and_others_wait) {
  Gates gates;
  RowReader reader;
  reader.Open(&Wait, 1);
  const auto busy = Submitted(&reader, "first");
  gates.first.Pass();
  const auto waiting = Submitted(&reader, "second");
  EXPECT(!reader.Close(0.01));
  waiting->done.Pass();
  EXPECT_EQ(static_cast<int>(waiting->status.code()),
            static_cast<int>(StatusCode::kFailedPrecondition));
  EXPECT_EQ(busy->finished.load(), 0);
  const auto late = Submitted(&reader, "third");
  EXPECT_EQ(late->finished.load(), 1);
  gates.second.Open();
  EXPECT(reader.Close(10));
  EXPECT_EQ(busy->finished.load(), 1);
  reader.Open(&Length, 1);
  const auto again = Submitted(&reader, "four");
  again->done.Pass();
  EXPECT_EQ(again->given.size(), 2u);
}
