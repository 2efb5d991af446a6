// The instruction sets that the kernels of this folder are compiled for, and which of them can run here. Include it
// before Highway's headers: it says which targets there are.
//
// Highway is used as headers only. Its own dispatch lives in libhwy, which needs the C++ runtime that this library
// keeps private; choosing among a few targets takes a screenful.
#pragma once

// Enabled is what has run all tests: on hardware, NEON under emulation. Others have not: on a machine that has one,
// name it here and in DS41_CPU_TARGETS, tell how it is recognised in targets.cc, and run the suites. Until then such a
// machine runs the best of these. AVX3 is AVX-512 as Skylake has it, AVX3_DL adds VNNI, VBMI and the rest of Ice
// Lake's. SSSE3 is left out because CPUs with it but without SSE4.2 are too few to pay for another copy of each kernel.
#define HWY_DISABLED_TARGETS (~(HWY_AVX3_DL | HWY_AVX3 | HWY_AVX2 | HWY_SSE4 | HWY_NEON | HWY_EMU128))
#define HWY_WANT_AVX3_DL
// Portable code, for CPUs without the others and for tests. Highway leaves it out for GCC before 12.3, which gets high
// halves of products wrong (GCC bug 106322); no kernel here has any.
#define HWY_BROKEN_EMU128 0
// Every ARM compiler may use NEON, which leaves no place for portable code; tests want it all the same.
#ifdef __aarch64__
#define HWY_COMPILE_ALL_ATTAINABLE
#endif
// Not used; without it fewer CPU features have to be there.
#define HWY_DISABLE_PCLMUL_AES
// A failed check would call into libhwy.
#define HWY_IS_DEBUG_BUILD 0

#include <hwy/detect_targets.h>

// Highway 1.0.3 compiles AVX3_DL for AVX-VNNI where it means AVX-512's: code for CPUs with both, and few have. simd.h
// asks for the one, this takes the other back. Such options go with a function, so all of Highway has to have them.
#include <hwy/base.h>
#if HWY_ARCH_X86 && HWY_COMPILER_CLANG
#undef HWY_PUSH_ATTRIBUTES
#define HWY_PUSH_ATTRIBUTES(targets)                                                                                   \
    HWY_PRAGMA(clang attribute push(__attribute__((target(targets ",no-avxvnni"))), apply_to = function))
#elif HWY_ARCH_X86 && HWY_COMPILER_GCC
#undef HWY_PUSH_ATTRIBUTES
#define HWY_PUSH_ATTRIBUTES(targets) HWY_PRAGMA(GCC push_options) HWY_PRAGMA(GCC target targets ",no-avxvnni")
#endif

#include <cstdint>

// DS41_CPU_TARGETS(X): X(name) for each target of this build, best first.
#if HWY_TARGETS & HWY_AVX3_DL
#define DS41_CPU_AVX3_DL(X) X(AVX3_DL)
#else
#define DS41_CPU_AVX3_DL(X)
#endif
#if HWY_TARGETS & HWY_AVX3
#define DS41_CPU_AVX3(X) X(AVX3)
#else
#define DS41_CPU_AVX3(X)
#endif
#if HWY_TARGETS & HWY_AVX2
#define DS41_CPU_AVX2(X) X(AVX2)
#else
#define DS41_CPU_AVX2(X)
#endif
#if HWY_TARGETS & HWY_SSE4
#define DS41_CPU_SSE4(X) X(SSE4)
#else
#define DS41_CPU_SSE4(X)
#endif
#if HWY_TARGETS & HWY_NEON
#define DS41_CPU_NEON(X) X(NEON)
#else
#define DS41_CPU_NEON(X)
#endif
#if HWY_TARGETS & HWY_EMU128
#define DS41_CPU_EMU128(X) X(EMU128)
#else
#define DS41_CPU_EMU128(X)
#endif
#define DS41_CPU_TARGETS(X)                                                                                            \
    DS41_CPU_AVX3_DL(X) DS41_CPU_AVX3(X) DS41_CPU_AVX2(X) DS41_CPU_SSE4(X) DS41_CPU_NEON(X) DS41_CPU_EMU128(X)

// Defines `const type &function(target)`, which finds kTable in the target's namespace. For the part of
// a file of kernels that is compiled once.
#define DS41_CPU_TABLE_CASE(name)                                                                                      \
    case HWY_##name:                                                                                                   \
        return N_##name::kTable;
#define DS41_CPU_TABLE(type, function)                                                                                 \
    namespace ds41::cpu {                                                                                              \
    const type &function(std::int64_t target) noexcept {                                                               \
        switch (target) {                                                                                              \
        default:                                                                                                       \
            DS41_CPU_TARGETS(DS41_CPU_TABLE_CASE)                                                                      \
        }                                                                                                              \
    }                                                                                                                  \
    }

namespace ds41::cpu {

struct PairKernels;

// What runs on a CPU: kernels of one of Highway's targets, and perhaps products of bf16 pairs in place of its own.
struct Target {
    const char *name;
    std::int64_t bit;         // HWY_AVX2 and so on
    const PairKernels *pairs; // or null
    bool (*runs_here)() noexcept;
    bool (*pays_here)() noexcept; // where it runs; null: always
};

// Null past the end. Best first; the last one runs everywhere.
const Target *target_at(int index) noexcept;

// By name, or the best that runs here for null. Throws NO_BACKEND; `place` says in the message where the name is from.
const Target &choose_target(const char *name, const char *place);

} // namespace ds41::cpu
