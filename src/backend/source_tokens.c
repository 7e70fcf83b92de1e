/* The tokens of a source (see source_scan.h). */
#include <stdlib.h>
#include <string.h>

#include "backend/character.h"
#include "backend/source_scan.h"

/* ---- cutting ---- */

bool gpu_source_token_in(const struct token *token, const char *const *list) {
    for (; *list != NULL; list++) {
        if (token_is(token, *list)) {
            return true;
        }
    }
    return false;
}

/* A copy of the text in which lines continued with a backslash are one line. */
static char *splice(const char *text) {
    size_t length = strlen(text);
    char *copy = malloc(length + 1);
    if (copy == NULL) {
        return NULL;
    }
    size_t used = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\\' && text[i + 1] == '\n') {
            i++;
        } else if (text[i] == '\\' && text[i + 1] == '\r' && text[i + 2] == '\n') {
            i += 2;
        } else {
            copy[used++] = text[i];
        }
    }
    copy[used] = '\0';
    return copy;
}

static struct token *token_add(struct scan *scan, enum token_kind kind, const char *from,
                               const char *to) {
    if (scan->token_count == scan->token_capacity) {
        size_t capacity = scan->token_capacity ? scan->token_capacity * 2 : 1024;
        struct token *grown = realloc(scan->tokens, capacity * sizeof *grown);
        if (grown == NULL) {
            scan->failed = true;
            return NULL;
        }
        scan->tokens = grown;
        scan->token_capacity = capacity;
    }
    struct token *token = &scan->tokens[scan->token_count++];
    *token = (struct token){.kind = kind, .text = from, .length = (size_t)(to - from)};
    return token;
}

static unsigned word_meaning(const struct scan *scan, const struct token *token) {
    if (token_is(token, "__global__")) {
        return WORD_GLOBAL;
    }
    if (token_is(token, "__device__") || token_is(token, "__managed__")) {
        return WORD_DEVICE;
    }
    if (token_is(token, "__constant__")) {
        return WORD_CONSTANT;
    }
    for (size_t i = 0; i < scan->macro_count; i++) {
        const struct macro *macro = &scan->macros[i];
        if (macro->length == token->length &&
            memcmp(macro->name, token->text, token->length) == 0) {
            return macro->words;
        }
    }
    return 0;
}

/* Behind a string or character literal whose quote is at `at`; an unfinished one ends with its
 * line. */
static const char *skip_quoted(const char *at) {
    char quote = *at++;
    while (*at != '\0' && *at != '\n') {
        if (*at == '\\' && at[1] != '\0' && at[1] != '\n') {
            at++;
        } else if (*at == quote) {
            return at + 1;
        }
        at++;
    }
    return at;
}

/* R"mark( ... )mark"; `at` is on the quote. */
static const char *skip_raw_string(const char *at) {
    const char *mark = at + 1;
    const char *open = mark;
    while (*open != '(' && *open != '\0' && *open != '\n' && *open != '"' && open - mark < 16) {
        open++;
    }
    if (*open != '(') {
        return skip_quoted(at);
    }
    size_t mark_length = (size_t)(open - mark);
    for (const char *end = strchr(open, ')'); end != NULL; end = strchr(end + 1, ')')) {
        if (strncmp(end + 1, mark, mark_length) == 0 && end[1 + mark_length] == '"') {
            return end + mark_length + 2;
        }
    }
    return open + strlen(open);
}

/* Behind the comment that starts at `at`, or `at`. */
static const char *skip_comment(const char *at) {
    if (at[0] == '/' && at[1] == '/') {
        const char *end = strchr(at, '\n');
        return end != NULL ? end : at + strlen(at);
    }
    if (at[0] == '/' && at[1] == '*') {
        const char *end = strstr(at + 2, "*/");
        return end != NULL ? end + 2 : at + strlen(at);
    }
    return at;
}

/* One token from `at`, which is not blank, not a comment and not the end. Returns what is behind
 * it. */
