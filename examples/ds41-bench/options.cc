// One row per option. Values come as the next argument or after `=`; what is no option is the mode, then its path.
#include "options.h"

#include "machine.h"
#include "modes.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <vector>

namespace bench {

namespace {

template <class Number> bool read_number(std::string_view text, Number &number) {
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && stop == text.data() + text.size();
}

template <class Number>
Number number_between(const char *option, const std::string &text, Number least, Number most, const char *what) {
    Number number = {};
    if (!read_number(text, number) || !(number >= least && number <= most))
        throw BadUsage(std::string(option) + " is '" + text + "', need " + what);
    return number;
}

void set_seconds(Options &options, const std::string &value) {
    options.limits.seconds = number_between("--seconds", value, 1e-3, 86400.0, "a number from 0.001 to 86400");
}

void set_rounds(Options &options, const std::string &value) {
    options.limits.rounds = number_between<int64_t>("--rounds", value, 1, 1000000, "a count from 1 to 1000000");
}

void set_threads(Options &options, const std::string &value) {
    options.threads = number_between("--threads", value, 1, 1024, "a count from 1 to 1024");
}

/// "A-B", both included, or "A".
void set_layers(Options &options, const std::string &value) {
    const std::string_view text = value;
    const size_t dash = text.find('-');
    int32_t first = -1, last = -1;
    const bool is_read = read_number(text.substr(0, dash), first) &&
                         (dash == std::string_view::npos || read_number(text.substr(dash + 1), last));
    if (dash == std::string_view::npos) last = first;
    if (!is_read || first < 0 || last < first || last >= INT32_MAX)
        throw BadUsage("--layers is '" + value + "', need A-B or A: numbers of the first layer and the last");
    options.first_layer = first;
    options.n_layers = last - first + 1;
}

/// Parts between commas, of which none is empty.
std::vector<std::string> parts_of(const char *option, const std::string &value) {
    std::vector<std::string> parts;
    for (size_t begin = 0; begin <= value.size();) {
        const size_t end = std::min(value.find(',', begin), value.size());
        parts.push_back(value.substr(begin, end - begin));
        if (parts.back().empty())
            throw BadUsage(std::string(option) + " is '" + value + "', need values between commas");
        begin = end + 1;
    }
    return parts;
}

void set_formats(Options &options, const std::string &value) {
    options.formats = parts_of("--formats", value);
    for (const std::string &format : options.formats)
        if (format != "bf16" && format != "fp8" && format != "q2_k")
            throw BadUsage("--formats has '" + format + "', need some of bf16, fp8, q2_k");
}

/// Token counts; K stands for 1024.
void set_contexts(Options &options, const std::string &value) {
    options.contexts.clear();
    for (const std::string &part : parts_of("--contexts", value)) {
        const bool has_unit = part.back() == 'K';
        const std::string number = has_unit ? part.substr(0, part.size() - 1) : part;
        const int64_t unit = has_unit ? 1024 : 1, least = has_unit ? 1 : 2, most = (int64_t(1) << 20) / unit;
        options.contexts.push_back(
            unit * number_between("--contexts", number, least, most, "counts from 2 to 1048576, or 1K to 1024K"));
    }
}

void set_rows(Options &options, const std::string &value) {
    options.rows.clear();
    for (const std::string &part : parts_of("--rows", value))
        options.rows.push_back(number_between("--rows", part, 1, 1024, "counts from 1 to 1024"));
}

void set_scale(Options &options, const std::string &value) {
    options.scale = number_between("--scale", value, 1, 1024, "a number from 1 to 1024");
}

struct Row {
    const char *name;
    bool takes_value;
    bool is_common; ///< To all modes.
    void (*set)(Options &options, const std::string &value);
};

constexpr Row kRows[] = {
    {"--mode", true, true, [](Options &options, const std::string &value) { options.mode = value; }},
    {"--seconds", true, true, set_seconds},
    {"--rounds", true, true, set_rounds},
    {"--threads", true, true, set_threads},
    {"--json", false, true, [](Options &options, const std::string &) { options.json = true; }},
    {"--help", false, true, [](Options &options, const std::string &) { options.help = true; }},
    {"--version", false, true, [](Options &options, const std::string &) { options.version = true; }},
    {"--backend", true, false, [](Options &options, const std::string &value) { options.backend = value; }},
    {"--layers", true, false, set_layers},
    {"--formats", true, false, set_formats},
    {"--contexts", true, false, set_contexts},
    {"--rows", true, false, set_rows},
    {"--scale", true, false, set_scale},
};

const Row &find_row(const std::string &name) {
    for (const Row &row : kRows)
        if (row.name == name) return row;
    throw BadUsage("there is no option " + name);
}

std::string mode_names() {
    std::string names;
    for (const Mode &mode : all_modes()) names += (names.empty() ? "" : ", ") + std::string(mode.name);
    return names;
}

/// What only fits together, or does not.
void check(Options &options, const std::vector<std::string> &plain, const std::set<std::string> &special) {
    size_t n_used = 0;
    if (options.mode.empty() && n_used < plain.size()) options.mode = plain[n_used++];
    if (options.mode.empty()) throw BadUsage("no mode is given, need one of: " + mode_names());
    const Mode *mode = find_mode(options.mode);
    if (!mode) throw BadUsage("there is no mode '" + options.mode + "', need one of: " + mode_names());
    if (mode->takes_path && n_used == plain.size()) throw BadUsage("mode " + options.mode + " needs a path");
    if (mode->takes_path) options.path = plain[n_used++];
    if (n_used < plain.size()) throw BadUsage("mode " + options.mode + " takes no argument '" + plain[n_used] + "'");
    for (const std::string &name : special)
        if (std::string_view(mode->options).find(" " + name + " ") == std::string_view::npos)
            throw BadUsage("mode " + options.mode + " takes no option " + name);
    if (options.rows.empty()) set_rows(options, mode->rows);
    if (options.contexts.empty()) set_contexts(options, mode->contexts);
}

} // namespace

Options parse_options(int argc, const char *const *argv) {
    Options options;
    options.threads = n_usable_cpus();
    std::vector<std::string> plain;
    std::set<std::string> special; // options that only some modes take
    bool only_plain = false;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if (only_plain || !argument.starts_with("-") || argument == "-") {
            plain.push_back(argument);
            continue;
        }
        if (argument == "--") {
            only_plain = true;
            continue;
        }
        const size_t equals = argument.find('=');
        const std::string name = argument == "-h" ? "--help" : argument.substr(0, equals);
        const Row &row = find_row(name);
        std::string value;
        if (!row.takes_value && equals != std::string::npos) throw BadUsage(name + " takes no value");
        if (row.takes_value && equals == std::string::npos && i + 1 == argc) throw BadUsage(name + " needs a value");
        if (row.takes_value) value = equals == std::string::npos ? argv[++i] : argument.substr(equals + 1);
        if (!row.is_common) special.insert(name);
        row.set(options, value);
    }
    if (!options.help && !options.version) check(options, plain, special);
    return options;
}

