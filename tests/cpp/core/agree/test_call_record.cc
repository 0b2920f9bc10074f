// A call as bytes: it comes back whole, and bytes that are damaged are an error and nothing worse.
#include <string>

#include "core/agree/call_record.h"
#include "expect.h"

using tfdist::Call;
using tfdist::Compression;
using tfdist::Decode;
using tfdist::DType;
using tfdist::Encode;
using tfdist::Operation;
using tfdist::ReceivedCall;
using tfdist::Reduction;
using tfdist::Status;
using tfdist::StatusCode;
using tfdist::TensorView;

namespace {

// A call with the names and tensors that it refers to.
struct Sample {
  Sample() {
    call.operation = Operation::kAllreduce;
    call.name = std::string("grads\0of a step", 15);
    call.reduction = Reduction::kAverage;
    call.compression = Compression::kBf16;
    call.prescale = 0.1;
    call.postscale = -3e300;
    call.weighted = true;
    call.root = 2;
    call.fusion_threshold_bytes = int64_t{1} << 40;
    call.tensor_names = &names;
    call.tensors = &tensors;
  }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  Call call;
  std::vector<std::string> names = {"dense/kernel", "", "bias"};
  std::vector<TensorView> tensors = {{DType::kFloat32, {3, 0, int64_t{1} << 33}, nullptr},
                                     {DType::kFloat64, {}, nullptr},
                                     {DType::kBool, {7}, nullptr}};
};

// What Encode puts after the body: FNV-1a, so that tests can damage a call and still look right.
std::string Sealed(const std::string& body) {
  uint64_t sum = 0xcbf29ce484222325ull;
  for (unsigned char byte : body) sum = (sum ^ byte) * 0x100000001b3ull;
  return body + std::string(reinterpret_cast<const char*>(&sum), sizeof(sum));
}

void ExpectNoCall(const std::string& bytes) {
  ReceivedCall received;
  const Status status = Decode(bytes, &received);
  EXPECT_EQ(static_cast<int>(status.code()), static_cast<int>(StatusCode::kInternal));
  EXPECT_CONTAINS(status.message(), std::to_string(bytes.size()) + " bytes that are not a call");
}

}  // namespace

TEST(CallRecordComesBackWhole) {
  const Sample sample;
  ReceivedCall received;
  EXPECT(Decode(Encode(sample.call), &received).ok());
  EXPECT_EQ(Hash(received.call), Hash(sample.call));  // covers every field that travels
  EXPECT_EQ(Title(received.call), Title(sample.call));
  EXPECT_EQ(received.call.name, sample.call.name);
  EXPECT_EQ(received.call.postscale, -3e300);
  EXPECT_EQ(tfdist::ShapeString(received.tensors[0].shape), "[3,0,8589934592]");
  EXPECT(received.tensors[0].data == nullptr);
}

TEST(CallRecordOfEachOperationKeepsItsTitle) {
  for (int operation = 0; operation <= static_cast<int>(Operation::kShutdown); ++operation) {
    Call call;  // without tensors, which is not a list of none
    call.operation = static_cast<Operation>(operation);
    call.name = "x";
    ReceivedCall received;
    EXPECT(Decode(Encode(call), &received).ok());
    EXPECT_EQ(Title(received.call), Title(call));
    EXPECT_EQ(Hash(received.call), Hash(call));

    const std::vector<std::string> names;
    const std::vector<TensorView> tensors;
    call.tensor_names = &names;
    call.tensors = &tensors;
    ReceivedCall other;
    EXPECT(Decode(Encode(call), &other).ok());
    EXPECT_EQ(Title(other.call), Title(call));
  }
}

TEST(CallRecordWithAnyByteChangedIsAnError) {
  const std::string bytes = Encode(Sample().call);
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bits : {0x01, 0x80, 0x7f, 0xff}) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ bits);
      ExpectNoCall(damaged);
    }
  }
}

TEST(CallRecordCutOffOrLongerIsAnError) {
  const std::string bytes = Encode(Sample().call);
  for (size_t size = 0; size < bytes.size(); ++size) {
    ExpectNoCall(bytes.substr(0, size));
    ExpectNoCall(bytes.substr(bytes.size() - size));
  }
  ExpectNoCall(bytes + '\0');
  ExpectNoCall(bytes + bytes);
}

TEST(CallRecordOfAnotherLayoutIsReadWithinItsBounds) {
  const std::string bytes = Encode(Sample().call);
  const std::string body = bytes.substr(0, bytes.size() - sizeof(uint64_t));
  EXPECT_EQ(Sealed(body), bytes);
  for (size_t size = 0; size < body.size(); ++size) ExpectNoCall(Sealed(body.substr(0, size)));
  ExpectNoCall(Sealed(body + '\0'));
  for (size_t i = 0; i < body.size(); ++i) {
    for (int bits : {0x01, 0x80, 0x7f, 0xff}) {
      std::string other = body;
      other[i] = static_cast<char>(other[i] ^ bits);
      ReceivedCall received;
      if (!Decode(Sealed(other), &received).ok()) continue;
      // Another call then, such as one with another name: all of it has a meaning.
      EXPECT(!Title(received.call).empty());
      EXPECT(!Describe(received.call).empty());
    }
  }
}

TEST(CallRecordOfAnotherBuildIsAnError) {
  // Written as it should be, with values that this build does not know.
  const auto expect_no_call = [](void (*change)(Sample*)) {
    Sample sample;
    change(&sample);
    ExpectNoCall(Encode(sample.call));
  };
  expect_no_call([](Sample* s) { s->call.operation = static_cast<Operation>(99); });
  expect_no_call([](Sample* s) { s->call.operation = static_cast<Operation>(-1); });
  expect_no_call([](Sample* s) { s->call.reduction = static_cast<Reduction>(6); });
  expect_no_call([](Sample* s) { s->call.compression = static_cast<Compression>(3); });
  expect_no_call([](Sample* s) { s->tensors[2].dtype = static_cast<DType>(11); });
  expect_no_call([](Sample* s) { s->tensors[1].dtype = static_cast<DType>(-1); });
  expect_no_call([](Sample* s) { s->tensors[0].shape[1] = -1; });
  // A scalar has no rows to gather.
  expect_no_call([](Sample* s) { s->call.operation = Operation::kAllgather; });
  expect_no_call([](Sample* s) { s->call.operation = Operation::kAlltoall; });
}
