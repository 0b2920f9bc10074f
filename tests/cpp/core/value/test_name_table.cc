// The tables of types, reductions and operations: each row is found by its name, and nothing else
// is.
#include <string>

#include "core/value/call.h"
#include "core/value/dtype.h"
#include "core/value/reduction.h"
#include "expect.h"

namespace tfdist {
namespace {

TEST(TypesAreFoundByName) {
  DType found = DType::kBool;
  int known = 0;
  for (int code = -2; code < 40; ++code) {
    const DType dtype = static_cast<DType>(code);
    if (!IsKnown(dtype)) {
      EXPECT_EQ(std::string(NameOf(dtype)), "unknown");
      EXPECT_EQ(SizeOf(dtype), 0);
      EXPECT(!IsFloating(dtype));
      continue;
    }
    ++known;
    EXPECT(FindDType(NameOf(dtype), &found));
    EXPECT(found == dtype);
  }
#define COUNT(id, name, Format) +1
  EXPECT_EQ(known, 0 TFDIST_DTYPES(COUNT));
#undef COUNT
  EXPECT(!FindDType("float128", &found));
  EXPECT(!FindDType("unknown", &found));
  EXPECT_EQ(std::string(NameOf(DType::kBfloat16)), "bfloat16");
  EXPECT_EQ(SizeOf(DType::kBfloat16), 2);
  EXPECT_EQ(SizeOf(DType::kInt64), 8);
}

TEST(ReductionsAreFoundByName) {
  Reduction found = Reduction::kSum;
  for (int code = 0; code <= static_cast<int>(Reduction::kAdasum); ++code) {
    EXPECT(FindReduction(NameOf(static_cast<Reduction>(code)), &found));
    EXPECT_EQ(static_cast<int>(found), code);
  }
  EXPECT(!FindReduction("median", &found));
  EXPECT_EQ(std::string(NameOf(Reduction::kProduct)), "product");
  EXPECT(!IsKnown(static_cast<Reduction>(-1)));
  EXPECT(!IsKnown(static_cast<Reduction>(6)));
}

TEST(OperationsOfTheEngineAreNoCollectives) {
  EXPECT(IsCollective(Operation::kAllreduce) && IsCollective(Operation::kJoin));
  EXPECT(!IsCollective(Operation::kTune) && !IsCollective(Operation::kShutdown));
  EXPECT_EQ(std::string(NameOf(Operation::kReduceScatter)), "reducescatter");
  EXPECT_EQ(std::string(NameOf(Operation::kShutdown)), "shutdown");
  EXPECT(!IsKnown(static_cast<Operation>(-1)));
  EXPECT(!IsKnown(static_cast<Operation>(kOperations)));
}

}  // namespace
}  // namespace tfdist
