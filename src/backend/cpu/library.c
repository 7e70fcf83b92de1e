/* Modules of libraries' calls (see library.h). */
#include "backend/cpu/library.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/module.h"
#include "backend/dynamic.h"

static const struct cpu_library *const libraries[] = {&gpu_cpu_blas, &gpu_cpu_fft, &gpu_cpu_rng};
static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* of loading and making: devices are of any thread */

/* ---- forks ---- */

/* Forks first: calls may come without an end. */
static pthread_rwlock_t calls = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

void gpu_cpu_library_enter(void) {
    pthread_rwlock_rdlock(&calls);
}
void gpu_cpu_library_leave(void) {
    pthread_rwlock_unlock(&calls);
}

/* Registered with each library, and so called as often; by several threads that fork at once, too.
 */
static __thread unsigned fork_depth;

static void before_fork(void) {
    if (fork_depth++ == 0) {
        pthread_rwlock_wrlock(&calls);
    }
}
static void after_fork(void) {
    if (--fork_depth == 0) {
        pthread_rwlock_unlock(&calls);
    }
}
/* Its thread has another number than the one that took the lock. */
static void after_fork_in_child(void) {
    static const pthread_rwlock_t fresh = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
    calls = fresh;
    fork_depth = 0;
}

/* Behind the library's own, once it is there: handlers that are registered last are called first.
 */
static gpulua_status watch_forks(struct backend_error *error) {
    return pthread_atfork(before_fork, after_fork, after_fork_in_child) == 0
               ? GPULUA_OK
               : gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no memory to watch for forks");
}

/* ---- loading ---- */

gpulua_status gpu_cpu_library_load(const char *variable, const char *const *names,
                                   const char *package, void **library,
                                   struct backend_error *error) {
    const char *asked[] = {getenv(variable), NULL};
    bool is_asked = asked[0] != NULL && asked[0][0] != '\0';
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    gpulua_status status =
        gpu_backend_library_open(package, is_asked ? asked : names, NULL, library, error);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status == GPULUA_OK ? watch_forks(error) : status;
}

/* Kernels have a table, for their names. */
static gpulua_status module_make(const struct cpu_library *library, struct cpu_module **module,
                                 struct backend_error *error) {
    size_t count = library->call_count;
    struct cpu_module *made = calloc(1, sizeof *made);
    struct cpu_kernel_table *tables = calloc(count, sizeof *tables);
    struct cpu_module_table *table = calloc(1, sizeof *table);
    struct cpu_kernel *kernels = calloc(count, sizeof *kernels);
    if (made == NULL || tables == NULL || table == NULL || kernels == NULL) {
        free(made);
        free(tables);
        free(table);
        free(kernels);
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no memory for a module");
    }
    for (size_t i = 0; i < count; i++) {
        tables[i].name = library->calls[i].name;
        kernels[i].table = &tables[i];
        kernels[i].call = library->calls[i].run;
        kernels[i].args_bytes = library->calls[i].args_bytes;
        kernels[i].args_alignment = 8;
    }
    *table = (struct cpu_module_table){
        .version = CPU_ABI_VERSION, .kernel_count = (unsigned)count, .kernels = tables};
    *made =
        (struct cpu_module){.file = -1, .table = table, .kernels = kernels, .library_table = table};
    *module = made;
    return GPULUA_OK;
}

gpulua_status gpu_cpu_library_open(const char *name, const char *options,
                                   struct cpu_module **module, char **description,
                                   struct backend_error *error) {
    const struct cpu_library *library = NULL;
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries && library == NULL; i++) {
        library = strcmp(libraries[i]->name, name) == 0 ? libraries[i] : NULL;
    }
    if (library == NULL || (library->make == NULL && options[0] != '\0')) {
        return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                                "the CPU device has no library '%s'%s%s", name,
                                options[0] != '\0' ? " with options " : "", options);
    }
    void *made = NULL;
    pthread_mutex_lock(&lock);
    gpulua_status status = library->make == NULL
                               ? library->open(error)
                               : library->make(options, &made, description, error);
    pthread_mutex_unlock(&lock);
    if (status != GPULUA_OK) {
        return status;
    }
    if (library->make == NULL) {
        *description = strdup(library->description);
    }
    status = *description != NULL
                 ? module_make(library, module, error)
                 : gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no memory for a module");
    if (status == GPULUA_OK) {
        (*module)->library = library;
        (*module)->library_made = made;
        for (size_t i = 0; i < library->call_count; i++) {
            (*module)->kernels[i].call_made = made;
        }
    } else if (library->drop != NULL) {
        pthread_mutex_lock(&lock);
        library->drop(made);
        pthread_mutex_unlock(&lock);
    }
    return status;
}

void gpu_cpu_library_close(struct cpu_module *module) {
    free((struct cpu_kernel_table *)(uintptr_t)module->library_table->kernels);
    free(module->library_table);
    if (module->library->drop != NULL) {
        pthread_mutex_lock(&lock);
        module->library->drop(module->library_made);
        pthread_mutex_unlock(&lock);
    }
}
