/* CUDA C to a shared object, with the machine's C++ compiler.
 *
 *   1. The compiler preprocesses the source; only the shim's headers and the user's are in reach,
 *      as with NVRTC.
 *   2. rewrite.c changes what C++ does not know, and lists kernels and variables.
 *   3. Behind the text comes a table of them, made of templates: so their types are the compiler's
 *      word, not ours. The compiler makes a shared object of all, behind the precompiled shim.
 *   4. The object is loaded once to read the table, which becomes the description.
 *   Where the compiler refuses 3, it reads the source once more as it was written, and what it says
 *   of that is the log (messages.h).
 *
 * The shim's headers (src/backend/cpu/shim/) are embedded in the library (shim.h) and written to a
 * folder of the cache, named by their content. Integer arithmetic is as in C++, floating point as
 * on the GPU: IEEE, with products fused into sums. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/job.h"
#include "backend/cpu/messages.h"
#include "backend/file.h"

#define CACHE_SUFFIX "cpu"
#define FINDING_TEXT_BYTES (4u << 20)

gpulua_status gpu_cpu_out_of_memory(struct job *job) {
    return gpu_backend_fail(job->error, GPULUA_OUT_OF_MEMORY, 0, "no memory for compiling '%.256s'",
                            job->source->name);
}

/* Takes the log. */
static char *header_note_add(char *log) {
    if (log == NULL || (strstr(log, ": No such file or directory") == NULL && /* gcc */
                        strstr(log, "' file not found") == NULL /* clang */)) {
        return log;
    }
    struct text text = {0};
    gpu_text_format(
        &text,
        "%s%snote: headers of the C++ library, CUB, cuRAND and their kin are not on the CPU "
        "device (docs/limits.md); folders with your own go into `include`\n",
        log, log[0] != '\0' && log[strlen(log) - 1] != '\n' ? "\n" : "");
    free(log);
    return gpu_text_take(&text);
}

gpulua_status gpu_cpu_compile_failed(struct job *job, char *log) {
    log = header_note_add(log);
    if (log == NULL) {
        return gpu_cpu_out_of_memory(job);
    }
    size_t length;
    const char *line = gpu_cpu_messages_first(log, &length);
    gpu_backend_fail(job->error, GPULUA_COMPILE_FAILED, 0, "%.*s", (int)length, line);
    if (job->error != NULL) {
        job->error->log = log;
    } else {
        free(log);
    }
    return GPULUA_COMPILE_FAILED;
}

static void key_make(struct job *job, const char *preprocessed, struct gpu_cache_key *key) {
    char digest[17], processor[8192];
    struct text flags = {0};
    gpu_cpu_flags_add(job, &flags);
    gpu_cpu_shim_digest(digest);
    gpu_cpu_processor_identity(processor, sizeof processor);
    const char *const parts[] = {job->source->name,
                                 job->source->text,
                                 job->source->options,
                                 job->compiler.identity,
                                 processor,
                                 digest,
                                 preprocessed != NULL ? preprocessed : "",
                                 gpu_text_get(&flags)};
    const void *bytes[8];
    size_t lengths[8];
    for (size_t i = 0; i < 8; i++) {
        bytes[i] = parts[i] != NULL ? parts[i] : "";
        lengths[i] = strlen(bytes[i]);
    }
    gpu_cache_key_init(key, bytes, lengths, 8);
    gpu_text_finish(&flags);
}

static bool cached(const struct job *job, const char *cache_path, const struct gpu_cache_key *key,
                   void **image, size_t *image_bytes, char **description) {
    const char *text;
    const void *code;
    size_t code_bytes;
    if (!gpu_cache_get(cache_path, key, CACHE_SUFFIX, image, image_bytes)) {
        return false;
    }
    if (gpu_cpu_image_open(*image, *image_bytes, &text, &code, &code_bytes)) {
        *description = strdup(text);
        if (*description != NULL) {
            if (job->source->outcome != NULL) {
                job->source->outcome->was_cached = true;
            }
            return true;
        }
    }
    free(*image);
    return false;
}

