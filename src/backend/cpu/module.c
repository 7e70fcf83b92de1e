/* Compiled modules: images, loading, kernels and variables by name.
 *
 * Code is loaded from a file in memory whose descriptor stays open as long as the module: the
 * loader knows shared objects by their paths, and /proc/self/fd/N must not come to mean another
 * one. So two modules of one image have variables of their own. */
#include "backend/cpu/module.h"
#include "backend/cpu/library.h"
#include "backend/cpu/lines.h"
#include "backend/file.h"
#include "wire/descriptor.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CODE_ALIGNMENT 4096u

/* ---- images ---- */

bool gpu_cpu_image_open(const void *image, size_t image_bytes, const char **description,
                        const void **code, size_t *code_bytes) {
    struct cpu_image_header header;
    if (image_bytes < sizeof header) {
        return false;
    }
    memcpy(&header, image, sizeof header);
    const char *text = (const char *)image + sizeof header;
    if (memcmp(header.magic, CPU_IMAGE_MAGIC, sizeof header.magic) != 0 ||
        header.description_bytes == 0 || header.description_bytes > image_bytes - sizeof header ||
        header.code_offset < sizeof header + header.description_bytes ||
        header.code_offset > image_bytes || header.code_bytes != image_bytes - header.code_offset ||
        text[header.description_bytes - 1] != '\0') {
        return false;
    }
    *description = text;
    *code = (const char *)image + header.code_offset;
    *code_bytes = header.code_bytes;
    return true;
}

bool gpu_cpu_image_make(const char *description, const void *code, size_t code_bytes, void **image,
                        size_t *image_bytes) {
    struct cpu_image_header header = {.magic = CPU_IMAGE_MAGIC};
    header.description_bytes = strlen(description) + 1;
    header.code_offset = (sizeof header + header.description_bytes + CODE_ALIGNMENT - 1) /
                         CODE_ALIGNMENT * CODE_ALIGNMENT;
    header.code_bytes = code_bytes;
    char *bytes = calloc(1, header.code_offset + code_bytes);
    if (bytes == NULL) {
        return false;
    }
    memcpy(bytes, &header, sizeof header);
    memcpy(bytes + sizeof header, description, header.description_bytes);
    memcpy(bytes + header.code_offset, code, code_bytes);
    *image = bytes;
    *image_bytes = header.code_offset + code_bytes;
    return true;
}

/* ---- code ---- */

