/* Preprocessed C++ cut into tokens (see tokens.h). */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/character.h"
#include "backend/cpu/tokens.h"

bool gpu_cpu_token_is(const struct cpu_token *token, const char *text) {
    return token->length == strlen(text) && memcmp(token->text, text, token->length) == 0;
}

/* Room for one more in an owned array that grows by doubling. */
static bool array_grow(void **array, size_t count, size_t item_bytes) {
    if (count != 0 && (count & (count - 1)) != 0) {
        return true;
    }
    void *grown = realloc(*array, (count == 0 ? 1 : 2 * count) * item_bytes);
    if (grown == NULL) {
        return false;
    }
    *array = grown;
    return true;
}

static char *copy_of(const char *text, size_t length) {
    char *copy = malloc(length + 1);
    if (copy != NULL) {
        memcpy(copy, text, length);
        copy[length] = '\0';
    }
    return copy;
}

/* ---- words ---- */

static size_t word_hash(const char *text, size_t length) {
    uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a */
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ (unsigned char)text[i]) * UINT64_C(1099511628211);
    }
    return (size_t)(hash ^ hash >> 29);
}

static bool words_rehash(struct cpu_tokens *tokens) {
    size_t size = tokens->word_table_size == 0 ? 1024 : 4 * tokens->word_table_size;
    unsigned *table = calloc(size, sizeof *table);
    if (table == NULL) {
        return false;
    }
    for (size_t i = 0; i < tokens->word_count; i++) {
        size_t at = word_hash(tokens->words[i], strlen(tokens->words[i])) & (size - 1);
        while (table[at] != 0) {
            at = (at + 1) & (size - 1);
        }
        table[at] = (unsigned)i + 1;
    }
    free(tokens->word_table);
    tokens->word_table = table;
    tokens->word_table_size = size;
    return true;
}

static unsigned word_number(struct cpu_tokens *tokens, const char *text, size_t length) {
    if (2 * tokens->word_count >= tokens->word_table_size && !words_rehash(tokens)) {
        tokens->failed = true;
        return 0;
    }
    size_t at = word_hash(text, length) & (tokens->word_table_size - 1);
    for (; tokens->word_table[at] != 0; at = (at + 1) & (tokens->word_table_size - 1)) {
        const char *word = tokens->words[tokens->word_table[at] - 1];
        if (strncmp(word, text, length) == 0 && word[length] == '\0') {
            return tokens->word_table[at];
        }
    }
    void *words = tokens->words;
    char *word = copy_of(text, length);
    if (word == NULL || !array_grow(&words, tokens->word_count, sizeof *tokens->words)) {
        free(word);
        tokens->failed = true;
        return 0;
    }
    tokens->words = words;
    tokens->words[tokens->word_count++] = word;
    tokens->word_table[at] = (unsigned)tokens->word_count;
    return (unsigned)tokens->word_count;
}

unsigned gpu_cpu_tokens_word(struct cpu_tokens *tokens, const char *word) {
    return word_number(tokens, word, strlen(word));
}

/* ---- cutting ---- */

struct cutter {
    struct cpu_tokens *tokens;
    const char *foreign_prefix;
    unsigned line, file;
    bool is_foreign;
};

static const char *skip_quoted(const char *at) {
    char quote = *at++;
    while (*at != '\0' && *at != quote && *at != '\n') {
        at += *at == '\\' && at[1] != '\0' ? 2 : 1;
    }
    return *at == quote ? at + 1 : at;
}

/* R"delimiter( ... )delimiter", `at` at the quote. */
static const char *skip_raw(const char *at) {
    const char *open = strchr(at, '(');
    if (open == NULL || open - at > 17) {
        return skip_quoted(at);
    }
    size_t length = (size_t)(open - at - 1);
    for (const char *end = strchr(open, ')'); end != NULL; end = strchr(end + 1, ')')) {
        if (strncmp(end + 1, at + 1, length) == 0 && end[1 + length] == '"') {
            return end + length + 2;
        }
    }
    return at + strlen(at);
}

static const char *skip_number(const char *at) {
    while (is_digit(*at) || is_word_start(*at) || *at == '.' || (*at == '\'' && at[1] != '\'') ||
           ((*at == '+' || *at == '-') && strchr("eEpP", at[-1]) != NULL)) {
        at++;
    }
    return at;
}

static size_t sign_length(const char *at) {
    static const char *const signs[] = {"<<=", "...", "->*", "<<<", "::", "->", "++", "--",
                                        "<<",  "<=",  ">=",  "==",  "!=", "&&", "||", "+=",
                                        "-=",  "*=",  "/=",  "%=",  "&=", "|=", "^=", ".*"};
    /* >> and >>= may close templates and are left in pieces: joined text is the same again. */
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        if (strncmp(at, signs[i], strlen(signs[i])) == 0) {
            return strlen(signs[i]);
        }
    }
    return 1;
}