/* What a GPU's linker refuses is refused here. */
static gpulua_status shared_bytes_check(struct job *job, const void *code, size_t code_bytes,
                                        const struct cpu_module_table *table) {
    for (uint32_t i = 0; i < table->kernel_count; i++) {
        const char *name = table->kernels[i].name;
        uint32_t bytes = gpu_cpu_code_shared_bytes(code, code_bytes, name);
        if (bytes > CPU_SHARED_STATIC_BYTES_MAX) {
            struct text log = {0};
            gpu_text_format(&log,
                            "%s: error: kernel '%s' has %u bytes of static shared memory, allowed "
                            "are %u; use extern __shared__ for more\n",
                            job->source->name, name, bytes, CPU_SHARED_STATIC_BYTES_MAX);
            return gpu_cpu_compile_failed(job, gpu_text_take(&log));
        }
    }
    return GPULUA_OK;
}

/* Loads code for its table, which runs what it has of initialisation. */
static gpulua_status describe(struct job *job, const void *code, size_t code_bytes,
                              struct text *text) {
    struct cpu_module module;
    gpulua_status status = gpu_cpu_code_open(code, code_bytes, &module, job->error);
    if (status == GPULUA_OK) {
        gpu_cpu_describe(job, module.table, text);
        status = shared_bytes_check(job, code, code_bytes, module.table);
        gpu_cpu_code_close(&module);
    }
    return status;
}

/* What another process has found, in memory that both have. */
struct finding {
    gpulua_status status;
    char message[sizeof((struct backend_error *)0)->message];
    bool is_whole, has_log; /* the text is one */
    uint32_t length;
    char text[FINDING_TEXT_BYTES];
};
struct question {
    struct job *job;
    const void *code;
    size_t code_bytes;
    struct finding *finding;
};

static void describe_there(void *user) {
    const struct question *question = user;
    struct job *job = question->job;
    struct finding *finding = question->finding;
    struct text text = {0};
    finding->status = describe(job, question->code, question->code_bytes, &text);
    memcpy(finding->message, job->error->message, sizeof finding->message);
    finding->has_log = job->error->log != NULL;
    const char *found = finding->has_log ? job->error->log : gpu_text_get(&text);
    size_t length = strlen(found);
    if (length < sizeof finding->text && !text.failed) {
        memcpy(finding->text, found, length);
        finding->length = (uint32_t)length;
        finding->is_whole = true;
    }
}