static const char *token_cut(struct scan *scan, const char *at) {
    const char *from = at;
    if (is_word_start(*at)) {
        while (is_word_start(*at) || is_digit(*at)) {
            at++;
        }
        size_t length = (size_t)(at - from);
        bool raw = length > 0 && length <= 3 && from[length - 1] == 'R';
        if (*at == '"' && length <= 3) {
            at = raw ? skip_raw_string(at) : skip_quoted(at);
            token_add(scan, TOKEN_LITERAL, from, at);
            return at;
        }
        struct token *token = token_add(scan, TOKEN_WORD, from, at);
        if (token != NULL) {
            token->words = word_meaning(scan, token);
        }
        return at;
    }
    if (is_digit(*at) || (*at == '.' && is_digit(at[1]))) {
        /* A preprocessing number, digit separators and signed exponents included. */
        while (is_word_start(*at) || is_digit(*at) || *at == '.' || *at == '\'' ||
               ((*at == '+' || *at == '-') && strchr("eEpP", at[-1]) != NULL)) {
            at++;
        }
        token_add(scan, TOKEN_LITERAL, from, at);
        return at;
    }
    if (*at == '"' || *at == '\'') {
        at = skip_quoted(at);
        token_add(scan, TOKEN_LITERAL, from, at);
        return at;
    }
    bool two = (at[0] == ':' && at[1] == ':') || (at[0] == '-' && at[1] == '>') ||
               (at[0] == '<' && at[1] == '<');
    at += two ? 2 : 1;
    token_add(scan, TOKEN_PUNCTUATOR, from, at);
    return at;
}

/* `#define NAME ... __global__ ...`: NAME stands for __global__ from here on, unless it makes a
 * whole function, whose name could not be told. The tokens of the line start at `first`. */
static void macro_note(struct scan *scan, size_t first) {
    const struct token *tokens = scan->tokens + first;
    size_t count = scan->token_count - first;
    if (count < 3 || tokens[1].kind != TOKEN_WORD) {
        return;
    }
    unsigned words = 0;
    for (size_t i = 2; i < count; i++) {
        words |= tokens[i].words;
        if (token_is(&tokens[i], "{")) {
            return;
        }
    }
    if (words == 0) {
        return;
    }
    if ((scan->macro_count & (scan->macro_count - 1)) == 0) {
        size_t capacity = scan->macro_count ? scan->macro_count * 2 : 1;
        struct macro *grown = realloc(scan->macros, capacity * sizeof *grown);
        if (grown == NULL) {
            scan->failed = true;
            return;
        }
        scan->macros = grown;
    }
    scan->macros[scan->macro_count++] =
        (struct macro){.name = tokens[1].text, .length = tokens[1].length, .words = words};
}

/* The line of a directive, `at` behind its #. Its tokens are dropped again; a conditional leaves
 * one marker. */
static const char *directive_cut(struct scan *scan, const char *at) {
    static const char *const opens[] = {"if", "ifdef", "ifndef", NULL};
    static const char *const turns[] = {"else", "elif", "elifdef", "elifndef", NULL};
    size_t first = scan->token_count;
    while (*at != '\0' && *at != '\n' && !scan->failed) {
        const char *behind = skip_comment(at);
        if (behind != at) {
            at = behind;
        } else if (is_blank(*at)) {
            at++;
        } else {
            at = token_cut(scan, at);
        }
    }
    if (scan->failed || scan->token_count == first) {
        return at;
    }
    struct token name = scan->tokens[first];
    unsigned value = 0;
    if (token_is(&name, "define")) {
        macro_note(scan, first);
    } else if (token_is(&name, "if") && scan->token_count == first + 2) {
        const struct token *condition = &scan->tokens[first + 1];
        value = token_is(condition, "0") ? 1 : token_is(condition, "1") ? 2 : 0;
    }
    scan->token_count = first;
    struct token *marker = NULL;
    if (gpu_source_token_in(&name, opens)) {
        marker = token_add(scan, TOKEN_IF, name.text, name.text + name.length);
    } else if (gpu_source_token_in(&name, turns)) {
        marker = token_add(scan, TOKEN_ELSE, name.text, name.text + name.length);
    } else if (token_is(&name, "endif")) {
        marker = token_add(scan, TOKEN_ENDIF, name.text, name.text + name.length);
    }
    if (marker != NULL) {
        marker->words = value;
    }
    return at;
}