/* # 12 "file" 1 3, or #line 12 "file": what follows is of that line and file. */
static void marker_read(struct cutter *cutter, const char *text) {
    struct cpu_tokens *tokens = cutter->tokens;
    const char *at = text + 1;
    while (*at == ' ' || *at == '\t') {
        at++;
    }
    if (strncmp(at, "line", 4) == 0) {
        at += 4;
    }
    char *end;
    unsigned long line = strtoul(at, &end, 10);
    if (end == at) {
        return;
    }
    cutter->line = (unsigned)line - 1; /* it says what the line behind it is */
    const char *open = strpbrk(end, "\"\n");
    if (open == NULL || *open != '"') {
        return;
    }
    const char *close = skip_quoted(open);
    size_t length = (size_t)(close - open) - 2;
    void *files = tokens->files;
    char *name = copy_of(open + 1, length);
    if (name == NULL || !array_grow(&files, tokens->file_count, sizeof *tokens->files)) {
        free(name);
        tokens->failed = true;
        return;
    }
    tokens->files = files;
    tokens->files[tokens->file_count++] = name;
    cutter->file = (unsigned)tokens->file_count - 1;
    cutter->is_foreign = strncmp(name, cutter->foreign_prefix, strlen(cutter->foreign_prefix)) == 0;
}

static const char *token_end(const char *at, enum cpu_token_kind *kind, bool is_line_start) {
    if (*at == '#' && is_line_start) {
        *kind = CPU_TOKEN_DIRECTIVE;
        return at + strcspn(at, "\n");
    }
    if (is_word_start(*at)) {
        const char *end = at;
        while (is_word_start(*end) || is_digit(*end)) {
            end++;
        }
        if (*end == '"' || *end == '\'') {
            size_t length = (size_t)(end - at);
            bool is_raw = *end == '"' && end[-1] == 'R' && length <= 3;
            bool is_prefix = (length == 1 && strchr("uULR", *at) != NULL) ||
                             (length <= 3 && (is_raw || strncmp(at, "u8", 2) == 0));
            if (is_prefix) {
                *kind = CPU_TOKEN_STRING;
                return is_raw ? skip_raw(end) : skip_quoted(end);
            }
        }
        *kind = CPU_TOKEN_WORD;
        return end;
    }
    if (is_digit(*at) || (*at == '.' && is_digit(at[1]))) {
        *kind = CPU_TOKEN_NUMBER;
        return skip_number(at + 1);
    }
    if (*at == '"' || *at == '\'') {
        *kind = CPU_TOKEN_STRING;
        return skip_quoted(at);
    }
    *kind = CPU_TOKEN_SIGN;
    return at + sign_length(at);
}

static struct cpu_token *token_add(struct cpu_tokens *tokens) {
    void *items = tokens->items;
    if (!array_grow(&items, tokens->count, sizeof *tokens->items)) {
        tokens->failed = true;
        return NULL;
    }
    tokens->items = items;
    struct cpu_token *token = &tokens->items[tokens->count];
    memset(token, 0, sizeof *token);
    return token;
}

static void tokens_cut(struct cutter *cutter, const char *text) {
    struct cpu_tokens *tokens = cutter->tokens;
    const char *at = text;
    bool is_line_start = true;
    while (!tokens->failed) {
        const char *start = at;
        while (is_blank(*at)) {
            if (*at == '\n') {
                is_line_start = true;
                cutter->line++;
            }
            at++;
        }
        struct cpu_token *token = token_add(tokens);
        if (token == NULL) {
            return;
        }
        token->text = at;
        token->blank_bytes = (size_t)(at - start);
        token->line = cutter->line;
        token->file = cutter->file;
        token->is_foreign = cutter->is_foreign;
        if (*at == '\0') {
            token->kind = CPU_TOKEN_END;
            return;
        }
        at = token_end(at, &token->kind, is_line_start);
        token->length = (size_t)(at - token->text);
        is_line_start = false;
        tokens->count++;
        if (token->kind == CPU_TOKEN_DIRECTIVE) {
            marker_read(cutter, token->text);
        } else if (token->kind == CPU_TOKEN_WORD) {
            unsigned word = word_number(tokens, token->text, token->length);
            tokens->items[tokens->count - 1].word = word;
        }
        for (const char *c = tokens->items[tokens->count - 1].text; c < at; c++) {
            cutter->line += *c == '\n'; /* raw strings */
        }
    }
}

