// The file of a timeline: whole after every write, and what it says where it cannot be written.
#include <string>

#include "core/watch/json_text.h"
#include "core/watch/trace_file.h"
#include "expect.h"
#include "trace_text.h"

using tfdist::JsonText;
using tfdist::TraceFile;

TEST(TraceFileIsAWholeArrayAfterEveryWrite) {
  const TraceFolder folder;
  TraceFile file;
  EXPECT_EQ(file.Create(folder.File(0)).message(), "");
  EXPECT_EQ(ReadText(folder.File(0)), "[\n]\n");
  EXPECT_EQ(file.Append("{\"a\":1}").message(), "");
  EXPECT_EQ(ReadText(folder.File(0)), "[\n{\"a\":1}\n]\n");
  const std::string large(3 << 20, 'x');
  EXPECT_EQ(file.Append("{\"b\":\"" + large + "\"},\n{\"c\":3}").message(), "");
  EXPECT_EQ(file.Append("{}").message(), "");
  EXPECT(ReadText(folder.File(0)) ==
         "[\n{\"a\":1},\n{\"b\":\"" + large + "\"},\n{\"c\":3},\n{}\n]\n");
  EXPECT_EQ(file.Create(folder.File(0)).message(), "");  // replaces it
  EXPECT_EQ(ReadText(folder.File(0)), "[\n]\n");
}

TEST(TraceFileThatCannotBeMadeSaysSo) {
  TraceFile file;
  const tfdist::Status status = file.Create("/proc/no/such/run.json");
  EXPECT_EQ(static_cast<int>(status.code()), 3);
  EXPECT_CONTAINS(status.message(), "the timeline '/proc/no/such/run.json' cannot be made: ");
}

TEST(TraceFileOnAFullDiskSaysSo) {
  TraceFile file;
  const tfdist::Status status = file.Create("/dev/full");
  EXPECT_CONTAINS(status.message(), "the timeline '/dev/full' cannot be written: No space left");
}

TEST(JsonTextIsTakenByEveryReader) {
  EXPECT_EQ(JsonText("a/b \"c\" \\"), "\"a/b \\\"c\\\" \\\\\"");
  EXPECT_EQ(JsonText("line\n\x01"), "\"line\\u000a\\u0001\"");
  EXPECT_EQ(JsonText("gr\xc3\xb6\xc3\x9f"
                     "e \xe2\x82\xac \xf0\x9f\x98\x80"),
            "\"gr\xc3\xb6\xc3\x9f"
            "e \xe2\x82\xac \xf0\x9f\x98\x80\"");
  // Bytes that are no UTF-8: alone, too few, too long for what they say, half of a pair, too high.
  EXPECT_EQ(JsonText("a\xff"
                     "b\xc3"),
            "\"a?b?\"");
  EXPECT_EQ(JsonText("\xe2\x82"), "\"??\"");
  EXPECT_EQ(JsonText("\xc0\xaf"), "\"??\"");
  EXPECT_EQ(JsonText("\xe0\x80\x80"), "\"???\"");
  EXPECT_EQ(JsonText("\xed\xa0\x80"), "\"???\"");
  EXPECT_EQ(JsonText("\xf4\x90\x80\x80"), "\"????\"");
}
