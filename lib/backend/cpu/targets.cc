// Which targets run on this machine, and the choice among them.
#include "backend/cpu/targets.h"

#include "backend/cpu/pairs.h"
#include "error.h"

#include <cstdio>
#include <cstring>
#include <iterator>

#if HWY_ARCH_X86
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif HWY_ARCH_ARM_A64 && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace ds41::cpu {

namespace {

#if HWY_ARCH_X86
// Bit 29 of leaf 1; not every compiler's __builtin_cpu_supports knows its name.
bool has_f16c() noexcept {
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1u) != 0;
}

bool has_avx2() noexcept {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && has_f16c();
}

bool has_avx512() noexcept {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

template <std::int64_t kBit> bool runs_here() noexcept {
    if (kBit == HWY_STATIC_TARGET) return true; // what the whole library is compiled for
#if HWY_ARCH_X86
    __builtin_cpu_init();
    if (kBit == HWY_SSE4) return __builtin_cpu_supports("sse4.2") != 0;
    if (kBit == HWY_AVX2) return has_avx2();
    if (kBit == HWY_AVX3) return has_avx2() && has_avx512();
    // The target's wider AES and carry-less products are not among what the compiler uses unasked, and nothing asks.
    if (kBit == HWY_AVX3_DL)
        return has_avx2() && has_avx512() && __builtin_cpu_supports("avx512vnni") &&
               __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
               __builtin_cpu_supports("avx512bitalg") && __builtin_cpu_supports("avx512vpopcntdq");
#elif HWY_ARCH_ARM_A64 && defined(__linux__)
    // Later versions of Highway than 1.0.3 have two of them: this is the one that may use AES instructions.
    if (kBit == HWY_NEON) return (getauxval(AT_HWCAP) & HWCAP_AES) != 0;
#endif
    return kBit == HWY_EMU128;
}

#if DS41_CPU_HAS_PAIRS
bool has_bf16() noexcept {
    unsigned a = 0, b, c, d;
    return runs_here<HWY_AVX3_DL>() && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 5 & 1u) != 0;
}

// Intel's CPUs take vdpbf16ps at half the rate of f32 products, AMD's at the same, for twice as many.
bool bf16_pays() noexcept {
    unsigned a, b = 0, c, d;
    constexpr unsigned kIntel = 0x756e6547; // the first letters of GenuineIntel
    return __get_cpuid(0, &a, &b, &c, &d) != 0 && b != kIntel;
}

// Linux lends the registers to processes that ask. What it grants holds for all threads, to the end of the process.
bool has_amx() noexcept {
#ifdef __linux__
    constexpr int kRequest = 0x1023, kTileData = 18; // ARCH_REQ_XCOMP_PERM; XFEATURE_XTILEDATA
    unsigned a, b, c, d = 0;
    return runs_here<HWY_AVX3_DL>() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1u) != 0 &&
           (d >> 24 & 1u) != 0 && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
    return false;
#endif
}
#endif

#define DS41_CPU_ENTRY(name) {#name, HWY_##name, nullptr, runs_here<HWY_##name>, nullptr},
constexpr Target kTargets[] = {
#if DS41_CPU_HAS_PAIRS
    {"AMX", HWY_AVX3_DL, &kAmxKernels, has_amx, nullptr},
    {"AVX512_BF16", HWY_AVX3_DL, &kAvx512Bf16Kernels, has_bf16, bf16_pays},
#endif
    DS41_CPU_TARGETS(DS41_CPU_ENTRY)};

} // namespace

const Target *target_at(int index) noexcept {
    return index >= 0 && static_cast<std::size_t>(index) < std::size(kTargets) ? &kTargets[index] : nullptr;
}

const Target &choose_target(const char *name, const char *place) {
    // Others than the one that is named are not asked, unless it is none: AMX's answer has an effect.
    for (const Target &target : kTargets)
        if (name ? std::strcmp(name, target.name) == 0 && target.runs_here()
                 : target.runs_here() && (!target.pays_here || target.pays_here()))
            return target;
    char names[96] = "";
    std::size_t used = 0;
    for (const Target &target : kTargets) {
        if (!target.runs_here()) continue;
        const int n = std::snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", target.name);
        used += static_cast<std::size_t>(n);
        if (used >= sizeof names) used = sizeof names - 1;
    }
    throw Error(DS41_STATUS_NO_BACKEND, "%s is \"%.32s\", need one that can run here of: %s", place, name ? name : "",
                names);
}

} // namespace ds41::cpu