/* Lists the user's code and finds the partners of brackets. */
static void tokens_pair(struct cpu_tokens *tokens) {
    tokens->code = malloc((tokens->count + 1) * sizeof *tokens->code);
    size_t *open = malloc((tokens->count + 1) * sizeof *open);
    size_t depth = 0;
    if (tokens->code == NULL || open == NULL) {
        tokens->failed = true;
        free(open);
        return;
    }
    for (size_t i = 0; i < tokens->count; i++) {
        struct cpu_token *token = &tokens->items[i];
        if (token->is_foreign || token->kind == CPU_TOKEN_DIRECTIVE) {
            continue;
        }
        size_t here = tokens->code_count++;
        tokens->code[here] = i;
        if (token->kind != CPU_TOKEN_SIGN || token->length != 1) {
            continue;
        }
        char c = *token->text;
        if (c == '(' || c == '[' || c == '{') {
            open[depth++] = here;
        } else if (c != ')' && c != ']' && c != '}') {
            continue;
        } else if (depth == 0) {
            tokens->is_unbalanced = true;
        } else {
            size_t other = open[--depth];
            token->partner = other;
            tokens->items[tokens->code[other]].partner = here;
        }
    }
    tokens->is_unbalanced = tokens->is_unbalanced || depth > 0;
    tokens->code[tokens->code_count] = tokens->count;
    free(open);
}

bool gpu_cpu_tokens_cut(struct cpu_tokens *tokens, const char *text, const char *foreign_prefix) {
    memset(tokens, 0, sizeof *tokens);
    struct cutter cutter = {.tokens = tokens, .foreign_prefix = foreign_prefix, .line = 1};
    void *files = NULL;
    char *nameless = copy_of("", 0);
    if (nameless == NULL || !array_grow(&files, 0, sizeof *tokens->files)) {
        free(nameless);
        return false;
    }
    tokens->files = files;
    tokens->files[tokens->file_count++] = nameless;
    tokens_cut(&cutter, text);
    if (!tokens->failed) {
        tokens_pair(tokens);
    }
    return !tokens->failed;
}

void gpu_cpu_tokens_free(struct cpu_tokens *tokens) {
    for (size_t i = 0; i < tokens->file_count; i++) {
        free(tokens->files[i]);
    }
    for (size_t i = 0; i < tokens->word_count; i++) {
        free(tokens->words[i]);
    }
    for (size_t i = 0; i < tokens->note_count; i++) {
        free(tokens->notes[i]);
    }
    free(tokens->files);
    free(tokens->words);
    free(tokens->word_table);
    free(tokens->notes);
    free(tokens->code);
    free(tokens->items);
    memset(tokens, 0, sizeof *tokens);
}

/* ---- putting together ---- */

const char *gpu_cpu_tokens_note(struct cpu_tokens *tokens, const char *format, ...) {
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    void *notes = tokens->notes;
    if (length < 0 || !array_grow(&notes, tokens->note_count, sizeof *tokens->notes)) {
        if (length >= 0) {
            free(text);
        }
        tokens->failed = true;
        return "";
    }
    tokens->notes = notes;
    tokens->notes[tokens->note_count++] = text;
    return text;
}

static size_t put(char *out, const char *text, size_t length) {
    if (out != NULL) {
        memcpy(out, text, length);
    }
    return length;
}

static size_t put_blank(char *out, const struct cpu_token *token, bool is_flat) {
    if (is_flat) {
        return token->blank_bytes > 0 ? put(out, " ", 1) : 0;
    }
    return put(out, token->text - token->blank_bytes, token->blank_bytes);
}

/* One walk to measure (out NULL), one to write. */
static size_t text_write(const struct cpu_tokens *tokens, size_t from, size_t to, bool is_flat,
                         bool changed, char *out) {
    size_t used = 0;
#define AT (out != NULL ? out + used : NULL)
    for (size_t i = from; i < to; i++) {
        const struct cpu_token *token = &tokens->items[i];
        if (is_flat && (token->kind == CPU_TOKEN_DIRECTIVE || token->is_foreign)) {
            continue;
        }
        used += put_blank(AT, token, is_flat);
        if (changed && token->before != NULL) {
            used += put(AT, token->before, strlen(token->before));
        }
        if (changed && token->replaced != NULL) {
            used += put(AT, token->replaced, strlen(token->replaced));
        } else {
            used += put(AT, token->text, token->length);
        }
        if (changed && token->behind != NULL) {
            used += put(AT, token->behind, strlen(token->behind));
        }
    }
#undef AT
    return used;
}

char *gpu_cpu_tokens_text(const struct cpu_tokens *tokens, size_t from, size_t to, bool is_flat,
                          bool changed) {
    size_t length = text_write(tokens, from, to, is_flat, changed, NULL);
    char *text = malloc(length + 2);
    if (text != NULL) {
        text_write(tokens, from, to, is_flat, changed, text);
        text[length] = '\0';
    }
    return text;
}
