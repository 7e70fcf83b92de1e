/* The log of a C++ compiler, made into one about the user's source (see messages.h). */
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/messages.h"
#include "backend/text.h"

enum kind {
    KIND_CONTEXT, /* leads up to the next message, or says something about the compilation */
    KIND_ERROR,
    KIND_NOTE, /* and warnings: belong to the error before them */
};

struct line {
    const char *text; /* borrowed from the log */
    size_t length;
    enum kind kind;
    size_t place_bytes; /* "FILE:LINE:COLUMN" at its start; 0: none */
    const char *rest;   /* what is behind the place, from its colon on */
};

struct translation {
    const struct cpu_messages_info *info;
    struct text out;
    struct text context;      /* lines that wait for their message */
    bool is_dropping;         /* the message that is being read */
    bool leaves_out_internal; /* there were other errors, from which these follow */
};

static bool starts_with(const char *text, size_t length, const char *start) {
    return length >= strlen(start) && memcmp(text, start, strlen(start)) == 0;
}

/* ---- lines ---- */

static void line_cut(const char *text, struct line *line) {
    static const struct {
        const char *mark;
        enum kind kind;
    } marks[] = {{": error: ", KIND_ERROR},
                 {": fatal error: ", KIND_ERROR},
                 {": internal compiler error: ", KIND_ERROR},
                 {": warning: ", KIND_NOTE},
                 {": note: ", KIND_NOTE}};
    *line = (struct line){.text = text, .length = strcspn(text, "\n"), .kind = KIND_CONTEXT};
    const char *first = NULL;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const char *at = memmem(text, line->length, marks[i].mark, strlen(marks[i].mark));
        if (at != NULL && (first == NULL || at < first)) {
            first = at;
            line->kind = marks[i].kind;
        }
    }
    /* Contexts have places too: "FILE:LINE:COLUMN:   required from here". */
    first = first != NULL ? first : memmem(text, line->length, ":   ", 4);
    if (first != NULL) {
        line->place_bytes = (size_t)(first - text);
        line->rest = first;
    }
}

static const char *line_next(const struct line *line) {
    return line->text[line->length] == '\n' ? line->text + line->length + 1
                                            : line->text + line->length;
}

/* Without its last ":NUMBER", if it ends with one. */
static size_t number_cut(const char *place, size_t length) {
    size_t at = length;
    while (at > 0 && place[at - 1] >= '0' && place[at - 1] <= '9') {
        at--;
    }
    return at < length && at > 0 && place[at - 1] == ':' ? at - 1 : length;
}

/* "FILE:LINE" of "FILE:LINE:COLUMN". A file may end with a number itself, "script.lua:12". */
static size_t column_cut(const struct line *line) {
    return number_cut(line->text, line->place_bytes);
}

static bool is_internal(const struct cpu_messages_info *info, const struct line *line) {
    return starts_with(line->text, line->length, info->shim_folder) ||
           starts_with(line->text, line->length, CPU_TABLE_FILE ":") ||
           starts_with(line->text, line->length, "<"); /* <stdin>, <scratch space> */
}

/* In an expression that the user asked for: "SOURCE: name 'f<T>':1:20". */
static bool is_expression(const struct cpu_messages_info *info, const struct line *line) {
    size_t name = strlen(info->name);
    return starts_with(line->text, line->length, info->name) &&
           starts_with(line->text + name, line->length - name, CPU_EXPRESSION_FILE);
}

/* ---- what is ours, taken out ---- */

/* Adds a text without the folder of the shim, and without the parameters that kernels get. */
static void add_plain(struct translation *t, struct text *to, const char *text, size_t length) {
    const char *const ours[] = {
        t->info->shim_folder, "uint3, uint3, dim3, dim3, int, bool&, ",
        "uint3, uint3, dim3, dim3, int, bool&",
        "const uint3, const uint3, const dim3, const dim3, const int, bool &, ",
        "const uint3, const uint3, const dim3, const dim3, const int, bool &"};
    for (size_t at = 0; at < length;) {
        size_t skipped = 0;
        for (size_t i = 0; i < sizeof ours / sizeof *ours && skipped == 0; i++) {
            bool is_ours =
                (i == 0 || t->info->is_rewritten) && starts_with(text + at, length - at, ours[i]);
            skipped = is_ours ? strlen(ours[i]) : 0;
        }
        if (skipped == 0) {
            gpu_text_add(to, text + at, 1);
            at++;
        }
        at += skipped;
    }
}

static void line_add(struct translation *t, struct text *to, const struct line *line) {
    if (line->place_bytes == 0) {
        add_plain(t, to, line->text, line->length);
        gpu_text_add(to, "\n", 1);
        return;
    }
    size_t place = line->place_bytes;
    if (is_expression(t->info, line)) {
        place = number_cut(line->text, column_cut(line));
    } else if (t->info->is_rewritten) {
        /* Some messages are about a line only: then that was its number. */
        size_t file = number_cut(line->text, column_cut(line));
        bool has_column = file < column_cut(line) && file >= strlen(t->info->name);
        place = has_column ? column_cut(line) : place;
    }
    if (is_internal(t->info, line)) {
        gpu_text_add(to, t->info->name, strlen(t->info->name));
    } else {
        gpu_text_add(to, line->text, place);
    }
    add_plain(t, to, line->rest, line->length - line->place_bytes);
    gpu_text_add(to, "\n", 1);
}

