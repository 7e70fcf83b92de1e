/* The token pass: guards at the head of a kernel, which can be tested once for a row of threads
 * (see rewrite.h, shim/gpulua_entry.h). */
#include "backend/cpu/rewrite_pass.h"

/* Names that may be called without an effect in an index or a condition. */
static const char *const harmless_calls[] = {"int",   "unsigned", "long", "short",  "char",
                                             "float", "double",   "bool", "size_t", "min",
                                             "max",   "sizeof",   NULL};

/* Can the ( at `at` be of a call that nobody knows? (int)(..) and static_cast<int>(..) cannot. */
static bool is_unknown_call(struct rewrite *r, size_t from, size_t at) {
    if (at <= from) {
        return false;
    }
    if (is_word_at(r, at - 1)) {
        return !word_in(token_at(r, at - 1), harmless_calls);
    }
    if (is_at(r, at - 1, ")")) {
        for (size_t i = token_at(r, at - 1)->partner + 1; i < at - 1; i++) {
            if (!word_in(token_at(r, i), harmless_calls)) {
                return true;
            }
        }
        return false;
    }
    return is_at(r, at - 1, ">") &&
           !(at >= from + 4 && is_at(r, at - 3, "<") && is_at(r, at - 4, "static_cast"));
}

/* Does evaluating [from, to) do nothing but compute from parameters and locals? Reading memory is
 * left out too: it would be read twice. */
static bool is_harmless(struct rewrite *r, size_t from, size_t to) {
    static const char *const effects[] = {"++", "--", "+=",  "-=",     "*=",    "/=", "%=", "&=",
                                          "|=", "^=", "<<=", "[",      "]",     "{",  "}",  "->",
                                          ";",  "?",  "new", "delete", "throw", NULL};
    for (size_t i = from; i < to; i++) {
        const struct cpu_token *token = token_at(r, i);
        if (word_in(token, effects) || token->kind == CPU_TOKEN_STRING) {
            return false;
        }
        bool is_operand_before =
            i > from && (is_word_at(r, i - 1) || token_at(r, i - 1)->kind == CPU_TOKEN_NUMBER ||
                         is_at(r, i - 1, ")") || is_at(r, i - 1, ">"));
        if ((gpu_cpu_token_is(token, "*") || gpu_cpu_token_is(token, "&")) && !is_operand_before) {
            return false;
        }
        if (gpu_cpu_token_is(token, "(") && is_unknown_call(r, from, i)) {
            return false;
        }
        /* `==` and its kin are signs of their own; >>= comes in pieces. An `=` is left that begins
         * another variable: `, j = ..`. */
        if (gpu_cpu_token_is(token, "=") && (i < from + 2 || !is_at(r, i - 2, ","))) {
            return false;
        }
        if (gpu_cpu_token_is(token, ">=") && i > from && is_at(r, i - 1, ">")) {
            return false;
        }
    }
    return true;
}

/* `const T *p = ..`: words and their like, two of them words at least, then the value. */
static bool is_plain_declaration(struct rewrite *r, size_t from, size_t to) {
    size_t words = 0, at = from;
    for (; at < to && !is_at(r, at, "="); at++) {
        if (is_word_at(r, at)) {
            static const char *const statements[] = {"return",  "goto",       "break",  "continue",
                                                     "static",  "__shared__", "extern", "using",
                                                     "typedef", "delete",     NULL};
            if (word_in(token_at(r, at), statements)) {
                return false;
            }
            words++;
        } else if (!is_at(r, at, "::") && !is_at(r, at, "*") && !is_at(r, at, "&")) {
            return false;
        }
    }
    return words >= 2 && at < to && is_word_at(r, at - 1) && is_harmless(r, at + 1, to);
}

/* Variables that say where a thread is: blockIdx.x * blockDim.x + threadIdx.x and the like, which
 * grow with threadIdx and do not wrap. A guard that only compares them with parameters holds for a
 * whole block if it holds for the block's last thread. */
#define POSITIONS_MAX 8

struct positions {
    unsigned words[POSITIONS_MAX];
    size_t count;
};

