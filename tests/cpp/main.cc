// core_test [FILTER [PART PARTS]]: runs all tests that are linked in, or those whose name contains
// FILTER, or of these the part with that number, from 0.
#include <cstdlib>

#include "expect.h"

int main(int argc, char** argv) {
  const bool in_parts = argc > 3;
  return expect::RunTests(argc > 1 ? argv[1] : "", in_parts ? std::atoi(argv[2]) : 0,
                          in_parts ? std::atoi(argv[3]) : 1);
}
