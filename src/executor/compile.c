/* The compile thread: compilers take seconds, and nothing else waits for them.
 *
 * The source is copied out of the arena when the record is taken. The thread only compiles; loading
 * what came out, and answering, is the executor's thread's. Started with the first compilation. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "executor/broker.h"
#include "executor/executor.h"
#include "ranges/ranges.h"
#include "wire/sync.h"

struct executor_job {
    struct executor_job *next;
    uint64_t request;
    uint32_t module;
    char *text;    /* owned, NUL-terminated */
    char *name;    /* owned */
    char *keep;    /* owned; NULL: nothing is kept */
    char *options; /* owned */
    /* What came out. */
    void *image;
    size_t image_bytes;
    char *description;
    struct wire_compiled compiled;
    struct backend_error error;
};

static void free_job(struct executor_job *job) {
    free(job->text);
    free(job->name);
    free(job->keep);
    free(job->options);
    free(job->image);
    free(job->description);
    free(job->error.log);
    free(job);
}

static void append(struct executor_job **head, struct executor_job **tail,
                   struct executor_job *job) {
    job->next = NULL;
    if (*tail != NULL) {
        (*tail)->next = job;
    } else {
        *head = job;
    }
    *tail = job;
}

static struct executor_job *take_first(struct executor_job **head, struct executor_job **tail) {
    struct executor_job *job = *head;
    if (job != NULL) {
        *head = job->next;
        if (*head == NULL) {
            *tail = NULL;
        }
        job->next = NULL;
    }
    return job;
}

static void compile(struct wire_executor *executor, struct executor_job *job) {
    char *entered;
    if (gpu_backend_source_enter(job->text, &entered) != GPULUA_OK) {
        gpu_backend_fail(&job->error, GPULUA_OUT_OF_MEMORY, 0, "no memory for compiling '%.256s'",
                         job->name);
        return;
    }
    if (entered != NULL) {
        free(job->text);
        job->text = entered;
    }
    const struct backend_source source = {.name = job->name,
                                          .text = job->text,
                                          .options = job->options,
                                          .keep = job->keep,
                                          .outcome = &job->compiled};
    uint64_t begun_ns = gpu_wire_now_ns();
    bool is_told = gpu_range_push(GPU_RANGE_COMPILE, job->name, 0);
    gpulua_status status =
        executor->info.broker
            ? executor->info.broker->compile(executor->info.broker, executor->ops->name, &source,
                                             &job->image, &job->image_bytes, &job->description,
                                             &job->error)
            : executor->ops->module_compile(executor->device, &source, &job->image,
                                            &job->image_bytes, &job->description, &job->error);
    gpu_range_pop(is_told);
    job->compiled.took_ns = (int64_t)(gpu_wire_now_ns() - begun_ns);
    job->error.status = status;
}

static void *compiler_main(void *user) {
    struct wire_executor *executor = user;
    pthread_mutex_lock(&executor->compile_lock);
    for (;;) {
        while (!executor->compiler_stops && executor->jobs_head == NULL) {
            pthread_cond_wait(&executor->compile_work, &executor->compile_lock);
        }
        if (executor->compiler_stops) {
            break;
        }
        struct executor_job *job = take_first(&executor->jobs_head, &executor->jobs_tail);
        pthread_mutex_unlock(&executor->compile_lock);
        compile(executor, job);
        pthread_mutex_lock(&executor->compile_lock);
        append(&executor->done_head, &executor->done_tail, job);
        atomic_fetch_add_explicit(&executor->done_count, 1, memory_order_acq_rel);
        /* Whoever is to load it: the executor's loop, or a script that sleeps. */
        gpu_wire_flag_wake(&executor->page->executor_sleeps);
        if (executor->info.place == WIRE_EXECUTOR_INLINE) {
            gpu_executor_wake(executor);
        }
    }
    pthread_mutex_unlock(&executor->compile_lock);
    return NULL;
}

static gpulua_status start_compiler(struct wire_executor *executor, struct backend_error *error) {
    int rc = gpu_wire_thread_start(&executor->compiler, compiler_main, executor);
    if (rc != 0) {
        return gpu_backend_fail(error, GPULUA_CAPACITY, rc,
                                "cannot start a thread for compiling: %s", strerror(rc));
    }
    executor->has_compiler = true;
    return GPULUA_OK;
}

/* What is behind "WORD " on a line, to be freed; NULL: it is another line, or no memory. */
static char *value_of(const char *line, size_t length, const char *word) {
    size_t skip = strlen(word);
    return length > skip && memcmp(line, word, skip) == 0 ? strndup(line + skip, length - skip)
                                                          : NULL;
}

/* Takes the lines "source NAME" and "keep PREFIX" out of the options. False: no memory. */
static bool split_options(const char *payload, size_t bytes, struct executor_job *job) {
    size_t length = strnlen(payload, bytes);
    char *out = malloc(length + 2);
    job->options = out;
    if (out == NULL) {
        return false;
    }
    const char *line = payload;
    const char *end = payload + length;
    while (line < end) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        size_t span = (size_t)((stop != NULL ? stop : end) - line);
        bool is_ours = (job->name == NULL && (job->name = value_of(line, span, "source "))) ||
                       (job->keep == NULL && (job->keep = value_of(line, span, "keep ")));
        if (!is_ours && span > 0) {
            memcpy(out, line, span);
            out += span;
            *out++ = '\n';
        }
        line = stop != NULL ? stop + 1 : end;
    }
    *out = '\0';
    if (job->name == NULL) {
        job->name = strdup("kernel.cu");
    }
    return job->name != NULL;
}