/* Is [from, to) one of the usual spellings? The component is that of the last token. */
static bool is_position(struct rewrite *r, size_t from, size_t to) {
    static const char *const spellings[] = {
        "threadIdx",
        "blockIdx*blockDim+threadIdx",
        "blockDim*blockIdx+threadIdx",
        "threadIdx+blockIdx*blockDim",
        "threadIdx+blockDim*blockIdx",
        "(blockIdx*blockDim)+threadIdx",
        "(blockDim*blockIdx)+threadIdx",
        "threadIdx+(blockIdx*blockDim)",
        "threadIdx+(blockDim*blockIdx)",
    };
    char text[64] = "", component = 0;
    size_t used = 0;
    for (size_t i = from; i < to; i++) {
        const struct cpu_token *token = token_at(r, i);
        if (token->replaced != NULL) { /* the user's own of such a name */
            return false;
        }
        if (gpu_cpu_token_is(token, ".")) {
            const struct cpu_token *member = token_at(r, ++i);
            if (i >= to || member->length != 1 || (component != 0 && component != *member->text)) {
                return false;
            }
            component = *member->text;
        } else if (used + token->length < sizeof text) {
            memcpy(text + used, token->text, token->length);
            used += token->length;
        } else {
            return false;
        }
    }
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        if (component != 0 && strcmp(text, spellings[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Notes the positions that a declaration [from, to) declares, if its type can hold any. */
static void positions_note(struct rewrite *r, size_t from, size_t to, struct positions *positions) {
    static const char *const wide[] = {"const",    "constexpr", "auto",     "signed",    "unsigned",
                                       "int",      "long",      "size_t",   "uint",      "int32_t",
                                       "uint32_t", "int64_t",   "uint64_t", "ptrdiff_t", NULL};
    for (size_t i = from; i + 1 < to && !is_at(r, i + 1, "="); i++) {
        if (!word_in(token_at(r, i), wide)) {
            return;
        }
    }
    for (size_t i = from; i < to; i++) {
        if (!is_at(r, i, "=")) {
            continue;
        }
        size_t end = i + 1;
        while (end < to && !is_at(r, end, ",")) {
            end = token_at(r, end)->partner > end ? token_at(r, end)->partner + 1 : end + 1;
        }
        if (positions->count < POSITIONS_MAX && is_position(r, i + 1, end)) {
            positions->words[positions->count++] = token_at(r, i - 1)->word;
        }
    }
}

static bool is_position_word(struct rewrite *r, size_t at, const struct positions *positions) {
    for (size_t i = 0; i < positions->count; i++) {
        if (token_at(r, at)->word != 0 && token_at(r, at)->word == positions->words[i]) {
            return true;
        }
    }
    return false;
}

static bool is_parameter(struct rewrite *r, const struct cpu_function *kernel, size_t at) {
    for (size_t i = 0; i < kernel->param_count; i++) {
        size_t name = kernel->param_names[i];
        if (name != 0 && token_at(r, name)->word == token_at(r, at)->word) {
            return true;
        }
    }
    return token_at(r, at)->kind == CPU_TOKEN_NUMBER;
}

/* position < limit && ..; of a guard that returns, position >= limit || .. */
static bool is_monotone(struct rewrite *r, const struct cpu_function *kernel, size_t from,
                        size_t to, bool is_stop, const struct positions *positions) {
    const char *joint = is_stop ? "||" : "&&";
    for (size_t i = from; i < to; i += 4) {
        bool is_left = is_position_word(r, i, positions);
        size_t limit = is_left ? i + 2 : i;
        bool is_less = is_at(r, i + 1, "<") || is_at(r, i + 1, "<=");
        bool is_greater = is_at(r, i + 1, ">") || is_at(r, i + 1, ">=");
        if (i + 3 > to || (i + 3 < to && !is_at(r, i + 3, joint)) ||
            (!is_left && !is_position_word(r, i + 2, positions)) ||
            !is_parameter(r, kernel, limit) || !(is_left != is_stop ? is_less : is_greater)) {
            return false;
        }
    }
    return true;
}

void gpu_cpu_guards_rewrite(struct rewrite *r, struct cpu_function *kernel) {
    size_t at = kernel->body_open + 1, last_return = 0;
    struct positions positions = {.count = 0};
    bool is_growing = true;
    while (at < kernel->body_close) {
        if (!is_at(r, at, "if")) {
            size_t end = statement_end(r, at);
            if (end >= kernel->body_close || !is_plain_declaration(r, at, end)) {
                break;
            }
            positions_note(r, at, end, &positions);
            at = end + 1;
            continue;
        }
        size_t open = at + 1, close = token_at(r, open)->partner;
        if (!is_at(r, open, "(") || close <= open || !is_harmless(r, open + 1, close)) {
            break;
        }
        bool is_bare = is_at(r, close + 1, "return") && is_at(r, close + 2, ";");
        bool is_braced = is_at(r, close + 1, "{") && is_at(r, close + 2, "return") &&
                         is_at(r, close + 3, ";") && is_at(r, close + 4, "}");
        bool is_stop = is_bare || is_braced;
        is_growing = is_growing && is_monotone(r, kernel, open + 1, close, is_stop, &positions);
        if (!is_stop) {
            replace(r, open, "(const bool gpulua_go = gpulua_part == GPULUA_WORK || (");
            replace(r, close,
                    "); gpulua_part == GPULUA_PROBE) { gpulua_pass = gpulua_go; return; } "
                    "else if (gpulua_go)");
            kernel->flags |= CPU_KERNEL_GUARD | (is_growing ? CPU_KERNEL_MONOTONE : 0u);
            return;
        }
        replace(r, open, "(const bool gpulua_stop = gpulua_part != GPULUA_WORK && (");
        replace(r, close,
                "); gpulua_part == GPULUA_PROBE && gpulua_stop) { gpulua_pass = false; return; } "
                "else if (gpulua_stop)");
        last_return = close + (is_bare ? 2 : 4);
        at = last_return + 1;
        if (is_at(r, at, "else")) {
            break;
        }
    }
    if (last_return != 0) {
        struct cpu_token *token = token_at(r, last_return);
        /* An `else` would be cut off; it makes no sense behind a return, so nobody is hurt. */
        if (!is_at(r, last_return + 1, "else")) {
            token->behind = " if (gpulua_part == GPULUA_PROBE) return;";
            kernel->flags |= CPU_KERNEL_GUARD | (is_growing ? CPU_KERNEL_MONOTONE : 0u);
        }
    }
}
