// Options take their value as the next argument or after `=`; everything else is a file.
#include "options.h"

#include <charconv>
#include <cstdint>

namespace replay {

const char *const kHelp =
    R"(usage: ds41-replay [OPTION]... FILE...

Runs attention layers on the inputs in fixture files (safetensors) and compares what libds41 gives with the values
expected there. Uses nothing but the public interface, ds41/ds41.h.

  --backend NAME  backend to run on; default: the best that runs here
  --topk RULE     rule for equal scores; default: the file's own (rules.tie)
  --chunk N       feed each prefill in chunks of N tokens, and compare the results put together; 0, the default: whole
  --threads N     threads that a step may use; 0, the default: as many as there are CPUs. Results are the same bits
  --weights PATH  take weights and configuration from this checkpoint (a folder, a safetensors file or a GGUF) instead
                  of the file's own; it has to be of the same configuration
  --map           leave the checkpoint's weights in its files where the backend can read them there
  --json          print one JSON document instead of tables
  --help          print this
  --version       print the versions of the tool and of the library

A case in parts, NAME.KofN.safetensors, is read whole when any of its parts is given.

A run's fingerprint is a hash of the bits of everything compared: two runs with the same one gave the same results.

Columns and JSON members, one line per step, layer and tensor; the unit of all values is that of the tensor itself:
  n         elements compared
  max abs   largest |a - b|, where a came and b is expected; inf (JSON: null) where only one of them is finite
  max rel   largest |a - b| / |b|, over b other than 0, as a plain ratio
  outside   elements outside the tolerance
  left out  elements not compared: state slots that have no meaning; rows that the library rightly does not deliver
            for a chunk in which no group is complete; index_score of a torch_cpu case, which holds the reference's own
            values, in decode steps where the reference scores against keys that another source left
  verdict   ok; exception: rows left the bound, within what the file excuses for quantised activations;
            outside; absent: the library did not deliver it; shape: it did, in another shape

Tolerances are the file's own. Exact tensors are equal. Floats keep |a - b| <= atol_of_max * max|b| + rtol * |b|.
Quantised tensors are equal but for max(1, fraction * n) elements, each with |a - b| <= atol_of_max * max|b|. Rows that
are excused keep |a - b| <= the exception's atol_of_max * max|b|. Infinities and NaN stand where they are expected.

Expected tensors that the tool does not know are counted as not compared. refslot.* tensors never are compared: they
tell what a slot shared between sources would give, which the library does not have by design.

exit status: 0 all inside the tolerance; 1 something is not; 2 the usage is wrong or a file could not be run
)";

namespace {

int64_t parse_count(const std::string &name, const std::string &text, const char *what, int32_t most) {
    int64_t value = -1;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || stop != text.data() + text.size() || value < 0 || value > most)
        throw BadUsage(name + " is '" + text + "', need a number of " + what + " from 0 to " + std::to_string(most));
    return value;
}

} // namespace

Options parse_options(int argc, char **argv) {
    Options options;
    bool only_files = false;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if (only_files || !argument.starts_with("-") || argument == "-") {
            options.files.push_back(argument);
            continue;
        }
        const size_t equals = argument.find('=');
        const std::string name = argument.substr(0, equals);
        if (argument == "--") {
            only_files = true;
        } else if (argument == "--json") {
            options.json = true;
        } else if (argument == "--map") {
            options.run.map = true;
        } else if (argument == "--help" || argument == "-h") {
            options.help = true;
        } else if (argument == "--version") {
            options.version = true;
        } else if (name == "--backend" || name == "--topk" || name == "--chunk" || name == "--threads" ||
                   name == "--weights") {
            if (equals == std::string::npos && i + 1 == argc) throw BadUsage(name + " needs a value");
            const std::string value = equals == std::string::npos ? argv[++i] : argument.substr(equals + 1);
            if (name == "--chunk") options.run.chunk = parse_count(name, value, "tokens", INT32_MAX);
            if (name == "--threads")
                options.run.threads = static_cast<int32_t>(parse_count(name, value, "threads", DS41_MAX_THREADS));
            if (name == "--backend") options.run.backend = value;
            if (name == "--weights") options.run.weights = value;
            if (name == "--weights" && value.empty()) throw BadUsage("--weights is '', need a path");
            if (name == "--topk") options.run.topk = value;
            if (name == "--topk" && value != "stable" && value != "torch_cpu")
                throw BadUsage("--topk is '" + value + "', need stable or torch_cpu");
        } else {
            throw BadUsage("there is no option " + argument);
        }
    }
    if (options.run.map && options.run.weights.empty()) throw BadUsage("--map goes with --weights");
    if (options.files.empty() && !options.help && !options.version) throw BadUsage("no file is given");
    return options;
}

} // namespace replay