gpulua_status gpu_cpu_code_open(const void *code, size_t code_bytes, struct cpu_module *module,
                                struct backend_error *error) {
    memset(module, 0, sizeof *module);
    module->file = gpu_wire_descriptor(memfd_create("gpulua-module", MFD_CLOEXEC));
    if (module->file < 0 || !gpu_backend_write_all(module->file, code, code_bytes)) {
        int number = errno;
        gpu_cpu_code_close(module);
        return gpu_backend_fail(error, GPULUA_IO, number, "memory for compiled code: %s",
                                strerror(number));
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", module->file);
    module->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (module->handle == NULL) {
        const char *text = dlerror();
        gpu_backend_fail(error, GPULUA_IO, 0, "dlopen of compiled code: %s",
                         text != NULL ? text : "unknown error");
        gpu_cpu_code_close(module);
        return GPULUA_IO;
    }
    module->table = dlsym(module->handle, "gpulua_module");
    if (module->table == NULL || module->table->version != CPU_ABI_VERSION) {
        gpu_cpu_code_close(module);
        return gpu_backend_fail(error, GPULUA_INVALID_DATA, 0,
                                "the compiled code is not of this version of gpulua");
    }
    return GPULUA_OK;
}

void gpu_cpu_code_close(struct cpu_module *module) {
    gpu_cpu_lines_close(module);
    if (module->handle != NULL) {
        dlclose(module->handle);
        module->handle = NULL;
    }
    if (module->file >= 0) {
        close(module->file);
        module->file = -1;
    }
}

/* ---- shared memory of a kernel ----
 *
 * __shared__ variables are thread-local variables of functions. In the symbol table their names are
 * _ZZ <function> E <variable>; a function's name there begins with its length. Kernels that have
 * the same name, instances of a template say, count the largest of them each. */

struct symbols {
    const ElfW(Sym) * list;
    size_t count;
    const char *names;
    size_t names_bytes;
};

static bool symbols_find(const unsigned char *code, size_t code_bytes, struct symbols *symbols) {
    const ElfW(Ehdr) *head = (const void *)code;
    if (code_bytes < sizeof *head || memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 ||
        head->e_shoff > code_bytes || head->e_shentsize != sizeof(ElfW(Shdr)) ||
        head->e_shnum > (code_bytes - head->e_shoff) / sizeof(ElfW(Shdr))) {
        return false;
    }
    const ElfW(Shdr) *sections = (const void *)(code + head->e_shoff);
    for (unsigned i = 0; i < head->e_shnum; i++) {
        const ElfW(Shdr) *table = &sections[i];
        if (table->sh_type != SHT_SYMTAB || table->sh_link >= head->e_shnum) {
            continue;
        }
        const ElfW(Shdr) *names = &sections[table->sh_link];
        if (table->sh_offset > code_bytes || table->sh_size > code_bytes - table->sh_offset ||
            names->sh_offset > code_bytes || names->sh_size > code_bytes - names->sh_offset ||
            names->sh_size == 0 || code[names->sh_offset + names->sh_size - 1] != '\0') {
            return false;
        }
        symbols->list = (const void *)(code + table->sh_offset);
        symbols->count = table->sh_size / sizeof(ElfW(Sym));
        symbols->names = (const char *)(code + names->sh_offset);
        symbols->names_bytes = names->sh_size;
        return true;
    }
    return false;
}

/* Length of the <function> in _ZZ<function>E<variable> if it is called `name`; 0: it is not. */
static size_t owner_length(const char *symbol, const char *name, size_t name_length) {
    char sought[32];
    snprintf(sought, sizeof sought, "%zu", name_length);
    if (strncmp(symbol, "_ZZ", 3) != 0) {
        return 0;
    }
    for (const char *at = strstr(symbol, sought); at != NULL; at = strstr(at + 1, sought)) {
        const char *word = at + strlen(sought);
        if (strncmp(word, name, name_length) == 0) {
            /* The variable is what the last length counts. */
            const char *end = symbol + strlen(symbol);
            for (const char *e = word + name_length; e < end; e++) {
                if (*e == 'E' && e[1] >= '1' && e[1] <= '9') {
                    size_t length = strtoul(e + 1, NULL, 10);
                    const char *variable = e + 1 + strspn(e + 1, "0123456789");
                    if (length <= (size_t)(end - variable) &&
                        (variable[length] == '\0' || variable[length] == '_')) {
                        return (size_t)(e - symbol);
                    }
                }
            }
        }
    }
    return 0;
}

static uint32_t shared_bytes_of(const struct symbols *symbols, const char *kernel) {
    size_t length = strcspn(kernel, "<");
    while (length > 0 && kernel[length - 1] == ' ') {
        length--;
    }
    const char *name = kernel + length;
    while (name > kernel && name[-1] != ':' && name[-1] != '&' && name[-1] != ' ') {
        name--;
    }
    length -= (size_t)(name - kernel);
    uint64_t largest = 0;
    for (size_t i = 0; i < symbols->count; i++) {
        const ElfW(Sym) *first = &symbols->list[i];
        size_t owner;
        if ((first->st_info & 15) != STT_TLS || first->st_name >= symbols->names_bytes ||
            (owner = owner_length(symbols->names + first->st_name, name, length)) == 0) {
            continue;
        }
        uint64_t sum = 0;
        for (size_t k = 0; k < symbols->count; k++) {
            const ElfW(Sym) *other = &symbols->list[k];
            if ((other->st_info & 15) == STT_TLS && other->st_name < symbols->names_bytes &&
                strncmp(symbols->names + other->st_name, symbols->names + first->st_name, owner) ==
                    0 &&
                owner_length(symbols->names + other->st_name, name, length) == owner) {
                sum += other->st_size;
            }
        }
        largest = sum > largest ? sum : largest;
    }
    return largest > UINT32_MAX ? UINT32_MAX : (uint32_t)largest;
}

uint32_t gpu_cpu_code_shared_bytes(const void *code, size_t code_bytes, const char *kernel) {
    struct symbols symbols = {0};
    return symbols_find(code, code_bytes, &symbols) ? shared_bytes_of(&symbols, kernel) : 0;
}

/* ---- modules ---- */

static void kernel_read(struct cpu_kernel *kernel, const struct cpu_kernel_table *table) {
    kernel->table = table;
    kernel->args_alignment = 1;
    for (uint32_t i = 0; i < table->param_count; i++) {
        uint32_t alignment = table->params[i].alignment;
        kernel->args_bytes = (kernel->args_bytes + alignment - 1) / alignment * alignment;
        kernel->args_bytes += table->params[i].bytes;
        if (alignment > kernel->args_alignment) {
            kernel->args_alignment = alignment;
        }
    }
}

gpulua_status gpu_cpu_module_load(const char *cache_path, const void *image, size_t image_bytes,
                                  bool compiled, struct cpu_module **module,
                                  struct backend_error *error) {
    (void)cache_path;
    const char *description;
    const void *code;
    size_t code_bytes;
    if (!compiled) {
        return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                                "the CPU device compiles CUDA C; it cannot load PTX or a cubin");
    }
    if (!gpu_cpu_image_open(image, image_bytes, &description, &code, &code_bytes)) {
        return gpu_backend_fail(error, GPULUA_INVALID_DATA, 0,
                                "this is no image that the CPU device has compiled");
    }
    struct cpu_module *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no memory for a module");
    }
    gpulua_status status = gpu_cpu_code_open(code, code_bytes, made, error);
    if (status != GPULUA_OK) {
        free(made);
        return status;
    }
    made->kernels = calloc(made->table->kernel_count + 1u, sizeof *made->kernels);
    if (made->kernels == NULL) {
        gpu_cpu_module_unload(made);
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no memory for a module");
    }
    for (uint32_t i = 0; i < made->table->kernel_count; i++) {
        struct cpu_kernel *kernel = &made->kernels[i];
        kernel_read(kernel, &made->table->kernels[i]);
        kernel->module = made;
        kernel->shared_bytes_static =
            gpu_cpu_code_shared_bytes(code, code_bytes, kernel->table->name);
        if (kernel->args_bytes > CPU_ARGS_BYTES_MAX) {
            gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                             "kernel '%s' has %u bytes of arguments, allowed are %u",
                             kernel->table->name, kernel->args_bytes, CPU_ARGS_BYTES_MAX);
            gpu_cpu_module_unload(made);
            return GPULUA_UNSUPPORTED;
        }
    }
    if (made->table->is_checked != NULL) {
        *made->table->is_checked = 1;
    }
    *module = made;
    return GPULUA_OK;
}