std::string help_text() {
    std::string text = "usage: ds41-bench MODE [PATH] [OPTION]...\n\nMeasures libds41 on this machine.\n\n";
    for (const Mode &mode : all_modes()) {
        const std::string usage = std::string(mode.name) + (mode.takes_path ? " PATH" : "");
        text += "  " + usage + std::string(usage.size() < 16 ? 16 - usage.size() : 1, ' ') + mode.summary + "\n";
    }
    return text + R"(
  --mode NAME     the mode, instead of the first argument
  --seconds N     measure each case for N seconds (default 5), but for three rounds at least
  --rounds N      measure each case for N rounds instead
  --threads N     threads of contestants that can have several; default: one per usable CPU
  --json          print one JSON document instead of tables
  --help          print this
  --version       print the versions of the tool and of the library

  --layers A-B    load: only these layers, both included; default: all that the checkpoint holds
                  step: each of these layers; default: the first one of each kind
  --backend NAME  load, step, stack: backend; default: the best that runs here. In step `sim`, with DS41_PLUGIN_PATH set
                  to the folder of libds41-sim.so, counts instead of taking time
  --formats LIST  step, stack, proj, prefill: formats of the weights, of bf16, fp8 and q2_k; default: all
  --contexts LIST step, stack, attend: tokens of each sequence, with K for 1024; default: 4K,64K (step), 4K (stack),
                  64K (attend)
                  index: keys; default: 64K,1024K
  --rows LIST     step, stack: sequences, with a token each; proj, prefill: tokens; default: 1, and 64,512 (prefill)
  --scale N       step, stack, proj, prefill, attend, index: sizes of the model divided by N, as far as every format
                  allows; default: 1

Mode load measures until the model is ready: `copied` with the weights in memory of the model, `mapped` with those left
in the mapping of the files that the backend can read there, whose pages are read at their first use. The floor is a
read() of as many bytes of each file, from its start on, into one buffer. With a warm page cache, and with a cold one
where the files leave it on request; below a virtual machine the host's cache may still hold them.

Mode step takes one layer of a decode step, after the layers that it depends on, with made-up weights and contexts: the
compressor of ratios above 1, norms and sinks are F32, all other weights in the format. On a backend that counts it
tells, for each stage and in all, what its kernels do:
  launches      of kernels (JSON: launches)
  requested MB  bytes of all accesses, reads and writes (requested_bytes)
  distinct MB   of those each byte once in a stage (distinct_bytes)
  floor MB      the least (floor_bytes): weights, window rows, selected rows, and index keys once, of layers that use
                candidates those of the kept blocks; what stages hand each other, as bf16, written once and read once
  requested, distinct to floor   the ratios (requested_to_floor, distinct_to_floor)
A backend may do a stage's work in an earlier one: what counts is the ratio in all. It also tells
what the host does in the step before (prep, for these layers alone) and in the layer's own part: launches, uploads
and their bytes, synchronisations; and likewise for a graph of that layer. Other backends are timed, on a CPU beside a
plain read of the weights. A run takes another copy of the weights each time, over more than the caches hold.

Mode stack takes all layers of a model, without its draft layers, and with them the step's preparation: tokens of a
decode loop, one after the other. It tells the memory that the process has had, too.

Modes proj, prefill, attend and index time stages of the cpu backend alone, with made-up numbers, in copies over more
than the caches hold. Before that each checks that its contestants compute the same, and fails where they do not.
  proj, prefill   `ours` is stages `project` and `output`: five projections, and the norms, rotations and packing around
                  them. Other libraries do the products alone, on inputs that are ready: of oneDNN a `matmul` with the
                  matrices in the order it asks for, of OpenBLAS `sgemm`. bf16 only; one that is missing is told (JSON:
                  not_measured). `plain loop` of q2_k: a row at a time, vectorised by the compiler
  attend          `ours` is stage `attend` of one token; `plain loop` unpacks each row once, too, then a loop a head
  index           `ours` is stage `select` of one token, scores and choice, beside scores alone of the same keys as bf16;
                  and the choice alone, on one thread, beside std::nth_element
OpenMP's and OpenBLAS's threads are given 50 ms after each run to fall asleep.

Every contestant of a case runs once untimed; then they run in rounds, each once a round, in an order that rotates.
A sample is dropped when other processes took the CPUs away meanwhile: involuntary context switches (of long samples
more than one per 20 ms), or, where one thread only computes, CPU time below 95 % of wall time.

Columns and JSON members:
  median us     time of one run: the median over the samples kept (JSON: us.median, with the quartiles us.q1, us.q3)
  spread        distance of the quartiles, as a share of the median
  GB/s          bytes that a run has to read, over the median; GFLOP/s: likewise its arithmetic, where that is told
  of floor      time of the floor / time of this contestant: 1 is as fast as the floor. Median and quartiles of the
                ratios within a round (JSON: floor_ratio)
  to baseline   time of the baseline / time of this contestant: 2 is twice as fast (JSON: baseline_ratio)
  kept, dropped samples (JSON: n_kept, n_dropped)
Absolute times of shared machines wander; compare the ratios.

exit status: 0 measured; 1 something failed on the way; 2 the usage is wrong
)";
}

} // namespace bench
