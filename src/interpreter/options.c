#include "interpreter/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interpreter/program.h"

void options_show(FILE *file) {
    fprintf(
        file,
        "usage: %s [options] [script [args]]\n"
        "Available options are:\n"
        "  -e stat   execute string 'stat'\n"
        "  -i        enter interactive mode after executing 'script'\n"
        "  -l mod    require library 'mod' into global 'mod'\n"
        "  -l g=mod  require library 'mod' into global 'g'\n"
        "  -v        show version information\n"
        "  -E        ignore environment variables\n"
        "  -W        turn warnings on\n"
        "  --        stop handling options\n"
        "  -         stop handling options and execute stdin\n"
        "  --device cpu|cuda|cuda:N  the device of scripts that do not say\n"
        "  --isolate process|thread|none  where a device is driven from: a process of its own, a\n"
        "            thread of its own, the script's thread\n"
        "  --check[=SEED]  CPU devices do their work in an order of that seed, and look for races\n"
        "  --check=hashes  looks for undeclared writes and tasks without an order; on GPUs "
        "--check\n"
        "            does that\n"
        "  --seeds N|all   runs the script with N seeds, or in all orders, and compares\n"
        "  --flight FILE   what a device was given last goes there when it is lost, or at the end\n"
        "  --replay FILE   does that again, on the CPU device in check mode, and says what it "
        "sees\n"
        "  --trace FILE.json  what was done when goes there at the end, for ui.perfetto.dev\n"
        "  --timeline FILE.html  the same as a page for any browser, with what limited it\n"
        "  --summary  where time and memory went, at the end, on standard error\n"
        "  --kernel FILE.cu  compiles it and shows registers, memory and occupancy of its kernels\n"
        "  --code    with --kernel: also what the compilers have made of them, PTX and SASS\n"
        "  --help    show this text\n"
        "  --version  the same as -v\n"
        "  --info    show devices, libraries, limits, the cache (--info=json: as JSON)\n",
        program.name);
    fflush(file);
}

static void usage(const char *bad) {
    fprintf(stderr, "%s: ", program.name);
    if (bad[1] == 'e' || bad[1] == 'l') {
        fprintf(stderr, "'%s' needs argument\n", bad);
    } else {
        fprintf(stderr, "unrecognized option '%s'\n", bad);
    }
    options_show(stderr);
}

static const struct {
    const char *name;
    bool wants_value;
} longs[] = {{"--help", false},    {"--version", false}, {"--info", false},  {"--check", false},
             {"--code", false},    {"--summary", false}, {"--seeds", true},  {"--trace", true},
             {"--timeline", true}, {"--flight", true},   {"--replay", true}, {"--kernel", true},
             {"--device", true},   {"--isolate", true}};

/* How many letters have to be put in, left out or changed. */
static size_t distance(const char *a, const char *b) {
    enum { LONGEST = 32 };
    size_t row[LONGEST + 1], a_length = strlen(a), b_length = strlen(b);
    if (a_length > LONGEST || b_length > LONGEST) {
        return LONGEST;
    }
    for (size_t k = 0; k <= b_length; k++) {
        row[k] = k;
    }
    for (size_t i = 1; i <= a_length; i++) {
        size_t corner = row[0]++;
        for (size_t k = 1; k <= b_length; k++) {
            size_t same = corner + (a[i - 1] != b[k - 1]);
            size_t other = (row[k] < row[k - 1] ? row[k] : row[k - 1]) + 1;
            corner = row[k];
            row[k] = same < other ? same : other;
        }
    }
    return row[b_length];
}

static void unknown_long(const char *option) {
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(option, "="), option);
    const char *nearest = NULL;
    size_t least = 3;
    for (size_t i = 0; i < sizeof longs / sizeof *longs; i++) {
        size_t here = distance(name, longs[i].name);
        if (here < least) {
            least = here;
            nearest = longs[i].name;
        }
    }
    fprintf(stderr, "%s: unrecognized option '%s'%s%s%s; %s --help shows all\n", program.name,
            option, nearest ? ": " : "", nearest ? nearest : "", nearest ? " is one" : "",
            program.name);
}

bool options_wants_value(const char *option) {
    for (size_t i = 0; i < sizeof longs / sizeof *longs; i++) {
        if (longs[i].wants_value && strcmp(option, longs[i].name) == 0) {
            return true;
        }
    }
    return false;
}

