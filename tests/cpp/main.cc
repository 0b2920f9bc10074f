// Runs all tests that are linked in, or those whose name contains the first argument.
#include "expect.h"

int main(int argc, char** argv) { return expect::RunTests(argc > 1 ? argv[1] : ""); }