void gpu_cpu_module_unload(struct cpu_module *module) {
    if (module != NULL) {
        if (module->table != NULL && module->table->is_checked != NULL) {
            *module->table->is_checked = 0; /* what runs when it is unloaded runs on no fibre */
        }
        gpu_cpu_code_close(module);
        if (module->library_table != NULL) {
            gpu_cpu_library_close(module);
        }
        free(module->kernels);
        free(module);
    }
}

static void facts_fill(const struct cpu_kernel *kernel, struct wire_kernel_facts *facts) {
    const struct cpu_kernel_table *table = kernel->table;
    memset(facts, 0, sizeof *facts);
    facts->block_threads_max = table->threads_max != 0 && table->threads_max < CPU_BLOCK_THREADS_MAX
                                   ? table->threads_max
                                   : CPU_BLOCK_THREADS_MAX;
    facts->shared_bytes_static = kernel->shared_bytes_static;
    facts->param_count = kernel->call == NULL ? table->param_count : UINT32_MAX;
    facts->occupancy_blocks = 1; /* a core runs one block at a time */
    uint32_t offset = 0;
    for (uint32_t i = 0; i < table->param_count; i++) {
        const struct cpu_type_facts *param = &table->params[i];
        offset = (offset + param->alignment - 1) / param->alignment * param->alignment;
        if (i < sizeof facts->param_bytes / sizeof *facts->param_bytes) {
            facts->param_bytes[i] = param->bytes;
            facts->param_offset[i] = offset;
        }
        offset += param->bytes;
    }
}

gpulua_status gpu_cpu_kernel_get(struct cpu_module *module, const char *name,
                                 struct cpu_kernel **kernel, struct wire_kernel_facts *facts,
                                 struct backend_error *error) {
    for (uint32_t i = 0; i < module->table->kernel_count; i++) {
        if (strcmp(module->table->kernels[i].name, name) == 0) {
            *kernel = &module->kernels[i];
            facts_fill(*kernel, facts);
            return GPULUA_OK;
        }
    }
    return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0, "the module has no kernel '%s'",
                            name);
}

gpulua_status gpu_cpu_global_get(struct cpu_module *module, const char *name, uint64_t *address,
                                 uint64_t *bytes, struct backend_error *error) {
    for (uint32_t i = 0; i < module->table->global_count; i++) {
        const struct cpu_global_table *global = &module->table->globals[i];
        if (strcmp(global->name, name) == 0) {
            *address = (uint64_t)(uintptr_t)global->address;
            *bytes = global->bytes;
            return GPULUA_OK;
        }
    }
    return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0, "the module has no variable '%s'",
                            name);
}
