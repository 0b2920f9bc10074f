// The parts of the GPU test. Each prints what it sees, and what `run` puts into its table.
#ifndef TESTS_GPU_PART_H_
#define TESTS_GPU_PART_H_

#include <string>

#include "gpu.h"

// Exit status of a part that cannot run here; 0 and 1 are passed and failed.
constexpr int kNotRun = 77;

// Ends the program with kNotRun.
[[noreturn]] void EndWithoutRun(const std::string& reason);

// For the table of `run`; may be called more than once.
void PrintFigures(const std::string& text);

// std::printf's format, as a string.
std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));

void TestCompile(const Libraries& libraries);    // needs no GPU
void TestKernels(const Libraries& libraries);    // against the processor, bit by bit
void TestLarge(const Libraries& libraries);      // more elements than 31 bits count
void TestBandwidth(const Libraries& libraries);  // of pack and unpack, beside a copy's
void TestRanks(const Libraries& libraries);      // exact sums and time of the fused allreduce
void TestAdasum(const Libraries& libraries);     // ranks against the engine
void TestAbort(const Libraries& libraries);      // of a collective under way, and a new beginning

#endif  // TESTS_GPU_PART_H_
