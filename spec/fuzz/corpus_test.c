/* Every target over its corpus: what fuzzing has found stays found, and what it has reached stays
 * well, where there is no libFuzzer, too. An input that does harm ends the program. */
#include <dirent.h>

#define FUZZ_CORPUS
#include "backend/tap.h"
#include "fuzz/calls.c"
#include "fuzz/dlpack.c"
#include "fuzz/image.c"
#include "fuzz/npy.c"
#include "fuzz/npz.c"
#include "fuzz/records.c"
#include "fuzz/replies.c"
#include "fuzz/signature.c"
#include "fuzz/structure.c"
#include "fuzz/wav.c"

#if defined(__SANITIZE_THREAD__)
#define IS_THREAD_SANITIZED 1
#else
#define IS_THREAD_SANITIZED 0
#endif
#define FUZZ_INPUT_BYTES_MAX (1u << 20)

static struct tap tap;

static void run_file(int (*target)(const uint8_t *, size_t), const char *path) {
    static uint8_t whole[FUZZ_INPUT_BYTES_MAX];
    FILE *file = fopen(path, "rb");
    size_t byte_count = file != NULL ? fread(whole, 1, sizeof whole, file) : 0;
    bool is_read = file != NULL && byte_count < sizeof whole;
    printf("# %s\n", path); /* the last line, where it does harm */
    fflush(stdout);
    if (file != NULL) {
        fclose(file);
    }
    if (is_read) {
        /* Its end is known to sanitizers. */
        uint8_t *bytes = malloc(byte_count + (byte_count == 0));
        memcpy(bytes, whole, byte_count);
        (void)target(bytes, byte_count);
        free(bytes);
    }
    tap_check(&tap, is_read, path);
}

static void run_corpus(const char *name, int (*target)(const uint8_t *, size_t)) {
    char path[512];
    struct dirent **entries = NULL;
    int found = 0;
    snprintf(path, sizeof path, "spec/fuzz/corpus/%s", name);
    int count = scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] != '.') {
            snprintf(path, sizeof path, "spec/fuzz/corpus/%s/%s", name, entries[i]->d_name);
            run_file(target, path);
            found++;
        }
        free(entries[i]);
    }
    free(entries);
    tap_check(&tap, found > 0, name);
}

int main(void) {
    run_corpus("signature", fuzz_signature);
    run_corpus("structure", fuzz_structure);
    if (IS_THREAD_SANITIZED) {
        tap_skip(&tap, "records", "work that nothing orders races, as they ask for");
    } else {
        run_corpus("records", fuzz_records);
    }
    run_corpus("replies", fuzz_replies);
    run_corpus("npy", fuzz_npy);
    run_corpus("npz", fuzz_npz);
    run_corpus("wav", fuzz_wav);
    run_corpus("image", fuzz_image);
    run_corpus("dlpack", fuzz_dlpack);
    run_corpus("calls", fuzz_calls);
    return tap_finish(&tap);
}