static void tokens_cut(struct scan *scan) {
    const char *at = scan->text;
    bool line_start = true;
    while (*at != '\0' && !scan->failed) {
        const char *behind = skip_comment(at);
        if (behind != at) {
            at = behind;
        } else if (is_blank(*at)) {
            line_start = line_start || *at == '\n';
            at++;
        } else if (*at == '#' && line_start) {
            at = directive_cut(scan, at + 1);
        } else {
            at = token_cut(scan, at);
            line_start = false;
        }
    }
}

/* Takes out what stands under `#if 0`, and under the #else of `#if 1`. */
static void tokens_drop_dead(struct scan *scan) {
    size_t kept = 0, depth = 0, dead_depth = 0; /* dead_depth: depth of the #if that is dead now */
    size_t live_depth = 0;                      /* of the `#if 1` whose #else is to come; or 0 */
    for (size_t i = 0; i < scan->token_count; i++) {
        struct token token = scan->tokens[i];
        bool is_marker = true;
        if (token.kind == TOKEN_IF) {
            depth++;
            if (dead_depth == 0 && token.words == 1) {
                dead_depth = depth;
            } else if (dead_depth == 0 && token.words == 2 && live_depth == 0) {
                live_depth = depth;
            }
        } else if (token.kind == TOKEN_ELSE) {
            if (dead_depth == depth && live_depth != depth) {
                dead_depth = 0;
            } else if (dead_depth == 0 && live_depth == depth && depth > 0) {
                dead_depth = depth;
            }
        } else if (token.kind == TOKEN_ENDIF) {
            dead_depth = dead_depth == depth ? 0 : dead_depth;
            live_depth = live_depth == depth ? 0 : live_depth;
            depth -= depth > 0 ? 1 : 0;
        } else {
            is_marker = false;
        }
        if (is_marker || dead_depth == 0) {
            scan->tokens[kept++] = token;
        }
    }
    scan->token_count = kept;
}

void gpu_source_tokens_cut(struct scan *scan, const char *text) {
    scan->text = splice(text);
    scan->failed = scan->text == NULL;
    if (!scan->failed) {
        tokens_cut(scan);
        tokens_drop_dead(scan);
    }
}

/* ---- walking over brackets ---- */

int gpu_source_bracket_step(const struct token *token) {
    if (token->kind != TOKEN_PUNCTUATOR || token->length != 1) {
        return 0;
    }
    return strchr("([{", token->text[0]) ? 1 : strchr(")]}", token->text[0]) ? -1 : 0;
}

size_t gpu_source_skip_group(const struct scan *scan, size_t at) {
    size_t depth = 0, conditionals = 0;
    size_t depth_at_if[32]; /* deeper conditionals are read as straight text */
    for (; at < scan->token_count; at++) {
        const struct token *token = &scan->tokens[at];
        if (token->kind == TOKEN_IF) {
            if (conditionals < 32) {
                depth_at_if[conditionals] = depth;
            }
            conditionals++;
        } else if (token->kind == TOKEN_ELSE) {
            if (conditionals == 0) {
                return at;
            }
            if (conditionals <= 32) {
                depth = depth_at_if[conditionals - 1];
            }
        } else if (token->kind == TOKEN_ENDIF) {
            conditionals -= conditionals > 0 ? 1 : 0;
        } else {
            int step = gpu_source_bracket_step(token);
            depth += step > 0 ? 1 : 0;
            if (step < 0 && --depth == 0) {
                return at + 1;
            }
        }
    }
    return at;
}

size_t gpu_source_skip_angles(const struct scan *scan, size_t at, size_t end) {
    end = end - at > 1024 ? at + 1024 : end;
    size_t depth = 0;
    for (size_t i = at; i < end;) {
        if (is_punctuator(scan, i, "(") || is_punctuator(scan, i, "[") ||
            is_punctuator(scan, i, "{")) {
            i = gpu_source_skip_group(scan, i);
            continue;
        }
        if (is_punctuator(scan, i, ";") || gpu_source_bracket_step(&scan->tokens[i]) < 0) {
            break;
        }
        if (is_punctuator(scan, i, "<")) {
            depth++;
        } else if (is_punctuator(scan, i, ">") && --depth == 0) {
            return i + 1;
        }
        i++;
    }
    return at + 1;
}
