/* nvrtc_check [FILE...]: compiles CUDA C with NVRTC for compute capability 9.0 and prints what each
 * source defines; without a file, or for "-", standard input. Lines "// compile: OPTION" in a
 * source are compile options ("// compile: name f<float>"). Fails when one does not compile; exit
 * status 77 when there is no NVRTC. */
#include <errno.h>
#include <stdlib.h>

#include "backend/cuda/check.h"
#include "tap.h"

static char *read_all(FILE *file) {
    size_t used = 0, capacity = 1 << 16;
    char *text = malloc(capacity);
    while (text != NULL) {
        size_t got = fread(text + used, 1, capacity - 1 - used, file);
        used += got;
        if (got == 0) {
            text[used] = '\0';
            return text;
        }
        if (capacity - 1 == used) {
            capacity *= 2;
            char *grown = realloc(text, capacity);
            if (grown == NULL) {
                free(text);
            }
            text = grown;
        }
    }
    return NULL;
}

/* The options that the text itself asks for. */
static char *options_of(const char *text) {
    static const char mark[] = "// compile: ";
    char *options = calloc(1, strlen(text) + 2);
    size_t used = 0;
    for (const char *at = strstr(text, mark); options != NULL && at != NULL;
         at = strstr(at, mark)) {
        at += sizeof mark - 1;
        size_t length = strcspn(at, "\n");
        memcpy(options + used, at, length);
        used += length;
        options[used++] = '\n';
    }
    return options;
}

static gpulua_status check_one(struct tap *tap, const char *path) {
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(path, "r");
    char *text = file != NULL ? read_all(file) : NULL;
    if (text == NULL) {
        printf("# %s: %s\n", path, strerror(errno));
        tap_check(tap, false, path);
        return GPULUA_IO;
    }
    char *entered = NULL; /* as the executor hands it to compilers */
    if (gpu_backend_source_enter(text, &entered) == GPULUA_OK && entered != NULL) {
        free(text);
        text = entered;
    }
    char *options = options_of(text), *description = NULL;
    struct backend_error error = {0};
    gpulua_status status =
        gpu_cuda_compile_check(is_stdin ? "stdin" : path, text, options != NULL ? options : "",
                               NULL, &description, &error);
    if (status == GPULUA_OK) {
        fputs(description, stdout);
    } else {
        printf("# %s\n%s", error.message, error.log != NULL ? error.log : "");
    }
    if (status == GPULUA_LIBRARY_UNAVAILABLE) {
        tap_skip(tap, path, "no NVRTC");
    } else {
        tap_check(tap, status == GPULUA_OK, path);
    }
    free(error.log);
    free(description);
    free(options);
    free(text);
    if (!is_stdin) {
        fclose(file);
    }
    return status;
}

int main(int argc, char **argv) {
    struct tap tap = {0};
    bool missing = false;
    for (int i = 1; i < argc || i == 1; i++) {
        missing = check_one(&tap, argc > 1 ? argv[i] : "-") == GPULUA_LIBRARY_UNAVAILABLE;
    }
    int result = tap_finish(&tap);
    return missing && result == 0 ? 77 : result;
}