static gpulua_status make_job(struct wire_executor *executor, const struct wire_record *record,
                              struct executor_job **made, struct backend_error *error) {
    const char *source =
        gpu_executor_arena(executor, record->u.module.arena_offset, record->u.module.bytes);
    struct executor_module *row =
        gpu_executor_row_make(&executor->modules, record->object, EXECUTOR_OBJECTS_MAX);
    if (row == NULL) {
        return gpu_executor_row_missing(error, "module", record->object, EXECUTOR_OBJECTS_MAX);
    }
    if (source == NULL || row->state != MODULE_NONE) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "module number %" PRIu32 " or its source cannot be used",
                                record->object);
    }
    struct executor_job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no memory for compiling");
    }
    job->request = record->seq;
    job->module = record->object;
    job->text = malloc(record->u.module.bytes + 1);
    size_t payload_bytes = gpu_wire_record_payload_bytes(record);
    if (job->text == NULL || !split_options(gpu_wire_record_payload(record), payload_bytes, job)) {
        free_job(job);
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0,
                                "no memory for a source of %" PRIu64 " bytes",
                                (uint64_t)record->u.module.bytes);
    }
    memcpy(job->text, source, record->u.module.bytes);
    job->text[record->u.module.bytes] = '\0';
    *made = job;
    return GPULUA_OK;
}

gpulua_status gpu_executor_compile_start(struct wire_executor *executor,
                                         const struct wire_record *record,
                                         struct backend_error *error) {
    struct executor_job *job;
    if (make_job(executor, record, &job, error) != GPULUA_OK) {
        return error->status;
    }
    if (!executor->has_compiler && start_compiler(executor, error) != GPULUA_OK) {
        free_job(job);
        return error->status;
    }
    struct executor_module *row = gpu_executor_row(&executor->modules, record->object);
    row->state = MODULE_COMPILING;
    row->request = record->seq;
    pthread_mutex_lock(&executor->compile_lock);
    append(&executor->jobs_head, &executor->jobs_tail, job);
    pthread_cond_signal(&executor->compile_work);
    pthread_mutex_unlock(&executor->compile_lock);
    return GPULUA_OK;
}

/* What came out of a compilation that went well. */
static gpulua_status load(struct wire_executor *executor, struct executor_job *job,
                          struct executor_module *row) {
    bool is_told = gpu_range_push(GPU_RANGE_LOAD, job->name, job->module);
    gpu_executor_loads(executor);
    job->error.status = executor->ops->module_load(executor->device, job->image, job->image_bytes,
                                                   true, &row->module, &job->error);
    gpu_range_pop(is_told);
    if (job->error.status == GPULUA_OK) {
        row->state = MODULE_READY;
    }
    return job->error.status;
}

gpulua_status gpu_executor_compile_ahead(struct wire_executor *executor,
                                         const struct wire_record *record,
                                         struct backend_error *error) {
    struct executor_job *job;
    if (make_job(executor, record, &job, error) != GPULUA_OK) {
        return error->status;
    }
    struct executor_module *row = gpu_executor_row(&executor->modules, record->object);
    free(job->keep); /* files of the script's, which it has by now */
    job->keep = NULL;
    compile(executor, job);
    if (job->error.status == GPULUA_OK && load(executor, job, row) != GPULUA_OK) {
        *row = (struct executor_module){0};
    }
    *error = job->error;
    job->error.log = NULL;
    free_job(job);
    return error->status;
}

static void finish(struct wire_executor *executor, struct executor_job *job) {
    struct executor_module *row = gpu_executor_row(&executor->modules, job->module);
    struct backend_error *error = &job->error;
    bool is_wanted = row != NULL && row->state == MODULE_COMPILING && row->request == job->request;
    if (error->status == GPULUA_OK && !is_wanted) {
        gpu_backend_fail(error, GPULUA_CLOSED, 0, "the module was closed while it was compiled");
    }
    if (error->status == GPULUA_OK &&
        atomic_load_explicit(&executor->is_lost, memory_order_relaxed)) {
        gpu_backend_fail(error, GPULUA_DEVICE_LOST, 0, "the device is lost");
    }
    if (error->status == GPULUA_OK && row != NULL && load(executor, job, row) == GPULUA_OK) {
        gpu_executor_answer(executor, job->request, GPULUA_OK, 0, job->description, &job->compiled,
                            sizeof job->compiled);
        return;
    }
    if (is_wanted) {
        *row = (struct executor_module){0};
    }
    if (error->status == GPULUA_DEVICE_LOST) {
        gpu_executor_lose(executor, error->driver_code, error->message);
    }
    gpu_executor_answer_error(executor, job->request, error);
}

void gpu_executor_compile_collect(struct wire_executor *executor) {
    while (atomic_load_explicit(&executor->done_count, memory_order_acquire) != 0) {
        pthread_mutex_lock(&executor->compile_lock);
        struct executor_job *job = take_first(&executor->done_head, &executor->done_tail);
        atomic_fetch_sub_explicit(&executor->done_count, 1, memory_order_relaxed);
        pthread_mutex_unlock(&executor->compile_lock);
        finish(executor, job);
        free_job(job);
    }
}

void gpu_executor_compile_stop(struct wire_executor *executor) {
    if (!executor->has_compiler) {
        return;
    }
    pthread_mutex_lock(&executor->compile_lock);
    executor->compiler_stops = true;
    pthread_cond_signal(&executor->compile_work);
    pthread_mutex_unlock(&executor->compile_lock);
    pthread_join(executor->compiler, NULL);
    executor->has_compiler = false;
    executor->compiler_stops = false;
    gpu_executor_compile_collect(executor);
    struct executor_job *job;
    while ((job = take_first(&executor->jobs_head, &executor->jobs_tail)) != NULL) {
        gpu_executor_answer(executor, job->request, GPULUA_CLOSED, 0,
                            "the device was closed before the module was compiled", NULL, 0);
        free_job(job);
    }
}