/* describe(), where the code can do no harm. */
static gpulua_status describe_apart(struct job *job, const void *code, size_t code_bytes,
                                    struct text *text) {
    struct finding *finding =
        mmap(NULL, sizeof *finding, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (finding == MAP_FAILED) {
        return gpu_cpu_out_of_memory(job);
    }
    struct question question = {job, code, code_bytes, finding};
    bool is_good = job->source->apart(describe_there, &question) && finding->is_whole;
    /* Whatever ran there wrote it. */
    gpulua_status status = finding->status != GPULUA_OK ? GPULUA_COMPILE_FAILED : GPULUA_OK;
    uint32_t length = finding->length;
    if (!is_good || length >= sizeof finding->text) {
        status = gpu_backend_fail(job->error, GPULUA_COMPILE_FAILED, 0,
                                  "'%.256s' cannot be loaded: what it does at that, before any "
                                  "kernel of it, fails or is not allowed",
                                  job->source->name);
    } else if (status == GPULUA_OK) {
        gpu_text_format(text, "%.*s", (int)length, finding->text);
    } else {
        finding->message[sizeof finding->message - 1] = '\0';
        gpu_backend_fail(job->error, status, 0, "%s", finding->message);
        job->error->log = finding->has_log ? strndup(finding->text, length) : NULL;
    }
    munmap(finding, sizeof *finding);
    return status;
}

/* Code, loaded once for its table, to an image and its description. */
static gpulua_status image_make(struct job *job, const void *code, size_t code_bytes, void **image,
                                size_t *image_bytes, char **description) {
    struct text text = {0};
    gpulua_status status = job->source->apart != NULL ? describe_apart(job, code, code_bytes, &text)
                                                      : describe(job, code, code_bytes, &text);
    if (status != GPULUA_OK) {
        free(text.bytes);
        return status;
    }
    if (text.failed ||
        !gpu_cpu_image_make(gpu_text_get(&text), code, code_bytes, image, image_bytes)) {
        free(text.bytes);
        return gpu_cpu_out_of_memory(job);
    }
    *description = gpu_text_take(&text);
    return *description != NULL ? GPULUA_OK : gpu_cpu_out_of_memory(job);
}

static gpulua_status code_keep(const struct job *job, const struct text *text, const void *code,
                               size_t code_bytes) {
    const char *prefix = job->source->keep;
    gpulua_status status = gpu_backend_keep(prefix, ".cpp", text->bytes, text->length, job->error);
    return status ? status : gpu_backend_keep(prefix, ".so", code, code_bytes, job->error);
}

static gpulua_status nothing_found(struct job *job) {
    bool has_template = false, has_kernel = false; /* of several of one name, then */
    for (size_t i = 0; i < job->rewritten.kernel_count; i++) {
        const struct cpu_source_kernel *kernel = &job->rewritten.kernels[i];
        has_template = has_template || kernel->is_template;
        has_kernel = has_kernel || (kernel->is_definition && !kernel->is_template);
    }
    return gpu_backend_fail(
        job->error, GPULUA_INVALID_ARGUMENT, 0,
        "'%.256s' defines no kernel (a function that is __global__) and no variable in device "
        "memory%s%s",
        job->source->name,
        has_template ? ": of a template, name the instances that you want (\"f<float>\")" : "",
        has_kernel ? ": of several of one name, name the ones that you want (\"(void (*)(float "
                     "*))f\")"
                   : "");
}

struct made {
    struct text text; /* owned, as the next one */
    void *code;
    size_t code_bytes;
    size_t kernel_count;
    char *log; /* owned: of a compiler that failed */
};

/* Preprocessed text to a shared object. */
static gpulua_status code_make(struct job *job, const char *preprocessed, bool divides_plainly,
                               struct made *made) {
    char prefix[CPU_PATH_BYTES + 1];
    snprintf(prefix, sizeof prefix, "%s/", job->shim_folder);
    const struct cpu_rewrite_info info = {preprocessed, prefix, job->compiler.is_clang,
                                          job->is_device_default, divides_plainly};
    *made = (struct made){.code = NULL};
    gpulua_status status = gpu_cpu_source_rewrite(&info, &job->rewritten);
    if (status != GPULUA_OK) {
        return gpu_cpu_out_of_memory(job);
    }
    if (job->rewritten.refusals != NULL) {
        const char *refusals = job->rewritten.refusals;
        return gpu_cpu_compile_failed(job, job->rewritten.is_unbalanced
                                               ? gpu_cpu_log_choose(job, refusals)
                                               : strdup(refusals));
    }
    gpu_text_format(&made->text, "%s", job->rewritten.text);
    made->kernel_count = gpu_cpu_table_add(job, &made->text);
    return made->text.failed
               ? gpu_cpu_out_of_memory(job)
               : gpu_cpu_compile_text(job, &made->text, &made->code, &made->code_bytes, &made->log);
}

/* Operators of the source's own may leave no way to the shim's, nor do bit-fields and packed
 * members (gcc: "cannot bind bit-field 's.S::b' to 'int&'"). */
static bool guards_divisions_in_vain(const char *log) {
    return strstr(log, "gpulua_divi") != NULL || strstr(log, "cannot bind ") != NULL;
}

static void made_finish(struct made *made) {
    free(made->text.bytes);
    free(made->code);
    free(made->log);
}

/* Preprocessed text to an image. */
static gpulua_status build(struct job *job, const char *preprocessed, void **image,
                           size_t *image_bytes, char **description) {
    struct made made;
    gpulua_status status = code_make(job, preprocessed, false, &made);
    if (made.log != NULL && guards_divisions_in_vain(made.log)) {
        made_finish(&made);
        gpu_cpu_source_free(&job->rewritten);
        status = code_make(job, preprocessed, true, &made);
    }
    if (made.log != NULL) {
        status = gpu_cpu_compile_failed(job, gpu_cpu_log_choose(job, made.log));
    }
    if (status == GPULUA_OK && made.kernel_count == 0 && job->rewritten.global_count == 0) {
        status = nothing_found(job);
    }
    if (status == GPULUA_OK && job->source->keep != NULL) {
        status = code_keep(job, &made.text, made.code, made.code_bytes);
    }
    if (status == GPULUA_OK) {
        status = image_make(job, made.code, made.code_bytes, image, image_bytes, description);
    }
    made_finish(&made);
    return status;
}

/* With the shim in it. */
static gpulua_status folder_prepare(struct job *job, struct backend_error *error) {
    return gpu_cpu_shim_folder(job->folder, job->shim_folder, sizeof job->shim_folder,
                               &job->shim_hold, error);
}

/* What compilers read and write is in the cache, or, where that takes nothing, in a folder that
 * this job alone has. */
static gpulua_status folder_find(struct job *job, const char *cache_path) {
    struct backend_error why;
    gpu_backend_error_init(&why);
    if (!gpu_cache_folder(cache_path, job->folder, sizeof job->folder)) {
        gpu_cache_folder_why(cache_path, why.message, sizeof why.message);
    } else if (!gpu_cache_has_room(job->folder)) {
        gpu_backend_fail(&why, GPULUA_IO, errno, "'%.512s': %s", job->folder, strerror(errno));
    } else if (folder_prepare(job, &why) == GPULUA_OK) {
        return GPULUA_OK;
    }
    const char *base = getenv("TMPDIR");
    snprintf(job->folder, sizeof job->folder, "%s/gpulua-XXXXXX",
             base != NULL && base[0] == '/' ? base : "/tmp");
    job->has_own_folder = mkdtemp(job->folder) != NULL;
    if (!job->has_own_folder) {
        return gpu_backend_fail(job->error, GPULUA_IO, errno,
                                "compilers need a folder: %s; '%.512s': %s", why.message,
                                job->folder, strerror(errno));
    }
    return folder_prepare(job, job->error);
}

static gpulua_status job_run(struct job *job, const char *cache_path, void **image,
                             size_t *image_bytes, char **description) {
    struct gpu_cache_key key;
    gpulua_status status = gpu_cpu_options_read(job);
    status = status ? status : gpu_cpu_compiler_find(&job->compiler, job->error);
    if (status != GPULUA_OK) {
        return status;
    }
    /* What is included is part of the key, so then the cache is asked behind the preprocessor. */
    key_make(job, NULL, &key);
    bool can_take = job->source->keep == NULL;
    if (can_take && !job->reads_files &&
        cached(job, cache_path, &key, image, image_bytes, description)) {
        return GPULUA_OK;
    }
    char *preprocessed = NULL;
    status = gpu_cpu_compiler_ask(&job->compiler, job->error);
    status = status ? status : folder_find(job, cache_path);
    status = status ? status : gpu_cpu_preprocess(job, &preprocessed);
    if (status != GPULUA_OK) {
        return status;
    }
    if (job->reads_files) {
        key_make(job, preprocessed, &key);
    }
    bool is_new = !can_take || !job->reads_files;
    if (is_new || !cached(job, cache_path, &key, image, image_bytes, description)) {
        status = build(job, preprocessed, image, image_bytes, description);
        if (status == GPULUA_OK) {
            gpu_cache_put(cache_path, &key, CACHE_SUFFIX, *image, *image_bytes,
                          job->source->outcome);
        }
    }
    free(preprocessed);
    return status;
}

gpulua_status gpu_cpu_module_compile(const char *cache_path, bool is_checked,
                                     const struct backend_source *source, void **image,
                                     size_t *image_bytes, char **description,
                                     struct backend_error *error) {
    struct job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no memory for compiling");
    }
    job->source = source;
    job->is_checked = is_checked;
    job->shim_hold = -1;
    job->error = error;
    gpulua_status status = job_run(job, cache_path, image, image_bytes, description);
    gpu_cpu_job_finish(job);
    free(job);
    return status;
}