/* "--name VALUE" and "--name=VALUE"; NULL if argv[*i] is another option. *is_missing: no value. */
static const char *long_value(char **argv, int *i, const char *name, bool *is_missing) {
    size_t length = strlen(name);
    if (strncmp(argv[*i], name, length) != 0) {
        return NULL;
    }
    if (argv[*i][length] == '=') {
        return argv[*i] + length + 1;
    }
    if (argv[*i][length] != '\0') {
        return NULL;
    }
    if (!argv[*i + 1]) {
        *is_missing = true;
        return "";
    }
    return argv[++*i];
}

static bool set_isolation(struct options *options, const char *value) {
    if (strcmp(value, "process") == 0) {
        options->isolation = GPULUA_ISOLATE_PROCESS;
    } else if (strcmp(value, "thread") == 0) {
        options->isolation = GPULUA_ISOLATE_THREAD;
    } else if (strcmp(value, "none") == 0) {
        options->isolation = GPULUA_ISOLATE_NONE;
    } else {
        fprintf(stderr, "%s: --isolate: 'process', 'thread' or 'none' expected, got '%s'\n",
                program.name, value);
        return false;
    }
    return true;
}

static bool set_check(struct options *options, const char *value) {
    char *end = NULL;
    errno = 0;
    options->is_checked = true;
    options->is_hashed = value && strcmp(value, "hashes") == 0;
    options->check_seed = value && !options->is_hashed ? strtoull(value, &end, 10) : 1;
    if (value && !options->is_hashed &&
        (value[0] < '0' || value[0] > '9' || *end != '\0' || errno != 0 ||
         options->check_seed > INT64_MAX)) {
        fprintf(
            stderr,
            "%s: --check: \"hashes\", or a seed, a whole number from 0 on, expected, got '%s'\n",
            program.name, value);
        return false;
    }
    return true;
}

/* The same of a file to be written, which a script that is there is not, nor another option: the
 * name was left out. */
static const char *written_value(char **argv, int *i, const char *name, bool *is_missing) {
    const char *value = long_value(argv, i, name, is_missing);
    const char *end = value ? strrchr(value, '.') : NULL;
    if ((end && strcmp(end, ".lua") == 0 && access(value, F_OK) == 0) ||
        (value && value[0] == '-')) {
        *is_missing = true;
    }
    return value;
}

static bool take_long(char **argv, int *i, struct options *options) {
    bool is_missing = false;
    const char *option = argv[*i];
    const char *value;
    if (strcmp(option, "--help") == 0) {
        options->shows_help = true;
        return true;
    }
    if (strcmp(option, "--version") == 0) {
        options->shows_version = true;
        return true;
    }
    if (strcmp(option, "--info") == 0) {
        options->shows_info = "text";
        return true;
    }
    if (strcmp(option, "--info=json") == 0) {
        options->shows_info = "json";
        return true;
    }
    if (strcmp(option, "--check") == 0 || strncmp(option, "--check=", 8) == 0) {
        return set_check(options, option[7] == '=' ? option + 8 : NULL);
    }
    if (strcmp(option, "--code") == 0) {
        options->shows_code = true;
        return true;
    }
    if (strcmp(option, "--summary") == 0) {
        options->summarizes = true;
        return true;
    }
    if ((value = long_value(argv, i, "--seeds", &is_missing))) {
        options->seeds = value;
    } else if ((value = written_value(argv, i, "--trace", &is_missing))) {
        options->trace = value;
    } else if ((value = written_value(argv, i, "--timeline", &is_missing))) {
        options->timeline = value;
    } else if ((value = written_value(argv, i, "--flight", &is_missing))) {
        options->flight = value;
    } else if ((value = long_value(argv, i, "--replay", &is_missing))) {
        options->replay = value;
    } else if ((value = long_value(argv, i, "--kernel", &is_missing))) {
        options->kernel = value;
    } else if ((value = long_value(argv, i, "--device", &is_missing))) {
        options->device = value;
    } else if ((value = long_value(argv, i, "--isolate", &is_missing))) {
        if (!is_missing && !set_isolation(options, value)) {
            return false;
        }
    } else {
        unknown_long(option);
        return false;
    }
    if (is_missing) {
        fprintf(stderr, "%s: '%s' needs argument%s\n", program.name, option,
                value && value[0] ? ", the name of a file to write, and not a script or an option"
                                  : "");
        return false;
    }
    return true;
}

/* Owned; with its last slash. NULL: no memory. */
static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
}

