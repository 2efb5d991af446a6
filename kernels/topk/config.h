// Shapes of the selection.
#pragma once

#include "simt/types.h"

namespace ds41::kernels {

constexpr int kTopkThreads = 512;
constexpr int kTopkWarps = kTopkThreads / simt::kWarp;
constexpr int kVectorKeys = 8; // of one 16-byte load
constexpr int kLoadBatch = 4;  // loads in flight of a thread: 32 KB of a block

// A row is cut into at most so many stretches, whose best keys stay in shared memory: up to 32768 keys a stretch is one
// vector, and of a million keys it is 256.
constexpr int kMaxStretches = 4096;

constexpr int kBins = 256;    // of one pass over 8 bits
constexpr int kBinCopies = 8; // lanes that meet in a bin, as those of equal scores do, wait for a quarter of the others

} // namespace ds41::kernels