/* ---- whole logs ---- */

/* Has the log an error at the line's file and line? */
static bool is_confirmed(const char *log, const struct line *wanted) {
    size_t place = column_cut(wanted);
    for (const char *at = log; *at != '\0';) {
        struct line line;
        line_cut(at, &line);
        if (line.kind == KIND_ERROR && column_cut(&line) == place &&
            memcmp(line.text, wanted->text, place) == 0) {
            return true;
        }
        at = line_next(&line);
    }
    return false;
}

bool gpu_cpu_messages_about_source(const struct cpu_messages_info *info) {
    for (const char *at = info->log; *at != '\0';) {
        struct line line;
        line_cut(at, &line);
        if (line.kind == KIND_ERROR && !is_internal(info, &line) && column_cut(&line) > 0) {
            return true;
        }
        at = line_next(&line);
    }
    return false;
}

/* "undefined reference to `f(int)'" is all that counts of what a linker says, and once. */
static bool linker_line_add(struct translation *t, const struct line *line) {
    static const char mark[] = "undefined reference to ";
    const char *at = memmem(line->text, line->length, mark, sizeof mark - 1);
    if (at == NULL) {
        return memmem(line->text, line->length, "/ld: ", 5) != NULL ||
               memmem(line->text, line->length, "ld returned", 11) != NULL ||
               memmem(line->text, line->length, "linker command failed", 21) != NULL;
    }
    struct text said = {0};
    gpu_text_format(&said, "%s: error: %.*s\n", t->info->name,
                    (int)(line->length - (size_t)(at - line->text)), at);
    if (strstr(gpu_text_get(&t->out), gpu_text_get(&said)) == NULL) {
        gpu_text_add(&t->out, gpu_text_get(&said), said.length);
    }
    t->out.failed = t->out.failed || said.failed;
    gpu_text_finish(&said);
    return true;
}

static bool is_chatter(const struct cpu_messages_info *info, const struct line *line) {
    static const char *const chatter[] = {"compilation terminated.",
                                          "cc1plus: ",
                                          ">>> ",
                                          "In file included from <stdin>",
                                          "In file included from <command-line>",
                                          "In file included from <built-in>"};
    for (size_t i = 0; i < sizeof chatter / sizeof *chatter; i++) {
        if (starts_with(line->text, line->length, chatter[i])) {
            return true;
        }
    }
    bool is_count = memmem(line->text, line->length, " generated.", 11) != NULL;
    /* "In file included from FOLDER/x.h:3:", and what goes on: "      from FOLDER/y.h:4:" */
    bool is_path = memmem(line->text, line->length, "from ", 5) != NULL &&
                   memmem(line->text, line->length, info->shim_folder, strlen(info->shim_folder));
    return is_count || is_path;
}

static void line_translate(struct translation *t, const struct line *line) {
    if (line->kind == KIND_CONTEXT) {
        if (!linker_line_add(t, line) && !is_chatter(t->info, line) &&
            !is_internal(t->info, line)) {
            line_add(t, &t->context, line);
        }
        return;
    }
    bool is_ours = is_internal(t->info, line);
    if (line->kind == KIND_ERROR) {
        t->is_dropping =
            (is_ours && t->leaves_out_internal) ||
            (t->info->confirmed_by != NULL && !is_confirmed(t->info->confirmed_by, line));
    }
    if (!t->is_dropping && !(is_ours && line->kind == KIND_NOTE) && !linker_line_add(t, line)) {
        gpu_text_add(&t->out, gpu_text_get(&t->context), t->context.length);
        line_add(t, &t->out, line);
        t->leaves_out_internal = t->leaves_out_internal || line->kind == KIND_ERROR;
    }
    t->context.length = 0;
}

char *gpu_cpu_messages_translate(const struct cpu_messages_info *info) {
    struct translation t = {.info = info,
                            .leaves_out_internal = gpu_cpu_messages_about_source(info)};
    struct line line;
    for (const char *at = info->log; *at != '\0'; at = line_next(&line)) {
        line_cut(at, &line);
        line_translate(&t, &line);
    }
    t.out.failed = t.out.failed || t.context.failed;
    gpu_text_finish(&t.context);
    return gpu_text_take(&t.out);
}

const char *gpu_cpu_messages_first(const char *log, size_t *length) {
    struct line line;
    for (const char *at = log; *at != '\0'; at = line_next(&line)) {
        line_cut(at, &line);
        if (line.kind == KIND_ERROR) {
            *length = line.length;
            return line.text;
        }
    }
    *length = strcspn(log, "\n");
    return log;
}

bool gpu_cpu_messages_failed(const char *log) {
    size_t length;
    const char *first = gpu_cpu_messages_first(log, &length);
    struct line line;
    line_cut(first, &line);
    return line.kind == KIND_ERROR;
}
