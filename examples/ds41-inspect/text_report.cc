// The page for people: what the checkpoint is, one table of its layers, memory, problems. Foreign text is escaped.
#include "report.h"
#include "rows.h"
#include "text.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace inspect {

namespace {

constexpr size_t kShownProblems = 100; // a screen or two; --json has the rest

[[gnu::format(printf, 1, 2)]] std::string formatted(const char *format, ...) {
    char text[512]; // numbers between short words
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return text;
}

std::string range(int32_t first, int32_t last) {
    return std::to_string(first) + (last > first ? "-" + std::to_string(last) : "");
}

std::string model_lines(const ds41_config &c) {
    std::string text = counted(c.n_layers, "layer");
    if (c.n_compress_ratios > c.n_layers) text += " and " + counted(c.n_compress_ratios - c.n_layers, "draft layer");
    text += formatted(", up to %lld tokens\n", static_cast<long long>(c.max_seq_len));
    text += formatted("dim %d, %d heads of %d with %d rotated, ranks: q %d, o %d x %d; window %d, norm eps %g\n", c.dim,
                      c.n_heads, c.head_dim, c.rope_head_dim, c.q_lora_rank, c.o_groups, c.o_lora_rank, c.window_size,
                      static_cast<double>(c.norm_eps));
    if (c.n_index_source_layers > 0) {
        text += formatted("index: %d heads of %d, best %d", c.index_n_heads, c.index_head_dim, c.index_topk);
        if (c.candidate_source_layer >= 0)
            text += formatted("; candidates of layer %d: %d blocks of %d", c.candidate_source_layer,
                              c.candidate_topk_blocks, c.candidate_block_size);
        text += "\n";
    }
    text += formatted("RoPE: theta %g, of layers with ratio > 0 %g", static_cast<double>(c.rope_theta),
                      static_cast<double>(c.compress_rope_theta));
    if (c.original_seq_len > 0)
        text += formatted(" with YaRN factor %g over %lld, beta %g to %g", static_cast<double>(c.rope_factor),
                          static_cast<long long>(c.original_seq_len), static_cast<double>(c.beta_fast),
                          static_cast<double>(c.beta_slow));
    return text + "\n";
}

std::string header(const Options &options, const Contents &contents) {
    uint64_t n_bytes = 0;
    for (const File &file : contents.files) n_bytes += file.n_bytes;
    std::string text = printable(options.path) + "\n" + contents.format + ", " +
                       counted(static_cast<int64_t>(contents.files.size()), "file") + " opened (" +
                       human_bytes(n_bytes) + ")\n";
    return contents.config ? text + model_lines(*contents.config) : text;
}

/// Columns as wide as their widest cell, two spaces between them. The first two and the last two are numbers.
std::string aligned(const std::vector<std::vector<std::string>> &lines) {
    const size_t n_columns = lines[0].size();
    std::vector<size_t> widths(n_columns);
    for (const auto &line : lines)
        for (size_t i = 0; i < n_columns; ++i) widths[i] = std::max(widths[i], line[i].size());
    std::string text;
    for (const auto &line : lines) {
        for (size_t i = 0; i < n_columns; ++i) {
            if (widths[i] == 0) continue; // no layer has anything to say here
            const std::string padding(widths[i] - line[i].size(), ' ');
            const bool is_number = i == 1 || i + 2 >= n_columns;
            text += (i ? "  " : "") + (is_number ? padding + line[i] : line[i] + padding);
        }
        text += "\n";
    }
    return text;
}

std::string layer_table(const Contents &contents) {
    const std::vector<LayerRow> rows = fold_layers(contents);
    const bool has_sources =
        std::any_of(rows.begin(), rows.end(), [](const LayerRow &r) { return !r.sources.empty(); });
    std::vector<std::vector<std::string>> lines = {{"layers", "ratio", "role", "projections",
                                                    has_sources ? "compressor, indexer" : "", "each in file",
                                                    "each loaded"}};
    for (const LayerRow &row : rows)
        lines.push_back({range(row.first, row.last), std::to_string(row.ratio), row.role, row.projections, row.sources,
                         human_bytes(row.n_bytes), human_bytes(row.n_model_bytes)});
    const auto n_held = std::count_if(contents.layers.begin(), contents.layers.end(),
                                      [](const Layer &layer) { return !layer.tensors.empty(); });
    lines.push_back({"total", "", counted(n_held, "layer"), "", "", human_bytes(contents.n_bytes),
                     human_bytes(contents.n_model_bytes)});
    return aligned(lines);
}

std::string memory_table(const Options &options, const Contents &contents) {
    if (!contents.memory) return "Memory: not told, since these layers cannot be loaded\n";
    const ds41_memory &sizes = contents.memory->sizes;
    std::string text = "Memory for " + counted(contents.batch, "sequence") + " of " +
                       counted(contents.context, "token") + ", steps of up to " + counted(contents.prefill, "token") +
                       ", backend " + contents.backend + "\n";
    const auto add = [&](const char *name, uint64_t n_bytes) {
        text += formatted("  %-18s %9s\n", name, human_bytes(n_bytes).c_str());
    };
    add("weights", sizes.weights);
    add("window rows", sizes.window);
    add("compressed rows", sizes.compressed);
    add("index keys", sizes.index_keys);
    add("incomplete groups", sizes.group_state);
    add("workspace", sizes.workspace);
    add("total", contents.memory->total);
    if (options.map) add("left in files", contents.memory->in_files);
    return text;
}

std::string problem_list(const std::string &title, const std::vector<std::string> &problems) {
    std::string text = title + ": " + (problems.empty() ? "none\n" : std::to_string(problems.size()) + "\n");
    const size_t n_shown = std::min(problems.size(), kShownProblems);
    for (size_t i = 0; i < n_shown; ++i) text += "  " + printable(problems[i]) + "\n";
    if (n_shown < problems.size())
        text += "  and " + std::to_string(problems.size() - n_shown) + " more, which --json lists\n";
    return text;
}

} // namespace

std::string text_report(const Options &options, const Contents &contents) {
    std::string text = header(options, contents) + "\n";
    if (contents.config) text += layer_table(contents) + "\n" + memory_table(options, contents) + "\n";
    text += problem_list(options.some_layers ? "Problems of these layers" : "Problems", contents.problems);
    if (!contents.other_problems.empty()) text += problem_list("Problems of other layers", contents.other_problems);
    return text;
}

} // namespace inspect