/* What is written at the end, perhaps hours later, is refused now. Leaves no file. */
static bool can_write(const char *option, const char *path) {
    struct stat facts;
    int number = 0;
    if (!path) {
        return true;
    }
    if (path[0] == '\0') {
        number = ENOENT;
    } else if (stat(path, &facts) == 0) {
        number = S_ISDIR(facts.st_mode) ? EISDIR : access(path, W_OK) == 0 ? 0 : errno;
    } else if ((number = errno) == ENOENT) {
        char *folder = folder_of(path);
        number = folder && access(folder, W_OK | X_OK) != 0 ? errno : 0;
        free(folder);
    }
    if (number != 0) {
        fprintf(stderr, "%s: %s: '%s' cannot be written: %s\n", program.name, option, path,
                strerror(number));
    }
    return number == 0;
}

static bool is_one_file(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Whether what is written to one of them replaces what is written to the other, however they are
 * spelt. Terminals, pipes and /dev/null take both. */
static bool are_one_file(const char *a, const char *b) {
    struct stat of_a, of_b;
    bool has_a = stat(a, &of_a) == 0, has_b = stat(b, &of_b) == 0;
    if (has_a || has_b) {
        return has_a && has_b && S_ISREG(of_a.st_mode) && is_one_file(&of_a, &of_b);
    }
    const char *slash_a = strrchr(a, '/'), *slash_b = strrchr(b, '/');
    if (strcmp(slash_a ? slash_a + 1 : a, slash_b ? slash_b + 1 : b) != 0) {
        return false;
    }
    char *folder_a = folder_of(a), *folder_b = folder_of(b);
    bool is_one = folder_a && folder_b && stat(folder_a, &of_a) == 0 &&
                  stat(folder_b, &of_b) == 0 && is_one_file(&of_a, &of_b);
    free(folder_a);
    free(folder_b);
    return is_one;
}

/* Each option that names a file for the end of the run, against the others. */
static bool can_write_all(const struct options *options) {
    const struct {
        const char *option, *path;
    } files[] = {
        {"--trace", options->trace},
        {"--timeline", options->timeline},
        {"--flight", options->flight},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        for (size_t j = 0; j < i; j++) {
            if (files[i].path && files[j].path && are_one_file(files[j].path, files[i].path)) {
                fprintf(stderr, "%s: %s and %s: two files expected, got '%s' twice\n", program.name,
                        files[j].option, files[i].option, files[i].path);
                return false;
            }
        }
        if (!can_write(files[i].option, files[i].path)) {
            return false;
        }
    }
    return true;
}

/* The file's path from the root, so that it is that file also when the script has gone to another
 * folder. Kept in `kept`; as it was where there is no memory, or no folder. */
static const char *whole_path(const char *path, char **kept) {
    char *folder = path && path[0] != '/' ? getcwd(NULL, 0) : NULL;
    if (folder && asprintf(kept, "%s/%s", folder, path) < 0) {
        *kept = NULL;
    }
    free(folder);
    return *kept ? *kept : path;
}

bool options_read(int argc, char **argv, struct options *options) {
    int i;
    for (i = 1; i < argc && argv[i][0] == '-'; i++) {
        const char *option = argv[i];
        if (option[1] == '\0') {
            break; /* "-": the script is standard input */
        }
        if (strcmp(option, "--") == 0) {
            i++;
            break;
        }
        if (option[1] == '-') {
            if (!take_long(argv, &i, options)) {
                return false;
            }
            continue;
        }
        bool is_long = option[2] != '\0';
        if (strcmp(option, "-h") == 0) {
            options->shows_help = true;
            continue;
        }
        switch (option[1]) {
        case 'e':
        case 'l':
            options->has_chunks |= option[1] == 'e';
            if (!is_long && (!argv[i + 1] || argv[i + 1][0] == '-')) {
                usage(option);
                return false;
            }
            i += !is_long;
            continue;
        case 'i':
            options->is_interactive = true;
            options->shows_version = true;
            break;
        case 'v':
            options->shows_version = true;
            break;
        case 'E':
            options->ignores_environment = true;
            break;
        case 'W':
            options->warns = true;
            break;
        default:
            usage(option);
            return false;
        }
        if (is_long) {
            usage(option);
            return false;
        }
    }
    options->script = i < argc ? i : argc;
    if (options->shows_code && !options->kernel) {
        fprintf(stderr, "%s: --code: a kernel's, so --kernel FILE.cu with it expected\n",
                program.name);
        return false;
    }
    if (!can_write_all(options)) {
        return false;
    }
    static char *trace, *timeline; /* which are written when the script is over */
    options->trace = whole_path(options->trace, &trace);
    options->timeline = whole_path(options->timeline, &timeline);
    return true;
}
