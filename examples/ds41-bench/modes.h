// The table of modes. A mode is a file with one function, which builds its cases, has them run and adds them to the
// report; what it cannot do it throws, as a sentence for the user.
#pragma once

#include "options.h"
#include "report.h"

#include <span>
#include <string>

namespace bench {

struct Mode {
    const char *name;
    const char *summary; ///< For --help, one line.
    bool takes_path;
    const char *options; ///< Those that it takes beside the common ones, each in spaces: " --layers --backend ".
    const char *rows, *contexts; ///< Defaults of --rows and --contexts.
    void (*run)(const Options &options, Report &report);
};

std::span<const Mode> all_modes();

const Mode *find_mode(const std::string &name); ///< NULL for none.

void run_read(const Options &options, Report &report);
void run_load(const Options &options, Report &report);
void run_step(const Options &options, Report &report);
void run_stack(const Options &options, Report &report);
void run_proj(const Options &options, Report &report);
void run_prefill(const Options &options, Report &report);
void run_attend(const Options &options, Report &report);
void run_index(const Options &options, Report &report);

} // namespace bench
