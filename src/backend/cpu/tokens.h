/* Preprocessed C++ cut into tokens, and put together again with changes.
 *
 * Nothing is lost: the text between tokens belongs to the token behind it, and directives (line
 * markers, pragmas) are tokens of their own. A change replaces a token or puts text before or
 * behind it; it never adds a line, so that messages keep their lines. */
#ifndef GPU_CPU_TOKENS_H
#define GPU_CPU_TOKENS_H

#include <stdbool.h>
#include <stddef.h>

enum cpu_token_kind {
    CPU_TOKEN_WORD,
    CPU_TOKEN_NUMBER,
    CPU_TOKEN_STRING, /* and characters */
    CPU_TOKEN_SIGN,   /* operators and brackets, the longest that C++ has, but > alone */
    CPU_TOKEN_DIRECTIVE,
    CPU_TOKEN_END
};

struct cpu_token {
    const char *text; /* borrowed from the source */
    size_t length;
    size_t blank_bytes;   /* of white space before it */
    const char *replaced; /* NULL: as it is. Owned by cpu_tokens.notes, as the next two */
    const char *before;   /* or NULL */
    const char *behind;   /* or NULL */
    unsigned word;        /* number of the word, alike for alike words; 0 for other tokens */
    unsigned line;        /* in the user's file */
    unsigned file;        /* index into cpu_tokens.files */
    size_t partner;       /* of a bracket: the other one; 0: none */
    enum cpu_token_kind kind;
    bool is_foreign; /* from a header of the shim: left alone */
};

struct cpu_tokens {
    struct cpu_token *items; /* owned; ends with a CPU_TOKEN_END. The foreign and the directives are
                                in it too */
    size_t count;            /* without the end */
    size_t *code; /* owned; indices of the tokens that are the user's code, then `count` */
    size_t code_count;
    char **files; /* owned, with their strings: names as in the line markers */
    size_t file_count;
    char **words; /* owned; words[word - 1] */
    size_t word_count;
    unsigned *word_table; /* owned; hash table of word numbers */
    size_t word_table_size;
    char **notes; /* owned: texts of changes */
    size_t note_count;
    bool is_unbalanced; /* a bracket has no partner */
    bool failed;        /* no memory: the rest is unreliable */
};

/* `foreign_prefix`: files that begin with it are the shim's. False: no memory. */
bool gpu_cpu_tokens_cut(struct cpu_tokens *tokens, const char *text, const char *foreign_prefix);
void gpu_cpu_tokens_free(struct cpu_tokens *tokens);

/* The number of a word, which need not occur. */
unsigned gpu_cpu_tokens_word(struct cpu_tokens *tokens, const char *word);

bool gpu_cpu_token_is(const struct cpu_token *token, const char *text);

/* printf into memory that lives as long as the tokens. "" when there is no memory. */
const char *gpu_cpu_tokens_note(struct cpu_tokens *tokens, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The text of items [from, to), malloc'ed; `changed`: with changes; `is_flat`: user's code only, on
 * one line. NULL: no memory. */
char *gpu_cpu_tokens_text(const struct cpu_tokens *tokens, size_t from, size_t to, bool is_flat,
                          bool changed);

#endif
